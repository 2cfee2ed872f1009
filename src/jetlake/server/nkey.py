"""Nkeys: keys as NATS writes them, signatures made with a seed, and the check of one."""

from __future__ import annotations

import os
from base64 import b32decode, b32encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as EncodingError
from binascii import crc_hqx
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError

if TYPE_CHECKING:
    from nacl.signing import SigningKey

__all__ = ["is_user_nkey", "new_server_id", "public_nkey", "sign", "verify_signature"]

# The first byte of a key says what it is for, and makes its first letter.
_SERVER_PREFIX = 13 << 3
_USER_PREFIX = 20 << 3
_SEED_PREFIX = 18 << 3
_KEY_BYTES = 35  # the prefix, the key, two of checksum
_SEED_BYTES = 36  # two of prefixes, the seed, two of checksum


def new_server_id() -> str:
    """Return an id in the form of a server's public nkey: 56 letters, the first an `N`."""
    body = bytes([_SERVER_PREFIX]) + os.urandom(32)
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def sign(seed: str, nonce: str) -> str:
    """Sign a server's nonce with a seed, in the form of CONNECT.

    Raises:
        ConfigError: the text is no seed, or the package that signs is not installed.
    """
    signature: bytes = _signing_key(seed).sign(nonce.encode()).signature
    return urlsafe_b64encode(signature).decode().rstrip("=")


def public_nkey(seed: str) -> str:
    """Return the public nkey of a user's seed.

    Raises:
        ConfigError: the text is no seed, or the package that signs is not installed.
    """
    body = bytes([_USER_PREFIX]) + bytes(_signing_key(seed).verify_key)
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _signing_key(seed: str) -> SigningKey:
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise ConfigError("an nkey seed needs the package nkeys: install jetlake[server]") from None
    raw = _decode_raw(seed.strip(), _SEED_BYTES)
    if raw is None or raw[0] & 0xF8 != _SEED_PREFIX:
        raise ConfigError("not an nkey seed (a text that begins with S)")
    return SigningKey(raw[2:])


def _decode(key: str) -> bytes | None:
    """Prefix and public key; None when the text is no nkey."""
    return _decode_raw(key, _KEY_BYTES)


def _decode_raw(text: str, size: int) -> bytes | None:
    """Decode a text of `size` bytes, and check its checksum; None when it is invalid."""
    try:
        raw = b32decode(text.encode("ascii", "replace") + b"=" * (-len(text) % 8))
    except (EncodingError, ValueError):
        return None
    if len(raw) != size or crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[:-2]


def is_user_nkey(key: str) -> bool:
    """Return whether the text is the public nkey of a user (`U…`)."""
    raw = _decode(key)
    return raw is not None and raw[0] == _USER_PREFIX


def verify_signature(key: str, message: bytes, signature: str) -> bool:
    """Return whether `signature` (base64 in either alphabet) was made over `message` with this user's key."""
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
