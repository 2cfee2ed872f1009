"""Cut the power of a server below its file system, and compare what is left with what it had promised.

    python -m tests.power_cuts.run_power_cuts [--cuts N] [--seed N] [--file-system ext4] [--profile NAME]

The server runs on a file system on a disk that keeps every write and flush in a log (`recorded_disk.py`). Each run is
cut at many positions of that log afterwards: what was flushed before is there, and anything of the rest. Some cuts hit
a server that is starting after a cut. Needs Linux, root, FUSE and loop devices; `tests/faults` is on the path.

Real processes and a real kernel run here, so that a seed repeats what is tried and not what happens: `--keep` keeps the
disks of broken promises.
"""

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.faults.killable import KINDS
from tests.power_cuts.after_cut import broken_promises, cut_again
from tests.power_cuts.controls import Control
from tests.power_cuts.profiles import PROFILES
from tests.power_cuts.promises import Cut
from tests.power_cuts.recorded_load import RecordedLoad
from tests.power_cuts.small_segments import use_small_segments
from tests.power_cuts.volume import FILE_SYSTEMS, RecordedVolume, TornFileSystemError, make_image, missing, mounted
from tests.power_cuts.write_log import CutDisk, copy_sparse

RUN_S = 3.0
CUTS_PER_RUN = 30
CUT_AGAIN = 0.15
"""How often the server that starts after a cut is cut as well."""
INTERVALS = 2
"""So many sync intervals after its answer, a server that has one must have made something safe."""
CONTROL_CUTS = 20
CONTROL_COUNT = 200
TOLD_MAX = 12


