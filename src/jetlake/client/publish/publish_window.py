"""Pipelined publishing: many messages under way at once, up to a window, their acknowledgements matched as they come.

No future, timer or task exists for a message unless somebody awaits it. What was not acknowledged is never forgotten in
silence: it is raised where its `PendingAck` is awaited, by `complete`, and reported to `on_error`.

The reasons are in decision 15 (docs/decisions).
"""

from __future__ import annotations

from functools import partial

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Denial, Receiver
from jetlake.client.publish.ack_deadlines import AckDeadlines
from jetlake.client.publish.failures import Failures, looks_stored, refusal
from jetlake.client.publish.messages_under_way import MessagesUnderWay
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_runs import RUN_MAX, PublishRun
from jetlake.client.publish.stream_search import StreamSearch
from jetlake.client.publish.unheard_messages import UnheardMessages, is_passing
from jetlake.client.publish.window_room import WindowRoom
from jetlake.errors import ConnectionClosedError, DisconnectedError, PermissionsError
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["PublishWindow"]

_BLOCK_BYTES = 64 * 1024
_FRAME_BYTES = 72
"""What a frame has beside subject and payload, about; so much that a block has less messages than a run may have."""


class PublishWindow(Receiver):
    """The messages of one JetStream context that are under way.

    The first message of a write is a single one, found by its reply subject. Plain messages directly behind it join a
    run, which is encoded when it is written.

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
        "_block_bytes",
        "_connection",
        "_deadline",
        "_deadlines",
        "_denied",
        "_failures",
        "_free",
        "_half_timeout_s",
        "_is_connected",
        "_is_released",
        "_last_frame",
        "_next",
        "_open",
        "_pending",
        "_prefix",
        "_prefix_length",
        "_room",
        "_send",
        "_turn_frames",
        "_under_way",
        "_unheard",
        "ack_timeout_s",
        "bytes_max",
        "changed",
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
        self._under_way = MessagesUnderWay(lambda: self.loop.time() + self._half_timeout_s)
        self._pending = self._under_way.singles
        self._open: PublishRun | None = None
        self._free = messages_max
        self._deadline = 0.0
        self._last_frame = b""
        self._block_bytes = 0
        self._next = 0
        self._is_connected = connection.is_connected
        self._is_released = False
        self._denied = Denial()
        self._room = WindowRoom(
            self.loop,
            messages_max,
            count=lambda: self.pending,
            is_full=lambda: self.is_full,
            on_wake=self._woken,
        )
        self.changed = self._room.changed
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
        return self._under_way.count + (0 if self._open is None else self._open.gathered_messages)

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        # A run that is still open is not in the size: none is opened near the limit.
        return self.pending >= self.messages_max or self._under_way.size >= self.bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether messages go to a server, or are kept for the next one."""
        return self._is_connected

    # Publishing

    def put(self, subject: bytes, payload: bytes) -> PendingAck | None:
        """Send a message without headers; None while there is no room for it.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        run = self._open
        free = self._free
        if run is None or free <= 0 or self._turn_frames[-1] is not self._last_frame:
            if free <= 0:
                return None
            run = self._open_run(subject, payload)
            if run is None:
                return self._put_single(PendingAck(subject, payload))
        pending = PendingAck(subject)
        run.gathered.extend((subject, payload, pending))
        self._free = free - 1
        self._block_bytes = block_bytes = self._block_bytes + len(subject) + len(payload) + _FRAME_BYTES
        if block_bytes >= _BLOCK_BYTES:
            self._write()
        return pending

    def put_message(self, message: OutgoingMessage) -> PendingAck | None:
        """Send a message as `put` does."""
        if not message.header and message.timeout_s is None and message.retries is None:
            return self.put(message.subject, message.payload)
        if self._free <= 0:
            return None
        pending = PendingAck(message.subject, message.payload, message.header, message.has_id)
        pending._timeout_s, pending._retries = message.timeout_s, message.retries
        return self._put_single(pending)

    def _open_run(self, subject: bytes, payload: bytes) -> PublishRun | None:
        """Begin a run with this message, if it follows another one of the same write; none is begun near a limit."""
        frames = self._turn_frames
        if not frames or frames[-1] is not self._last_frame or self._under_way.size + _BLOCK_BYTES > self.bytes_max:
            return None
        self._open = run = PublishRun()
        self._last_frame = encoder.pub(subject, self._prefix, payload)
        self._connection.send_growing(self._last_frame, partial(self._frames, run))
        return run

    def _put_single(self, pending: PendingAck) -> PendingAck:
        if not self.sid:
            self._subscribe_again()
        self._end_run()
        self._next = number = self._next + 1
        reply = self._prefix + b"%d" % number
        frame = pending.frame(reply)
        frames = self._turn_frames
        if frames and frames[-1] is self._last_frame:
            frames.append(frame)
        else:
            # Messages of one write have one deadline.
            self._deadline = self.loop.time() + self._half_timeout_s
            if self._is_connected:
                self._send(frame)
        self._last_frame = frame
        self._under_way.add(reply, pending)
        self._free = 0 if self._under_way.size >= self.bytes_max else self._free - 1
        self._block_bytes += len(frame)
        if self._block_bytes >= _BLOCK_BYTES:
            self._write()
        pending._deadline = self._deadline
        deadlines = self._deadlines
        if pending._timeout_s is not None or pending._retries is not None:
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
        self._end_run()
        self._number_run(run, self.loop.time() + self._half_timeout_s)
        data = run.frames()
        self._connection.send_run(data, len(run))
        self._add_run(run)
        self._block_bytes += len(data)
        if self._block_bytes >= _BLOCK_BYTES:
            self._write()

    def _frames(self, run: PublishRun) -> tuple[bytes, int]:
        """Encode a run that is written now."""
        if run is self._open:
            self._end_run()
        return run.frames(), len(run)

    def _end_run(self) -> None:
        """Add nothing more to the open run, if there is one."""
        run, self._open = self._open, None
        if run is not None:
            self._number_run(run, self._deadline)
            self._add_run(run)

    def _number_run(self, run: PublishRun, deadline: float) -> None:
        # Reply subjects end with numbers in the order of publishing; those of a run have all digits but three alike.
        first = self._next // RUN_MAX + 1
        run.end(self._prefix + b"%d" % first, deadline)
        self._next = first * RUN_MAX + len(run)

    def _add_run(self, run: PublishRun) -> None:
        self._under_way.runs.add(run)
        self._limit()
        if self._deadlines.timer is None:
            self._deadlines.arm(run.deadline)

    def _write(self) -> None:
        """Write now, so that the server works while we do; the window bounds what waits for the socket."""
        self._block_bytes = 0
        self._connection.end_turn()

    def _split_all(self) -> None:
        """Put the messages of all runs among the single ones."""
        if self._open is not None:
            self._connection.end_turn()
        self._under_way.split_runs()
        self._limit()

    def _split_late_runs(self, now: float) -> float | None:
        self._under_way.split_runs(is_late=True, until=now)
        return self._under_way.runs.next_deadline()

    def _subscribe_again(self) -> None:
        """Subscribe the inbox again after a connection that refused it; fails on a closed connection."""
        self._denied.check(self._connection.reconnects)
        self._connection.subscribe(self)
        self._is_connected = self._connection.is_connected

    async def room(self) -> None:
        """Wait until there is room for a message, behind the publishers that wait already.

        The caller puts its messages before anything else runs.
        """
        if not self._room.is_awaited and not self.is_full:
            return
        self._connection.end_turn()
        try:
            await self._room.wait()
        except BaseException:
            self._limit()
            raise
        self._free = self.messages_max - self.pending

    def _limit(self) -> None:
        """Set how many messages may be put without waiting: those who wait for room go first."""
        is_closed = self._room.is_awaited or self._under_way.size >= self.bytes_max
        self._free = 0 if is_closed else self.messages_max - self.pending

    async def complete(self) -> None:
        """Wait until every message under way is acknowledged or given up.

        Raises:
            PublishWindowError: some were given up since the last call and nobody awaited them.
        """
        await self.settle()
        self._failures.check()

    async def settle(self) -> None:
        # Only what is under way now: others may go on publishing.
        self._connection.end_turn()
        await self._under_way.settled(self.changed)

    def release(self) -> None:
        """End the subscription as soon as nothing is under way: nobody can publish through this window any more."""
        self._is_released = True
        self._room.wake()

    def _woken(self) -> None:
        self._limit()
        if self._is_released and not self.pending:
            self._connection.unsubscribe(self)

    # Acknowledgements

    def receive(self, messages: list[Message]) -> None:
        failed: list[PendingAck] = []
        if self._under_way.runs.messages and not all(looks_stored(one.payload) for one in messages):
            self._under_way.split_runs()
        stored = [message for message in messages if not self._is_refused(message, failed)]
        self._acknowledge([message.raw_subject for message in stored], [message.payload for message in stored])
        if failed:
            self._failures.report(failed)

    def receive_answers(self, subjects: list[bytes], payloads: list[bytes]) -> None:
        # One search for all: most answers are read only if somebody asks.
        if not looks_stored(b"".join(payloads), len(payloads)):
            super().receive_answers(subjects, payloads)
        else:
            self._acknowledge(subjects, payloads)

    def _acknowledge(self, replies: list[bytes], answers: list[bytes]) -> None:
        self._under_way.acknowledge(replies, answers)
        self._limit()
        self._room.acknowledged()

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
            failed.append(self._under_way.give_up(reply, error))
        return True

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        self._split_all()
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
                    self._connection.send(pending.frame(reply))

    # Time and connection

    def _repeat(self, reply: bytes, pending: PendingAck) -> None:
        """Send a message again whose time is half over, if it has an id, which the stream recognises.

        A server of a cluster that dies takes the messages in its hands with it, and nobody tells their publisher.
        """
        if pending._has_id and reply not in self._unheard:
            self._connection.send(pending.frame(reply))

    def disconnected(self) -> None:
        """Keep messages with an id, which are sent again and recognised; whether others arrived is unknown."""
        self._is_connected = False
        self._connection.forget_unsent(self._prefix)
        self._under_way.split_runs()
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
            self._connection.send(pending.frame(reply))
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
        self._split_all()
        self._take_out(
            list(self._pending), error or ConnectionClosedError("the connection was closed before the acknowledgement")
        )

    def _take_out(self, replies: list[bytes], error: Exception) -> None:
        """Give these messages up."""
        failed = [self._under_way.give_up(reply, error) for reply in replies]
        if failed:
            self._failures.report(failed)
        self._room.wake()
