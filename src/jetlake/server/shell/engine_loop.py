"""The turns of the loop: what came in is stored and delivered, and everything is written once, at the end of each."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.long_work import LongWork
from jetlake.server.engine.core.timers import Timers
from jetlake.server.shell.committer import Committer, LatencyHistogram

if TYPE_CHECKING:
    from jetlake.server.engine.engine import Engine
    from jetlake.server.shell.connection.writer import Outgoing

__all__ = ["Turns"]

_SECOND_NS = 1_000_000_000
# A deadline far ahead must not make the loop's own timer overflow; one that comes too early does no harm.
_SLEEP_MAX_S = 3600.0

# How much of a turn goes to reading, and to writing; what is left over waits for the next.
_READ_S = 0.002
_WRITE_S = 0.005


class Reader(Protocol):
    """A connection that has received more than it may have handled at once."""

    def read_on(self) -> bool:
        """Handle another share; whether there is one more."""
        ...


class Turns:
    """Drives the engine and the connections of one server.

    Args:
        clock: tells the time.
        report_defect: takes what should never have been raised, with where it was.
        ticks: tells how much time has passed, in seconds since any moment.

    Attributes:
        timers: the shell's own deadlines; the engine has another set.
        work: the shell's own long work; the engine has more.
        engine: what to flush at the end of a turn; None without JetStream.
        committer: what syncs after a flush.
        durations: how long turns took, from the first thing that came in to the last write.
    """

    def __init__(
        self,
        clock: Clock,
        report_defect: Callable[[str, Exception], None],
        ticks: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ticks = ticks
        self.timers = Timers()
        self.work = LongWork(clock.now_ns)
        self.engine: Engine | None = None
        self.committer: Committer | None = None
        self.durations = LatencyHistogram()
        self._began_s = 0.0
        self._clock = clock
        self._report_defect = report_defect
        self._loop: asyncio.AbstractEventLoop
        self._dirty: deque[Outgoing] = deque()
        self._behind: deque[Reader] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_ns = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to turn with this loop."""
        self._loop = loop

    def stop(self) -> None:
        """No more timers; what is scheduled for this turn still runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Start the clock of this turn, before the first thing that comes in is handled."""
        if not self._began_s:
            self._began_s = self.ticks()

    def has_time(self) -> bool:
        """Whether this turn may read more, or what comes in has to wait for the next."""
        return self.ticks() < self._began_s + _READ_S

    def wait_for_turn(self, reader: Reader) -> None:
        """Let the connection read on when those that wait already have had their shares."""
        self._behind.append(reader)
        self.schedule()

    def schedule(self) -> None:
        """Have everything that was received in this turn stored, delivered and written at its end."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def mark_dirty(self, connection: Outgoing) -> None:
        """The connection has something to write."""
        self._dirty.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def drained(self) -> None:
        """A connection that was congested takes deliveries again."""
        if self.engine is not None:
            self.engine.wake_congested()
            self.schedule()

    def flush_dirty(self) -> None:
        """Write what connections have to write, each with one call; the rest in the next turn when it takes long."""
        dirty = self._dirty
        deadline_s = self.ticks() + _WRITE_S
        for _ in range(len(dirty)):
            dirty.popleft().flush()
            if self.ticks() >= deadline_s:
                break

    def _read_on(self) -> None:
        """Give the connections that are behind their shares, one after the other, at least one of them."""
        behind = self._behind
        while behind:
            reader = behind.popleft()
            if reader.read_on():
                behind.append(reader)
            if not self.has_time():
                break

    def _end(self) -> None:
        self.begin()
        if self._behind:
            self._read_on()
        self.work.run()
        engine = self.engine
        again = False
        if engine is not None:
            try:
                engine.flush()
                if self.committer is not None:
                    self.committer.kick()
                again = engine.has_ready()
            except Exception as error:
                self._report_defect("JetStream", error)
        self._scheduled = False
        self.flush_dirty()
        if again or self._behind or self._dirty or self.work:
            self.schedule()
        self._arm_timer()
        self.durations.observe(self.ticks() - self._began_s)
        self._began_s = 0.0

    # Time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Have `callback` called when the server's clock has moved on so far."""
        self.timers.schedule(self._clock.now_ns() + int(seconds * _SECOND_NS), callback)
        self._arm_timer()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the server's clock."""
        woken: asyncio.Future[None] = self._loop.create_future()
        self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    def clock_moved(self) -> None:
        """The clock was moved by hand: run what is due now, and take the next deadline from there."""
        self.stop()
        self._run_timers()

    def _arm_timer(self) -> None:
        """Sleep no longer than until the earliest deadline."""
        deadline_ns = self.timers.next_deadline()
        if self.engine is not None:
            other_ns = self.engine.timers.next_deadline()
            if deadline_ns is None or (other_ns is not None and other_ns < deadline_ns):
                deadline_ns = other_ns
        if deadline_ns is None or (self._timer is not None and self._timer_deadline_ns <= deadline_ns):
            return
        self.stop()
        delay_s = max(deadline_ns - self._clock.now_ns(), 0) / _SECOND_NS
        self._timer_deadline_ns = deadline_ns
        self._timer = self._loop.call_later(min(delay_s, _SLEEP_MAX_S), self._run_timers)

    def _run_timers(self) -> None:
        self.begin()
        self._timer = None
        now_ns = self._clock.now_ns()
        for timers in (self.timers, self.engine.timers if self.engine is not None else None):
            try:
                if timers is not None:
                    timers.run_due(now_ns)
            except Exception as error:
                self._report_defect("a timer", error)
        self.schedule()
