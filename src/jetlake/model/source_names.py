"""The names of copying between streams: a stream's identity, a source's index name, its consumer, its header."""

from __future__ import annotations

from typing import NamedTuple

from jetlake.model.ack_subject import account_hash as short_hash
from jetlake.model.encoding.times import format_time
from jetlake.model.stream import StreamSource

__all__ = [
    "SOURCE_HEADER",
    "SourceHeader",
    "consumer_name",
    "index_name",
    "parse_source_header",
    "short_hash",
    "stream_identity",
]

SOURCE_HEADER = b"Nats-Stream-Source"
"""The header that names the origin of a copied message."""

_DIGITS_MAX = 20
_EVERYTHING = ">"
_JOINED_BY = "\f"


def stream_identity(created_ns: int) -> str:
    """Return what tells a stream from another one that was created later under its name."""
    return short_hash(format_time(created_ns))


def index_name(source: StreamSource) -> str:
    """Return the name of a source within its stream: origin, filters and destinations, separated by blanks."""
    name = source.name
    if source.external is not None:
        name += ":" + short_hash(source.external.api)
    if source.consumer is not None:
        name += ":C=" + short_hash(source.consumer.name)
    transforms = source.subject_transforms
    if not transforms:
        return f"{name} {source.filter_subject or _EVERYTHING} {_EVERYTHING}"
    filters = _JOINED_BY.join(transform.src or _EVERYTHING for transform in transforms)
    destinations = _JOINED_BY.join(transform.dest or _EVERYTHING for transform in transforms)
    return f"{name} {filters} {destinations}"


def consumer_name(stream: str, account: str, domain: str, source_index: str | None = None) -> str:
    """Return the name of the consumer at the origin; the origin may append to it.

    Args:
        stream: the stream that copies.
        source_index: None for a mirror; for a source its index name where the origin's name occurs twice, else empty.
    """
    text = short_hash(f"{stream} {account} {domain}" if domain else f"{stream} {account}")
    if source_index is None:
        return f"JS_MIRROR_{text}"
    return f"JS_SRC_{short_hash(f'{text} {source_index}' if source_index else text)}"


class SourceHeader(NamedTuple):
    """What `Nats-Stream-Source` says about a copied message."""

    index_name: str
    """The source's index name; of headers from before nats-server 2.10 only the origin's name."""
    sequence: int
    """The message's sequence at the origin."""
    identity: str
    """The origin's identity; empty where the header has none."""


def parse_source_header(value: bytes) -> SourceHeader | None:
    """Parse the header's value; None when it is malformed."""
    fields = value.decode("utf-8", "replace").split(" ")
    if len(fields) < 2 or not (fields[1].isascii() and fields[1].isdigit() and len(fields[1]) <= _DIGITS_MAX):
        return None
    name = f"{fields[0]} {fields[2]} {fields[3]}" if len(fields) >= 4 else fields[0]
    return SourceHeader(name, int(fields[1]), fields[5] if len(fields) > 5 else "")
