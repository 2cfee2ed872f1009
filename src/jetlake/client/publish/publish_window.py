"""Pipelined publishing: many messages under way at once, up to a window, their acknowledgements matched as they come.

No future, timer or task exists for a message unless somebody awaits it. What was not acknowledged is never forgotten in
silence: it is raised where its `PendingAck` is awaited, by `complete`, and reported to `on_error`.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections import deque

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.ack_deadlines import AckDeadlines
from jetlake.client.publish.failures import Failures, looks_stored, refusal
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_runs import PublishRun, PublishRuns
from jetlake.client.publish.stream_search import StreamSearch
from jetlake.client.publish.unheard_messages import UnheardMessages, is_passing
from jetlake.errors import ConnectionClosedError, DisconnectedError, PermissionsError
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["PublishWindow"]

_BLOCK_BYTES = 64 * 1024
# A publisher who fills every gap at once writes in small pieces, which cost the server a fifth more: who waits for room
# waits for an eighth of the window, but not for long, since the other messages may be stuck.
_ROOM_SHARE = 8
_ROOM_WAIT_S = 0.002


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

    takes_answers = True

    __slots__ = (
        "_connection",
        "_deadline",
        "_deadlines",
        "_denied",
        "_failures",
        "_freed_bytes",
        "_half_timeout_s",
        "_is_connected",
        "_is_released",
        "_last_frame",
        "_line",
        "_next",
        "_pending",
        "_prefix",
        "_prefix_length",
        "_put_bytes",
        "_room_messages",
        "_room_timer",
        "_runs",
        "_send",
        "_singles_max",
        "_turn_frames",
        "_unheard",
        "_waiters",
        "_write_at",
        "ack_timeout_s",
        "bytes_max",
        "disown",
        "loop",
        "messages_max",
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
        self._send = connection.send
        self.loop = connection.loop
        self._turn_frames = connection.turn_frames
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.ack_timeout_s = ack_timeout_s
        self._half_timeout_s = ack_timeout_s / 2
        self._pending: dict[bytes, PendingAck] = {}
        self._runs = PublishRuns()
        self._singles_max = messages_max
        self._deadline = 0.0
        self._last_frame = b""
        self._put_bytes = 0
        self._freed_bytes = 0
        self._write_at = _BLOCK_BYTES
        self._next = 0
        self._is_connected = connection.is_connected
        self._is_released = False
        self._denied = Denial()
        self._waiters: list[asyncio.Future[None]] = []
        self._line: deque[asyncio.Event] = deque()  # Publishers that wait for room, each with its own turn.
        self._room_messages = max(1, messages_max // _ROOM_SHARE)
        self._room_timer: asyncio.TimerHandle | None = None
        self._deadlines = AckDeadlines(
            self.loop,
            self._pending,
            ack_timeout_s,
            is_connected=lambda: self._is_connected,
            repeat=self._repeat,
            give_up=self._take_out,
            split_runs=self._split_late_runs,
        )
        self._unheard = UnheardMessages(
            self.loop,
            self._pending,
            retries=retries,
            search=search,
            send_again=self._send_again,
            give_up=self._take_out,
        )
        self._failures = Failures(connection.signal)
        self.disown = self._failures.disown
        connection.subscribe(self)

    @property
    def pending(self) -> int:
        """Messages under way."""
        return len(self._pending) + self._runs.messages

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        return self.pending >= self.messages_max or self._put_bytes - self._freed_bytes >= self.bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether messages go to a server, or are kept for the next one."""
        return self._is_connected

    # Publishing

    def put(
        self,
        subject: bytes,
        payload: bytes,
        header: bytes = b"",
        has_id: bool = False,
        timeout_s: float | None = None,
        retries: int | None = None,
    ) -> PendingAck | None:
        """Send a message, described as in `OutgoingMessage`; None while there is no room for it.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        pendings = self._pending
        put_bytes = self._put_bytes
        if len(pendings) >= self._singles_max or put_bytes - self._freed_bytes >= self.bytes_max:
            return None
        if not self.sid:
            self._subscribe_again()
        self._next = number = self._next + 1
        reply = self._prefix + b"%d" % number
        if header:
            frame = encoder.hpub(subject, reply, header, payload)
        else:
            frame = encoder.pub(subject, reply, payload)
        self._put_bytes = put_bytes = put_bytes + len(frame)
        turn_frames = self._turn_frames
        if turn_frames and turn_frames[-1] is self._last_frame:
            turn_frames.append(frame)
        else:
            # Messages of one write have one deadline.
            self._deadline = self.loop.time() + self._half_timeout_s
            if self._is_connected:
                self._send(frame)
        self._last_frame = frame
        if put_bytes >= self._write_at:
            self._write(put_bytes)
        pendings[reply] = pending = PendingAck(subject, frame, has_id, self._deadline)
        deadlines = self._deadlines
        if timeout_s is not None or retries is not None:
            pending._timeout_s, pending._retries = timeout_s, retries
            deadlines.restart(reply, pending)
        if deadlines.timer is None:
            deadlines.arm(self._deadline)
        return pending

    def put_run(self, run: PublishRun) -> None:
        """Send many messages for which there is room, on a window that is connected.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        if not self.sid:
            self._subscribe_again()
        count = len(run)
        self._connection.send_run(run.frames(self._prefix, self._next + 1), count)
        self._next += count
        self._put_bytes += run.bytes_left
        if self._put_bytes >= self._write_at:
            self._write(self._put_bytes)
        run.deadline = self.loop.time() + self._half_timeout_s
        self._runs.add(run)
        self._limit_singles()
        if self._deadlines.timer is None:
            self._deadlines.arm(run.deadline)

    def _write(self, put_bytes: int) -> None:
        """Write now, so that the server works while we do; the window bounds what waits for the socket."""
        self._write_at = put_bytes + _BLOCK_BYTES
        self._connection.end_turn()

    def _split_runs(self, *, is_late: bool = False, until: float | None = None) -> None:
        """Put the messages of runs, or only of those with a deadline up to a time, among the single ones."""
        deadline = self.loop.time() + self._half_timeout_s
        while (due := self._runs.next_deadline()) is not None and (until is None or due <= until):
            run = self._runs.pop()
            assert run is not None
            self._freed_bytes += run.bytes_left
            self._put_bytes += run.split(self._pending, deadline, is_late=is_late)
        self._limit_singles()

    def _split_late_runs(self, now: float) -> float | None:
        self._split_runs(is_late=True, until=now)
        return self._runs.next_deadline()

    def _subscribe_again(self) -> None:
        """Subscribe the inbox again after a connection that refused it; fails on a closed connection."""
        self._denied.check(self._connection.reconnects)
        self._connection.subscribe(self)
        self._is_connected = self._connection.is_connected

    async def room(self) -> None:
        """Wait until there is room for a message, behind the publishers that wait already.

        The caller puts its messages before anything else runs.
        """
        line = self._line
        if not line and not self.is_full:
            return
        self._connection.end_turn()
        turn = asyncio.Event()
        line.append(turn)
        try:
            while line[0] is not turn or self.is_full:
                await turn.wait()
                turn.clear()
        finally:
            line.remove(turn)
            self._call_next()
            self._singles_max = self.messages_max - self._runs.messages

    def _call_next(self) -> None:
        """Let the first publisher of the line look for room; those who are not in the line go behind it."""
        if self._line and not self.is_full:
            self._line[0].set()
        self._limit_singles()

    def _limit_singles(self) -> None:
        """Set how many single messages may be under way without waiting in line."""
        self._singles_max = 0 if self._line else self.messages_max - self._runs.messages

    async def complete(self) -> None:
        """Wait until every message under way is acknowledged or given up.

        Raises:
            PublishWindowError: some were given up since the last call and nobody awaited them.
        """
        await self.settle()
        self._failures.check()

    async def settle(self) -> None:
        # Only what is under way now: others may go on publishing.
        self._split_runs()
        for pending in list(self._pending.values()):
            while not pending.is_done:
                await self.changed()

    def release(self) -> None:
        """End the subscription as soon as nothing is under way: nobody can publish through this window any more."""
        self._is_released = True
        self._wake()

    async def changed(self) -> None:
        """Wait until messages are acknowledged or given up."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        self._call_next()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._is_released and not self.pending:
            self._connection.unsubscribe(self)

    def _wake_if_room(self) -> None:
        is_awaited = self._waiters or self._line
        if not is_awaited and not self._is_released:
            return
        pending = self.pending
        if not pending or (not self.is_full and pending <= self.messages_max - self._room_messages):
            self._wake()
        elif is_awaited and self._room_timer is None and not self.is_full:
            self._room_timer = self.loop.call_later(_ROOM_WAIT_S, self._wake)

    # Acknowledgements

    def receive(self, messages: list[Message]) -> None:
        failed: list[PendingAck] = []
        if self._runs.messages and not all(looks_stored(one.payload) for one in messages):
            self._split_runs()
        stored = [message for message in messages if not self._is_refused(message, failed)]
        self._acknowledge([message.raw_subject for message in stored], [message.payload for message in stored])
        if failed:
            self._failures.report(failed)
        self._wake_if_room()

    def receive_answers(self, subjects: list[bytes], payloads: list[bytes]) -> None:
        # One search for all: most answers are read only if somebody asks.
        if not looks_stored(b"".join(payloads), len(payloads)):
            super().receive_answers(subjects, payloads)
        else:
            self._acknowledge(subjects, payloads)
            self._wake_if_room()

    def _acknowledge(self, replies: list[bytes], answers: list[bytes]) -> None:
        """Settle the messages that a stream has stored."""
        if self._runs.messages:
            replies, answers = self._acknowledge_runs(replies, answers)
        pop = self._pending.pop
        freed_bytes = 0
        for reply, answer in zip(replies, answers, strict=True):
            pending = pop(reply, None)
            if pending is not None:
                pending._answer = answer
                freed_bytes += len(pending._frame)
                pending._frame = b""
                if pending._waiter is not None:
                    _release(pending)
        self._freed_bytes += freed_bytes

    def _acknowledge_runs(self, replies: list[bytes], answers: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Settle messages of runs; returns the acknowledgements of the others."""
        runs = self._runs
        size = runs.size
        others = runs.acknowledge(replies)
        self._freed_bytes += size - runs.size
        self._limit_singles()
        if not others:
            return [], []
        replies = [replies[position] for position in others]
        if not self._pending.keys() >= set(replies):
            self._split_runs()  # Streams that share a run acknowledge it in another order.
        return replies, [answers[position] for position in others]

    def _is_refused(self, message: Message, failed: list[PendingAck]) -> bool:
        """Read an answer if it may be a refusal; what is refused for good is added to `failed`."""
        if looks_stored(message.payload):
            return False
        reply = message.raw_subject
        pending = self._pending.get(reply)
        error = None if pending is None else refusal(pending.subject, message)
        if pending is None or error is None:
            return False
        if not self._try_again(reply, error):
            failed.append(self._give_up(reply, error))
        return True

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._split_runs()
        self._take_out([reply for reply, pending in self._pending.items() if pending.raw_subject == subject], error)

    def _try_again(self, reply: bytes, error: Exception) -> bool:
        """Send a refused message again, together with others, after a moment; False if it is refused for good.

        Each attempt has the whole timeout, unless the publisher has set one for the message.
        """
        pending = self._pending[reply]
        if not is_passing(pending, error):
            return False
        pending._attempts += 1
        if pending._retries is not None or pending._timeout_s is None:
            self._pending[reply] = self._pending.pop(reply)
            self._deadlines.restart(reply, pending)
        self._unheard.add(reply, pending)
        return True

    def _send_again(self, replies: list[bytes]) -> None:
        """Send messages again in the order of publishing; without a connection the next one gets all of them."""
        if self._is_connected and not self._connection.is_closed:
            for reply in sorted(replies, key=self._number):
                pending = self._pending.get(reply)
                if pending is not None:
                    self._connection.send(pending._frame)

    # Time and connection

    def _repeat(self, reply: bytes, pending: PendingAck) -> None:
        """Send a message again whose time is half over, if it has an id, which the stream recognises.

        A server of a cluster that dies takes the messages in its hands with it, and nobody tells their publisher.
        """
        if pending._has_id and reply not in self._unheard:
            self._connection.send(pending._frame)

    def disconnected(self) -> None:
        """Keep messages with an id, which are sent again and recognised; whether others arrived is unknown."""
        self._is_connected = False
        self._connection.forget_unsent(self._prefix)
        self._split_runs()
        self._take_out(
            [reply for reply, pending in self._pending.items() if not pending._has_id],
            DisconnectedError("the connection was lost before the acknowledgement; the message may be stored or not"),
        )

    def reconnected(self) -> None:
        self._is_connected = True
        self._deadlines.clear()
        self._unheard.clear()
        # In the order of publishing, which later attempts have changed.
        for reply in sorted(self._pending, key=self._number):
            self._pending[reply] = pending = self._pending.pop(reply)
            self._deadlines.restart(reply, pending)
            self._connection.send(pending._frame)
        if self._pending and self._deadlines.timer is None:
            self._deadlines.arm(self.loop.time() + self._half_timeout_s)

    def _number(self, reply: bytes) -> int:
        """Return the number of the message in the order of publishing."""
        return int(reply[self._prefix_length :])

    def ended(self, error: Exception | None) -> None:
        self._is_connected = False
        self.sid = b""
        self._denied.take(error, self._connection.reconnects)
        self._deadlines.stop()
        self._unheard.stop_search()
        self._split_runs()
        self._take_out(
            list(self._pending), error or ConnectionClosedError("the connection was closed before the acknowledgement")
        )

    def _take_out(self, replies: list[bytes], error: Exception) -> None:
        """Give these messages up."""
        failed = [self._give_up(reply, error) for reply in replies]
        if failed:
            self._failures.report(failed)
        self._wake()

    def _give_up(self, reply: bytes, error: Exception) -> PendingAck:
        pending = self._pending.pop(reply)
        self._freed_bytes += len(pending._frame)
        pending._error = error
        pending._frame = b""
        _release(pending)
        return pending


def _release(pending: PendingAck) -> None:
    waiter = pending._waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
