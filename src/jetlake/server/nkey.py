"""Nkeys as CONNECT and INFO have them: a server's id, signatures made with a seed, and the check of one."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from jetlake.auth.keys import SERVER, KeyPair, random_public, verify

__all__ = ["new_server_id", "public_nkey", "sign", "verify_signature"]


def new_server_id() -> str:
    """Return an id in the form of a server's public nkey: 56 letters, the first an `N`."""
    return random_public(SERVER)


def sign(seed: str, nonce: str) -> str:
    """Sign a server's nonce with a seed, in the form of CONNECT.

    Raises:
        ConfigError: the text is no seed, or the package that signs is not installed.
    """
    return urlsafe_b64encode(KeyPair.from_seed(seed).sign(nonce.encode())).decode().rstrip("=")


def public_nkey(seed: str) -> str:
    """Return the public nkey of a seed.

    Raises:
        ConfigError: the text is no seed, or the package that signs is not installed.
    """
    return KeyPair.from_seed(seed).public


def verify_signature(key: str, message: bytes, signature: str) -> bool:
    """Return whether `signature` (base64 in either alphabet) was made over `message` with this user's key.

    Raises:
        ConfigError: the package that verifies is not installed.
    """
    text = signature.encode("ascii", "replace").replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=")
    try:
        signed = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError:
        return False
    return verify(key, message, signed)
