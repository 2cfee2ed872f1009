"""Key-value buckets: a stream whose subjects are keys and whose last message of each is the value."""

from __future__ import annotations

from jetlake.client.kv.bucket import KeyValue, KeyWatch
from jetlake.client.kv.codecs import (
    Base64Keys,
    Base64Values,
    KeyChain,
    KeyCodec,
    PathKeys,
    ValueChain,
    ValueCodec,
)
from jetlake.client.kv.config import BucketStatus
from jetlake.client.kv.entry import Entry, Operation

__all__ = [
    "Base64Keys",
    "Base64Values",
    "BucketStatus",
    "Entry",
    "KeyChain",
    "KeyCodec",
    "KeyValue",
    "KeyWatch",
    "Operation",
    "PathKeys",
    "ValueChain",
    "ValueCodec",
]


def __dir__() -> list[str]:
    return sorted(__all__)
