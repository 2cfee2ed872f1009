"""Codecs of key-value buckets: how keys and values are stored, which only clients know (NATS ADR-54)."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Protocol

from jetlake.errors import DecodeError, InvalidOptionError

_ROOT = "_root_"
_WILDCARDS = ("*", ">")


class KeyCodec(Protocol):
    """Translates keys between what a program uses and what is stored."""

    def encode(self, key: str) -> str:
        """Return the stored form of a key, or of a pattern, whose `*` and `>` stay as they are."""

    def decode(self, key: str) -> str:
        """Return the key of a stored form."""


class ValueCodec(Protocol):
    """Translates values between what a program uses and what is stored."""

    def encode(self, value: bytes) -> bytes:
        """Return the stored form of a value."""

    def decode(self, value: bytes) -> bytes:
        """Return the value of a stored form."""


class Base64Keys:
    """Keys of any characters: every dot-separated token is stored in base64, without padding."""

    def encode(self, key: str) -> str:
        """Return the stored form of a key or pattern."""
        return ".".join(
            token if token in _WILDCARDS else urlsafe_b64encode(token.encode()).decode().rstrip("=")
            for token in key.split(".")
        )

    def decode(self, key: str) -> str:
        """Return the key of a stored form.

        Raises:
            DecodeError: a token is no base64.
        """
        return ".".join(_from_base64(token).decode("utf-8", "replace") for token in key.split("."))


class PathKeys:
    """Keys that look like paths: `/a/b` is stored as `_root_.a.b`, `a/b` as `a.b`."""

    def encode(self, key: str) -> str:
        """Return the stored form of a path or of a pattern such as `/a/*`.

        Raises:
            InvalidOptionError: the path has dots, which could not be told from slashes afterwards.
        """
        if "." in key:
            raise InvalidOptionError(
                f"a key that is a path must not contain dots, as {key!r} has: they would come back as slashes"
            )
        path = key[1:] if key.startswith("/") else key
        tokens = path.rstrip("/").replace("/", ".")
        if path is key:
            return tokens
        return f"{_ROOT}.{tokens}" if tokens else _ROOT

    def decode(self, key: str) -> str:
        """Return the path of a stored form."""
        path = key.replace(".", "/")
        if path == _ROOT:
            return "/"
        return path.removeprefix(_ROOT) if path.startswith(f"{_ROOT}/") else path


class Base64Values:
    """Values that are stored in base64, with padding."""

    def encode(self, value: bytes) -> bytes:
        """Return the stored form of a value."""
        return urlsafe_b64encode(value)

    def decode(self, value: bytes) -> bytes:
        """Return the value of a stored form.

        Raises:
            DecodeError: it is no base64.
        """
        try:
            return b64decode(value, altchars=b"-_", validate=True)
        except Base64Error as error:
            raise DecodeError(f"a value is not valid base64: {error}") from None


class KeyChain:
    """Several codecs of keys, one after another.

    Args:
        codecs: the first encodes what the program uses, the last gives what is stored.
    """

    def __init__(self, *codecs: KeyCodec) -> None:
        self._codecs = codecs

    def encode(self, key: str) -> str:
        """Return the stored form of a key or pattern."""
        for codec in self._codecs:
            key = codec.encode(key)
        return key

    def decode(self, key: str) -> str:
        """Return the key of a stored form."""
        for codec in reversed(self._codecs):
            key = codec.decode(key)
        return key


class ValueChain:
    """Several codecs of values, one after another.

    Args:
        codecs: the first encodes what the program uses, the last gives what is stored.
    """

    def __init__(self, *codecs: ValueCodec) -> None:
        self._codecs = codecs

    def encode(self, value: bytes) -> bytes:
        """Return the stored form of a value."""
        for codec in self._codecs:
            value = codec.encode(value)
        return value

    def decode(self, value: bytes) -> bytes:
        """Return the value of a stored form."""
        for codec in reversed(self._codecs):
            value = codec.decode(value)
        return value


def _from_base64(token: str) -> bytes:
    try:
        return urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError as error:
        raise DecodeError(f"the key {token!r} is not valid base64: {error}") from None
