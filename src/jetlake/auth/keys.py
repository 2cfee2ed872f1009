"""Nkeys: Ed25519 keys that sign, X25519 keys that seal, and their text forms."""

from __future__ import annotations

import os
from base64 import b32decode, b32encode
from binascii import Error as EncodingError
from binascii import crc_hqx
from typing import TYPE_CHECKING

from jetlake.errors import InvalidOptionError

if TYPE_CHECKING:
    from nacl.public import PrivateKey
    from nacl.signing import SigningKey

__all__ = [
    "ACCOUNT",
    "CURVE",
    "OPERATOR",
    "SERVER",
    "USER",
    "CurveKey",
    "KeyPair",
    "kind_of",
    "random_public",
    "verify",
]

OPERATOR = "operator"
ACCOUNT = "account"
USER = "user"
SERVER = "server"
CURVE = "curve"

# The first byte of a key says what the key is for, and makes the first letter of its text.
_PREFIXES = {OPERATOR: 14 << 3, ACCOUNT: 0, USER: 20 << 3, SERVER: 13 << 3, CURVE: 23 << 3}
_KINDS = {prefix: kind for kind, prefix in _PREFIXES.items()}
_SEED_PREFIX = 18 << 3
_PUBLIC_BYTES = 35  # the prefix, the key, two of checksum
_SEED_BYTES = 36  # two of prefixes, the seed, two of checksum

_SEAL_VERSION = b"xkv1"
_NONCE_BYTES = 24


class KeyPair:
    """A key that signs: of an operator, an account, a user or a server.

    Attributes:
        kind: what the key is for, such as `account`.
        public: the public key, such as `AB4…`.
    """

    __slots__ = ("_seed", "_signing_key", "kind", "public")

    def __init__(self, kind: str, secret: bytes) -> None:
        self.kind = kind
        self._seed = secret
        self._signing_key = _signing_key(secret)
        self.public = _public_text(kind, bytes(self._signing_key.verify_key))

    @classmethod
    def create(cls, kind: str) -> KeyPair:
        """Create a key at random."""
        return cls(kind, os.urandom(32))

    @classmethod
    def from_seed(cls, seed: str) -> KeyPair:
        """Return the key of a seed (`SO…`, `SA…`, `SU…`, `SN…`).

        Raises:
            InvalidOptionError: the text is no seed of a key that signs.
        """
        kind, secret = _read_seed(seed)
        if kind == CURVE:
            raise InvalidOptionError("this seed (SX…) belongs to a key that seals, not to one that signs")
        return cls(kind, secret)

    @property
    def seed(self) -> str:
        """The secret, as it is kept in a file; never log it."""
        return _seed_text(self.kind, self._seed)

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return bytes(self._signing_key.sign(message).signature)

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


class CurveKey:
    """A key that seals messages for another key of its kind, and opens messages that were sealed for it.

    Attributes:
        public: the public key, `X…`.
    """

    __slots__ = ("_private", "_seed", "public")

    def __init__(self, secret: bytes) -> None:
        self._seed = secret
        self._private = _private_key(secret)
        self.public = _public_text(CURVE, bytes(self._private.public_key))

    @classmethod
    def create(cls) -> CurveKey:
        """Create a key at random."""
        return cls(os.urandom(32))

    @classmethod
    def from_seed(cls, seed: str) -> CurveKey:
        """Return the key of a seed (`SX…`).

        Raises:
            InvalidOptionError: the text is no seed of a key that seals.
        """
        kind, secret = _read_seed(seed)
        if kind != CURVE:
            raise InvalidOptionError("this seed belongs to a key that signs, not to one that seals (SX…)")
        return cls(secret)

    @property
    def seed(self) -> str:
        """The secret, as it is kept in a file; never log it."""
        return _seed_text(CURVE, self._seed)

    def seal(self, message: bytes, recipient: str) -> bytes:
        """Encrypt a message for the owner of a public key.

        Raises:
            InvalidOptionError: the recipient is no public curve key.
        """
        from nacl.public import Box

        nonce = os.urandom(_NONCE_BYTES)
        box = Box(self._private, _curve_public(recipient))
        return _SEAL_VERSION + nonce + bytes(box.encrypt(message, nonce).ciphertext)

    def open(self, message: bytes, sender: str) -> bytes | None:
        """Decrypt a message of the owner of a public key; None when it was not sealed by that key for this one."""
        from nacl.exceptions import CryptoError
        from nacl.public import Box

        start = len(_SEAL_VERSION)
        if not message.startswith(_SEAL_VERSION) or len(message) <= start + _NONCE_BYTES:
            return None
        try:
            box = Box(self._private, _curve_public(sender))
            return bytes(box.decrypt(message[start + _NONCE_BYTES :], message[start : start + _NONCE_BYTES]))
        except (CryptoError, InvalidOptionError):
            return None

    def __repr__(self) -> str:
        return f"CurveKey({self.public})"


