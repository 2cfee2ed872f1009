"""How users take the messages of a continuous pull: by iterating, in batches, one by one, or with a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from jetlake.client.connection.connection import HandlerT
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.pull.continuous_pull import ContinuousPull
from jetlake.client.settings.options import duration_s
from jetlake.completion import hides
from jetlake.errors import ConsumeError, InvalidOptionError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds

__all__ = ["MessageReader"]


@hides("failed", "report", "traced", "will_be_emptied")
class MessageReader:
    """Messages of a consumer, without end.

    Use it as an async context manager and iterate over it (or over `batches()`); with a handler, wait on `wait()`.
    Iterating without the context manager works too and stops when the loop is left. Whatever ends the read, such as a
    deleted consumer or a missed heartbeat, is raised by the loop that waits, after the messages that are there.

    Args:
        pull: fetches the messages ahead.
        source: the name of what is read.
    """

    __slots__ = ("_mailbox", "_pull", "_puller", "_source_name")

    def __init__(self, pull: ContinuousPull, source_name: str) -> None:
        self._pull = pull
        self._source_name = source_name
        self._mailbox = pull.mailbox
        self._puller = pull.puller

    def start(self) -> Self:
        """Subscribe and pull; entering the context manager or iterating does it too."""
        self._pull.start()
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = "ended" if self.is_stopped else "reading" if self._pull.is_started else "not started"
        return f"<{type(self).__name__} of {self._source_name} {state} {self.pending_messages} waiting>"

    @property
    def pending_messages(self) -> int:
        """Messages received and not handed out."""
        return len(self._mailbox.messages)

    @property
    def is_stopped(self) -> bool:
        """Whether no more messages will come."""
        return self._mailbox.is_ended

    @property
    def handled(self) -> int:
        """Messages that the handler has finished."""
        return self._pull.handlers.handled

    # Taking messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._refuse_handler()
        own = not self._pull.is_started
        self.start()
        puller = self._puller
        mailbox = self._mailbox
        messages = mailbox.messages
        try:
            while True:
                while messages:
                    message = messages.popleft()
                    if len(messages) <= puller.refill_at:
                        puller.handed_out(message)
                    yield message
                if mailbox.is_ended:
                    break
                await mailbox.wait()
        finally:
            if own:
                await self.stop()
        if mailbox.error is not None:
            raise mailbox.error

    async def batches(self) -> AsyncIterator[MessageBatch[Message]]:
        """Take all messages that are there, again and again; the fastest way to take many.

        The `ack()` of each batch acknowledges all its messages by one call.
        """
        own = not self._pull.is_started
        try:
            while batch := await self.next_batch():
                yield batch
        finally:
            if own:
                await self.stop()

    async def next_batch(self) -> MessageBatch[Message]:
        """Take all messages that are there, at least one; an empty list once the read was stopped or drained.

        Raises:
            ConsumeError: the read ended.
        """
        self._refuse_handler()
        self.start()
        mailbox = self._mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return MessageBatch()
            await mailbox.wait()
        taken = mailbox.take_all()
        self._puller.handed_out_all()
        return taken

    async def next(self, timeout: Seconds | None = None) -> Message:
        """Take the next message.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: the read ended.
            SubscriptionClosedError: the read was stopped.
        """
        self._refuse_handler()
        self.start()
        messages = self._mailbox.messages
        if not messages:
            await self._wait_for_message(timeout)
        message = messages.popleft()
        if len(messages) <= self._puller.refill_at:
            self._puller.handed_out(message)
        return message

    async def _wait_for_message(self, timeout: Seconds | None) -> None:
        mailbox = self._mailbox
        try:
            async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)):
                await mailbox.filled()
        except TimeoutError:
            raise RequestTimeoutError(f"no message within {timeout} s") from None
        if not mailbox.messages:
            raise self._pull.end_reason()

    def _refuse_handler(self) -> None:
        if self._pull.handlers.has_handler:
            raise InvalidOptionError("a handler gets all messages; leave it out to iterate")

    async def wait(self) -> None:
        """Wait until a read with a handler ends; the reason, if there is one, is raised."""
        self.start()
        handlers = self._pull.handlers
        await handlers.finished()
        if self._mailbox.error is not None:
            raise self._mailbox.error
        if handlers.has_handler and not self._mailbox.is_ended:
            raise ConsumeError("the tasks of the handlers were cancelled")

    # Stopping

    async def stop(self) -> list[Message]:
        """Stop at once. Messages not handed out go back to the server, and are returned for the record.

        Handlers that are at work finish their message; one that calls this itself is not waited for.
        """
        return await self._pull.stop()

    async def unsubscribe(self) -> None:
        """Stop at once; the same as `stop`."""
        await self.stop()

    async def drain(self) -> None:
        """Pull no more; everything that is under way is still handed out, then the loop that waits ends."""
        await self._pull.drain()

    # What the blocking client calls

    def traced(self, handler: HandlerT) -> HandlerT:
        """Return the handler, traced if the client is."""
        return self._pull._connection.traced(handler)

    def report(self, error: Exception) -> None:
        """Report what no call can raise: to the read's own `on_error`, or to the client's."""
        self._pull.report(error)

    async def failed(self, message: Message, error: Exception) -> None:
        """Settle a message whose handler raised."""
        await self._pull.failed.settle(message, error)

    def will_be_emptied(self) -> None:
        """Promise that all messages are taken, as by a handler, so that draining hands them out."""
        self._pull.is_emptied = True
