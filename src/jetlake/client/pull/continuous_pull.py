"""What all continuous reads share: messages fetched ahead by pulls, taken by iterating, in batches or by a handler."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Self

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.receiver import Receiver
from jetlake.client.pull.handler_pool import HandlerPool, MessageHandler
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_status import PullStatus, read_status
from jetlake.client.pull.puller import Puller
from jetlake.client.settings.options import duration_s
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    ConsumeError,
    InvalidOptionError,
    PermissionsError,
    RequestTimeoutError,
    SubscriptionClosedError,
)
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol.nuid import new_inbox

__all__ = ["Reading"]

_STOP_TIMEOUT_S = 2.0


class Reading(Receiver):
    """Messages of a consumer, without end.

    Use it as an async context manager and iterate over it (or over `batches()`); with a handler, wait on `wait()`.
    Iterating without the context manager works too and stops when the loop is left. Whatever ends it, such as a deleted
    consumer or a missed heartbeat, is raised by the loop that waits, after the messages that are there.

    Attributes:
        is_emptied: somebody is sure to take all that came, though there is no handler here.
    """

    __slots__ = (
        "_connection",
        "_handlers",
        "_is_started",
        "_is_stopping",
        "_loop",
        "_mailbox",
        "_options",
        "_puller",
        "_recovery",
        "is_emptied",
    )

    def __init__(
        self,
        connection: Connection,
        options: ConsumeOptions,
        *,
        handler: MessageHandler | None = None,
        concurrency: int = 1,
    ) -> None:
        super().__init__(new_inbox(connection.options.inbox_prefix).encode())
        self._connection = connection
        self._options = options
        self._loop = connection.loop
        self._mailbox = Mailbox(self._loop)
        self._puller = Puller(connection, options, self._mailbox, self._missed)
        self._handlers = HandlerPool(handler, concurrency, self.report, connection.endings)
        self._recovery: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_stopping = False
        self.is_emptied = False

    # What the kinds of reads differ in

    @abstractmethod
    def _begin(self) -> None:
        """Subscribe and pull for the first time."""

    @abstractmethod
    def _accept(self, messages: list[Message]) -> list[Message]:
        """The messages that may be handed out."""

    @abstractmethod
    def _heard(self, status: PullStatus, now: float) -> None:
        """A status came."""

    @abstractmethod
    def _missed(self) -> None:
        """The server was silent for too long."""

    @abstractmethod
    async def _recover(self) -> None:
        """After a new connection, or whatever else ended all pulls: make sure of the consumer, then pull again."""

    @abstractmethod
    def _source(self) -> str:
        """What is read, for people."""

    # Starting

    def start(self) -> Self:
        """Subscribe and pull; entering the context manager or iterating does it too."""
        if not self._is_started:
            self._begin()
            # Only now: on a closed connection nothing begins, and nobody is to hear of it later.
            self._is_started = True
            self._connection.listeners.add(self)
            self._handlers.start(self._mailbox, self._puller)
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = "ended" if self.is_stopped else "reading" if self._is_started else "not started"
        return f"<{type(self).__name__} of {self._source()} {state} {self.pending_messages} waiting>"

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
        return self._handlers.handled

    # Taking messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._refuse_handler()
        own = not self._is_started
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

    async def batches(self) -> AsyncIterator[list[Message]]:
        """All messages that are there, again and again; the fastest way to take many."""
        own = not self._is_started
        try:
            while batch := await self.next_batch():
                yield batch
        finally:
            if own:
                await self.stop()

    async def next_batch(self) -> list[Message]:
        """All messages that are there, at least one; an empty list once consumption was stopped or drained.

        Raises:
            ConsumeError: consumption ended.
        """
        self._refuse_handler()
        self.start()
        mailbox = self._mailbox
        while not mailbox.messages:
            if mailbox.is_ended:
                if mailbox.error is not None:
                    raise mailbox.error
                return []
            await mailbox.wait()
        taken = mailbox.take_all()
        self._puller.handed_out_all()
        return taken

    async def next(self, timeout: Seconds | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: consumption ended.
            SubscriptionClosedError: it was stopped.
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
            raise self._end()

    async def wait(self) -> None:
        """With a handler: wait until consumption ends; whatever ended it is raised."""
        self.start()
        await self._handlers.finished()
        if self._mailbox.error is not None:
            raise self._mailbox.error
        if self._handlers.has_handler and not self._mailbox.is_ended:
            raise ConsumeError("the tasks of the handlers were cancelled")

    def report(self, error: Exception) -> None:
        """Report what no call can raise: to the read's own `on_error`, or to the client's."""
        self._connection.report(self._options.on_error, error)

    def _end(self) -> Exception:
        """Why there is nothing more."""
        if self._mailbox.error is not None:
            return self._mailbox.error
        if self._connection.is_closed:
            return ConnectionClosedError("the connection is closed")
        return SubscriptionClosedError("the read was stopped")

    def _refuse_handler(self) -> None:
        if self._handlers.has_handler:
            raise InvalidOptionError("a handler gets all messages; leave it out to iterate")

    # Stopping

    async def unsubscribe(self) -> None:
        """The same as `stop`."""
        await self.stop()

    async def stop(self) -> list[Message]:
        """Stop at once. What was received and not handed out goes back to the server, and is returned for the record.

        Handlers that are at work finish their message; one that calls this itself is not waited for.
        """
        with self._connection.endings.leaving():
            return await self._stop()

    async def _stop(self) -> list[Message]:
        try:
            await self._end_delivery()
        finally:
            left = self._mailbox.take_all()
            self._give_back(left)
            self._mailbox.end()
        await self._handlers.finished()
        return left

    def _give_back(self, messages: list[Message]) -> None:
        """Refuse what was fetched ahead, so that somebody else may have it at once."""
        give_back(messages)

    async def drain(self) -> None:
        """Ask for no more; everything that is under way is still handed out, then the loop that waits ends."""
        with self._connection.endings.leaving():
            await self._drain()

    async def _drain(self) -> None:
        try:
            await self._end_delivery()
        finally:
            self._mailbox.end()
        await self._handlers.finished()

    async def wind_down(self) -> None:
        await self._drain()

    def abandon(self) -> None:
        """Cancel handlers in the middle of their messages, which come again later."""
        self._mailbox.end()
        self._handlers.cancel()

    async def _end_delivery(self) -> None:
        self._stop_asking()
        if self._is_stopping or not self._is_started:
            return
        self._is_stopping = True
        connection = self._connection
        connection.stop_delivery(self)
        try:
            if not self._mailbox.is_ended:
                # Once the server has answered, nothing is under way any more.
                await connection.flush(_STOP_TIMEOUT_S)
        except (ClientConnectionError, RequestTimeoutError):
            pass
        finally:
            connection.forget(self)
            connection.listeners.discard(self)

    def _fail(self, error: Exception | None) -> None:
        """End, with an error or because all that was asked for has come; what is there can still be taken."""
        self._stop_asking()
        self._connection.unsubscribe(self)
        self._connection.listeners.discard(self)
        self._mailbox.end(error)

    def _stop_asking(self) -> None:
        self._puller.stop()
        self._stop_recovery()

    def _stop_recovery(self) -> None:
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            self._recovery.cancel()
            self._recovery = None

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        now = self._loop.time()
        for position, message in enumerate(messages):
            if not message.raw_reply:
                messages = self._split(messages, position, now)
                break
        puller = self._puller
        if messages:
            puller.received(messages, now)
            messages = self._accept(messages)
            puller.buffered(messages)
            self._mailbox.put(messages)
            if self._options.stop_after and puller.state.accepted(len(messages)):
                self._fail(None)
                return
        puller.refill()

    def _split(self, messages: list[Message], position: int, now: float) -> list[Message]:
        """Handle the statuses among the messages; the others remain."""
        taken = messages[:position]
        for message in messages[position:]:
            if message.raw_reply:
                taken.append(message)
            else:
                self._heard(read_status(message), now)
        return taken

    def ended(self, error: Exception | None) -> None:
        self._stop_asking()
        self._mailbox.end(error)

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self._puller.pull_subject and not self._mailbox.is_ended:
            self._fail(error)

    def disconnected(self) -> None:
        if self._is_started:
            self._puller.pause()
            self._stop_recovery()

    def reconnected(self) -> None:
        if not self._is_stopping and not self._mailbox.is_ended:
            self._begin_recovery()

    def _begin_recovery(self) -> None:
        self._puller.pause()
        if self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._recover())
