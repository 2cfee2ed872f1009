"""A server on what a power cut has left: what is wrong with it, and what a further cut leaves."""

import asyncio
import shutil

import jetlake
from jetlake.errors import JetlakeError
from jetlake.server.config.options import JetStreamOptions, Options
from jetlake.server.shell.engine_loop import SystemClock
from jetlake.server.shell.log import Log
from jetlake.server.shell.server import Server
from tests.faults.killable import KillableServer
from tests.power_cuts.volume import RecordedVolume, mounted
from tests.power_cuts.working import ACK_WAIT_S
from tests.power_cuts.write_log import CutDisk


class _LaterClock(SystemClock):
    """Time after every message that waits for its acknowledgement is due again."""

    def now_ns(self):
        return super().now_ns() + (ACK_WAIT_S + 600) * 1_000_000_000


class _Lines(Log):
    """The lines that a server logs."""

    def __init__(self):
        self.lines = []

    def write(self, level, text):
        self.lines.append(f"[{level}] {text}")


async def broken_promises(kind, image, folder, scenarios, cut, interval_s):
    """Start a server on what a cut has left, and return what is wrong; and what the server logged."""
    with mounted(image, folder) as path:
        if kind != "jetlake":
            with KillableServer(kind, store_dir=path / "data") as server:
                return await _look(server.url, scenarios, cut), []
        log = _Lines()
        async with _server_on(path, log, interval_s) as server:
            broken = await _look(server.url, scenarios, cut)
            if server.defects:
                broken.append(f"{server.defects} internal errors")
        return broken, log.lines


async def _look(url, scenarios, cut):
    """Return the promises that are broken."""
    broken = []
    async with await jetlake.connect(url) as client:
        for scenario in scenarios:
            try:
                found = await scenario.check(client.jetstream(), cut)
            except JetlakeError as error:
                found = [f"{type(error).__name__}: {error}"]
            broken += [f"{scenario.name}: {words}" for words in found]
    return broken


def _server_on(path, log, interval_s):
    """A server in this process, on a store."""
    jetstream = JetStreamOptions(store_dir=str(path / "data"), sync_interval_s=interval_s)
    return Server(options=Options(jetstream=jetstream), log=log, clock=_LaterClock())


async def cut_again(image, work, random, interval_s):
    """Start a server on what a cut has left, and return images of cuts during and after that start."""
    folder = work / "again"
    with RecordedVolume(folder, image) as volume:
        async with _server_on(volume.path, _Lines(), interval_s):
            await asyncio.sleep(random.choice([0, 0, 0.3]))
    disk = CutDisk(volume.log, volume.image, random)
    images = []
    chosen = [random.randint(0, len(disk.entries)), random.randint(0, len(disk.entries)), len(disk.entries)]
    for number, position in enumerate(sorted(chosen)):
        target = work / f"again{number}"
        words = disk.cut(position, target)
        images.append((target, f", again at {position} of {len(disk.entries)}, left {words}"))
    disk.close()
    shutil.rmtree(folder)
    return images
