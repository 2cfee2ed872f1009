"""The sending half of a publish window: messages numbered, plain ones gathered into runs, and written in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jetlake.client.connection.connection import Connection
from jetlake.client.publish.ack_deadlines import AckDeadlines
from jetlake.client.publish.messages_under_way import MessagesUnderWay
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publish_runs import RUN_MAX, PublishRun
from jetlake.client.publish.single_message import SingleMessage
from jetlake.protocol import encoder

__all__ = ["MessageSender"]

_BLOCK_BYTES = 64 * 1024
_FRAME_BYTES = 72
"""What a frame has beside subject and payload, about; so much that a block has less messages than a run may have."""


class MessageSender:
    """Sends the messages of a publish window, which tells how many are free to go.

    The first message of a write is a single one, found by its reply subject. Plain messages directly behind it join a
    run, which is encoded when it is written.

    Args:
        connection: where they go.
        prefix: what their reply subjects begin with; a number in the order of publishing follows.
        under_way: takes the messages that were sent.
        deadlines: the deadlines of single messages, and the timer.
        half_time: returns when half of the time of a message is over that is sent now.
        bytes_max: most bytes under way.
        subscribe: makes sure that the acknowledgements are subscribed to.
        on_run: called when a run is complete.

    Attributes:
        free: how many messages may be put without waiting for room.
        is_connected: whether messages go to a server, or are kept for the next one.
    """

    __slots__ = (
        "_block_bytes",
        "_bytes_max",
        "_connection",
        "_deadline",
        "_deadlines",
        "_half_time",
        "_last_frame",
        "_next",
        "_on_run",
        "_open",
        "_payloads",
        "_prefix",
        "_subjects",
        "_subscribe",
        "_turn_frames",
        "_under_way",
        "free",
        "is_connected",
    )

    def __init__(
        self,
        connection: Connection,
        prefix: bytes,
        under_way: MessagesUnderWay,
        deadlines: AckDeadlines,
        *,
        half_time: Callable[[], float],
        bytes_max: int,
        subscribe: Callable[[], None],
        on_run: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._under_way = under_way
        self._deadlines = deadlines
        self._half_time = half_time
        self._bytes_max = bytes_max
        self._subscribe = subscribe
        self._on_run = on_run
        self._turn_frames = connection.turn_frames
        self._open: PublishRun | None = None
        self._subjects: list[bytes] = []
        self._payloads: list[bytes] = []
        self._deadline = 0.0
        self._last_frame = b""
        self._block_bytes = 0
        self._next = 0
        self.free = 0
        self.is_connected = connection.is_connected

    @property
    def gathered(self) -> int:
        """The messages of the run that is still open."""
        return len(self._payloads)

    def number(self, reply: bytes) -> int:
        """Return the number of the message with this reply subject in the order of publishing."""
        return int(reply[len(self._prefix) :])

    def put(self, subject: bytes, payload: bytes) -> PendingAck | None:
        """Send a message without headers; None while there is no room for it.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        run = self._open
        free = self.free
        if run is None or free <= 0 or self._turn_frames[-1] is not self._last_frame:
            if free <= 0:
                return None
            run = self._open_run(subject, payload)
            if run is None:
                return self._put_single(SingleMessage(subject, payload))
        payloads = self._payloads
        pending = PendingAck(run, len(payloads))
        self._subjects.append(subject)
        payloads.append(payload)
        self.free = free - 1
        self._block_bytes = block_bytes = self._block_bytes + len(subject) + len(payload) + _FRAME_BYTES
        if block_bytes >= _BLOCK_BYTES:
            self._write()
        return pending

    def put_message(self, message: OutgoingMessage) -> PendingAck | None:
        """Send a message as `put` does."""
        if not message.header and message.timeout_s is None and message.retries is None:
            return self.put(message.subject, message.payload)
        if self.free <= 0:
            return None
        return self._put_single(
            SingleMessage(
                message.subject, message.payload, message.header, message.has_id, message.timeout_s, message.retries
            )
        )

    def _open_run(self, subject: bytes, payload: bytes) -> PublishRun | None:
        """Begin a run with this message, if it follows another one of the same write; none is begun near a limit."""
        frames = self._turn_frames
        if not frames or frames[-1] is not self._last_frame or self._under_way.size + _BLOCK_BYTES > self._bytes_max:
            return None
        self._open = run = PublishRun(self._subjects, self._payloads)
        self._last_frame = encoder.pub(subject, self._prefix, payload)
        self._connection.send_growing(self._last_frame, partial(self._frames, run))
        return run

    def _put_single(self, message: SingleMessage) -> PendingAck:
        self._subscribe()
        self._end_run()
        self._next = number = self._next + 1
        reply = self._prefix + b"%d" % number
        frame = message.frame(reply)
        frames = self._turn_frames
        if frames and frames[-1] is self._last_frame:
            frames.append(frame)
        else:
            # Messages of one write have one deadline.
            self._deadline = self._half_time()
            if self.is_connected:
                self._connection.send(frame)
        self._last_frame = frame
        self._under_way.add(reply, message)
        self.free = 0 if self._under_way.size >= self._bytes_max else self.free - 1
        self._block_bytes += len(frame)
        if self._block_bytes >= _BLOCK_BYTES:
            self._write()
        message.deadline = self._deadline
        deadlines = self._deadlines
        if message.timeout_s is not None or message.retries is not None:
            deadlines.restart(reply, message)
        if deadlines.timer is None:
            deadlines.arm(self._deadline)
        return PendingAck(message, 0)

    def put_run(self, run: PublishRun) -> None:
        """Send many messages for which there is room, on a window that is connected.

        Raises:
            ConnectionClosedError: the connection is closed.
            PermissionsError: the server refuses the inbox of the acknowledgements.
        """
        self._subscribe()
        self._end_run()
        self._number_run(run, self._half_time())
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
            self._subjects, self._payloads = [], []
            self._number_run(run, self._deadline)
            self._add_run(run)

    def _number_run(self, run: PublishRun, deadline: float) -> None:
        # Reply subjects end with numbers in the order of publishing; those of a run have all digits but three alike.
        first = self._next // RUN_MAX + 1
        run.end(self._prefix + b"%d" % first, deadline)
        self._next = first * RUN_MAX + len(run)

    def _add_run(self, run: PublishRun) -> None:
        self._under_way.runs.add(run)
        self._on_run()
        if self._deadlines.timer is None:
            self._deadlines.arm(run.deadline)

    def _write(self) -> None:
        """Write now, so that the server works while we do; the window bounds what waits for the socket."""
        self._block_bytes = 0
        self._connection.end_turn()
