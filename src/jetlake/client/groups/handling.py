"""The messages of a group's member: handled one at a time and in order, each one only while it is this instance's.

An instance that was frozen or cut off for longer than the ack wait may find a message that somebody else has handled
since: it asks the server first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from jetlake.client.messages.message import Message
from jetlake.errors import JetlakeError, NoRespondersError, NotFoundError
from jetlake.model.consumer import ConsumerInfo

__all__ = ["GroupHandler", "Handling"]

GroupHandler = Callable[[Message], Awaitable[None] | None]
"""A plain or a coroutine function that takes a message."""

_caller: ContextVar[Handling | None] = ContextVar("jetlake_group_handling", default=None)


class Handling:
    """Calls a member's handler with the messages of its consumer.

    Args:
        handler: takes a message.
        ack_wait_s: seconds after which the server delivers a message to somebody else.
        consumer_info: asks the server about the consumer, which has one message out at a time; None if it has more,
            and nothing tells whose a message is.
        stopping: set when no more messages are to be handled.
        report: reports what nobody waits for.

    Attributes:
        acked: the reply subject of the consumer's last message that was acknowledged here; empty for none.
    """

    __slots__ = (
        "_ack_wait_s",
        "_at_work",
        "_consumer_info",
        "_created",
        "_handler",
        "_is_ended",
        "_report",
        "_stopping",
        "_sure_at",
        "_turn",
        "acked",
    )

    def __init__(
        self,
        handler: GroupHandler,
        ack_wait_s: float,
        consumer_info: Callable[[], Awaitable[ConsumerInfo]] | None,
        stopping: asyncio.Event,
        report: Callable[[Exception], None],
    ) -> None:
        self._handler = handler
        self._ack_wait_s = ack_wait_s
        self._consumer_info = consumer_info
        self._stopping = stopping
        self._report = report
        self._turn = asyncio.Lock()
        self._at_work: Message | None = None
        self._created = ""
        self._sure_at = 0.0
        self._is_ended = False
        self.acked = b""

    @property
    def is_caller(self) -> bool:
        """Whether the handler itself is asking."""
        return _caller.get() is self

    def begin(self, created: str) -> None:
        """Handle the messages of a consumer that was created then."""
        self._is_ended = False
        self._created = created
        self._sure_at = asyncio.get_running_loop().time()
        self.acked = b""

    async def end(self) -> None:
        """Wait until the handler has returned, and handle no more messages of the consumer."""
        async with self._turn:
            self._is_ended = True

    async def handle(self, message: Message) -> None:
        """Handle and acknowledge a message; raises what the handler raises."""
        _caller.set(self)
        async with self._turn:
            if self._is_ended or self._stopping.is_set():
                message.nak()
                return
            if not await self._has(message):
                return
            message.raw_subject = message.raw_subject.partition(b".")[2]
            self._at_work = message
            try:
                result = self._handler(message)
                if result is not None:
                    await result
            finally:
                self._at_work = None
            if not message.is_settled:
                message.ack()
                self.acked = message.raw_reply

    async def _has(self, message: Message) -> bool:
        """Return whether the message belongs to this instance for some time; another comes again, if nobody handles it.

        With one message out at a time, every message was delivered after the one before it was begun. One that may
        have been on its way for longer is asked for: an instance that was frozen finds it in its socket.
        """
        now = asyncio.get_running_loop().time()
        if self._consumer_info is not None and now - self._sure_at > self._ack_wait_s / 2:
            try:
                await message.in_progress_sync(timeout=self._ack_wait_s)
                info = await self._consumer_info()
            except (NotFoundError, NoRespondersError):
                return False
            except JetlakeError as error:
                self._report(error)
                return False
            last = info.delivered.consumer_seq
            if not info.num_ack_pending or (info.created, last) != (self._created, message.metadata.consumer_seq):
                return False
        self._sure_at = now
        return True

    async def keep_in_progress(self) -> None:
        """Tell the server of a handler that is still at work, so that its message is not delivered again."""
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            message = self._at_work
            if message is not None and not message.is_settled:
                try:
                    message.in_progress()
                except JetlakeError as error:
                    self._report(error)
