"""Header blocks: `NATS/1.0[ status[ description]]`, then `Key: Value` lines, then an empty line.

`Headers` reads a block when it is first asked and never before. The functions below it work on the raw block for code
that handles every message and wants one value at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from jetlake.errors import BadHeaderError

__all__ = [
    "Headers",
    "append_pair",
    "encode_headers",
    "find_value",
    "inline_status",
    "remove_key",
    "replace_value",
    "strip_status",
    "writable_pairs",
]

_VERSION = b"NATS/1.0"
_BARE = b"NATS/1.0\r\n"

_find_bad_in_key = re.compile(r"[:\s\x00-\x1f\x7f]").search
_find_bad_in_value = re.compile(r"[\r\n]").search

Pairs = Mapping[str, "str | list[str] | tuple[str, ...]"] | Iterable[tuple[str, str]]


class Headers:
    """A header block: keys in order, repeated keys kept, lookup by the exact spelling.

    Args:
        raw: the block as it came off the wire, kept untouched; empty bytes are a block without anything.
    """

    __slots__ = ("_description", "_pairs", "_status", "raw")

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = raw
        self._pairs: list[tuple[str, str]] | None = None
        self._status: int | None = None
        self._description = ""

    @classmethod
    def build(cls, pairs: Pairs = (), status: int | None = None, description: str = "") -> Headers:
        """Return a block made of pairs; a mapping's value may be a list, for a repeated key.

        Raises:
            BadHeaderError: a key or value would break the block.
        """
        return cls(encode_headers(pairs, status, description))

    @property
    def status(self) -> int | None:
        """The number after the version, as JetStream's status messages carry it."""
        self._read()
        return self._status

    @property
    def description(self) -> str:
        """The words after the status."""
        self._read()
        return self._description

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the key's first value."""
        for name, value in self._read():
            if name == key:
                return value
        return default

    def get_all(self, key: str) -> list[str]:
        """Return all the key's values, in order."""
        return [value for name, value in self._read() if name == key]

    def items(self) -> list[tuple[str, str]]:
        """Return all pairs, in order."""
        return list(self._read())

    def keys(self) -> list[str]:
        """Return the keys in order, each once."""
        return list(dict.fromkeys(name for name, _ in self._read()))

    def __getitem__(self, key: str) -> str:
        for name, value in self._read():
            if name == key:
                return value
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(name == key for name, _ in self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, Headers) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        try:
            status = "" if self.status is None else f"{self.status} {self.description}".strip() + ", "
            return f"Headers({status}{self._read()!r})"
        except BadHeaderError:
            return f"Headers({self.raw!r})"

    def _read(self) -> list[tuple[str, str]]:
        pairs = self._pairs
        if pairs is None:
            pairs = []
            if self.raw:
                first, *lines = self.raw.decode("utf-8", "surrogateescape").split("\r\n")
                status, description = _read_version_line(first)
                pairs = _read_pairs(lines)
                self._status, self._description = status, description
            self._pairs = pairs
        return pairs


def _read_version_line(line: str) -> tuple[int | None, str]:
    if not line.startswith("NATS/1.0"):
        raise BadHeaderError(f"header block does not begin with NATS/1.0: {line[:40]!r}")
    rest = line[len(_VERSION) :]
    status, _, description = rest.strip().partition(" ")
    if not status:
        return None, ""
    if rest[0] not in " \t" or not (status.isascii() and status.isdigit() and len(status) <= 9):
        raise BadHeaderError(f"header status is not a number: {line[:40]!r}")
    return int(status), description.strip()


def _read_pairs(lines: list[str]) -> list[tuple[str, str]]:
    if lines[-2:] != ["", ""]:
        raise BadHeaderError("header block does not end with an empty line")
    pairs = []
    for line in lines[:-2]:
        key, colon, value = line.partition(":")
        if not colon or not key:
            raise BadHeaderError(f"header line without a key: {line[:40]!r}")
        pairs.append((key, value.lstrip(" \t")))
    return pairs


