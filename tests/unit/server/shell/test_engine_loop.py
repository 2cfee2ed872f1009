"""The server's loop and its clock."""

import asyncio

from jetlake.server.engine.core.clock import SystemClock
from jetlake.server.shell import engine_loop
from jetlake.server.shell.engine_loop import EngineLoop

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
