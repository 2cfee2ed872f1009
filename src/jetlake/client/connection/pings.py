"""Signs of life: the pings that a connection sends by itself, and those that somebody waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from jetlake.protocol import encoder

__all__ = ["Pings"]


class Pings:
    """The pings of one connection and their answers, which come in the order of the pings.

    Args:
        loop: the event loop.
        interval_s: how often one is sent by itself.
        outstanding_max: how many of those may go without answer.
        send: writes a frame.
        on_stale: called with the number of unanswered pings when it is too high.
    """

    __slots__ = (
        "_interval_s",
        "_is_paused",
        "_loop",
        "_on_stale",
        "_outstanding",
        "_outstanding_max",
        "_send",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interval_s: float,
        outstanding_max: int,
        send: Callable[[bytes], None],
        on_stale: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._outstanding_max = outstanding_max
        self._send = send
        self._on_stale = on_stale
        self._outstanding = 0
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        # One entry for each ping under way; None for those that nobody waits for.
        self._waiting: deque[asyncio.Future[None] | None] = deque()

    def start(self) -> None:
        """Start pinging a new connection."""
        self._outstanding = 0
        self._is_paused = False
        self._waiting.clear()
        self._schedule()

    def stop(self, error: Exception) -> None:
        """Stop: the connection is gone; those who wait for a pong get the error."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for pong in waiting:
            if pong is not None and not pong.done():
                pong.set_exception(error)

    def pause(self, is_paused: bool) -> None:
        """Count no answer as missing while the socket is not read; pings go on, so that the server hears of us."""
        self._is_paused = is_paused
        self._outstanding = 0

    def ping(self) -> asyncio.Future[None]:
        """Send one; the future is done when it is answered."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(pong)
        self._send(encoder.PING)
        return pong

    def answered(self) -> None:
        """Take a PONG: the oldest ping is answered."""
        self._outstanding = 0
        pong = self._waiting.popleft() if self._waiting else None
        if pong is not None and not pong.done():
            pong.set_result(None)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._interval_s, self._ping_by_itself)

    def _ping_by_itself(self) -> None:
        if self._outstanding >= self._outstanding_max:
            self._on_stale(self._outstanding)
            return
        self._outstanding += not self._is_paused
        self._waiting.append(None)
        self._send(encoder.PING)
        self._schedule()
