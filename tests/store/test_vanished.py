"""Whole segments that are gone, empty, swapped, foreign: what they held is named, and no sequence is used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.folders import FolderOwner
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment_header import HEADER_SIZE
from tests.support.faulty_disk import FaultyDisk

STREAM = Path("/streams/S")
FOLDER = STREAM / "msgs"
LIST = STREAM / "segments"
COUNT = 30


class World:
    """A disk with a store on it, and what the store said when it was opened."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = FaultyDisk(Random(seed))
        self.seed = seed
        self.reports: list[str] = []
        self.notes: list[str] = []

    def open(self) -> FileStore:
        self.reports.clear()
        self.notes.clear()
        return FileStore(
            self.disk,
            FOLDER,
            segment_bytes=200,
            random_bytes=Random(self.seed).randbytes,
            segment_list=LIST,
            owner=FolderOwner(note=self.notes.append, report=self.reports.append),
        )

    def segments(self) -> list[Path]:
        return [path for path in self.disk.files() if path.suffix == ".seg"]


def fill(store: FileStore, count: int = COUNT) -> None:
    for number in range(count):
        store.append(b"s.%d" % (number % 3), b"", b"payload %d" % number, 1000 + number)
        store.flush()
        store.sync()


def sequences(store: FileStore) -> list[int]:
    return [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]


def held_by(world: World) -> dict[Path, list[int]]:
    """The sequences in each segment, by the headers' first ones."""
    firsts = [int.from_bytes(world.disk.content(path)[24:32], "little") for path in world.segments()]
    ends = [*firsts[1:], COUNT + 1]
    return {path: list(range(first, end)) for path, first, end in zip(world.segments(), firsts, ends, strict=True)}


@pytest.fixture(params=["killed", "stopped", "stale index"])
def world(request: pytest.FixtureRequest) -> World:
    """Thirty messages in some segments, left by a kill, by a clean stop, or by a kill some time after one."""
    world = World()
    store = world.open()
    if request.param == "stale index":
        fill(store, 14)
        store.close()
        store = world.open()
        fill(store, COUNT - 14)
    else:
        fill(store)
    if request.param == "stopped":
        store.close()
    world.disk.kill()
    assert len(world.segments()) >= 5
    return world


def remove(world: World, path: Path) -> None:
    world.disk.remove(path)


def empty(world: World, path: Path) -> None:
    world.disk.cut(path, 0)


def keep_the_header(world: World, path: Path) -> None:
    world.disk.cut(path, HEADER_SIZE)


def put_foreign(world: World, path: Path) -> None:
    other = World(2)
    store = other.open()
    fill(store, 4)
    store.close()
    world.disk.put(path, other.disk.content(other.segments()[0]))


def put_garbage(world: World, path: Path) -> None:
    world.disk.put(path, Random(3).randbytes(300))


def put_zeros(world: World, path: Path) -> None:
    world.disk.put(path, bytes(5000))


DAMAGES = [remove, empty, keep_the_header, put_foreign, put_garbage, put_zeros]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", [0, 2, -2, -1])
def test_what_a_segment_held_is_named(world: World, damage: Callable[[World, Path], None], place: int) -> None:
    path = world.segments()[place]
    gone = held_by(world)[path]
    damage(world, path)
    before = world.disk.content(path) if damage in (put_foreign, put_garbage) else None
    left = [sequence for sequence in range(1, COUNT + 1) if sequence not in gone]
    for round in range(3):
        store = world.open()
        while store.compact_step():
            pass
        assert sequences(store) == left, round
        assert store.lost == gone, round
        assert any(f"sequences {gone[0]}-{gone[-1]}" in report for report in world.reports)
        assert store.append(b"s.0", b"", b"next", 5000) == COUNT + 1 + round
        left.append(COUNT + 1 + round)
        if round % 2:
            store.close()
        else:
            store.flush()
            store.sync()
        world.disk.kill()
    if before is not None:
        assert world.disk.content(path) == before, "what is another's stays"
    # Somebody who knows of the loss purges what is left of those days.
    store = world.open()
    assert store.lost == gone
    store.purge(below=gone[-1] + 1)
    assert store.lost == []
    for _ in range(3):
        store.flush()
        store.sync()
        while store.compact_step():
            pass
    world.disk.kill()
    store = world.open()
    assert (store.lost, world.reports) == ([], [])
    assert sequences(store) == [sequence for sequence in left if sequence > gone[-1]]


