"""Pipelined publishing: many messages under way at once, up to a window, their acknowledgements matched as they come.

No future, timer or task exists for a message unless somebody awaits it. What was not acknowledged is never forgotten in
silence: it is raised where its `PendingAck` is awaited, by `complete`, and reported to `on_error`.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.ready import READY
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.errors import (
    ConnectionClosedError,
    DisconnectedError,
    JetlakeError,
    NoRespondersError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
)
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["PendingAck", "PublishWindow"]

_RETRY_WAIT_S = 0.25
_FAILURES_KEPT_MAX = 10_000


class PendingAck(Struct, eq=False):
    """The acknowledgement of a message under way: await it, or leave it to `publish_async_complete`."""

    raw_subject: bytes
    """Where the message went."""
    _window: PublishWindow
    _frame: bytes
    _has_id: bool
    _deadline: float
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

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<PendingAck on {self.subject!r} failed: {self._error}>"
        return f"<PendingAck on {self.subject!r} {'acknowledged' if self.is_done else 'under way'}>"

    def __await__(self) -> Generator[Any, None, PubAck]:
        return self._result().__await__()

    def observe(self) -> None:
        """Leave a failure to whoever holds this object: nobody else is told of it."""
        self._observed = True

    async def _result(self) -> PubAck:
        self._observed = True
        if not self.is_done:
            if self._waiter is None:
                self._waiter = self._window.loop.create_future()
            await asyncio.shield(self._waiter)
        return self.known()

    def known(self) -> PubAck:
        """The answer that is there already; raises what `await` would."""
        self._observed = True
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return decode_pub_ack(self._answer)


class PublishWindow(Receiver):
    """The messages of one JetStream context that are under way.

    Args:
        connection: where they go.
        messages_max: most messages under way; `room` waits at the limit.
        bytes_max: most bytes under way.
        ack_timeout_s: how long a message may go without acknowledgement.
        retries: how often a message is sent again when no stream listens.
    """

    __slots__ = (
        "_bytes",
        "_connection",
        "_denied",
        "_failures",
        "_is_connected",
        "_is_released",
        "_next",
        "_own_deadlines",
        "_pending",
        "_prefix",
        "_prefix_length",
        "_timer",
        "_waiters",
        "ack_timeout_s",
        "bytes_max",
        "loop",
        "messages_max",
        "retries",
    )

    def __init__(
        self, connection: Connection, *, messages_max: int, bytes_max: int, ack_timeout_s: float, retries: int
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
        deadline = self.loop.time() + self.ack_timeout_s
        pending = PendingAck(subject, self, frame, message.has_id, deadline)
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
        wait_s = self.ack_timeout_s if pending._timeout_s is None else pending._timeout_s
        pending._deadline = self.loop.time() + wait_s
        if pending._timeout_s is not None:
            heappush(self._own_deadlines, (pending._deadline, token))
            if self._timer is None or self._timer.when() > pending._deadline:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self.loop.call_at(pending._deadline, self._sweep)

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
            pending = pop(token, None)
            if pending is None:
                continue
            self._bytes -= len(pending._frame)
            answer = message.payload
            # Most answers are read only if somebody asks; one that may hold an error is read now.
            if answer and b'"error"' not in answer:
                pending._answer = answer
            else:
                error = _refusal(pending, message)
                if error is None:
                    pending._answer = answer
                elif isinstance(error, NoRespondersError) and pending._attempts < (
                    self.retries if pending._retries is None else pending._retries
                ):
                    self._try_again(token, pending)
                    continue
                else:
                    pending._error = error
                    failed.append(pending)
            pending._frame = b""
            if pending._waiter is not None:
                _release(pending)
        if failed:
            self._report(failed)
        if (self._waiters or self._is_released) and (not self._pending or not self.is_full):
            self._wake()

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._take_out([token for token, pending in self._pending.items() if pending.raw_subject == subject], error)

    def _try_again(self, token: bytes, pending: PendingAck) -> None:
        pending._attempts += 1
        self._pending[token] = pending
        self._restart_wait(token, pending)
        self._bytes += len(pending._frame)
        self.loop.call_later(_RETRY_WAIT_S, self._send_again, token)

    def _send_again(self, token: bytes) -> None:
        pending = self._pending.get(token)
        if pending is not None and self._is_connected and not self._connection.is_closed:
            self._connection.send(pending._frame)

    # Time and connection

    def _sweep(self) -> None:
        """Give up what is overdue; of those without a timeout of their own, the oldest stands first."""
        self._timer = None
        if not self._is_connected:
            return  # Nothing is sent yet.
        now = self.loop.time()
        overdue = []
        next_at = None
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
        self._time_out(overdue)
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
        for token, pending in self._pending.items():
            self._restart_wait(token, pending)
            self._connection.send(pending._frame)
        if self._pending and self._timer is None:
            self._timer = self.loop.call_at(self.loop.time() + self.ack_timeout_s, self._sweep)

    def ended(self, error: Exception | None) -> None:
        self._is_connected = False
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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


def _refusal(pending: PendingAck, message: Message) -> Exception | None:
    """Why the message was not stored; None if it was."""
    if not message.payload and message.status == 503:
        return NoRespondersError(pending.subject)
    try:
        decode_pub_ack(message.payload)
    except JetlakeError as error:
        return error
    return None
