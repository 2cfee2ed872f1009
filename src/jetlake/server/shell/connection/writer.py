"""The write side of a connection: frames gathered and written once per turn of the loop, and back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.gone import GONE
from jetlake.server.shell.connection.peer import Peer
from jetlake.server.shell.connection.services import ConnectionServices

if TYPE_CHECKING:
    from jetlake.server.shell.connection.peer_connection import PeerConnection

__all__ = ["ConnectionWriter"]

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
        """Let go of the socket and the connection, which are gone."""
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
        if transport.get_write_buffer_size():
            # A peer that is gone in silence takes nothing any more, and the system would try for a quarter of an hour.
            self._engine_loop.loop.call_later(self._settings.options.write_deadline_s, transport.abort)

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the socket; at once = without waiting for bytes that are unwritten."""
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()
