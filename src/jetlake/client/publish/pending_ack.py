"""The acknowledgement of a message that was published without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from msgspec import Struct

from jetlake.completion import hides
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.protocol import encoder

__all__ = ["PendingAck"]


@hides("error", "frame", "is_duplicate", "known", "observe", "raw_subject", "release", "size")
class PendingAck(Struct, eq=False):
    """The acknowledgement of a message under way: await it, or leave it to `publish_async_complete`."""

    raw_subject: bytes
    """Where the message went."""
    _payload: bytes = b""
    """Kept, as the header, while a message that is in no run is under way."""
    _header: bytes = b""
    _has_id: bool = False
    _deadline: float = 0.0
    _is_late: bool = False
    _attempts: int = 0
    _answer: bytes | None = None
    _error: Exception | None = None
    _waiter: asyncio.Future[None] | None = None
    _observed: bool = False
    _timeout_s: float | None = None
    _retries: int | None = None

    @property
    def subject(self) -> str:
        """Where the message went."""
        return self.raw_subject.decode("utf-8", "replace")

    @property
    def is_done(self) -> bool:
        """Whether the answer is known."""
        return self._answer is not None or self._error is not None

    @property
    def error(self) -> Exception | None:
        """Why the message was given up; None if it was not, or is still under way."""
        return self._error

    @property
    def is_duplicate(self) -> bool:
        """Whether the answer is known and says that the stream had the message already."""
        return self._answer is not None and b'"duplicate"' in self._answer and self.known().duplicate

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<PendingAck on {self.subject!r} failed: {self._error}>"
        return f"<PendingAck on {self.subject!r} {'acknowledged' if self.is_done else 'under way'}>"

    def __await__(self) -> Generator[Any, None, PubAck]:
        return self._result().__await__()

    def observe(self) -> None:
        """Leave a failure to whoever holds this object: nobody else is told of it."""
        self._observed = True

    def frame(self, reply: bytes) -> bytes:
        """Encode the message, which is under way, with this reply subject."""
        if self._header:
            return encoder.hpub(self.raw_subject, reply, self._header, self._payload)
        return encoder.pub(self.raw_subject, reply, self._payload)

    @property
    def size(self) -> int:
        """The bytes of subject, headers and payload while the message is under way."""
        return len(self.raw_subject) + len(self._header) + len(self._payload)

    def release(self) -> None:
        """Forget the message, and wake those who await it: the answer is known."""
        self._payload = self._header = b""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _result(self) -> PubAck:
        self._observed = True
        if not self.is_done:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)
        return self.known()

    def known(self) -> PubAck:
        """Return the answer that is there already; raises what `await` would."""
        self._observed = True
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return decode_pub_ack(self._answer)
