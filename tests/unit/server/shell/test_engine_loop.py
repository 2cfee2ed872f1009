"""The server's loop and its clock."""

import asyncio

from jetlake.server.shell import engine_loop
from jetlake.server.shell.engine_loop import EngineLoop, SystemClock

HOUR_NS = 3600 * 10**9


async def test_deadlines_are_met_soon_after_the_wall_clock_was_set_forward(monkeypatch):
    monkeypatch.setattr(engine_loop, "_SLEEP_MAX_S", 0.001)
    wall_ns = 0
    loop = EngineLoop(SystemClock(lambda: wall_ns, lambda: 0), report_defect=lambda where, error: None)
    loop.start(asyncio.get_running_loop())
    sleeping = asyncio.ensure_future(loop.sleep(3600))
    for _ in range(5):
        await asyncio.sleep(0.002)
    assert not sleeping.done()
    wall_ns = HOUR_NS
    await asyncio.wait_for(sleeping, 60)
    loop.stop()


def test_the_system_clock_goes_on():
    clock = SystemClock()
    first = clock.now_ns()
    assert clock.now_ns() >= first
    assert first > 1_600_000_000 * 10**9


def test_the_system_clock_follows_a_wall_clock_that_is_set_forward():
    wall_ns, steady_ns = 1000, 5
    clock = SystemClock(lambda: wall_ns, lambda: steady_ns)
    assert clock.now_ns() == 1000
    wall_ns, steady_ns = 9000, 10
    assert clock.now_ns() == 9000
    wall_ns, steady_ns = 9100, 110
    assert clock.now_ns() == 9100


def test_the_system_clock_goes_on_steadily_when_the_wall_clock_is_set_back():
    wall_ns, steady_ns = 1000, 5
    clock = SystemClock(lambda: wall_ns, lambda: steady_ns)
    wall_ns, steady_ns = 300, 15
    assert clock.now_ns() == 1010
    wall_ns, steady_ns = 1500, 20
    assert clock.now_ns() == 1500


class Reader:
    """A connection with so many shares to handle, each of which uses up a turn's time."""

    def __init__(self, shares, use_up):
        self.left = shares
        self._use_up = use_up

    def read_on(self):
        self.left -= 1
        self._use_up()
        return self.left > 0


async def test_a_connection_that_used_up_a_turn_gets_its_next_share_in_the_next_turn():
    now_s = 1.0

    def use_up():
        nonlocal now_s
        now_s += 0.001

    loop = EngineLoop(SystemClock(), report_defect=lambda where, error: None, ticks=lambda: now_s)
    loop.start(asyncio.get_running_loop())
    reader = Reader(2, use_up)
    loop.begin()
    use_up()  # by the share that its socket's read handled
    loop.wait_for_turn(reader)
    left = []
    for _ in range(3):
        await asyncio.sleep(0)
        left.append(reader.left)
    assert left == [2, 1, 0]


class Writer:
    """The write side of a connection, whose output may fail."""

    def __init__(self, error=None):
        self.flushes = 0
        self._error = error

    def flush(self):
        self.flushes += 1
        if self._error is not None:
            raise self._error


async def test_output_that_fails_keeps_nobody_elses_from_being_written():
    defects = []
    loop = EngineLoop(SystemClock(), report_defect=lambda where, error: defects.append((where, error)))
    loop.start(asyncio.get_running_loop())
    error = OSError("broken")
    writers = [Writer(error), Writer(), Writer()]
    for writer in writers:
        loop.mark_dirty(writer)
    while not all(writer.flushes for writer in writers):
        await asyncio.sleep(0)
    assert [writer.flushes for writer in writers] == [1, 1, 1]
    assert defects == [("a connection's output", error)]
    loop.stop()
