"""The read side of a connection: received bytes wait in an inbox and are handled in shares, between which others go."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from jetlake.protocol.frames import Frame
from jetlake.protocol.parser import GeneralParser
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.services import ConnectionServices

if TYPE_CHECKING:
    from jetlake.server.shell.connection.peer_connection import PeerConnection

__all__ = ["ConnectionReader"]

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
        """Let go of the socket and the connection, which are gone, and of the buffers."""
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
