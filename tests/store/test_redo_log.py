"""Power cuts while many stores are made durable by the redo log: what was acknowledged is there, and nothing else."""

from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.redo.redo_log import FILE_NAMES, RedoLog
from jetlake.store.redo.replay import replay
from tests.support.faulty_disk import FaultyDisk, PowerCut

ROOT = Path("/data/jetstream")
FILE_BYTES = 24 * 1024
ENTRY_BYTES = 8 * 1024
SEEDS = 60


class Stream:
    """A store, what was written to it, and what was acknowledged."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.folder = ROOT / "A" / "streams" / name / "msgs"
        self.life = 0
        self.is_going = False
        self.begin()

    def begin(self):
        self.life += 1
        self.written, self.durable, self.last = {}, set(), 0
        self.removed, self.durably_removed = set(), set()
        self.open()

    def open(self):
        self.store = FileStore(
            self.world.disk,
            self.folder,
            segment_bytes=3000,
            snapshot_bytes=1500,
            random_bytes=self.world.random.randbytes,
            redo_name=f"A/streams/{self.name}/msgs",
        )

    def append(self, count):
        for _ in range(count):
            payload = b"%s %d %s" % (self.name.encode(), self.life, self.world.random.randbytes(20))
            payload *= self.world.random.randint(1, 6)
            sequence = self.store.append(b"subject", b"", payload, 1)
            assert sequence > self.last, "a sequence is given once"
            self.written[sequence] = payload
        self.store.flush()

    def load(self, sequence):
        return self.store.get(sequence)

    def remove(self):
        live = [sequence for sequence in self.written if self.load(sequence) is not None]
        if live:
            sequence = self.world.random.choice(live)
            self.removed.add(sequence)
            self.store.remove(sequence, erase=self.world.random.random() < 0.5)
            self.store.flush()

    def acknowledged(self):
        self.durable |= set(self.written)
        self.last = self.store.last_sequence
        self.durably_removed |= self.removed

    def check(self):
        """Compare what is there after a crash with what was promised; what is there counts from now on."""
        assert not self.store.lost
        for sequence in self.durable | set(self.written):
            message = self.load(sequence)
            if message is None:
                assert sequence not in self.durable or sequence in self.removed, (self.name, sequence)
            else:
                assert message.payload == self.written[sequence]
                assert sequence not in self.durably_removed, f"{self.name}: {sequence} is back"
        assert self.store.last_sequence >= self.last
        self.written = {sequence: payload for sequence, payload in self.written.items() if self.load(sequence)}
        self.durable = set(self.written)
        self.removed &= self.durably_removed


class World:
    def __init__(self, seed):
        self.random = Random(seed)
        self.disk = FaultyDisk(self.random)
        self.disk.make_folder(ROOT)
        self.reports = []
        self.log = None
        self.by_redo = self.by_sync = 0
        self.streams = [Stream(self, name) for name in "abcdef"]
        for stream in self.streams:
            stream.append(1)
            stream.store.sync()
            stream.acknowledged()

    def run(self, steps):
        self.log = RedoLog(
            self.disk, ROOT, random_bytes=self.random.randbytes, file_bytes=FILE_BYTES, entry_bytes_max=ENTRY_BYTES
        )
        self.log.make()
        for _ in range(steps):
            action = self.random.choices(
                (self.commit, self.checkpoint, self.sync, self.compact, self.remake, self.remove), (12, 2, 1, 2, 0.4, 2)
            )[0]
            action()

    def commit(self):
        """Append to some streams, and acknowledge that by one entry; those that cannot be in it are synced."""
        streams = self.random.sample(self.streams, self.random.randint(1, 5))
        for stream in streams:
            stream.append(self.random.randint(0, 3))
        self.make_durable(streams)

    def make_durable(self, streams):
        if not self.log.has_room() and not self.log.is_behind:
            self.checkpoint()
        taken, parts = [], []
        for stream in streams:
            part = stream.store.take_redo() if self.log.has_room() else None
            if part is None:
                stream.store.sync()
                stream.acknowledged()
                self.by_sync += 1
            else:
                taken.append(stream)
                parts.append(part)
        if taken:
            self.log.append([stream.store for stream in taken], parts)()
            self.by_redo += len(taken)
        for stream in taken:
            stream.acknowledged()

    def remove(self):
        stream = self.random.choice(self.streams)
        stream.remove()
        self.make_durable([stream])

    def checkpoint(self):
        wipes = self.random.random() < 0.5
        if not self.log.is_behind and (file := self.log.rotate(wipes=wipes)) is not None:
            if self.random.random() < 0.5:
                self.commit()  # The other file takes entries meanwhile.
            assert self.log.checkpoint(file, wipes=wipes) == []
            if self.random.random() < 0.5:
                self.commit()
            self.log.reset(file)

    def sync(self):
        stream = self.random.choice(self.streams)
        stream.append(1)
        stream.store.sync()
        stream.acknowledged()

    def compact(self):
        stream = self.random.choice(self.streams)
        for _ in range(self.random.randint(1, 8)):
            stream.store.compact_step()

    def remake(self):
        """Delete a stream and make another one of its name."""
        stream = self.random.choice(self.streams)
        stream.store.discard()
        stream.is_going = True
        aside = stream.folder.with_name(f"msgs{stream.life}")
        self.disk.replace(stream.folder, aside)
        self.disk.sync_folder(stream.folder.parent)
        stream.is_going = False
        stream.begin()
        stream.append(2)
        stream.store.sync()
        stream.acknowledged()

    def crash(self):
        """Let the power go, or the process alone; then start, perhaps with another power cut in the middle."""
        if self.random.random() < 0.8:
            self.disk.cut_power()
        else:
            self.disk.kill()
        if self.random.random() < 0.5:
            self.disk.cut_at = self.disk.operations + self.random.randint(1, 12)
            try:
                replay(self.disk, ROOT, self.reports.append)
            except PowerCut:
                self.disk.cut_power()
        self.disk.cut_at = None
        replay(self.disk, ROOT, self.reports.append)
        assert not any(name in FILE_NAMES for name in self.disk.names(ROOT))
        self.disk.cut_power()  # What was replayed is safe before anybody opens a store.
        for stream in self.streams:
            if stream.is_going and not self.disk.is_folder(stream.folder):
                stream.begin()
            else:
                stream.open()
                stream.check()
            stream.is_going = False


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_cuts(seed):
    world = World(seed)
    for _ in range(3):
        world.disk.cut_at = world.disk.operations + world.random.randint(30, 400)
        try:
            world.run(100)
        except PowerCut:
            pass
        world.crash()
    assert world.reports == []
    assert world.by_redo
