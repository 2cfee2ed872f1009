"""The outgoing half of a connection: frames gathered and written once per turn, pressure, and the end."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from jetlake.protocol.encoder import err
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.tls import TlsChannel

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["Outgoing"]

# Unwritten bytes from which deliveries to a connection pause, and at which they go on.
_HIGH_WATER = 1024 * 1024
_LOW_WATER = 256 * 1024
# About what one turn writes to one connection: a long queue leaves in pieces, so that a client that reads has taken one
# of them before the write deadline.
_WRITE_BYTES = 1024 * 1024

# How long a refused peer may go on sending before the socket is torn down: an early reset could overtake the -ERR.
_LINGER_S = 0.25

_SECOND_NS = 1_000_000_000


class Outgoing(asyncio.Protocol, Subscriber):
    """What a connection does to write, and to stop.

    Attributes:
        cid: the number by which monitoring knows it.
        tls: the encryption, once it has begun and until the end.
        tls_description: its version and cipher, for monitoring.
        out_bytes: bytes of frames written so far.
        close_reason: why it ended; empty while it lives.
        stop_ns: when it ended.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.turns = server.turns
        self.cid: int = 0
        self.peer_host: str = ""
        self.peer_port: int = 0
        self.tls: TlsChannel | None = None
        self.tls_description: dict[str, str] = {}
        self.out_bytes: int = 0
        self.close_reason: str = ""
        self.stop_ns: int = 0
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._queued_bytes = 0
        self._max_pending = server.options.max_pending
        self._stall_mark = self._max_pending * 3 // 4
        self._dirty = False
        self._paused = False
        self._write_timer: Timer | None = None

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port} - cid:{self.cid}"

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        # The transports of uvloop have all the methods of asyncio's, and none of its classes.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer_port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        self.apply_tracing()

    def apply_tracing(self) -> None:
        """Log what goes out from now on, or no more, as the log wants it."""
        if self.server.log.tracing:
            self.send = self._send_traced  # type: ignore[method-assign]
        else:
            self.__dict__.pop("send", None)

    # Writing

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._output.append(data)
        size = self._queued_bytes = self._queued_bytes + len(data)
        if not self._dirty:
            self._dirty = True
            self.turns.mark_dirty(self)
        if size > _HIGH_WATER:
            self._take_pressure()

    def _send_traced(self, data: bytes) -> None:
        from jetlake.server.shell.connection.traces import describe_output

        for line in describe_output(data):
            self.server.log.trace(f"{self} - ->> [{line}]")
        Outgoing.send(self, data)

    def flush(self) -> None:
        """Write everything that was sent in this turn of the loop, with one call."""
        self._dirty = False
        transport = self._transport
        if self._paused or not self._output or transport is None:
            return
        data = self._take_output()
        self._queued_bytes -= len(data)
        self.out_bytes += len(data)
        transport.write(data if self.tls is None else self.tls.encrypt(data))
        if self._output and not self._paused:
            self._dirty = True
            self.turns.mark_dirty(self)
        if self.congested and not self._paused and self._queued_bytes <= _HIGH_WATER:
            self._relieve()

    def _take_output(self) -> bytes:
        """What to write in this turn."""
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

    def _write(self, data: bytes) -> None:
        """Write bytes of the network, which are no frames."""
        if data and self._transport is not None:
            self._transport.write(data)

    def pending_bytes(self) -> int:
        """Bytes that wait to be written, here and in the transport."""
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return buffered + self._queued_bytes

    # Pressure

    def pause_writing(self) -> None:
        self._paused = True
        self.congested = True
        deadline_ns = self.server.clock.now_ns() + int(self.server.options.write_deadline_s * _SECOND_NS)
        self._write_timer = self.turns.timers.schedule(deadline_ns, self._write_overdue)

    def resume_writing(self) -> None:
        self._paused = False
        self.turns.timers.cancel(self._write_timer)
        if self._output:
            self.flush()
        elif self.congested:
            self._relieve()

    def _take_pressure(self) -> None:
        """More waits than should: pause deliveries, slow down publishers, or cut this client off."""
        self.congested = True
        pending = self.pending_bytes()
        if pending > self._stall_mark:
            self.server.pressured_sends += 1  # Whoever published this is not read from for a while.
            if pending > self._max_pending:
                self._cut_off(f"MaxPending of {self._max_pending} Exceeded", "Slow Consumer (Pending Bytes)")

    def _relieve(self) -> None:
        self.congested = False
        self.turns.drained()

    def _write_overdue(self) -> None:
        deadline = f"{self.server.options.write_deadline_s:g}s"
        self._cut_off(f"WriteDeadline of {deadline} exceeded", "Slow Consumer (Write Deadline)")

    def _cut_off(self, detail: str, reason: str) -> None:
        self.server.slow_consumers += 1
        self.server.log.info(f"{self} - Slow Consumer Detected: {detail}")
        self.forget(reason)
        self.hang_up(at_once=True)

    # The end

    def end(self, error: str | None = None, *, reason: str) -> None:
        """Close the connection, after an -ERR with this text if there is one."""
        if self.closed:
            return
        if error is not None:
            self.send(err(error))
        while self._output and not self._paused and self._transport is not None:
            self.flush()
        self.forget(reason)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused:
            transport.close()
            self.server.loop.call_later(_LINGER_S, transport.abort)
        elif self.tls is None and transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:
                transport.abort()  # The client has gone first.
            else:
                self.server.loop.call_later(_LINGER_S, transport.close)
        else:
            transport.close()

    def forget(self, reason: str) -> None:
        """Take this client out of everything; its socket may live a little longer."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self.stop_ns = self.server.clock.now_ns()
        self.turns.timers.cancel(self._write_timer)
        self._output.clear()
        self._queued_bytes = 0
        self.release()
        self.server.log.debug(f"{self} - Client connection closed: {reason}")

    @abstractmethod
    def release(self) -> None:
        """Give back what the other half holds; called once."""

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the socket of a connection that has ended; at once = without waiting for its last bytes."""
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()
