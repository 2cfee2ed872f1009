"""What all continuous reads share: messages fetched ahead by pulls, taken by iterating, in batches or by a handler."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self

from jetlake.client.mailbox import Mailbox
from jetlake.client.message import Message, give_back
from jetlake.client.options import duration_s
from jetlake.client.pull_options import ConsumeOptions
from jetlake.client.pull_state import PullState
from jetlake.client.pull_status import PullStatus, read_status
from jetlake.client.receiver import Receiver
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    InvalidOptionError,
    RequestTimeoutError,
)
from jetlake.model.codec import encode
from jetlake.model.durations import Seconds
from jetlake.protocol.nuid import new_inbox

if TYPE_CHECKING:
    from jetlake.client.connection import Connection

__all__ = ["MessageHandler", "Reading"]

MessageHandler = Callable[[Message], Awaitable[None] | None]
"""A plain or a coroutine function that takes a message."""

_STOP_TIMEOUT_S = 2.0
_EVERY_MESSAGE = 1 << 62


class Reading(Receiver):
    """Messages of a consumer, without end.

    Use it as an async context manager and iterate over it (or over `batches()`); with a handler, wait on `wait()`.
    Iterating without the context manager works too and stops when the loop is left. Whatever ends it, such as a deleted
    consumer or a missed heartbeat, is raised by the loop that waits, after the messages that are there.

    Attributes:
        handled: messages that the handler has finished.
    """

    __slots__ = (
        "_buffered_bytes",
        "_concurrency",
        "_connection",
        "_handler",
        "_loop",
        "_mailbox",
        "_options",
        "_pull_head",
        "_recovery",
        "_refill_at",
        "_state",
        "_stopping",
        "_timer",
        "_timer_at",
        "_workers",
        "handled",
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
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidOptionError(f"concurrency is 1 or more, not {concurrency!r}")
        if concurrency > 1 and handler is None:
            raise InvalidOptionError("concurrency needs a handler")
        if handler is not None and not callable(handler):
            raise InvalidOptionError(f"handler is a function that takes a message, not {handler!r}")
        self._connection = connection
        self._options = options
        self._handler = handler
        self._concurrency = concurrency
        self._loop = connection.loop
        self._mailbox = Mailbox(self._loop)
        self._state: PullState | None = None
        self._buffered_bytes = 0
        self._refill_at = -1
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._recovery: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._pull_head = b""
        self.handled = 0

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

    # Starting

    def start(self) -> Self:
        """Subscribe and pull; entering the context manager or iterating does it too."""
        if self._state is None:
            self._state = PullState(self._options, self._loop.time())
            if not self._connection.is_connected:
                self._state.disconnected()  # The first pull comes with the next connection, and only once.
            self._connection.listeners.add(self)
            self._begin()
            if self._handler is not None:
                self._workers = [self._loop.create_task(self._work(self._handler)) for _ in range(self._concurrency)]
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pending_messages(self) -> int:
        """Messages received and not handed out."""
        return len(self._mailbox.messages)

    @property
    def is_stopped(self) -> bool:
        """Whether no more messages will come."""
        return self._mailbox.is_ended

    # Taking messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._refuse_handler()
        own = self._state is None
        self.start()
        mailbox = self._mailbox
        messages = mailbox.messages
        try:
            while True:
                while messages:
                    message = messages.popleft()
                    if len(messages) <= self._refill_at:
                        self._handed_out(message)
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
        own = self._state is None
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
        self._buffered_bytes = 0
        self._refill()
        return taken

    async def next(self, timeout: Seconds | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: consumption ended.
        """
        self._refuse_handler()
        self.start()
        messages = self._mailbox.messages
        try:
            async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)):
                while not messages:
                    if self._mailbox.is_ended:
                        raise self._mailbox.error or ConnectionClosedError("consumption was stopped")
                    await self._mailbox.wait()
        except TimeoutError:
            raise RequestTimeoutError(f"no message within {timeout} s") from None
        message = messages.popleft()
        if len(messages) <= self._refill_at:
            self._handed_out(message)
        return message

    async def wait(self) -> None:
        """With a handler: wait until consumption ends; whatever ended it is raised."""
        self.start()
        if self._workers:
            await asyncio.wait(self._workers)
        if self._mailbox.error is not None:
            raise self._mailbox.error

    def _refuse_handler(self) -> None:
        if self._handler is not None:
            raise InvalidOptionError("a handler gets all messages; leave it out to iterate")

    async def _work(self, handler: MessageHandler) -> None:
        mailbox = self._mailbox
        messages = mailbox.messages
        while True:
            while messages:
                message = messages.popleft()
                if len(messages) <= self._refill_at:
                    self._handed_out(message)
                try:
                    result = handler(message)
                    if result is not None:
                        await result
                    self.handled += 1
                except Exception as error:
                    # The message stays un-acknowledged and comes again; one bad message must not stop the others.
                    self._connection.signal(error)
            if mailbox.is_ended:
                return
            await mailbox.wait()

    # Stopping

    async def unsubscribe(self) -> None:
        """The same as `stop`."""
        await self.stop()

    async def stop(self) -> list[Message]:
        """Stop at once. What was received and not handed out goes back to the server, and is returned for the record.

        Handlers that are at work finish their message.
        """
        await self._end_delivery()
        left = self._mailbox.take_all()
        give_back(left)
        self._mailbox.end()
        await self._finish_workers()
        return left

    async def drain(self) -> None:
        """Ask for no more; everything that is under way is still handed out, then the loop that waits ends."""
        await self._end_delivery()
        self._mailbox.end()
        await self._finish_workers()

    async def wind_down(self) -> None:
        await self.drain()

    def abandon(self) -> None:
        """Cancel handlers in the middle of their messages, which come again later."""
        self._mailbox.end()
        for worker in self._workers:
            worker.cancel()

    async def _end_delivery(self) -> None:
        if self._stopping or self._state is None:
            return
        self._stopping = True
        self._refill_at = -1
        self._stop_timers()
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

    async def _finish_workers(self) -> None:
        others = [worker for worker in self._workers if worker is not asyncio.current_task()]
        if others:
            await asyncio.wait(others)

    def _fail(self, error: Exception) -> None:
        """End with an error; what is there can still be taken."""
        self._refill_at = -1
        self._stop_timers()
        self._connection.unsubscribe(self)
        self._connection.listeners.discard(self)
        self._mailbox.end(error)

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            self._recovery.cancel()
            self._recovery = None

    # Pulling

    def _aim_pulls(self, pull_subject: bytes) -> None:
        """From now on pull from this consumer, to the inbox of this read."""
        self._pull_head = b"PUB %b %b " % (pull_subject, self.subject)

    def _resume_pulls(self) -> None:
        """The consumer is there and nothing is asked for: pull."""
        if self._state is not None and not self._stopping and not self._mailbox.is_ended:
            self._state.reconnected(self._loop.time())
            self._refill()

    def _handed_out(self, message: Message) -> None:
        if self._state is not None and self._state.by_bytes:
            self._buffered_bytes = max(0, self._buffered_bytes - message.size)
        self._refill()

    def _refill(self) -> None:
        state = self._state
        if state is None or self._stopping or self._mailbox.is_ended:
            return
        buffered = self._buffered_bytes if state.by_bytes else len(self._mailbox.messages)
        now = self._loop.time()
        request = state.next_request(buffered, now)
        if request is not None:
            body = encode(request)
            # At once and together with the acknowledgements before it, so that the server works while we do.
            self._connection.send(self._pull_head + b"%d\r\n%b\r\n" % (len(body), body))
            self._connection.end_turn()
        # How many messages may wait before the iterator has to ask again; by bytes every message counts.
        self._refill_at = _EVERY_MESSAGE if state.by_bytes else state.refill_at()
        deadline = state.deadline(now)
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """The timer: messages only move the deadline, so it is checked here and set again."""
        self._timer = None
        state = self._state
        if state is None or self._mailbox.is_ended:
            return
        now = self._loop.time()
        if state.missed_heartbeat(now):
            if now - self._timer_at > self._options.idle_heartbeat_s / 2:
                # This process was stalled, not the server: what has come meanwhile is still in the socket.
                self._arm(now + min(1.0, self._options.idle_heartbeat_s / 2))
            else:
                self._missed()
            return
        self._refill()

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        state = self._state
        if state is None:
            return
        now = self._loop.time()
        for position, message in enumerate(messages):
            if not message.raw_reply:
                messages = self._split(messages, position, now)
                break
        if messages:
            self._take(state, messages, now)
        if not self._stopping:
            self._refill()

    def _take(self, state: PullState, messages: list[Message], now: float) -> None:
        if not state.by_bytes:
            state.received(len(messages), now)
            messages = self._accept(messages)
        else:
            state.received(sum([message.size for message in messages]), now)
            messages = self._accept(messages)
            self._buffered_bytes += sum([message.size for message in messages])
        self._mailbox.put(messages)

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
        self._stop_timers()
        self._refill_at = -1
        self._mailbox.end(error)

    def disconnected(self) -> None:
        if self._state is not None:
            self._state.disconnected()
            self._refill_at = -1
            self._stop_timers()

    def reconnected(self) -> None:
        if not self._stopping and not self._mailbox.is_ended:
            self._begin_recovery()

    def _begin_recovery(self) -> None:
        assert self._state is not None
        self._state.disconnected()
        self._refill_at = -1
        if self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._recover())
