"""The room of a publish window: who waits for it, in which order, and who waits for acknowledgements."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["WindowRoom"]

# A publisher who fills every gap at once writes in small pieces, which cost the server a fifth more: who waits for room
# waits for an eighth of the window, but not for long, since the other messages may be stuck.
_ROOM_SHARE = 8
_ROOM_WAIT_S = 0.002


class WindowRoom:
    """The publishers and callers that wait for the messages of a publish window.

    Args:
        loop: the event loop.
        messages_max: most messages of the window.
        count: returns how many messages are under way.
        is_full: tells whether the next message has to wait.
        on_wake: called whenever those who wait are woken.
    """

    __slots__ = ("_count", "_is_full", "_line", "_loop", "_low", "_on_wake", "_timer", "_waiters")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        messages_max: int,
        *,
        count: Callable[[], int],
        is_full: Callable[[], bool],
        on_wake: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._low = messages_max - max(1, messages_max // _ROOM_SHARE)
        self._count = count
        self._is_full = is_full
        self._on_wake = on_wake
        self._waiters: list[asyncio.Future[None]] = []
        self._line: deque[asyncio.Event] = deque()  # Publishers that wait for room, each with its own turn.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether publishers wait for room: a later one goes behind them."""
        return bool(self._line)

    async def wait(self) -> None:
        """Wait until there is room, behind the publishers that wait already."""
        line = self._line
        turn = asyncio.Event()
        line.append(turn)
        try:
            while line[0] is not turn or self._is_full():
                await turn.wait()
                turn.clear()
        finally:
            line.remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        """Let the first publisher of the line look for room."""
        if self._line and not self._is_full():
            self._line[0].set()

    async def changed(self) -> None:
        """Wait until messages are acknowledged or given up."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake everybody who waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._call_next()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._on_wake()

    def acknowledged(self) -> None:
        """Wake those who wait once there is enough room, or nothing under way; a little room waits for more."""
        count = self._count()
        if not count:
            self.wake()
        elif (self._waiters or self._line) and not self._is_full():
            if count <= self._low:
                self.wake()
            elif self._timer is None:
                self._timer = self._loop.call_later(_ROOM_WAIT_S, self.wake)