def test_swapped_segments_are_found_under_each_others_names(world: World) -> None:
    first, second = world.segments()[1], world.segments()[3]
    one, other = world.disk.content(first), world.disk.content(second)
    world.disk.put(first, other)
    world.disk.put(second, one)
    for round in range(3):
        store = world.open()
        assert sequences(store) == list(range(1, COUNT + 1 + round))
        assert store.lost == []
        assert len([note for note in world.notes if "under a wrong name" in note]) == 2
        store.append(b"s.0", b"", b"", 5000)
        store.close()
        world.disk.kill()
    store = world.open()
    store.purge(below=COUNT)
    for _ in range(3):
        store.flush()
        store.sync()
    store.close()
    assert sequences(world.open()) == [30, 31, 32, 33]


def test_a_copy_of_a_segment_changes_nothing(world: World) -> None:
    copy = FOLDER / "0000000077.seg"
    world.disk.put(copy, world.disk.content(world.segments()[1]))
    store = world.open()
    assert (sequences(store), store.lost) == (list(range(1, COUNT + 1)), [])
    assert any("0000000077.seg" in note for note in world.notes)
    fill(store, 300)
    assert world.disk.content(copy) == world.disk.content(world.segments()[1]), "no segment is written over it"


@pytest.mark.parametrize("name", ["9999999999.seg", "4294967295.seg", "4294967296.seg", "0000000000.seg"])
def test_a_number_that_no_segment_has_is_no_matter(world: World, name: str) -> None:
    world.disk.put(FOLDER / name, b"foreign")
    store = world.open()
    assert (sequences(store), store.lost) == (list(range(1, COUNT + 1)), [])
    fill(store, 40)
    store.close()
    assert world.disk.content(FOLDER / name) == b"foreign"
    assert len(sequences(world.open())) == COUNT + 40
    assert any(name in note for note in world.notes)


def test_a_new_store_writes_over_nothing() -> None:
    world = World()
    world.disk.make_folder(FOLDER)
    foreign = FOLDER / "0000000001.seg"
    world.disk.put(foreign, b"not a segment at all")
    store = world.open()
    fill(store, 20)
    store.close()
    assert world.disk.content(foreign) == b"not a segment at all"
    assert sequences(world.open()) == list(range(1, 21))


def test_a_store_of_which_everything_is_gone_is_not_opened(world: World) -> None:
    for path in world.disk.files():
        if path.parent == FOLDER:
            world.disk.remove(path)
    with pytest.raises(StoreError, match=r"the newest segment, .*, is gone, and so is the mark"):
        world.open()
    world.disk.remove_folder(FOLDER)
    with pytest.raises(StoreError, match="it is gone, though there were messages in it"):
        world.open()
    assert not world.disk.is_folder(FOLDER)


def test_the_files_of_another_stream_are_not_opened(world: World) -> None:
    other = World(2)
    store = other.open()
    fill(store)
    store.close()
    before = world.disk.files()
    for path in before:
        if path.parent == FOLDER:
            world.disk.remove(path)
    for path in other.disk.files():
        if path.parent == FOLDER:
            world.disk.put(path, other.disk.content(path))
    with pytest.raises(StoreError, match="another stream's"):
        world.open()


def test_another_streams_mark_or_index_is_not_believed(world: World) -> None:
    other = World(2)
    store = other.open()
    fill(store, 500)
    store.close()
    for name in ("mark", "index"):
        world.disk.put(FOLDER / name, other.disk.content(FOLDER / name))
    for round in range(3):
        store = world.open()
        assert (sequences(store), store.lost) == (list(range(1, COUNT + 1 + round)), [])
        assert any("mark is another stream's" in note for note in world.notes) == (not round)
        assert store.append(b"s.0", b"", b"", 5000) == COUNT + 1 + round
        store.flush()
        store.sync()
        world.disk.kill()


@pytest.mark.parametrize("tail", [b"", b"x", bytes(24)])
def test_a_list_that_is_not_whole_is_made_anew(world: World, tail: bytes) -> None:
    data = world.disk.content(LIST)
    world.disk.put(LIST, data[:-24] + tail if tail else b"")
    store = world.open()
    assert (sequences(store), store.lost) == (list(range(1, COUNT + 1)), [])
    store.append(b"s.0", b"", b"", 5000)
    store.close()
    world.disk.remove(world.segments()[1])
    assert world.open().lost


