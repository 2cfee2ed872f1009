"""A continuous pull: the inbox's subscription, the pull requests, the handlers, and how the read recovers and ends.

Always true:

- All pulls of one read share one inbox. Messages requested and not received are counted in `PullState`; messages
  received and not handed out are in the mailbox, or lent to another thread (`loan`); only `refill` sends a pull, and
  only when these counts together are at the threshold.
- One timer runs, for the earliest moment at which `PullState` has something to do; messages only move that moment
  back, so they never touch the timer.
- One task at most recovers (`_recovery`). While it runs the state is disconnected, so nothing is pulled.
- After `_stop_pulling` no pull is sent; after `mailbox.end` no message is added, and what waits can still be taken.
- The error that ends a read is raised by the call that waits for messages. If no call waits for a read with a handler,
  the error is reported (`_tell`), and raised again when the read's `with` block ends.

::

    socket -> receive -> accept (subclass) -> mailbox -> iterator, batches or handlers
                 |                                            |
                 +---------------> refill <-------------------+

Silence has one of four reasons, which are distinguished in this order:

1. The connection is dead: a ping without an answer closes it, and the next connection starts the recovery.
2. No server answers for the consumer (no leader, no quorum, a stalled server): asked with back-off until one does, and
   the pulls are sent again.
3. The consumer answers and has no pull of this client: the pulls were lost, and are sent again.
4. The consumer answers, has pulls, and sends no heartbeats: only here `on_missed_heartbeat` counts.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from enum import Enum
from typing import ClassVar

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.loan import NEVER, Loan
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.messages.receiver import Receiver
from jetlake.client.pull.handlers import FailedMessages, HandlerPool, MessageHandler
from jetlake.client.pull.options import ConsumeOptions
from jetlake.client.pull.pull_state import PullState
from jetlake.client.pull.pull_status import PullStatus, read_status
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    InvalidOptionError,
    PermissionsError,
    RequestTimeoutError,
    SubscriptionClosedError,
)
from jetlake.model.encoding.codec import encode
from jetlake.protocol.nuid import new_inbox

_STOP_TIMEOUT_S = 2.0
_EVERY_MESSAGE = 1 << 62


class NextStep(Enum):
    """The next step of a continuous pull."""

    PULL = "pull"
    RECOVER = "recover"
    """All pulls are lost: check the consumer before the next one."""


Verdict = NextStep | Exception
"""The next step of a continuous pull; an exception ends it."""


class ContinuousPull(Receiver):
    """Messages pulled ahead into a mailbox, until the read is stopped or fails.

    Args:
        connection: carries the pulls and the messages.
        options: the options of the read.
        handler: called with each message; None when a reader takes the messages from the mailbox.
        concurrency: number of messages that handlers work on at once.

    Attributes:
        mailbox: the messages that were received and not handed out.
        state: the messages and bytes requested and received.
        refill_at: `handed_out` is due when at most this number of messages waits; negative for never.
        pull_subject: the subject that pull requests are published to; empty before there is a consumer.
        is_replaced: whether a recovery creates a new consumer, which delivers to an inbox of its own.
        loan: the messages that a blocking client took from the mailbox and has not handed out.
        handlers: the tasks that call the handler.
        failed: handles the messages whose handler raised.
        is_started: the inbox is subscribed.
        is_emptied: all messages are sure to be taken, though there is no handler here.
        waiting: number of callers that wait for the end of a read with a handler, and raise its reason.
    """

    is_replaced: ClassVar[bool] = False

    __slots__ = (
        "_buffered_bytes",
        "_connection",
        "_has_stopped_pulling",
        "_head",
        "_heartbeat_s",
        "_is_cluster_changed",
        "_is_stopping",
        "_largest",
        "_lent_sizes",
        "_loop",
        "_options",
        "_recovery",
        "_timer",
        "_timer_at",
        "failed",
        "handlers",
        "is_emptied",
        "is_started",
        "loan",
        "mailbox",
        "pull_subject",
        "refill_at",
        "state",
        "waiting",
    )

    def __init__(
        self, connection: Connection, options: ConsumeOptions, handler: MessageHandler | None, concurrency: int = 1
    ) -> None:
        super().__init__(new_inbox(connection.options.inbox_prefix).encode())
        self._connection = connection
        self._loop = connection.loop
        self._options = options
        self._heartbeat_s = options.idle_heartbeat_s
        self._head = b""
        self._buffered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._has_stopped_pulling = False
        self._recovery: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_cluster_changed = False
        # By bytes: the sizes of lent messages, oldest first, and the largest message so far.
        self._lent_sizes: deque[int] = deque()
        self._largest = 1
        self.mailbox = Mailbox(self._loop)
        self.loan = Loan()
        self.state = PullState(options, self._loop.time())
        self.refill_at = -1
        self.pull_subject = b""
        self.failed = FailedMessages(connection, options)
        self.handlers = HandlerPool(connection, handler, concurrency, self.failed)
        self.is_started = False
        self.is_emptied = False
        self.waiting = 0

    # What consumers of each kind decide

    @abstractmethod
    def accept(self, messages: list[Message]) -> tuple[list[Message], Verdict]:
        """Choose the messages that may be handed out."""

    @abstractmethod
    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status."""

    @abstractmethod
    def missed(self) -> Verdict:
        """Judge a consumer that sends no heartbeats over a live connection.

        An exception ends the read, unless the pulls turn out to be lost.
        """

    @abstractmethod
    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether the pulls were lost with the server that had them; an exception ends the read."""

    @abstractmethod
    async def recover(self) -> Verdict:
        """Check or create the consumer after all pulls were lost; a server that is not ready is asked again."""

    def gave_back(self, messages: list[Message]) -> None:
        """Note messages that were returned to the server without being handed out."""

    def release(self) -> None:
        """Delete a consumer that was created for this read alone."""

    # Starting and stopping

    def start(self) -> None:
        """Subscribe and pull; calling it again does nothing.

        Raises:
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: there is no handler whose failures could be retried.
        """
        if self.is_started:
            return
        if self._options.retries is not None and not (self.handlers.has_handler or self.is_emptied):
            raise InvalidOptionError("retries, backoff and dead_letter need a handler")
        if self.pull_subject:
            self._connection.subscribe(self)
            self._aim()
            if self._connection.is_connected:
                self.refill()
            else:
                self.state.disconnected()  # The next connection starts the recovery, which pulls once.
        else:
            self._begin_recovery()
        # Last: on a closed connection `subscribe` raises, and then neither events nor handlers are wanted.
        self.is_started = True
        self._connection.listeners.add(self)
        self.handlers.start(self)

    async def stop(self) -> list[Message]:
        """Stop at once and return unread messages to the server; see `MessageReader.stop`."""
        with self._connection.endings.leaving():
            return await self._stop()

    async def _stop(self) -> list[Message]:
        try:
            await self._end_delivery()
        finally:
            left = self.mailbox.take_all()
            # Refused, so that another client may have them at once.
            give_back(left)
            self.gave_back(left)
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
            # The connection is about to close, so an iterator could not acknowledge what it takes later.
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
            self.release()

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
        """Return why no more messages come."""
        if self.mailbox.error is not None:
            return self.mailbox.error
        if self._connection.is_closed:
            return ConnectionClosedError("the connection is closed")
        return SubscriptionClosedError("the read was stopped")

    def _end(self, error: Exception | None) -> None:
        """End, with an error or after the last requested message; the mailbox can still be emptied."""
        self._stop_pulling()
        self._connection.unsubscribe(self)
        self._connection.listeners.discard(self)
        self._tell(error)
        self.mailbox.end(error)
        if error is None:
            self.release()

    def _tell(self, error: Exception | None) -> None:
        """Report the error that ends a read with a handler, unless a caller waits for the end and raises it."""
        if error is not None and self.handlers.has_handler and not self.waiting and not self.mailbox.is_ended:
            self.report(error)

    def _stop_pulling(self) -> None:
        self._has_stopped_pulling = True
        self.refill_at = -1
        self.loan.look_at = NEVER
        self._stop_timer()
        self._stop_recovery()

    def report(self, error: Exception) -> None:
        """Report an error that no call can raise, to the read's own `on_error` or to the client's."""
        self._connection.report(self._options.on_error, error)

    # Pulling

    def _aim(self) -> None:
        self._head = b"PUB %b %b " % (self.pull_subject, self.subject)

    def handed_out(self, message: Message) -> None:
        """Count a message that was handed out, and pull if that is due."""
        if self.state.by_bytes:
            self._buffered_bytes = max(0, self._buffered_bytes - message.size)
        self.refill()

    def handed_out_all(self) -> None:
        """Note that the mailbox is empty, and pull if that is due."""
        self._buffered_bytes = 0
        self.refill()

    def lend(self) -> MessageBatch[Message]:
        """Take all messages out of the mailbox for a thread that hands them out later."""
        messages = self.mailbox.take_all()
        self.loan.add(len(messages))
        if self.state.by_bytes:
            self._lent_sizes.extend([message.size for message in messages])
        return messages

    def handed_out_up_to(self, count: int) -> None:
        """Note how many of all lent messages were handed out, and pull if that is due."""
        fresh = self.loan.note(count)
        if self.state.by_bytes:
            handed_out = sum([self._lent_sizes.popleft() for _ in range(fresh)])
            self._buffered_bytes = max(0, self._buffered_bytes - handed_out)
        self.refill()

    def refill(self) -> None:
        """Pull, if that is due."""
        if self._has_stopped_pulling:
            return
        state = self.state
        now = self._loop.time()
        buffered = self._buffered_bytes if state.by_bytes else len(self.mailbox.messages) + self.loan.left
        request = state.next_request(buffered, now)
        if request is not None:
            body = encode(request)
            # At once and together with the acknowledgements before it, so that server and client work in parallel.
            self._connection.send(self._head + b"%d\r\n%b\r\n" % (len(body), body))
            self._connection.end_turn()
        self._set_refill_at()
        deadline = state.deadline(now)
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            self._arm(deadline)

    def _set_refill_at(self) -> None:
        loan = self.loan
        due_at = self.state.refill_at()
        if not self.state.by_bytes:
            self.refill_at = due_at
            # From here on this number of messages may be handed out; the mailbox goes first to the thread.
            loan.look_at = NEVER if due_at < 0 else loan.total + len(self.mailbox.messages) - due_at
            return
        # By bytes every message counts, so each one that is handed out has to be looked at; a thread need not tell
        # before the number of messages of the largest size that would make a pull due.
        self.refill_at = _EVERY_MESSAGE
        loan.look_at = loan.handed_out + max(1, (self._buffered_bytes - due_at) // self._largest)

    def _pause(self) -> None:
        """Pull no more until `_resume`: all pulls are lost."""
        self.state.disconnected()
        self._set_refill_at()
        self._stop_timer()

    def _resume(self) -> None:
        """Pull again; nothing is outstanding."""
        if not self._has_stopped_pulling:
            self.state.reconnected(self._loop.time())
            self.refill()

    def _arm(self, deadline: float) -> None:
        self._stop_timer()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """Check the deadline, which messages only move, and set the timer again."""
        self._timer = None
        now = self._loop.time()
        if not self.state.missed_heartbeat(now):
            self.refill()
        elif now - self._timer_at > self._heartbeat_s / 2:
            # This process was stalled, not the server: the heartbeats that came meanwhile are still in the socket.
            self._arm(now + min(1.0, self._heartbeat_s / 2))
        elif self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._look_after_silence())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        now = self._loop.time()
        start = 0
        for position, message in enumerate(messages):
            if not message.raw_reply:
                # After the messages before it: a heartbeat has the number of deliveries up to then.
                self._accept(messages[start:position], now)
                self._follow(self.heard(read_status(message), now))
                start = position + 1
        self._accept(messages[start:] if start else messages, now)
        self.refill()

    def receive_run(self, messages: list[Message]) -> None:
        self._accept(messages, self._loop.time())
        self.refill()

    def _accept(self, messages: list[Message], now: float) -> None:
        if not messages:
            return
        state = self.state
        by_bytes = state.by_bytes
        state.received(sum([message.size for message in messages]) if by_bytes else len(messages), now)
        waiting = len(self.mailbox.messages)
        messages, verdict = self.accept(messages)
        if verdict is not NextStep.PULL:
            self._follow(verdict)
        if by_bytes:
            sizes = [message.size for message in messages]
            self._buffered_bytes += sum(sizes)
            self._largest = max(self._largest, *sizes)
        self.mailbox.put(messages)
        # Counted in the mailbox, since `accept` may have put some messages there itself.
        if self._options.stop_after and state.accepted(len(self.mailbox.messages) - waiting):
            self._end(None)

    def ended(self, error: Exception | None) -> None:
        self._stop_pulling()
        self._connection.listeners.discard(self)
        self._tell(error)
        self.mailbox.end(error)

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self.pull_subject and not self.mailbox.is_ended:
            self._end(error)

    def disconnected(self) -> None:
        if self.is_started:
            self._pause()
            self._stop_recovery()

    def reconnected(self) -> None:
        if not self._is_stopping and not self.mailbox.is_ended:
            self._begin_recovery()

    def cluster_changed(self) -> None:
        if not self._is_stopping and not self.mailbox.is_ended:
            self._is_cluster_changed = True
            if self._recovery is None or self._recovery.done():
                self._recovery = self._loop.create_task(self._look_after_pulls())

    # Recovery, in the order of the four reasons for silence above

    async def _look_after_silence(self) -> None:
        state = self.state
        heard_at = state.last_heard
        if not await self._connection.is_alive():
            return
        if self._is_stopping or self.mailbox.is_ended:
            return
        if not state.is_connected:
            # A status that came meanwhile asks for recovery and has paused the puller, which only recovery resumes.
            await self._recover()
            return
        if state.last_heard != heard_at:
            self.refill()
            return
        verdict = self.missed()
        if isinstance(verdict, Exception):
            await self._look_after_pulls(verdict)
        else:
            self._pause()
            await self._recover()

    async def _look_after_pulls(self, silence: Exception | None = None) -> None:
        """Pull again if the pulls were lost with the server that had them; otherwise silence ends the read."""
        self._is_cluster_changed = False
        state = self.state
        heard_at = state.last_heard
        lost = await self.has_lost_pulls()
        if self._is_stopping or self.mailbox.is_ended:
            return
        # A pull that was sent meanwhile and found no leader has paused the read, and needs the recovery too.
        is_paused = not state.is_connected
        if isinstance(lost, Exception):
            self._end(lost)
        elif is_paused or (lost and state.outstanding and state.last_heard == heard_at):
            self._pause()
            await self._recover()
        elif silence is not None and state.last_heard == heard_at:
            self._end(silence)
        elif self._is_cluster_changed:
            await self._look_after_pulls()
        else:
            self.refill()  # Sets the timer again, if it went off meanwhile.

    def _follow(self, verdict: Verdict) -> None:
        if isinstance(verdict, Exception):
            self._end(verdict)
        elif verdict is NextStep.RECOVER:
            self._begin_recovery()

    def _begin_recovery(self) -> None:
        self._pause()
        if self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        """Check the consumer, or create the next one, and pull again."""
        if self.is_replaced:
            self._connection.unsubscribe(self)
        verdict = await self.recover()
        if self._is_stopping or self.mailbox.is_ended:
            self.release()
        elif isinstance(verdict, Exception):
            self._end(verdict)
        else:
            if self.is_replaced:
                # A new inbox: late messages of the old consumer come to a subscription that is gone.
                self.subject = new_inbox(self._connection.options.inbox_prefix).encode()
                self._connection.subscribe(self)
                self.mailbox.wake()  # For the callers of `pending_at_start`.
                self._aim()
            self._resume()
            if self._is_cluster_changed:
                await self._look_after_pulls()

    def _stop_recovery(self) -> None:
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            self._recovery.cancel()
            self._recovery = None
