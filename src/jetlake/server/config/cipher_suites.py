"""Cipher suites of TLS 1.2: the names of the standard, as in a configuration, and the names of OpenSSL."""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.server.config.section import Section

__all__ = ["read_cipher_suites"]

# The suites of TLS 1.3 are always on, as in nats-server.
_NAMES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
_OF_TLS_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


def read_cipher_suites(section: Section) -> str:
    """Read the list under `cipher_suites` as OpenSSL takes it; empty = OpenSSL's own.

    Raises:
        ConfigError: a name is none of a cipher suite that is still safe.
    """
    names = section.strings("cipher_suites")
    if names is None:
        return ""
    unknown = [name for name in names if name not in _NAMES and name not in _OF_TLS_1_3]
    if unknown or not names:
        raise ConfigError(
            f"{section.value.place}: cipher_suites: {unknown[0] if unknown else 'an empty list'} is not supported; "
            f"the names are {', '.join([*_NAMES, *sorted(_OF_TLS_1_3)])}"
        )
    known = [_NAMES[name] for name in names if name in _NAMES]
    if not known:
        raise ConfigError(f"{section.value.place}: cipher_suites of TLS 1.3 alone: use min_version 1.3 instead")
    return ":".join(known)