def test_what_the_limits_remove_is_never_missed() -> None:
    """Segments come and go under power cuts; a segment that was removed for good reason is not reported."""
    for seed in range(60):
        random = Random(seed)
        world = World(seed)
        store = world.open()
        kept: set[int] = set()
        for _ in range(random.randint(5, 40)):
            try:
                if world.disk.cut_at is None and random.random() < 0.3:
                    world.disk.cut_at = world.disk.operations + random.randint(1, 40)
                for _ in range(random.randint(1, 12)):
                    store.append(b"s.%d" % random.randint(0, 3), b"", bytes(random.randint(0, 60)), 1000)
                store.flush()
                if random.random() < 0.7:
                    store.enforce(StoreLimits(max_messages=random.randint(1, 30), max_per_subject=20), 0)
                elif random.random() < 0.5 and store.messages:
                    for _ in range(random.randint(1, min(10, store.messages))):
                        store.remove(random.randint(store.first_sequence, store.last_sequence))
                store.flush()
                store.sync()
                kept = set(sequences(store))
                if random.random() < 0.2:
                    while store.compact_step():
                        pass
                if random.random() < 0.05:
                    store.close()
                    store = world.open()
            except BaseException as error:
                if type(error).__name__ != "PowerCut":
                    raise
                world.disk.cut_power()
                store = world.open()
            assert (store.lost, world.reports) == ([], []), seed
        assert kept is not None


def test_a_full_disk_does_not_keep_dead_segments() -> None:
    world = World()
    store = world.open()
    fill(store, 200)
    held = len(world.segments())
    world.disk.capacity = sum(len(world.disk.content(path)) for path in world.disk.files()) + 60
    store.purge(below=190)
    for _ in range(20):
        store.flush()
        store.sync()
    assert len(world.segments()) < held / 2
    world.disk.capacity = None
    fill(store, 20)
    for _ in range(20):
        store.flush()
        store.sync()
    world.disk.kill()
    store = world.open()
    assert (store.lost, world.reports) == ([], [])
    world.disk.remove(world.segments()[1])
    assert world.open().lost, "the list is there again"


def drop_segments(world: World, store: FileStore, first: int, last: int) -> None:
    """Remove the messages between two sequences, and wait until the segments that held them are gone."""
    before = len(world.segments())
    for sequence in range(first, last + 1):
        store.remove(sequence)
    for _ in range(6):
        store.flush()
        store.sync()
    assert len(world.segments()) < before


@pytest.mark.parametrize("dropped", [1, 2])
@pytest.mark.parametrize("cut", ["a bit", "the last record", "two records", "all but the header"])
@pytest.mark.parametrize("stop", ["killed", "killed twice", "stopped and killed"])
def test_the_end_of_a_segment_whose_successor_is_gone_is_missed(dropped: int, cut: str, stop: str) -> None:
    world = World()
    store = world.open()
    fill(store)
    held = held_by(world)
    path = world.segments()[2]
    successors = [held[each] for each in world.segments()[3 : 3 + dropped]]
    drop_segments(world, store, successors[0][0], successors[-1][-1])
    if stop != "killed":
        if stop == "stopped and killed":
            store.close()
            world.disk.remove(FOLDER / "index")
        world.disk.kill()
        store = world.open()
        fill(store, 20)
    world.disk.kill()
    record = (len(world.disk.content(path)) - HEADER_SIZE) // len(held[path])
    if cut == "a bit":
        world.disk.flip(path, len(world.disk.content(path)) - 12)
    else:
        records = {"the last record": 1, "two records": 2}.get(cut, len(held[path]))
        world.disk.cut(path, max(len(world.disk.content(path)) - records * record, HEADER_SIZE))
    gone = held[path][-2 if cut == "two records" else 0 if cut == "all but the header" else -1 :]
    for _ in range(3):
        store = world.open()
        assert store.lost == gone
        assert any(f"sequences {gone[0]}" in report for report in world.reports)
        fill(store, 1)
        world.disk.kill()
    store = world.open()
    store.purge(below=gone[-1] + 1)
    fill(store, 1)
    world.disk.kill()
    assert (world.open().lost, world.reports) == ([], [])


