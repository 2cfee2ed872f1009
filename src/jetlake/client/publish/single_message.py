"""A published message that is found by its own reply subject, with rules of its own."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from jetlake.protocol import encoder

__all__ = ["SingleMessage"]


class SingleMessage(Struct, eq=False):
    """A message under way, and what became of it: `SentMessages` of which there is one."""

    raw_subject: bytes
    """Where the message goes."""
    payload: bytes
    """Kept, as the header, while the message is under way."""
    header: bytes = b""
    has_id: bool = False
    timeout_s: float | None = None
    """How long its acknowledgement may take; None for the window's timeout."""
    retries: int | None = None
    """How often it is sent again when no stream listens; None for the window's own way."""
    deadline: float = 0.0
    """When the half of its time is over that runs now."""
    is_late: bool = False
    """Whether that is the second half."""
    attempts: int = 0
    """How often it was sent again because no stream listened."""
    answer: bytes | None = None
    error: Exception | None = None
    observed: bool = False
    waiter: asyncio.Future[None] | None = None

    def frame(self, reply: bytes) -> bytes:
        """Encode the message, which is under way, with this reply subject."""
        if self.header:
            return encoder.hpub(self.raw_subject, reply, self.header, self.payload)
        return encoder.pub(self.raw_subject, reply, self.payload)

    @property
    def size(self) -> int:
        """The bytes of subject, headers and payload while the message is under way."""
        return len(self.raw_subject) + len(self.header) + len(self.payload)

    def release(self) -> None:
        """Forget the message, and wake those who await it: the answer is known."""
        self.payload = self.header = b""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # What its `PendingAck` asks

    def subject_of(self, number: int) -> bytes:
        return self.raw_subject

    def answer_of(self, number: int) -> bytes | None:
        return self.answer

    def error_of(self, number: int) -> Exception | None:
        return self.error

    def is_observed(self, number: int) -> bool:
        return self.observed

    def observe(self, number: int, *, is_observed: bool) -> None:
        self.observed = is_observed

    def outcome(self, number: int) -> asyncio.Future[None]:
        if self.waiter is None:
            self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter
