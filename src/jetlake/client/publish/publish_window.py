"""Pipelined publishing: many messages under way at once, up to a window, their acknowledgements matched as they come.

No future, timer or task exists for a message unless somebody awaits it. What was not acknowledged is never forgotten in
silence: it is raised where its `PendingAck` is awaited, by `complete`, and reported to `on_error`.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.ready import READY
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.stream_search import ELECTION_S, StreamSearch, is_in_process
from jetlake.errors import (
    ApiError,
    ConnectionClosedError,
    DisconnectedError,
    JetlakeError,
    NoRespondersError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
)
from jetlake.model.publish import decode_pub_ack
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["PublishWindow"]

_RETRY_WAIT_S = 0.25
# A message without a timeout of its own waits so long for a cluster that elects its stream's leader.
_ELECTION_ATTEMPTS = int(ELECTION_S / _RETRY_WAIT_S)
_FAILURES_KEPT_MAX = 10_000


class PublishWindow(Receiver):
    """The messages of one JetStream context that are under way.

    Args:
        connection: where they go.
        messages_max: most messages under way; `room` waits at the limit.
        bytes_max: most bytes under way.
        ack_timeout_s: how long a message may go without acknowledgement.
        retries: how often a message is sent again when no stream listens; after that, as long as there is one.
        search: tells a stream without a leader from no stream.
    """

    __slots__ = (
        "_bytes",
        "_connection",
        "_denied",
        "_doubts",
        "_failures",
        "_is_connected",
        "_is_released",
        "_next",
        "_own_deadlines",
        "_pending",
        "_prefix",
        "_prefix_length",
        "_retry_timer",
        "_search",
        "_searching",
        "_timer",
        "_unheard",
        "_waiters",
        "ack_timeout_s",
        "bytes_max",
        "loop",
        "messages_max",
        "retries",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        messages_max: int,
        bytes_max: int,
        ack_timeout_s: float,
        retries: int,
        search: StreamSearch,
    ) -> None:
        self._prefix = new_inbox(connection.options.inbox_prefix).encode() + b"."
        super().__init__(self._prefix + b"*")
        self._prefix_length = len(self._prefix)
        self._connection = connection
        self.loop = connection.loop
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.ack_timeout_s = ack_timeout_s
        self.retries = retries
        self._pending: dict[bytes, PendingAck] = {}
        self._bytes = 0
        self._next = 0
        self._is_connected = connection.is_connected
        self._is_released = False
        self._denied = Denial()
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._own_deadlines: list[tuple[float, bytes]] = []
        # Messages that found no stream, which are sent again together.
        self._unheard: dict[bytes, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._search = search
        self._doubts: dict[bytes, None] = {}
        self._searching: asyncio.Task[None] | None = None
        self._failures: list[PendingAck] = []
        connection.subscribe(self)

    @property
    def pending(self) -> int:
        """Messages under way."""
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        return len(self._pending) >= self.messages_max or self._bytes >= self.bytes_max

    # Publishing

    def put(self, message: OutgoingMessage) -> PendingAck:
        """Send a message; the caller has waited for room.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        if not self.sid:
            self._subscribe_again()
        self._next += 1
        token = b"%d" % self._next
        subject = message.subject
        if message.header:
            frame = encoder.hpub(subject, self._prefix + token, message.header, message.payload)
        else:
            frame = encoder.pub(subject, self._prefix + token, message.payload)
        if self._is_connected:
            connection = self._connection
            # The window bounds what is under way, so nobody has to wait for the socket here.
            if connection.send_bulk(frame) is not READY:
                connection.end_turn()
        deadline = self.loop.time() + self.ack_timeout_s / 2
        pending = PendingAck(subject, self.loop, frame, message.has_id, deadline)
        self._pending[token] = pending
        self._bytes += len(frame)
        if message.timeout_s is not None or message.retries is not None:
            pending._timeout_s, pending._retries = message.timeout_s, message.retries
            self._restart_wait(token, pending)
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self._sweep)
        return pending

    def _restart_wait(self, token: bytes, pending: PendingAck) -> None:
        """The message is sent now; one that has a timeout of its own may need the timer earlier."""
        pending._is_late = False
        self._wait_half(token, pending)
        if pending._timeout_s is not None and (self._timer is None or self._timer.when() > pending._deadline):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(pending._deadline, self._sweep)

    def _wait_half(self, token: bytes, pending: PendingAck) -> None:
        """Give the message half of its time: the first, or the second."""
        wait_s = self.ack_timeout_s if pending._timeout_s is None else pending._timeout_s
        pending._deadline = self.loop.time() + wait_s / 2
        if pending._timeout_s is not None:
            heappush(self._own_deadlines, (pending._deadline, token))

    def _subscribe_again(self) -> None:
        """The inbox was refused on an earlier connection, or the connection is closed."""
        self._denied.check(self._connection.reconnects)
        self._connection.subscribe(self)
        self._is_connected = self._connection.is_connected

    async def room(self) -> None:
        """Wait until there is room for a message."""
        while self.is_full:
            self._connection.end_turn()
            await self._changed()

    async def complete(self) -> None:
        """Wait until every message under way is acknowledged or given up.

        Raises:
            PublishWindowError: some were given up since the last call and nobody awaited them.
        """
        await self.settle()
        failures, self._failures = self._failures, []
        told = [
            (pending.subject, pending._error)
            for pending in failures
            if not pending._observed and pending._error is not None
        ]
        if told:
            raise PublishWindowError(told)

    async def settle(self) -> None:
        # Only what is under way now: others may go on publishing.
        for pending in list(self._pending.values()):
            while not pending.is_done:
                await self._changed()

    def release(self) -> None:
        """End the subscription as soon as nothing is under way: nobody can publish through this window any more."""
        self._is_released = True
        self._wake()

    async def _changed(self) -> None:
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._is_released and not self._pending:
            self._connection.unsubscribe(self)

    # Acknowledgements

    def receive(self, messages: list[Message]) -> None:
        pop = self._pending.pop
        start = self._prefix_length
        failed: list[PendingAck] = []
        for message in messages:
            token = message.raw_subject[start:]
            answer = message.payload
            error = None
            # Most answers are read only if somebody asks; one that may hold an error is read now.
            if not answer or b'"error"' in answer:
                if token not in self._pending:
                    continue
                error = _refusal(self._pending[token].subject, message)
                if error is not None and self._try_again(token, error):
                    continue
            pending = pop(token, None)
            if pending is None:
                continue
            if error is None:
                pending._answer = answer
            else:
                pending._error = error
                failed.append(pending)
            self._bytes -= len(pending._frame)
            pending._frame = b""
            if pending._waiter is not None:
                _release(pending)
        if failed:
            self._report(failed)
        if (self._waiters or self._is_released) and (not self._pending or not self.is_full):
            self._wake()

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._take_out([token for token, pending in self._pending.items() if pending.raw_subject == subject], error)

    def _try_again(self, token: bytes, error: Exception) -> bool:
        """Send a refused message again, together with others, after a moment; False if it is refused for good.

        Each attempt has the whole timeout, unless the publisher has set one for the message.
        """
        pending = self._pending[token]
        if not _is_passing(pending, error):
            return False
        pending._attempts += 1
        if pending._retries is not None or pending._timeout_s is None:
            self._pending[token] = self._pending.pop(token)
            self._restart_wait(token, pending)
        self._unheard[token] = None
        if self._retry_timer is None:
            self._retry_timer = self.loop.call_later(_RETRY_WAIT_S, self._send_unheard)
        if self._is_doubtful(pending, pending.raw_subject):
            self._doubts[pending.raw_subject] = None
            if self._searching is None:
                self._searching = self.loop.create_task(self._find_streams())
        return True

    def _send_unheard(self) -> None:
        self._retry_timer = None
        tokens, self._unheard = self._unheard, {}
        if not self._is_connected or self._connection.is_closed:
            return  # The next connection gets everything that is under way.
        for token in sorted(tokens, key=int):
            pending = self._pending.get(token)
            if pending is not None:
                self._connection.send(pending._frame)

    async def _find_streams(self) -> None:
        """Give up what no stream will ever take; what only waits for a leader goes on being sent."""
        try:
            while self._doubts:
                subject, _ = self._doubts.popitem()
                if await self._search.finds(subject) is False:
                    lost = [token for token, pending in self._pending.items() if self._is_doubtful(pending, subject)]
                    self._take_out(lost, NoRespondersError(subject.decode("utf-8", "replace")))
        finally:
            self._searching = None

    def _is_doubtful(self, pending: PendingAck, subject: bytes) -> bool:
        return pending.raw_subject == subject and pending._retries is None and pending._attempts > self.retries

    # Time and connection

    def _sweep(self) -> None:
        """Give up what is overdue, after a second try if it may be sent twice."""
        self._timer = None
        if not self._is_connected:
            return  # Nothing is sent yet.
        now = self.loop.time()
        overdue = []
        next_at = None
        # Of those without a timeout of their own, the one that is due next stands first.
        for token, pending in self._pending.items():
            if pending._timeout_s is None:
                if pending._deadline > now:
                    next_at = pending._deadline
                    break
                overdue.append(token)
        own = self._own_deadlines
        while own and (own[0][0] <= now or own[0][1] not in self._pending):
            deadline, token = heappop(own)
            if token in self._pending and self._pending[token]._deadline == deadline:
                overdue.append(token)
        self._time_out([token for token in overdue if self._pending[token]._is_late])
        self._repeat([token for token in overdue if token in self._pending])
        if next_at is None and self._pending:
            next_at = now + self.ack_timeout_s / 2
        if own:
            next_at = own[0][0] if next_at is None else min(next_at, own[0][0])
        if next_at is not None:
            self._timer = self.loop.call_at(max(next_at, now + 0.001), self._sweep)

    def _time_out(self, tokens: list[bytes]) -> None:
        by_wait: dict[float, list[bytes]] = {}
        for token in tokens:
            wait_s = self._pending[token]._timeout_s
            by_wait.setdefault(self.ack_timeout_s if wait_s is None else wait_s, []).append(token)
        for wait_s, late in by_wait.items():
            self._take_out(late, PublishTimeoutError(f"no acknowledgement within {wait_s:g} s"))

    def _repeat(self, tokens: list[bytes]) -> None:
        """Begin the second half of the messages' time: those with an id, which the stream recognises, are sent again.

        A server of a cluster that dies takes the messages in its hands with it, and nobody tells their publisher.
        """
        for token in tokens:
            pending = self._pending.pop(token)
            pending._is_late = True
            self._pending[token] = pending
            self._wait_half(token, pending)
            if pending._has_id and token not in self._unheard:
                self._connection.send(pending._frame)

    def disconnected(self) -> None:
        """Messages with an id are sent again later, which the stream recognises; whether others arrived is unknown."""
        self._is_connected = False
        self._connection.forget_unsent(self._prefix)
        self._take_out(
            [token for token, pending in self._pending.items() if not pending._has_id],
            DisconnectedError("the connection was lost before the acknowledgement; the message may be stored or not"),
        )

    def reconnected(self) -> None:
        self._is_connected = True
        self._own_deadlines.clear()
        self._unheard.clear()
        # In the order of publishing, which later attempts have changed.
        self._pending = {token: self._pending[token] for token in sorted(self._pending, key=int)}
        for token, pending in self._pending.items():
            self._restart_wait(token, pending)
            self._connection.send(pending._frame)
        if self._pending and self._timer is None:
            self._timer = self.loop.call_at(self.loop.time() + self.ack_timeout_s / 2, self._sweep)

    def ended(self, error: Exception | None) -> None:
        self._is_connected = False
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._searching is not None:
            self._searching.cancel()
        self._take_out(
            list(self._pending), error or ConnectionClosedError("the connection was closed before the acknowledgement")
        )

    def _take_out(self, tokens: list[bytes], error: Exception) -> None:
        """Give these messages up."""
        failed = [self._pending.pop(token) for token in tokens]
        for pending in failed:
            self._bytes -= len(pending._frame)
            pending._error = error
            pending._frame = b""
            _release(pending)
        if failed:
            self._report(failed)
        self._wake()

    def _report(self, failed: list[PendingAck]) -> None:
        unobserved = [pending for pending in failed if not pending._observed]
        if not unobserved:
            return
        self._failures = (self._failures + unobserved)[-_FAILURES_KEPT_MAX:]
        told = [(pending.subject, _error_of(pending)) for pending in unobserved]
        self._connection.signal(PublishWindowError(told))


def _error_of(pending: PendingAck) -> Exception:
    assert pending._error is not None
    return pending._error


def _release(pending: PendingAck) -> None:
    waiter = pending._waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _is_passing(pending: PendingAck, error: Exception) -> bool:
    """Whether a message that was refused may be taken later."""
    if isinstance(error, NoRespondersError):
        return pending._attempts < (_ELECTION_ATTEMPTS if pending._retries is None else pending._retries)
    return pending._has_id and is_in_process(error)


def _refusal(subject: str, message: Message) -> Exception | None:
    """Why the message was not stored; None if it was."""
    if not message.payload and message.status == 503:
        return NoRespondersError(subject)
    try:
        decode_pub_ack(message.payload)
    except JetlakeError as error:
        if isinstance(error, ApiError):
            error.request = subject
        return error
    return None
