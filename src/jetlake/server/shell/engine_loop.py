"""The engine loop: at the end of each turn of asyncio's loop, store, deliver, and write everything out once.

The reasons are in decision 11 (docs/decisions).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.long_work import LongWork
from jetlake.server.engine.core.timers import Timers
from jetlake.server.shell.committer import Committer, LatencyHistogram
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.engine import Engine

__all__ = ["EngineLoop", "SystemClock"]

Result = TypeVar("Result")

_SECOND_NS = 1_000_000_000
# The loop's own timer knows nothing of a wall clock that is set forward, or of a machine that slept: deadlines are
# looked at no later than this afterwards. Looking too early does no harm.
_SLEEP_MAX_S = 10.0

# How much of a turn goes to reading, and to writing; the rest waits for the next turn.
_READ_S = 0.001
_WRITE_S = 0.002
# How long one turn runs timers that are due, each kind of them: thousands may be due together.
_TIMERS_S = 0.002


class SystemClock:
    """Wall time that follows a clock that is set forward, and continues steadily when it is set back.

    A machine that slept, or got its time only after it had booted, must not stamp messages and fire schedules by the
    old time; a wall clock that is set back would reorder messages and delay deadlines.

    Args:
        wall_ns: nanoseconds since the Unix epoch, which may jump.
        steady_ns: nanoseconds that never jump, and may stand still while the machine sleeps.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()

    def now_ns(self) -> int:
        # The wall clock first: a process that is held up between the two calls must not take that for a jump.
        wall_ns = self._wall_ns()
        steady_ns = self._steady_ns()
        now_ns = self._offset_ns + steady_ns
        if wall_ns > now_ns:
            self._offset_ns = wall_ns - steady_ns
            return wall_ns
        return now_ns


class Reader(Protocol):
    """A connection that has received more than it may have handled at once."""

    def read_on(self) -> bool:
        """Handle another share; whether there is one more."""
        ...


class Writer(Protocol):
    """The write side of a connection."""

    def flush(self) -> None:
        """Write the queue with one call."""
        ...


