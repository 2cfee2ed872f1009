"""TLS as the standard library does it best, unless somebody asks for more."""

import ssl
from pathlib import Path

import pytest

from jetlake.server.config.cipher_suites import read_cipher_suites
from jetlake.server.config.conf import parse_text
from jetlake.server.config.options import TlsOptions
from jetlake.server.config.section import Findings, Section
from jetlake.server.shell.access.tls import server_context

CERTIFICATES = Path(__file__).parents[1] / "conformance" / "certificates"


def files():
    certificate = next(
        path for path in sorted(CERTIFICATES.glob("*.pem")) if "server" in path.name and "key" not in path.name
    )
    key = next(path for path in sorted(CERTIFICATES.glob("*.pem")) if "server" in path.name and "key" in path.name)
    return {"cert_file": str(certificate), "key_file": str(key)}


def test_old_versions_and_compression_are_off():
    context = server_context(TlsOptions(**files()))
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.maximum_version in (ssl.TLSVersion.MAXIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_3)
    assert context.options & ssl.OP_NO_COMPRESSION
    assert not any("RC4" in cipher["name"] or "NULL" in cipher["name"] for cipher in context.get_ciphers())
    assert all(cipher["strength_bits"] >= 128 for cipher in context.get_ciphers())


def test_more_can_be_asked_for_and_less_cannot():
    assert server_context(TlsOptions(**files(), min_version="1.3")).minimum_version == ssl.TLSVersion.TLSv1_3
    for version in ("1.0", "1.1", "SSLv3", "0"):
        with pytest.raises(ValueError, match=r"1\.2 or 1\.3"):
            server_context(TlsOptions(**files(), min_version=version))


def test_clients_must_show_a_certificate_when_asked():
    assert server_context(TlsOptions(**files(), verify=True)).verify_mode == ssl.CERT_REQUIRED


def test_ciphers_can_be_chosen_and_weak_ones_cannot():
    context = server_context(TlsOptions(**files(), cipher_suites="ECDHE-RSA-AES256-GCM-SHA384"))
    assert {c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"} == {"ECDHE-RSA-AES256-GCM-SHA384"}
    for names, why in (
        ('["TLS_RSA_WITH_RC4_128_SHA"]', "TLS_RSA_WITH_RC4_128_SHA is not supported"),
        ("[]", "an empty list"),
        ('["TLS_AES_128_GCM_SHA256"]', "use min_version 1.3"),
    ):
        with pytest.raises(ValueError, match=why):
            read_cipher_suites(Section(parse_text(f"cipher_suites: {names}"), Findings()))
