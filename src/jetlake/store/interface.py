"""What goes into a store and comes out of it: messages, runs of them, limits, and the calls of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from jetlake.errors import StoreError
from jetlake.store.message import StoredMessage

__all__ = [
    "BULK_REMOVAL",
    "SUBJECT_BYTES_MAX",
    "Incoming",
    "Run",
    "StoreHooks",
    "StoreLimits",
    "rising_times",
]

Incoming = tuple[bytes, bytes, bytes, bytes]
"""A message on its way in: subject, something that does not concern the store, header, payload."""

BULK_REMOVAL = 1024
"""When one call removes more messages than this, `on_purged` is called once instead of `on_removed` for each."""

SUBJECT_BYTES_MAX = 65_535
"""The longest subject that a record can tell."""


def rising_times(times: Sequence[int], last_time_ns: int) -> list[int]:
    """Raise each time that is before its predecessor's to that one."""
    return list(accumulate(times, max, initial=last_time_ns))[1:]


class Run(msgspec.Struct, gc=False, frozen=True):
    """Consecutive matching messages of a stream, in order.

    Attributes:
        messages: the messages; empty only when nothing that matches is left up to the end of the read.
        next_sequence: where the next read continues.
    """

    messages: list[StoredMessage]
    next_sequence: int


class StoreLimits(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """How much a store keeps; zero and negative numbers mean without limit."""

    max_messages: int = -1
    max_bytes: int = -1
    max_per_subject: int = -1
    max_age_ns: int = 0


class StoreHooks(msgspec.Struct):
    """What a store calls, all from the thread that uses it; None for nothing.

    Attributes:
        on_removed: called with sequence, subject and size of each message that goes (but see `BULK_REMOVAL`).
        on_purged: called once after many messages went in one go.
        may_forget: asked before a file goes that holds the records of removed messages between two sequences, for good
            or by a rewrite without them; it is asked again after False.
        on_full: called when a segment is full, so that house-keeping can spill its index and compress it.
        on_rolled_back: called with the reason after the appends since the last flush were rolled back.
    """

    on_removed: Callable[[int, bytes, int], None] | None = None
    on_purged: Callable[[], None] | None = None
    may_forget: Callable[[int, int], bool] | None = None
    on_full: Callable[[], None] | None = None
    on_rolled_back: Callable[[StoreError], None] | None = None
