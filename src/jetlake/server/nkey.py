"""Nkeys: public keys as NATS writes them, and the check of a signature made with one."""

from __future__ import annotations

import os
from base64 import b32decode, b32encode, urlsafe_b64decode
from binascii import Error as EncodingError
from binascii import crc_hqx

from jetlake.errors import ConfigError

__all__ = ["is_user_nkey", "new_server_id", "verify_signature"]

# The first byte of a key says what it is for, and makes its first letter.
_SERVER_PREFIX = 13 << 3
_USER_PREFIX = 20 << 3


def new_server_id() -> str:
    """An id in the form of a server's public nkey: 56 letters, the first an `N`."""
    body = bytes([_SERVER_PREFIX]) + os.urandom(32)
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _decode(key: str) -> bytes | None:
    """Prefix and public key; None when the text is no nkey."""
    try:
        raw = b32decode(key.encode("ascii", "replace") + b"=" * (-len(key) % 8))
    except (EncodingError, ValueError):
        return None
    if len(raw) != 35 or crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[:-2]


def is_user_nkey(key: str) -> bool:
    """Whether the text is the public nkey of a user (`U…`)."""
    raw = _decode(key)
    return raw is not None and raw[0] == _USER_PREFIX


def verify_signature(key: str, message: bytes, signature: str) -> bool:
    """Whether `signature` (base64, either alphabet, padded or not) was made over `message` with this user's key."""
    raw = _decode(key)
    if raw is None:
        return False
    try:
        from nacl.exceptions import CryptoError
        from nacl.signing import VerifyKey
    except ImportError:
        raise ConfigError("users with an nkey need the package nkeys: install jetlake[server]") from None
    text = signature.encode("ascii", "replace").replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=")
    try:
        VerifyKey(raw[1:]).verify(message, urlsafe_b64decode(text + b"=" * (-len(text) % 4)))
    except (CryptoError, ValueError, TypeError):
        return False
    return True
