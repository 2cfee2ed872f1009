"""A server under load, whose every write is recorded."""

import asyncio
import sys
import time

import jetlake
from jetlake.errors import JetlakeError
from tests.faults.killable import KillableServer

PAUSE_S = 1.3


class RecordedLoad:
    """A server on a recorded volume and the clients of all scenarios.

    Args:
        kind: which server, as `KillableServer` has it.
        volume: the `RecordedVolume`.
        profile: how it runs.

    Attributes:
        failures: how often a client was interrupted.
    """

    def __init__(self, kind, volume, scenarios, profile, random):
        self._random = random
        self._profile = profile
        self._scenarios = scenarios
        self._position = volume.position
        self._server = KillableServer(
            kind,
            store_dir=volume.path / "data",
            command=[sys.executable, "-m", "tests.power_cuts.small_segments"] if kind == "jetlake" else None,
            sync=f'sync_interval: "{profile.interval_s}s"' if profile.interval_s is not None else None,
        )
        self._is_up = asyncio.Event()
        self._may_act = asyncio.Event()
        self._may_act.set()
        self._is_over = False
        self.failures = 0

    async def run(self, seconds):
        """Let all scenarios act for so long; the position of the disk's log when all was there that they work with."""
        with self._server:
            self._is_up.set()
            async with await self._connect() as client:
                for scenario in self._scenarios:
                    await scenario.create(client.jetstream())
            created = self._position()
            tasks = [asyncio.create_task(self._act(scenario)) for scenario in self._scenarios]
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(left, self._random.uniform(0.3, 2.0)))
                if self._profile.pauses:
                    self._may_act.clear()
                    await asyncio.sleep(PAUSE_S)
                    self._may_act.set()
                if self._profile.dies:
                    self._is_up.clear()
                    await asyncio.to_thread(self._random.choice([self._server.kill, self._server.stop]))
                    await asyncio.to_thread(self._server.start)
                    self._is_up.set()
            self._is_over = True
            await asyncio.gather(*tasks)
            return created

    def _connect(self):
        return jetlake.connect(self._server.url, reconnect=False, request_timeout=60, on_error=lambda _: None)

    async def _act(self, scenario):
        while not self._is_over:
            await self._is_up.wait()
            try:
                async with await self._connect() as client:
                    jetstream = client.jetstream()
                    await scenario.look(jetstream)
                    while not self._is_over:
                        await self._may_act.wait()
                        await scenario.act(jetstream)
            except (JetlakeError, OSError):
                self.failures += 1
                await asyncio.sleep(0.02)
