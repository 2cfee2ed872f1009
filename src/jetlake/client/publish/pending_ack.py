"""The acknowledgement of a message that was published without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Protocol

from msgspec import Struct

from jetlake.completion import hides
from jetlake.model.publish import PubAck, decode_pub_ack

__all__ = ["PendingAck", "SentMessages"]


class SentMessages(Protocol):
    """Messages that were published together, and what became of each by its number among them."""

    def subject_of(self, number: int) -> bytes:
        """Return where the message went."""

    def answer_of(self, number: int) -> bytes | None:
        """Return the stream's acknowledgement; None if there is none yet."""

    def error_of(self, number: int) -> Exception | None:
        """Return why the message was given up; None if it was not, or is still under way."""

    def is_observed(self, number: int) -> bool:
        """Return whether a failure is left to whoever holds the message's `PendingAck`."""

    def observe(self, number: int, *, is_observed: bool) -> None:
        """Leave a failure to the holder of the message's `PendingAck`, or report it as one that nobody awaits."""

    def outcome(self, number: int) -> asyncio.Future[None]:
        """Return what is done when the message, which is under way, is acknowledged or given up."""


@hides("error", "is_duplicate", "is_observed", "known", "observe")
class PendingAck(Struct, eq=False):
    """The acknowledgement of a message under way: await it, or leave it to `publish_async_complete`.

    It is a reference: what became of the message is kept for all messages of one write together, as long as somebody
    holds the `PendingAck` of one.
    """

    _messages: SentMessages
    _number: int

    @property
    def subject(self) -> str:
        """Where the message went."""
        return self._messages.subject_of(self._number).decode("utf-8", "replace")

    @property
    def is_done(self) -> bool:
        """Whether the answer is known."""
        return self._messages.answer_of(self._number) is not None or self.error is not None

    @property
    def error(self) -> Exception | None:
        """Why the message was given up; None if it was not, or is still under way."""
        return self._messages.error_of(self._number)

    @property
    def is_duplicate(self) -> bool:
        """Whether the answer is known and says that the stream had the message already."""
        answer = self._messages.answer_of(self._number)
        return answer is not None and b'"duplicate"' in answer and self.known().duplicate

    @property
    def is_observed(self) -> bool:
        """Whether a failure is left to whoever holds this object."""
        return self._messages.is_observed(self._number)

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<PendingAck on {self.subject!r} failed: {self.error}>"
        return f"<PendingAck on {self.subject!r} {'acknowledged' if self.is_done else 'under way'}>"

    def __await__(self) -> Generator[Any, None, PubAck]:
        return self._result().__await__()

    def observe(self, *, is_observed: bool = True) -> None:
        """Leave a failure to whoever holds this object: nobody else is told of it; False takes that back."""
        self._messages.observe(self._number, is_observed=is_observed)

    async def _result(self) -> PubAck:
        if not self.is_done:
            self.observe()
            await asyncio.shield(self._messages.outcome(self._number))
        return self.known()

    def known(self) -> PubAck:
        """Return the answer that is there already; raises what `await` would."""
        answer = self._messages.answer_of(self._number)
        if answer is not None:
            return decode_pub_ack(answer)
        self.observe()
        error = self.error
        assert error is not None
        raise error
