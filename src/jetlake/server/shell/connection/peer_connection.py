"""What connections to clients and to leaf nodes share: a socket, its read side, its write side, and how they end.

    socket ── receive ──> Inbox ── shares of 1 ms ──> handle(frames) ── send ──> queue ── flush, once a turn ──> socket

What is always true:

- Received bytes wait in the `Inbox` and are handled in shares, between which other connections have theirs. Reading is
  paused while the inbox holds anything, so that one read bounds it.
- Frames are handled in the order of their bytes; frames that have to wait (credentials are being checked, the time is
  up) go back to the head of the inbox.
- Frames to the peer leave in the order of `send`, gathered into one write for each turn of the loop. Deliveries pause
  above `_HIGH_WATER` unwritten bytes, publishers to the peer stall at three quarters of `max_pending`, and the peer is
  cut off above `max_pending`, or when it takes nothing until the write deadline.
- A connection that has ended is not kept in memory by its parts: they know `GONE` instead.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from itertools import accumulate

from jetlake.protocol.encoder import err
from jetlake.protocol.frames import Frame
from jetlake.protocol.parser import GeneralParser
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.pings import PingTimer
from jetlake.server.shell.connection.services import ConnectionServices

__all__ = ["ConnectionReader", "ConnectionWriter", "PeerConnection", "hang_up_all"]

# How long a clean stop waits for the last bytes to be taken.
_STOP_S = 1.0


class PeerConnection(asyncio.Protocol):
    """A connection made of a reader and a writer; base of the connections to clients and to leaf nodes.

    Attributes:
        closed: the connection has ended; nothing more is handled or sent.
    """

    closed: bool
    peer: Peer
    writer: ConnectionWriter
    pings: PingTimer
    _reader: ConnectionReader
    _report_defect: Callable[[str, Exception], None]

    def _read_with(self, reader: ConnectionReader) -> None:
        self._reader = reader
        self.data_received = reader.receive  # type: ignore[method-assign]  # A read costs no call more.

    @property
    @abstractmethod
    def close_reason(self) -> str:
        """Why the connection ended; empty while it is open."""

    # What the reader calls

    @abstractmethod
    def make_parser(self) -> GeneralParser:
        """Make the parser, with the limits in force."""

    @abstractmethod
    def handle(self, frames: list[Frame], deadline_s: float) -> list[Frame]:
        """Handle a group of frames until a time, and return the frames that have to wait."""

    @abstractmethod
    def handle_violation(self, parser: GeneralParser) -> None:
        """End the connection whose bytes the parser refused."""

    @property
    def is_encrypted(self) -> bool:
        """Whether received bytes have to go through `decrypt`."""
        return False

    @property
    def is_checking(self) -> bool:
        """Whether frames wait until credentials are checked."""
        return False

    @property
    def tls_ended(self) -> bool:
        """Whether the peer has ended TLS, and the connection has to follow once all is handled."""
        return False

    def decrypt(self, data: bytes) -> bytes:
        """Return the plaintext of received bytes."""
        return data

    @property
    @abstractmethod
    def is_mute(self) -> bool:
        """Whether nothing can be sent for now."""

    # What asyncio calls

    def _attach(self, transport: asyncio.Transport) -> None:
        self.writer.attach(transport)
        self._reader.attach(transport)

    def eof_received(self) -> bool:
        """End: the peer sends no more. Returning False lets the socket close once everything is written."""
        self._close("Client Closed")
        self.writer.abort_in_time()
        return False

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def end(self, error: str | None = None, *, reason: str) -> None:
        """Close the connection, after an -ERR with this text if there is one."""
        if self.closed:
            return
        if error is not None:
            self.writer.send(err(error))
        self.writer.flush_all()
        self._close(reason)
        self.writer.linger()

    def drop(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection without an -ERR; at once = without waiting for bytes that are unwritten."""
        self._close(reason)
        self.writer.hang_up(at_once=at_once)

    def fail(self, error: Exception) -> None:
        """Report an internal error and close this connection; other connections are not affected."""
        self._report_defect(str(self.peer), error)
        self.end(reason="Internal Error")

    @abstractmethod
    def _close(self, reason: str) -> None:
        """Release everything but the socket, which may live a little longer."""


