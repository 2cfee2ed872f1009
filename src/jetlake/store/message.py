"""Messages as the store hands them out: one by one, or many column by column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec

__all__ = ["MessageColumns", "StoredMessage"]


class StoredMessage(msgspec.Struct, gc=False, frozen=True):
    """One stored message; `header` is the whole header block, or b"" when there is none."""

    sequence: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes


class MessageColumns(msgspec.Struct, gc=False):
    """Stored messages column by column, without an object for each; `headers` is None when no message has one."""

    sequences: Sequence[int]
    times_ns: Sequence[int]
    subjects: list[bytes]
    headers: list[bytes] | None
    payloads: list[bytes]

    @classmethod
    def of(cls, messages: list[StoredMessage]) -> MessageColumns:
        """Return the columns of messages."""
        headers = [message.header for message in messages]
        return cls(
            [message.sequence for message in messages],
            [message.time_ns for message in messages],
            [message.subject for message in messages],
            headers if any(headers) else None,
            [message.payload for message in messages],
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def keep(self, count: int) -> None:
        """Drop all messages but the first `count`."""
        self.sequences, self.times_ns = self.sequences[:count], self.times_ns[:count]
        self.subjects, self.payloads = self.subjects[:count], self.payloads[:count]
        if self.headers is not None:
            self.headers = self.headers[:count]

    def messages(self) -> list[StoredMessage]:
        """Return the messages one by one."""
        headers = repeat(b"") if self.headers is None else self.headers
        return list(map(StoredMessage, self.sequences, self.times_ns, self.subjects, headers, self.payloads))