def test_the_end_of_a_segment_before_a_foreign_number_is_missed() -> None:
    world = World()
    store = world.open()
    fill(store)
    newest = int(world.segments()[-1].stem)
    foreign = FOLDER / f"{newest + 1:010d}.seg"
    world.disk.kill()
    world.disk.put(foreign, b"not a segment at all")
    store = world.open()
    fill(store, 60)
    world.disk.kill()
    path = FOLDER / f"{newest:010d}.seg"
    following = min(each for each in world.segments() if each > foreign)
    world.disk.flip(path, len(world.disk.content(path)) - 12)
    last = int.from_bytes(world.disk.content(following)[24:32], "little") - 1
    assert world.open().lost == [last]


@pytest.mark.parametrize("cut", [0, 1, 45, 80])
def test_the_end_of_a_segment_that_was_rewritten_since_the_snapshot_is_missed(cut: int) -> None:
    world = World()
    store = world.open()
    fill(store)
    path = world.segments()[2]
    held = held_by(world)[path]
    store.remove(held[0])
    store.close()
    store = world.open()
    for sequence in held[1:-1]:
        store.remove(sequence)
    size = len(world.disk.content(path))
    for _ in range(6):
        store.flush()
        store.sync()
        while store.compact_step():
            pass
    assert len(world.disk.content(path)) < size
    world.disk.kill()
    if cut:
        world.disk.cut(path, len(world.disk.content(path)) - cut)
    else:
        world.disk.flip(path, len(world.disk.content(path)) - 12)
    store = world.open()
    assert not set(sequences(store)) & set(held)
    assert held[-1] in store.lost
    assert store.lost[0] > held[0]


@pytest.mark.parametrize(("loss", "seed"), [("torn", 1), ("rewritten", 0), ("rewritten", 1)])
def test_a_batch_of_which_a_part_was_removed_stays_when_a_power_cut_takes_what_was_not_synced(
    loss: str, seed: int
) -> None:
    world = World(seed)
    store = world.open()
    store.begin_group(2)
    for payload in (b"1" * 100, b"2" * 100):
        store.append(b"s", b"", payload, 1)
    store.flush()
    store.sync()
    store.remove(1)
    fill(store, 10)
    while store.compact_step():
        pass
    # The segment that tells of the removal goes too.
    for sequence in range(3, 10):
        store.remove(sequence)
    fill(store, 5)
    while store.compact_step():
        pass
    assert world.segments()[0] == FOLDER / "0000000002.seg"
    if loss == "torn":
        world.disk.put(LIST, world.disk.content(LIST) + b"torn")
    else:
        # Something is lost, so that the list is written anew.
        store._lost.add([16], 1)
        store.append(b"s", b"", b"", 1)
        store.flush()
        store.sync()
        world.disk.cut_power()
    for name in ("mark", "index"):
        world.disk.remove(FOLDER / name)
    assert 2 in sequences(world.open())


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_removals_that_may_be_lost_with_their_tombstones_are_told(damage: str) -> None:
    world = World()
    store = world.open()
    fill(store)
    for sequence in (2, 3):
        store.remove(sequence)
    store.flush()
    store.sync()
    path = world.segments()[-1]
    size = len(world.disk.content(path).rstrip(b"\0"))
    world.disk.kill()
    if damage == "flip":
        world.disk.flip(path, size - 20)
    elif damage == "cut":
        world.disk.cut(path, size - 40)
    else:
        world.disk.remove(path)
    assert 2 in sequences(world.open())
    assert any(f"damaged: {int(path.stem)}. Removals" in report for report in world.reports), world.reports


def test_damaged_messages_and_torn_ends_cast_no_doubt_on_removals() -> None:
    world = World()
    store = world.open()
    fill(store, 6)
    store.remove(2)
    fill(store, 3)
    world.disk.kill()
    first, last = world.segments()[0], world.segments()[-1]
    world.disk.flip(first, HEADER_SIZE + 30)
    world.disk.put(last, world.disk.content(last).rstrip(b"\0") + b"torn" * 10)
    store = world.open()
    assert store.lost == [1]
    assert not any("Removals" in report for report in world.reports)


def test_what_the_oldest_segment_lost_with_its_header_is_missed() -> None:
    world = World()
    store = world.open()
    fill(store)
    first = store._index.blocks[1].first
    drop_segments(world, store, 1, first - 1)
    world.disk.kill()
    path = world.segments()[0]
    data = world.disk.content(path)
    world.disk.put(path, b"\xff" * (HEADER_SIZE + 20) + data[HEADER_SIZE + 20 :])
    store = world.open()
    assert store.lost == [first] and sequences(store)[0] == first + 1