def random_public(kind: str) -> str:
    """Return a random text in the form of a public key: an id that no key belongs to."""
    return _public_text(kind, os.urandom(32))


def kind_of(public: str) -> str | None:
    """Return what a public key is for; None when the text is no public key."""
    raw = _decode(public, _PUBLIC_BYTES)
    return None if raw is None else _KINDS.get(raw[0])


def verify(public: str, message: bytes, signature: bytes) -> bool:
    """Return whether the owner of this public key signed the message."""
    raw = _decode(public, _PUBLIC_BYTES)
    if raw is None or raw[0] == _PREFIXES[CURVE]:
        return False
    try:
        from nacl.exceptions import CryptoError
        from nacl.signing import VerifyKey
    except ImportError:
        raise InvalidOptionError(_MISSING) from None
    try:
        VerifyKey(raw[1:]).verify(message, signature)
    except (CryptoError, ValueError, TypeError):
        return False
    return True


_MISSING = "keys and tokens need the package nkeys: pip install 'jetlake[client]'"


def _signing_key(secret: bytes) -> SigningKey:
    try:
        from nacl.signing import SigningKey
    except ImportError:
        raise InvalidOptionError(_MISSING) from None
    return SigningKey(secret)


def _private_key(secret: bytes) -> PrivateKey:
    try:
        from nacl.public import PrivateKey
    except ImportError:
        raise InvalidOptionError(_MISSING) from None
    return PrivateKey(secret)


def _curve_public(public: str):  # type: ignore[no-untyped-def]  # a class that is loaded where it is used
    from nacl.public import PublicKey

    raw = _decode(public, _PUBLIC_BYTES)
    if raw is None or raw[0] != _PREFIXES[CURVE]:
        raise InvalidOptionError("not a public curve key (a text that begins with X)")
    return PublicKey(raw[1:])


def _read_seed(seed: str) -> tuple[str, bytes]:
    raw = _decode(seed.strip(), _SEED_BYTES)
    if raw is None or raw[0] & 0xF8 != _SEED_PREFIX:
        raise InvalidOptionError("not an nkey seed (a text that begins with S)")
    kind = _KINDS.get((raw[0] & 7) << 5 | raw[1] >> 3)
    if kind is None:
        raise InvalidOptionError("this seed belongs to a kind of key that is not used here")
    return kind, raw[2:]


def _seed_text(kind: str, secret: bytes) -> str:
    prefix = _PREFIXES[kind]
    return _encode(bytes([_SEED_PREFIX | prefix >> 5, (prefix & 31) << 3]) + secret)


def _public_text(kind: str, key: bytes) -> str:
    return _encode(bytes([_PREFIXES[kind]]) + key)


def _encode(body: bytes) -> str:
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _decode(text: str, size: int) -> bytes | None:
    """Decode a text of this many bytes, and verify and remove its checksum; None when it is invalid."""
    if len(text) > 2 * size:
        return None
    try:
        raw = b32decode(text.encode("ascii", "replace") + b"=" * (-len(text) % 8))
    except (EncodingError, ValueError):
        return None
    if len(raw) != size or crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[:-2]