def encode_headers(pairs: Pairs = (), status: int | None = None, description: str = "") -> bytes:
    """Return the block as bytes.

    Raises:
        BadHeaderError: a key is empty or holds a colon, a blank or a control character; a value or the description
            holds a line break; something is no str, or not to be written in UTF-8; a description has no status.
    """
    if status is None:
        if description:
            raise BadHeaderError("a header description needs a status")
        lines = ["NATS/1.0"]
    else:
        _check_value("description", description)
        lines = [f"NATS/1.0 {status:d} {description}".rstrip(" ")]
    for key, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
        _check_key(key)
        for single in value if isinstance(value, (list, tuple)) else (value,):
            _check_value(key, single)
            lines.append(f"{key}: {single}")
    lines.append("\r\n")
    try:
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadHeaderError(f"headers cannot be encoded as UTF-8: {error}") from error


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise BadHeaderError(f"a header key must be a str, not {type(key).__name__}")
    if not key:
        raise BadHeaderError("a header key is empty")
    if _find_bad_in_key(key) is not None:
        raise BadHeaderError(f"header key {key!r} holds a colon, a blank or a control character")


def _check_value(key: str, value: str) -> None:
    if not isinstance(value, str):
        raise BadHeaderError(f"header {key!r} needs a str value, not {type(value).__name__}")
    if _find_bad_in_value(value) is not None:
        raise BadHeaderError(f"header {key!r} has a line break in its value")


def writable_pairs(raw: bytes) -> list[tuple[str, str]]:
    """Return the pairs of a raw block that can be written into another one; never raises.

    Publishers may send any bytes: lines without a key, or whose key or value would be refused, are left out.
    """
    pairs = []
    for line in raw.decode("utf-8", "surrogateescape").split("\r\n")[1:]:
        key, colon, value = line.partition(":")
        if colon and key and _find_bad_in_key(key) is None and _find_bad_in_value(value) is None:
            pairs.append((key, value.lstrip(" \t")))
    return pairs


def find_value(raw: bytes, key: bytes) -> bytes | None:
    """Return the key's first value in a raw block, without reading the rest."""
    start = raw.find(b"\r\n%b:" % key)
    if start < 0:
        return None
    start += len(key) + 3
    end = raw.find(b"\r\n", start)
    return raw[start : end if end >= 0 else None].lstrip(b" ")


def append_pair(raw: bytes, key: bytes, value: bytes) -> bytes:
    """Return the block with one more line at its end, made if it was empty; key and value are taken as they are."""
    return b"%b%b: %b\r\n\r\n" % (raw[:-2] if raw else _BARE, key, value)


def replace_value(raw: bytes, key: bytes, value: bytes) -> bytes:
    """Return the block with another value in the key's first line; unchanged when there is none."""
    start = raw.find(b"\r\n%b:" % key)
    if start < 0:
        return raw
    start += len(key) + 3
    return b"%b %b%b" % (raw[:start], value, raw[raw.find(b"\r\n", start) :])


def remove_key(raw: bytes, key: bytes) -> bytes:
    """Return the block without any line of that key, and empty if nothing else was in it."""
    needle = b"\r\n%b:" % key
    start = raw.find(needle)
    if start < 0:
        return raw
    while start >= 0:
        end = raw.find(b"\r\n", start + 2)
        raw = raw[:start] + (raw[end:] if end >= 0 else b"")
        start = raw.find(needle, start)
    return b"" if raw == _BARE + b"\r\n" else raw


def inline_status(raw: bytes) -> int | None:
    """Return the status of a raw block, or None; never raises."""
    if raw[8:9] != b" " or not raw.startswith(_VERSION):
        return None
    status = raw[9:12]
    return int(status) if status.isdigit() else None


def strip_status(raw: bytes) -> bytes:
    """Return the block as a stream stores it: without status and description, and empty if nothing else was in it."""
    end = raw.find(b"\r\n")
    if end <= len(_VERSION) or not raw.startswith(_VERSION):
        return raw
    rest = raw[end:]
    return b"" if rest == b"\r\n\r\n" else _VERSION + rest
