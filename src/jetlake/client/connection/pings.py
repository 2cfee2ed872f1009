"""Pings: sent at intervals, by a flush that waits for the answer, and to probe a connection that may be dead.

A TCP connection that was dropped in silence looks like one on which nothing happens, and the pings at intervals take
minutes to notice. Code that misses an answer or a heartbeat probes instead: one ping for all who ask, and a connection
without a sign of life within `connect_timeout` is given up. Bytes that arrive or leave are signs of life too, since the
answer may be behind them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from jetlake.errors import StaleConnectionError
from jetlake.protocol import encoder

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection


class Pings:
    """The pings of one connection and their answers, which come in the order of the pings.

    Args:
        connection: writes the pings; its options have the intervals. A connection whose server does not answer is
            aborted.
    """

    __slots__ = (
        "_connection",
        "_is_paused",
        "_loop",
        "_options",
        "_outstanding",
        "_probe",
        "_probe_progress",
        "_probe_timer",
        "_timer",
        "_waiting",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._options = connection.options
        self._outstanding = 0
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        # One entry for each ping under way; None if no flush waits for it.
        self._waiting: deque[asyncio.Future[None] | None] = deque()
        self._probe: asyncio.Future[bool] | None = None
        self._probe_progress = (0, 0)
        self._probe_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start pinging a new connection."""
        self._outstanding = 0
        self._is_paused = False
        self._waiting.clear()
        self._schedule()

    def stop(self, error: Exception) -> None:
        """Stop: the connection is gone; every flush that waits for a pong gets the error."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for pong in waiting:
            if pong is not None and not pong.done():
                pong.set_exception(error)
        self._end_probe(is_alive=False)

    def pause(self, is_paused: bool) -> None:
        """Count no answer as missing while the socket is not read; pings continue as a sign of life for the server."""
        self._is_paused = is_paused
        self._outstanding = 0

    def ping(self) -> asyncio.Future[None]:
        """Send a ping; the future is done when it is answered."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(pong)
        self._connection.send_now(encoder.PING)
        return pong

    def answered(self) -> None:
        """Take a PONG: the oldest ping is answered."""
        self._outstanding = 0
        pong = self._waiting.popleft() if self._waiting else None
        if pong is not None and not pong.done():
            pong.set_result(None)
        self._end_probe(is_alive=True)

    # Probes

    def probe(self) -> asyncio.Future[bool]:
        """Ask for a sign of life now; the future, which all callers share, is True once there is one."""
        if self._probe is None:
            self._probe = self._loop.create_future()
            self._waiting.append(None)
            self._connection.send_now(encoder.PING)
            self._await_progress()
        return self._probe

    def _await_progress(self) -> None:
        self._probe_progress = self._progress()
        self._probe_timer = self._loop.call_later(self._options.connect_timeout_s, self._check_probe)

    def _check_probe(self) -> None:
        received, unsent = self._probe_progress
        received_now, unsent_now = self._progress()
        wait_s = self._options.connect_timeout_s
        is_late = self._probe_timer is not None and self._loop.time() - self._probe_timer.when() > wait_s / 2
        if self._is_paused or received_now != received:
            self._end_probe(is_alive=True)
        elif unsent_now < unsent or is_late:
            # This process was stalled if the timer is late: the answer may still be in the socket.
            self._await_progress()
        else:
            self._give_up(f"a ping within {wait_s:g} s")

    def _end_probe(self, *, is_alive: bool) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            if self._probe_timer is not None:
                self._probe_timer.cancel()
                self._probe_timer = None
            if not probe.done():
                probe.set_result(is_alive)

    def _progress(self) -> tuple[int, int]:
        """Return the bytes that were read so far, and the bytes that wait to be written."""
        transport = self._connection.transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        return self._connection.traffic.bytes_received, unsent

    def _give_up(self, unanswered: str) -> None:
        # sometimes: a silent connection is given up
        connection = self._connection
        connection.abort(StaleConnectionError(f"{connection.address} did not answer {unanswered}"))

    # At intervals

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._options.ping_interval_s, self._ping_at_interval)

    def _ping_at_interval(self) -> None:
        if self._outstanding >= self._options.pings_outstanding_max:
            self._give_up(f"{self._outstanding} pings")
            return
        self._outstanding += not self._is_paused
        self._waiting.append(None)
        self._connection.send_now(encoder.PING)
        self._schedule()
