"""A continuous pull: the subscription of its inbox, the pulls, the handlers, and how it recovers and ends."""

from __future__ import annotations

import asyncio
from functools import partial

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.receiver import Receiver
from jetlake.client.pull.failed_messages import FailedMessages
from jetlake.client.pull.handler_pool import HandlerPool, MessageHandler
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_source import NextStep, PullSource, Verdict
from jetlake.client.pull.pull_status import read_status
from jetlake.client.pull.puller import Puller
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    InvalidOptionError,
    PermissionsError,
    RequestTimeoutError,
    SubscriptionClosedError,
)
from jetlake.protocol.nuid import new_inbox

__all__ = ["ContinuousPull"]

_STOP_TIMEOUT_S = 2.0


class ContinuousPull(Receiver):
    """Messages pulled ahead into a mailbox, until it is stopped or fails.

    Args:
        connection: carries the pulls and the messages.
        puller: decides when to pull.
        source: the consumer that is read.
        options: the options of the read.
        handler: called with each message; None when somebody takes them out of the mailbox.
        concurrency: how many messages handlers work on at once.

    Attributes:
        mailbox: the messages that were received and not handed out.
        puller: decides when to pull.
        handlers: the tasks that call the handler.
        failed: settles the messages whose handler raised.
        is_started: the inbox is subscribed.
        is_emptied: the messages are sure to be taken, though there is no handler here.
        report: reports what no call can raise, to the read's own `on_error` or to the client's.
    """

    __slots__ = (
        "_connection",
        "_has_retries",
        "_is_cluster_changed",
        "_is_stopping",
        "_loop",
        "_recovery",
        "_source",
        "_stop_after",
        "failed",
        "handlers",
        "is_emptied",
        "is_started",
        "mailbox",
        "puller",
        "report",
    )

    def __init__(
        self,
        connection: Connection,
        puller: Puller,
        source: PullSource,
        options: ConsumeOptions,
        handler: MessageHandler | None,
        concurrency: int = 1,
    ) -> None:
        super().__init__(new_inbox(connection.options.inbox_prefix).encode())
        self._connection = connection
        self._loop = connection.loop
        self._source = source
        self._stop_after = options.stop_after
        self._recovery: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._has_retries = options.retries is not None
        self._is_cluster_changed = False
        self.report = partial(connection.report, options.on_error)
        self.mailbox: Mailbox = puller.mailbox
        self.puller = puller
        puller.on_silence = self._silent
        self.failed = FailedMessages(connection, options.retries, self.report)
        self.handlers = HandlerPool(connection.traced(handler), concurrency, self.failed.settle, connection.endings)
        self.is_started = False
        self.is_emptied = False

    def start(self) -> None:
        """Subscribe and pull; calling it again does nothing.

        Raises:
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: there is no handler whose failures could be retried.
        """
        if self.is_started:
            return
        if self._has_retries and not (self.handlers.has_handler or self.is_emptied):
            raise InvalidOptionError("retries, backoff and dead_letter need a handler")
        if self._source.pull_subject:
            self._connection.subscribe(self)
            self.puller.aim(self._source.pull_subject, self.subject)
            self.puller.begin()
        else:
            self._begin_recovery()
        # Only now: on a closed connection nothing begins, and nobody is to hear of it later.
        self.is_started = True
        self._connection.listeners.add(self)
        self.handlers.start(self.mailbox, self.puller)

    # Stopping

    async def stop(self) -> list[Message]:
        """Stop at once and give back what was not handed out; see `MessageReader.stop`."""
        with self._connection.endings.leaving():
            return await self._stop()

    async def _stop(self) -> list[Message]:
        try:
            await self._end_delivery()
        finally:
            left = self.mailbox.take_all()
            # Refused, so that another client may have them at once.
            give_back(left)
            self._source.gave_back(left)
            self.mailbox.end()
        await self.handlers.finished()
        return left

    async def drain(self) -> None:
        """Pull no more, and hand out everything that is under way; see `MessageReader.drain`."""
        with self._connection.endings.leaving():
            await self._drain()

    async def _drain(self) -> None:
        try:
            await self._end_delivery()
        finally:
            self.mailbox.end()
        await self.handlers.finished()

    async def wind_down(self) -> None:
        if self.handlers.has_handler or self.is_emptied or not self.needs_ack:
            await self._drain()
        else:
            # The connection is about to close, and nobody could acknowledge what an iterator took later.
            await self._stop()

    def abandon(self) -> None:
        """Cancel handlers in the middle of their messages, which are delivered again later."""
        self.mailbox.end()
        self.handlers.cancel()

    async def _end_delivery(self) -> None:
        self._stop_pulling()
        try:
            if self.is_started and not self._is_stopping:
                self._is_stopping = True
                await self._unsubscribe_and_flush()
        finally:
            self._source.release()

    async def _unsubscribe_and_flush(self) -> None:
        connection = self._connection
        connection.stop_delivery(self)
        try:
            if not self.mailbox.is_ended and connection.is_connected:
                # Once the server has answered, nothing is under way any more.
                await connection.flush(_STOP_TIMEOUT_S)
        except (ClientConnectionError, RequestTimeoutError):
            pass
        finally:
            connection.forget(self)
            connection.listeners.discard(self)

    def end_reason(self) -> Exception:
        """Say why no more messages come."""
        if self.mailbox.error is not None:
            return self.mailbox.error
        if self._connection.is_closed:
            return ConnectionClosedError("the connection is closed")
        return SubscriptionClosedError("the read was stopped")

    def _end(self, error: Exception | None) -> None:
        """End, with an error or after the last message that was asked for; the mailbox can still be emptied."""
        self._stop_pulling()
        self._connection.unsubscribe(self)
        self._connection.listeners.discard(self)
        self.mailbox.end(error)
        if error is None:
            self._source.release()

    def _stop_pulling(self) -> None:
        self.puller.stop()
        self._stop_recovery()

    # What the connection calls

    @property
    def needs_ack(self) -> bool:
        """Whether messages wait for their acknowledgement, as far as is known of the consumer right now."""
        return self._source.needs_ack

    def receive(self, messages: list[Message]) -> None:
        now = self._loop.time()
        start = 0
        for position, message in enumerate(messages):
            if not message.raw_reply:
                # Behind the messages before it: a heartbeat says how many deliveries there were up to then.
                self._accept(messages[start:position], now)
                self._follow(self._source.heard(read_status(message), now))
                start = position + 1
        self._accept(messages[start:] if start else messages, now)
        self.puller.refill()

    def receive_run(self, messages: list[Message]) -> None:
        self._accept(messages, self._loop.time())
        self.puller.refill()

    def _accept(self, messages: list[Message], now: float) -> None:
        if not messages:
            return
        puller = self.puller
        puller.received(messages, now)
        waiting = len(self.mailbox.messages)
        messages, verdict = self._source.accept(messages)
        if verdict is not NextStep.PULL:
            self._follow(verdict)
        puller.buffered(messages)
        self.mailbox.put(messages)
        # Also those that the source has put first into the mailbox itself.
        if self._stop_after and puller.state.accepted(len(self.mailbox.messages) - waiting):
            self._end(None)

    def ended(self, error: Exception | None) -> None:
        self._stop_pulling()
        self._connection.listeners.discard(self)
        self.mailbox.end(error)

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self.puller.pull_subject and not self.mailbox.is_ended:
            self._end(error)

    def disconnected(self) -> None:
        if self.is_started:
            self.puller.pause()
            self._stop_recovery()

    def reconnected(self) -> None:
        if not self._is_stopping and not self.mailbox.is_ended:
            self._begin_recovery()

    def cluster_changed(self) -> None:
        if not self._is_stopping and not self.mailbox.is_ended:
            self._is_cluster_changed = True
            if self._recovery is None or self._recovery.done():
                self._recovery = self._loop.create_task(self._look_after_pulls())

    # Recovery

    def _silent(self) -> None:
        verdict = self._source.missed()
        if isinstance(verdict, Exception) and self._source.can_move:
            if self._recovery is None or self._recovery.done():
                self._recovery = self._loop.create_task(self._look_after_pulls(verdict))
        else:
            self._follow(verdict)

    async def _look_after_pulls(self, silence: Exception | None = None) -> None:
        """Pull again if the pulls were lost with a server of the cluster; silence that has no such reason ends it."""
        self._is_cluster_changed = False
        state = self.puller.state
        heard_at = state.last_heard
        lost = await self._source.has_lost_pulls()
        if self._is_stopping or self.mailbox.is_ended:
            return
        # A pull that was sent meanwhile and found no leader has paused the puller, and asks for recovery too.
        is_paused = not state.is_connected
        if isinstance(lost, Exception):
            self._end(lost)
        elif is_paused or (lost and state.outstanding and state.last_heard == heard_at):
            self.puller.pause()
            await self._recover()
        elif silence is not None:
            self._end(silence)
        elif self._is_cluster_changed:
            await self._look_after_pulls()

    def _follow(self, verdict: Verdict) -> None:
        if isinstance(verdict, Exception):
            self._end(verdict)
        elif verdict is NextStep.RECOVER:
            self._begin_recovery()

    def _begin_recovery(self) -> None:
        self.puller.pause()
        if self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        """Make sure of the consumer after a new connection, or whatever else ended all pulls; then pull again."""
        source = self._source
        if source.is_replaced:
            self._connection.unsubscribe(self)
        verdict = await source.recover()
        if self._is_stopping or self.mailbox.is_ended:
            source.release()
        elif isinstance(verdict, Exception):
            self._end(verdict)
        else:
            if source.is_replaced:
                # What still comes from the old consumer comes to a subscription that is gone.
                self.subject = new_inbox(self._connection.options.inbox_prefix).encode()
                self._connection.subscribe(self)
                self.mailbox.wake()  # For those who wait for `pending_at_start`.
                self.puller.aim(source.pull_subject, self.subject)
            self.puller.resume()
            if self._is_cluster_changed:
                await self._look_after_pulls()

    def _stop_recovery(self) -> None:
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            self._recovery.cancel()
            self._recovery = None
