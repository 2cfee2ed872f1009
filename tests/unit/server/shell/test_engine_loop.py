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