class Run:
    """One run of a server, and cuts of it.

    Args:
        options: those of the command.
        name: of the profile.
        work: a folder for disks and logs.

    Attributes:
        tried: how many cuts there were.
        broke: how many of them broke a promise.
    """

    def __init__(self, options, name, seed, work):
        self._kind = options.server
        self._file_system = options.file_system
        self._keep = options.keep
        self._name = name
        self._seed = seed
        self._work = work
        self._profile = PROFILES[name]
        self._random = Random(seed)
        self._scenarios = []
        self._first = 0
        self.tried = 0
        self.broke = 0

    async def run(self, cuts):
        """Record a run, and cut it so many times."""
        disk = await self._record()
        for position in self._positions(disk.entries, cuts):
            interval_s = self._profile.interval_s
            cut = Cut(position, disk.entries[position - 1].time, INTERVALS * (interval_s or 0.0))
            words = f"cut at {position} of {len(disk.entries)}, left {disk.cut(position, self._work / 'cut')}"
            images = [(self._work / "cut", "")]
            if self._kind == "jetlake" and self._random.random() < CUT_AGAIN:
                with contextlib.suppress(TornFileSystemError):
                    images = await cut_again(self._work / "cut", self._work, self._random, interval_s)
            for image, more in images:
                await self._compare(image, cut, words + more)
        disk.close()

    async def _record(self):
        """Let the server run; the disk to cut."""
        work, profile = self._work, self._profile
        make_image(self._file_system, work / "empty", profile.mib if self._file_system == "ext4" else None)
        with RecordedVolume(work / "run", work / "empty") as volume:
            self._scenarios = profile.make_scenarios(self._random, volume.position)
            load = RecordedLoad(self._kind, volume, self._scenarios, profile, self._random)
            self._first = await load.run(RUN_S)
        disk = CutDisk(volume.log, volume.image, self._random)
        answers = sum(act.done <= len(disk.entries) for each in self._scenarios for act in each.promises())
        flushes = sum(entry.is_flush for entry in disk.entries)
        print(
            f"{self._file_system} {self._kind} {self._name}, seed {self._seed}: {answers} answers, "
            f"{load.failures} interruptions, {len(disk.entries) - flushes} writes, {flushes} flushes",
            flush=True,
        )
        return disk

    def _positions(self, entries, count):
        """Where to cut: half of the times in the moment after a promise, half of them anywhere."""
        random, first, end = self._random, self._first, len(entries)
        done = [act.done for each in self._scenarios for act in each.promises() if first <= act.done <= end]
        chosen = [random.choice(done) if done else first for _ in range(count // 2)]
        return sorted(chosen + [random.randint(first, end) for _ in range(count - len(chosen))])

    async def _compare(self, image, cut, words):
        if self._keep is not None:
            copy_sparse(image, self._keep / "image")
        try:
            broken, lines = await broken_promises(
                self._kind, image, self._work / "mounted", self._scenarios, cut, self._profile.interval_s
            )
        except TornFileSystemError:
            print(f"  {words}: no file system is left", flush=True)
            return
        self.tried += 1
        if broken:
            self.broke += 1
            if self._keep is not None:
                (self._keep / "image").rename(self._keep / f"{self._name}-{self._seed}-{cut.position}-{self.tried}")
            print("\n    ".join([f"  {words}:", *broken[:TOLD_MAX]]))
            print("".join(f"      {line}\n" for line in lines if line.startswith("[ERR]")), end="", flush=True)


def run_controls(file_system, seed, cuts, work):
    """Cut programs that sync and that do not; whether the first lost nothing and the second did."""
    is_right = True
    for syncs in (True, False):
        random = Random(seed)
        make_image(file_system, work / "empty")
        folder = work / f"control{syncs}"
        with RecordedVolume(folder, work / "empty") as volume:
            control = Control(volume, syncs=syncs)
            control.run(CONTROL_COUNT)
            end = volume.position()
        disk = CutDisk(volume.log, volume.image, random)
        lost = []
        for position in sorted(random.randint(control.appended[0][0], end) for _ in range(cuts)):
            disk.cut(position, work / "cut")
            with contextlib.suppress(TornFileSystemError), mounted(work / "cut", work / "mounted") as path:
                lost.append(control.lost(position, path))
        disk.close()
        shutil.rmtree(folder)
        print(
            f"{file_system} control, {'synced' if syncs else 'not synced'}: {len(lost)} cuts, {sum(lost)} lost",
            flush=True,
        )
        is_right &= (sum(lost) == 0) is syncs
    return is_right


async def run_all(options):
    """All profiles in turn until there were enough cuts; whether no promise was broken."""
    use_small_segments()
    tried = broke = 0
    names = options.profile or [name for name in PROFILES if name != "peers"]
    seed = options.seed
    while tried < options.cuts:
        name = names[(seed - options.seed) % len(names)]
        work = Path(tempfile.mkdtemp(prefix="jetlake-power-", dir=options.folder))
        try:
            cuts = min(CUTS_PER_RUN, options.cuts - tried)
            run = Run(options, name, seed, work)
            await run.run(cuts)
        finally:
            shutil.rmtree(work)
        tried += run.tried
        broke += run.broke
        seed += 1
    print(f"{tried} cuts, {broke} of them broke a promise")
    return broke == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (default: %(default)s)")
    parser.add_argument("--file-system", default="ext4", choices=FILE_SYSTEMS)
    parser.add_argument("--profile", action="append", choices=PROFILES, help="only this one; may be repeated")
    parser.add_argument("--server", default="jetlake", choices=KINDS, help="another one: with --profile peers")
    parser.add_argument("--only-controls", action="store_true", help="cut programs without a server")
    parser.add_argument("--folder", default="/dev/shm", help="where disks and logs are (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a folder for the images of cuts that broke a promise")
    options = parser.parse_args()
    if lacks := missing():
        sys.exit(f"power cuts need {', '.join(lacks)}")
    work = Path(tempfile.mkdtemp(prefix="jetlake-power-", dir=options.folder))
    try:
        cuts = options.cuts if options.only_controls else CONTROL_CUTS
        is_right = run_controls(options.file_system, options.seed, cuts, work)
    finally:
        shutil.rmtree(work)
    if is_right and not options.only_controls:
        is_right = asyncio.run(run_all(options))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