async def hang_up_all(sockets: Collection[PeerConnection]) -> None:
    """Close the sockets of connections that have ended, after a moment for the last bytes; none is left open.

    Args:
        sockets: the connections with open sockets; a connection leaves them when its socket is gone.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STOP_S
    while sockets and loop.time() < deadline:
        for connection in list(sockets):
            connection.writer.hang_up()
        await asyncio.sleep(0.002)
    for connection in list(sockets):
        connection.writer.hang_up(at_once=True)
    await asyncio.sleep(0)  # the loop tells connections of their end in its next turn


# A share: what one connection may have handled before the others get theirs. Lines are handled in groups, between which
# the clock is looked at, and after frames that may take long; a read as large as this means that more waits in the
# socket.
_SHARE_S = 0.001
_SHARE_FRAMES = 512
_GROUP_LINES = 64
_FULL_READ_BYTES = 250_000

# A publisher whose messages pile up at a subscriber is not read from for this long.
_STALL_S = 0.005

# Reasons to pause reading: credentials are being checked, published messages pile up, other connections go first.
_CHECKING = 1
_STALLED = 2
_BEHIND = 4


class Inbox:
    """Received bytes in their order, parsed only as far as frames are asked for.

    Its size is bounded by the connection, which pauses reading while the inbox holds anything.
    """

    __slots__ = ("_frames", "_pieces", "_position", "parser")

    def __init__(self, parser: GeneralParser) -> None:
        self.parser = parser
        self._frames: list[Frame] = []
        self._pieces: deque[bytes] = deque()
        self._position = 0  # where in the first piece the next frame begins

    def __bool__(self) -> bool:
        return bool(self._pieces or self._frames)

    @property
    def is_broken(self) -> bool:
        """Whether a violation of the protocol comes next."""
        return self.parser.error is not None and not self._frames

    def add(self, data: bytes) -> None:
        """Append the bytes of one read."""
        self._pieces.append(data)

    def take(self, lines: int) -> tuple[list[Frame], int]:
        """Take the frames of the next lines, or frames that were put back; none when the next one is incomplete.

        Returns:
            The frames, and how many messages and other lines they are; runs that were put back counted before.
        """
        if self._frames:
            frames, self._frames = self._frames[:lines], self._frames[lines:]
            return frames, len(frames)
        data = self._pieces[0]
        parser = self.parser
        frames = parser.feed(data, self._position, lines)
        if parser.position < len(data):
            self._position = parser.position
        else:
            self._pieces.popleft()
            self._position = 0
        return frames, parser.message_count

    def put_back(self, frames: list[Frame]) -> None:
        """Return frames that could not be handled yet; `take` gives them out next."""
        self._frames = frames + self._frames

    def clear(self) -> None:
        """Drop everything."""
        self._frames = []
        self._pieces.clear()
        self._position = 0


class ConnectionReader:
    """Handles what a connection receives, a bounded share at a time, and pauses reading while more is waiting.

    Args:
        connection: handles the frames; a client that fills the connection's own queue reads that first.
    """

    def __init__(self, connection: PeerConnection, services: ConnectionServices) -> None:
        self._connection = connection
        self._writer = connection.writer
        self._pings = connection.pings
        self._clock = services.clock
        self._engine_loop = services.engine_loop
        self._statistics = services.statistics
        self._transport: asyncio.Transport | None = None
        self._inbox = Inbox(connection.make_parser())
        self._holds = 0

    def attach(self, transport: asyncio.Transport) -> None:
        """Pause and resume this socket."""
        self._transport = transport

    def detach(self) -> None:
        """Release the socket and the connection, which are gone, and of the buffers."""
        self.start_over()
        self._connection = GONE

    def start_over(self) -> None:
        """Drop the socket and its bytes; another socket will be attached."""
        self._transport = None
        self._inbox = Inbox(self._connection.make_parser())

    def clear(self) -> None:
        """Drop the bytes that were received and not handled."""
        self._inbox.clear()

    def apply_limits(self) -> None:
        """Take over the limits in force."""
        current, fresh = self._inbox.parser, self._connection.make_parser()
        current.max_payload, current.max_control_line = fresh.max_payload, fresh.max_control_line

    # Shares

    def receive(self, data: bytes) -> None:
        """Handle a first share of what the socket gave, unless reading is paused."""
        if self._connection.closed:
            return
        self._engine_loop.begin()
        self._pings.last_activity_ns = self._clock.now_ns()
        try:
            if self._connection.is_encrypted:
                data = self._connection.decrypt(data)
            if data and not self._connection.closed:
                self._take(data)
            self._drop_if_tls_ended()
        except Exception as error:
            self._connection.fail(error)
        self._engine_loop.schedule()

    def _drop_if_tls_ended(self) -> None:
        """Close a connection whose peer has ended TLS, but only when all that came before the end was handled."""
        connection = self._connection
        if connection.tls_ended and not self._holds and not connection.closed:
            self._engine_loop.loop.call_soon(connection.drop, "Client Closed")

    def _take(self, data: bytes) -> None:
        self._inbox.add(data)
        if self._holds:
            return
        if not self._engine_loop.has_time() or self._handle_share() or len(data) >= _FULL_READ_BYTES:
            self._hold(_BEHIND)
            if not self._holds & (_CHECKING | _STALLED):
                self._engine_loop.wait_for_turn(self)

    def read_on(self) -> bool:
        """Handle another share in a later turn; whether there is one more."""
        try:
            if self._handle_share():
                return True
        except Exception as error:
            self._connection.fail(error)
        if not self._holds & (_CHECKING | _STALLED):
            self._resume_after_share()
        return False

    def _handle_share(self) -> bool:
        """Handle one share of the inbox; return whether more is left that may be handled."""
        inbox = self._inbox
        connection, statistics, ticks = self._connection, self._statistics, self._engine_loop.ticks
        pressured_sends = statistics.pressured_sends
        frames_left = _SHARE_FRAMES
        deadline_s = ticks() + _SHARE_S
        while not connection.closed:
            if inbox.is_broken:
                connection.handle_violation(inbox.parser)
                break
            if not inbox:
                break
            frames, count = inbox.take(_GROUP_LINES)
            unhandled = connection.handle(frames, deadline_s)
            if unhandled:
                inbox.put_back(unhandled)
            if connection.is_checking:
                self._hold(_CHECKING)
            if statistics.pressured_sends != pressured_sends:
                self._stall()
            if self._holds & (_CHECKING | _STALLED):
                break
            frames_left -= count - len(unhandled)
            if frames_left <= 0 or ticks() >= deadline_s:
                return bool(inbox) or inbox.is_broken
        return False

    # Pauses

    def _stall(self) -> None:
        """Stop reading for a moment: subscribers, the client itself among them, have to catch up."""
        self._statistics.stalled += 1
        self._hold(_STALLED)
        self._engine_loop.loop.call_later(_STALL_S, self._end_stall)

    def _end_stall(self) -> None:
        """Continue; but a client that filled its own queue reads that first, or is cut off at the write deadline."""
        if not self._connection.closed and self._writer.is_over_stall_mark():
            self._engine_loop.loop.call_later(_STALL_S, self._end_stall)
        else:
            self._wait_for_turn_after(_STALLED)

    def resume_after_check(self) -> None:
        """Handle the frames received while the credentials were checked."""
        self._wait_for_turn_after(_CHECKING)

    def _hold(self, reason: int) -> None:
        """Pause reading for a reason; reading resumes when no reason is left."""
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds |= reason

    def _resume_after_share(self) -> None:
        self._holds &= ~_BEHIND
        self._drop_if_tls_ended()
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _wait_for_turn_after(self, reason: int) -> None:
        """Drop a reason to pause; wait for a turn if no other is left."""
        self._holds &= ~reason
        if not self._connection.closed and not self._holds & (_CHECKING | _STALLED):
            self._holds |= _BEHIND
            self._engine_loop.wait_for_turn(self)


# Unwritten bytes from which deliveries to a connection pause, and at which they continue.
_HIGH_WATER = 1024 * 1024
_LOW_WATER = 256 * 1024
# About what one turn writes to one connection: a long queue leaves in pieces, so that a client that reads has taken one
# of them before the write deadline.
_WRITE_BYTES = 1024 * 1024

# How long a refused peer may continue sending before the socket is torn down: an early reset could overtake the -ERR.
_LINGER_S = 0.25

_SECOND_NS = 1_000_000_000


class ConnectionWriter:
    """The outgoing queue of a connection, and its socket's way out.

    Args:
        peer: names the connection in the log.
        subscriber: whose `congested` flag tells the engine to pause deliveries.
        connection: ended when it is a slow consumer's.

    Attributes:
        encrypt: turns frames into TLS records; None without TLS.
    """

    def __init__(
        self, peer: Peer, subscriber: Subscriber, connection: PeerConnection, services: ConnectionServices
    ) -> None:
        self.encrypt: Callable[[bytes], bytes] | None = None
        self._peer = peer
        self._subscriber = subscriber
        self._connection = connection
        self._settings = services.settings
        self._clock = services.clock
        self._log = services.log
        self._engine_loop = services.engine_loop
        self._statistics = services.statistics
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._queued_bytes = 0
        self._is_traced = False
        self._closed = False
        self._dirty = False
        self._paused = False
        self._deadline: Timer | None = None
        self.apply_limits()

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to this socket from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)

    def detach(self) -> None:
        """Release the socket and the connection, which are gone."""
        self._transport = self.encrypt = None
        self._subscriber = self._connection = GONE

    def apply_limits(self) -> None:
        """Take over the limit and the tracing of the options in force."""
        self._max_pending = self._settings.options.max_pending
        self._stall_mark = self._max_pending * 3 // 4
        if self._log.tracing != self._is_traced:
            self._is_traced = not self._is_traced
            if self._is_traced:
                self.send = self._send_traced  # type: ignore[method-assign]
            else:
                del self.send

    # Writing

    def send(self, data: bytes) -> None:
        """Queue whole frames, to be written at the end of this turn."""
        if self._closed:
            return
        self._output.append(data)
        size = self._queued_bytes = self._queued_bytes + len(data)
        if not self._dirty:
            self._dirty = True
            self._engine_loop.mark_dirty(self)
        if size > _HIGH_WATER:
            self._press()

    def _send_traced(self, data: bytes) -> None:
        from jetlake.server.shell.connection.traces import describe_output

        for line in describe_output(data):
            self._log.trace(f"{self._peer} - ->> [{line}]")
        ConnectionWriter.send(self, data)

    def flush(self) -> None:
        """Write the queue with one call."""
        self._dirty = False
        transport = self._transport
        if self._paused or not self._output or transport is None:
            return
        data = self._take_output()
        self._queued_bytes -= len(data)
        transport.write(data if self.encrypt is None else self.encrypt(data))
        if self._output and not self._paused:
            self._dirty = True
            self._engine_loop.mark_dirty(self)
        if self._subscriber.congested and not self._paused and self._queued_bytes <= _HIGH_WATER:
            self._relieve()

    def flush_all(self) -> None:
        """Write the whole queue now, as far as the socket takes it."""
        while self._output and not self._paused and self._transport is not None:
            self.flush()

    def _take_output(self) -> bytes:
        """Take from the queue what this turn writes."""
        output = self._output
        if len(output) == 1:
            return output.pop()
        count = len(output)
        if self._queued_bytes > _WRITE_BYTES:
            sizes = accumulate(map(len, output))
            count = next(place for place, size in enumerate(sizes, 1) if size >= _WRITE_BYTES)
        data = b"".join(output[:count])
        del output[:count]
        return data

    def write_raw(self, data: bytes) -> None:
        """Write bytes of the TLS handshake, past the queue."""
        if data and self._transport is not None:
            self._transport.write(data)

    def pending_bytes(self) -> int:
        """Count the bytes that wait to be written, here and in the transport."""
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return buffered + self._queued_bytes

    # Back-pressure

    def pause(self) -> None:
        """Write nothing while the socket's buffer is full, until the write deadline at most."""
        self._paused = True
        self._subscriber.congested = True
        deadline_ns = self._clock.now_ns() + int(self._settings.options.write_deadline_s * _SECOND_NS)
        self._deadline = self._engine_loop.timers.schedule(deadline_ns, self._miss_deadline)

    def resume(self) -> None:
        """Write again: the socket's buffer has drained."""
        self._paused = False
        self._engine_loop.timers.cancel(self._deadline)
        if self._output:
            self.flush()
        elif self._subscriber.congested:
            self._relieve()

    def is_over_stall_mark(self) -> bool:
        """Return whether the queue is so long that publishers to this client are stalled."""
        return self.pending_bytes() > self._stall_mark

    def _press(self) -> None:
        """Pause deliveries; stall publishers above the stall mark, and cut the client off above its limit."""
        self._subscriber.congested = True
        pending = self.pending_bytes()
        if pending > self._stall_mark:
            self._statistics.pressured_sends += 1  # The connection whose message this was stalls.
            if pending > self._max_pending:
                self._cut_off(f"MaxPending of {self._max_pending} Exceeded", "Slow Consumer (Pending Bytes)")

    def _relieve(self) -> None:
        # sometimes: a connection that was congested gets deliveries again
        self._subscriber.congested = False
        self._engine_loop.drained()

    def _miss_deadline(self, _now_ns: int) -> None:
        deadline = f"{self._settings.options.write_deadline_s:g}s"
        self._cut_off(f"WriteDeadline of {deadline} exceeded", "Slow Consumer (Write Deadline)")

    def _cut_off(self, detail: str, reason: str) -> None:
        self._statistics.slow_consumers += 1
        self._log.info(f"{self._peer} - Slow Consumer Detected: {detail}")
        self._connection.drop(reason, at_once=True)

    # The end

    def discard(self) -> None:
        """Drop the queue, and send nothing more."""
        self._closed = True
        self._engine_loop.timers.cancel(self._deadline)
        self._output.clear()
        self._queued_bytes = 0

    def linger(self) -> None:
        """Close the socket once the peer has had the time to read the last bytes; one that takes none is cut off."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        call_later = self._engine_loop.loop.call_later
        if self._paused:
            transport.close()
            call_later(_LINGER_S, transport.abort)
        elif self.encrypt is None and transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:
                transport.abort()  # The client has gone first.
            else:
                call_later(_LINGER_S, self._close_in_time, transport)
        else:
            self._close_in_time(transport)

    def _close_in_time(self, transport: asyncio.Transport) -> None:
        transport.close()
        self.abort_in_time()

    def abort_in_time(self) -> None:
        """Cut off the peer of a closing socket that has not taken the last bytes by the write deadline."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            # sometimes: a socket closes whose peer takes nothing
            # One that is gone in silence takes nothing any more, and the system would try for a quarter of an hour.
            self._engine_loop.loop.call_later(self._settings.options.write_deadline_s, transport.abort)

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the socket; at once = without waiting for bytes that are unwritten."""
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()