class EngineLoop:
    """Drives the engine and the connections of one server.

    Args:
        clock: the server's clock.
        report_defect: takes an internal error, with the place where it was raised.
        ticks: a monotonic time in seconds.

    Attributes:
        loop: asyncio's loop, from `start` on.
        timers: the shell's own deadlines; the engine has another set.
        work: the shell's own long work; the engine has more.
        engine: flushed at the end of a turn; None without JetStream.
        committer: syncs after a flush.
        is_own: whether nothing else runs in the loop, so that it may wait for a quick disk; set before the start.
        durations: how long turns took, from the first read to the last write.
    """

    def __init__(
        self,
        clock: Clock,
        report_defect: Callable[[str, Exception], None],
        ticks: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ticks = ticks
        self.timers = Timers()
        self.work = LongWork(clock)
        self.engine: Engine | None = None
        self.committer: Committer | None = None
        self.is_own = False
        self.durations = LatencyHistogram()
        self._began_s = 0.0
        self._clock = clock
        self._report_defect = report_defect
        self.loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: deque[Writer] = deque()
        self._behind: deque[Reader] = deque()
        self._had_share: list[Reader] = []  # in this turn, and wait for another
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline_ns = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run in this loop."""
        self.loop = loop

    def stop(self) -> None:
        """Cancel the timer; what is scheduled for this turn still runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Take the time at which this turn begins, before its first read is handled."""
        if not self._began_s:
            self._began_s = self.ticks()

    def has_time(self) -> bool:
        """Return whether this turn may read more; otherwise reads wait for the next turn."""
        return self.ticks() < self._began_s + _READ_S

    def wait_for_turn(self, reader: Reader) -> None:
        """Queue the connection behind others that wait for their next share.

        Without time left in this turn, connections that had a share in it wait for the next turn.
        """
        # sometimes: a connection waits for another turn
        self._had_share.append(reader)
        self.schedule()

    def schedule(self) -> None:
        """At the end of this turn, store, deliver and write everything received in it."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)

    def mark_dirty(self, writer: Writer) -> None:
        """Flush the writer at the end of this turn."""
        self._dirty.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)

    def synced(self) -> None:
        """Write the answers that a sync released at once; all else that it causes waits for the end of the turn."""
        self.begin()
        self.flush_dirty()
        self.schedule()

    def drained(self) -> None:
        """Resume deliveries that waited for a congested connection."""
        if self.engine is not None:
            self.engine.wake_congested()
            self.schedule()

    def flush_dirty(self) -> None:
        """Flush the writers that have something queued; when that takes long, the rest waits for the next turn."""
        dirty = self._dirty
        deadline_s = self.ticks() + _WRITE_S
        for _ in range(len(dirty)):
            try:
                dirty.popleft().flush()
            except Exception as error:
                self._report_defect("a connection's output", error)
            if self.ticks() >= deadline_s:
                break

    def _queue_again(self) -> None:
        self._behind += self._had_share
        self._had_share.clear()

    def _read_on(self) -> None:
        """Let connections that wait handle their next share, one after the other; at least one of them."""
        behind = self._behind
        while behind:
            reader = behind.popleft()
            if reader.read_on():
                behind.append(reader)
            if not self.has_time():
                break

    def _end(self) -> None:
        self.begin()
        if self._had_share and self.has_time():
            self._queue_again()
        if self._behind:
            self._read_on()
        engine = self.engine
        if self.work.waiting or (engine is not None and engine.long_work.waiting):
            self.flush_dirty()  # Answers that are there already do not wait for long work.
        if self.work.waiting:
            try:
                self.work.run()
            except Exception as error:
                self._report_defect("long work", error)
        again = False
        if engine is not None:
            try:
                engine.flush()
                if self.committer is not None:
                    again = self._commit(engine, self.committer)
            except Exception as error:
                self._report_defect("JetStream", error)
            again = again or engine.has_ready()
        self._scheduled = False
        self.flush_dirty()
        self._queue_again()
        if again or self._behind or self._dirty or self.work.waiting:
            self.schedule()
        self._arm_timer()
        self.durations.observe(self.ticks() - self._began_s)
        self._began_s = 0.0

    def _commit(self, engine: Engine, committer: Committer) -> bool:
        """Start the syncs that are due, and return whether they wait for another turn."""
        is_idle = self.is_own and not (
            engine.has_ready() or self._behind or self._had_share or self.work.waiting or engine.long_work.waiting
        )
        if is_idle:
            self.flush_dirty()  # Answers that are there already wait for no disk.
        return committer.kick(is_idle=is_idle and not self._dirty)

    # Tasks

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the loop, until it ends or `cancel_tasks` is called."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel_tasks(self) -> None:
        """Cancel all tasks but the calling one."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def carry_out(self, work: Steps[Result]) -> Result:
        """Return what long work returns, which runs in later turns beside everything else."""
        ended: asyncio.Future[Result] = self.loop.create_future()

        def run() -> Steps[None]:
            try:
                result = yield from work
            except Exception as error:
                if not ended.done():
                    ended.set_exception(error)
            else:
                if not ended.done():
                    ended.set_result(result)

        self.work.go_on_with(run())
        self.schedule()
        return await ended

    # Time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` when the server's clock has advanced so far."""
        self.timers.schedule(self._clock.now_ns() + int(seconds * _SECOND_NS), lambda _now_ns: callback())
        self._arm_timer()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the server's clock."""
        woken: asyncio.Future[None] = self.loop.create_future()
        self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    def clock_moved(self) -> None:
        """Run what is due after the clock was set by a test, and arm the timer again."""
        self.stop()
        self._run_timers(float("inf"))

    def _arm_timer(self) -> None:
        """Set asyncio's timer to the earliest deadline."""
        deadline_ns = self.timers.next_ns
        if self.engine is not None:
            other_ns = self.engine.timers.next_ns
            if deadline_ns is None or (other_ns is not None and other_ns < deadline_ns):
                deadline_ns = other_ns
        if deadline_ns is None or (self._timer is not None and self._timer_deadline_ns <= deadline_ns):
            return
        self.stop()
        delay_s = max(deadline_ns - self._clock.now_ns(), 0) / _SECOND_NS
        self._timer_deadline_ns = deadline_ns
        self._timer = self.loop.call_later(min(delay_s, _SLEEP_MAX_S), self._run_timers)

    def _run_timers(self, seconds: float = _TIMERS_S) -> None:
        self.begin()
        self._timer = None
        now_ns = self._clock.now_ns()
        for timers in (self.timers, self.engine.timers if self.engine is not None else None):
            deadline_s = self.ticks() + seconds
            try:
                if timers is not None:
                    timers.run_due(now_ns, lambda: self.ticks() < deadline_s)  # noqa: B023
            except Exception as error:
                self._report_defect("a timer", error)
        self.schedule()
