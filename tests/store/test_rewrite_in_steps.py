"""A segment is rewritten in steps: whatever happens between two of them, nothing comes back and nothing is lost."""

import threading
from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.log.compaction import rewrite
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/msgs")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(rewrite, "_RECORDS_PER_STEP", 3)
    monkeypatch.setattr(rewrite, "_ROWS_PER_STEP", 25)
    monkeypatch.setattr(rewrite, "_PART_BYTES", 100)


def open_store(disk, segment_bytes=2000):
    return FileStore(disk, FOLDER, segment_bytes=segment_bytes, tail_bytes=500, random_bytes=Random(1).randbytes)


def fill(store, count=60):
    for number in range(count):
        store.append(b"s.%d" % (number % 5), b"", b"%d" % number * 10, 1000 + number)
    store.flush()
    store.sync()


def content(store):
    messages = store.read(1, None, 10_000, 1 << 30).messages
    return [(message.sequence, message.subject, message.payload) for message in messages], store.lost


def remove(store, random):
    """Remove some messages, in one of the ways in which messages go; the removal is on the disk afterwards."""
    sequences = [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]
    for sequence in random.sample(sequences, min(len(sequences), random.randint(1, 20))):
        store.remove(sequence, erase=random.random() < 0.1)
    if random.random() < 0.1:
        store.purge(below=random.choice([1, *sequences]))
    store.flush()
    store.sync()


@pytest.mark.parametrize("seed", range(40))
def test_removals_syncs_and_crashes_between_the_steps(seed):
    random = Random(seed)
    disk = FaultyDisk(Random(seed))
    store = open_store(disk)
    rewritten = rounds = 0
    while rounds < 5 or (rounds < 30 and not rewritten):
        rounds += 1
        fill(store)
        for _ in range(3):
            remove(store, random)
        while store._spiller.step():
            pass
        for _ in range(random.randint(0, 120)):
            generations = sum(segment.generation for segment in store._index.blocks)
            store.compact_step(sync_here=False)
            rewritten += sum(segment.generation for segment in store._index.blocks) > generations
            if random.random() < 0.3:
                store.sync()
            if random.random() < 0.1:
                remove(store, random)
        expected = content(store)
        assert not expected[1]
        if random.random() < 0.3:
            store.close()
        disk.cut_power() if random.random() < 0.5 else disk.kill()
        store = open_store(disk)
        assert content(store) == expected
    assert rewritten, "no segment was ever rewritten"


def begun(disk):
    """A store in the middle of a rewrite, whose first segment is mostly dead."""
    store = open_store(disk)
    fill(store)
    for sequence in range(2, 34):
        store.remove(sequence)
    store.flush()
    store.sync()
    while store._compactor._rewrite is None:
        assert store.compact_step(sync_here=False)
    return store


def test_a_rewrite_takes_many_steps_and_syncs_in_none_of_them():
    disk = FaultyDisk(Random(0))
    store = begun(disk)
    here, syncs = threading.get_ident(), []
    disk.fault = lambda operation, path: (
        syncs.append((operation, threading.get_ident())) if "sync" in operation else None
    )
    steps = 0
    while not store._index.blocks[0].generation:
        assert store.compact_step(sync_here=False)
        steps += 1
        if store.needs_sync():
            thread = threading.Thread(target=store.sync)
            thread.start()
            thread.join()
    assert steps >= 5
    assert syncs and all(thread != here for _, thread in syncs)


def test_a_rewritten_segment_is_written_in_parts_that_keep_the_interpreter_for_a_short_time():
    disk = FaultyDisk(Random(0))
    store = begun(disk)
    segment = store._index.blocks[0]
    while not store._compactor.waits_for_write():
        store.compact_step(sync_here=False)
    sizes = []
    write = disk.write
    disk.write = lambda handle, data, offset: (sizes.append(len(data)), write(handle, data, offset))
    store.sync()
    disk.write = write
    record = max(segment.sizes)
    assert len(sizes) > 2
    assert all(sizes)
    assert max(sizes) <= 100 + 3 * (record + 60), "a part, and the records and tombstones of a step"
    expected = content(store)
    while not segment.generation:
        store.compact_step()
    assert disk.content(segment.file.path)[: segment.size] == segment.file.read_all(segment.size)
    assert content(store) == expected
    store.flush()
    disk.kill()
    assert content(open_store(disk)) == expected


def test_what_is_erased_in_the_middle_is_in_no_file_afterwards():
    disk = FaultyDisk(Random(0))
    store = begun(disk)
    store.compact_step(sync_here=False)
    secret = store.get(1).payload
    store.remove(1, erase=True)
    store.flush()
    store.sync()
    while store.compact_step():
        pass
    assert store._index.blocks[0].generation
    store.close()
    assert all(secret not in disk.content(path) for path in disk.files())


def test_a_store_that_closes_in_the_middle_gives_every_handle_back():
    disk = FaultyDisk(Random(0))
    store = begun(disk)
    while not store._compactor.waits_for_write():
        store.compact_step(sync_here=False)
    expected = content(store)
    store.close()
    assert disk._handles == {}
    assert not [path for path in disk.files() if path.suffix == ".tmp"]
    assert content(open_store(disk)) == expected


@pytest.mark.parametrize("moment", ["in the middle", "afterwards", "after a restart"])
def test_what_is_removed_from_a_rewritten_segment_needs_its_tombstone(moment):
    """The rewritten file still has the record: the segment with its tombstone may go only after that file."""
    disk = FaultyDisk(Random(0))
    store = begun(disk)

    def rewrite_first():
        while not store._index.blocks[0].generation:
            assert store.compact_step()

    if moment == "in the middle":
        while not store._compactor.waits_for_write():
            store.compact_step(sync_here=False)
        store.remove(34)
    rewrite_first()
    if moment == "afterwards":
        store.remove(34)
    store.flush()
    store.sync()
    if moment == "after a restart":
        store.remove(34)
        store.close()
        store = open_store(disk)
    fill(store)
    for sequence in range(39, store.last_sequence):  # All of the segment with the tombstone, and more.
        store.remove(sequence)
    fill(store)
    for _ in range(200):
        store.compact_step()
        store.flush()
        store.sync()
    expected = content(store)
    assert 34 not in [sequence for sequence, *_ in expected[0]]
    disk.kill()
    for path in disk.files():
        if path.name == "index":
            disk.remove(path)
    assert content(open_store(disk)) == expected


@pytest.mark.parametrize("has_digest", [True, False])
@pytest.mark.parametrize("fault", ["flipped", "unreadable"])
def test_a_record_that_went_bad_is_lost_and_not_copied(fault, has_digest):
    disk = FaultyDisk(Random(1))
    store = open_store(disk, 20_000)
    fill(store, 400)
    for sequence in range(1, 300):
        if sequence % 5:
            store.remove(sequence, erase=sequence == 1 and not has_digest)
    store.flush()
    store.sync()
    segment = store._index.blocks[0]
    assert (segment.digest is not None) == has_digest
    offset = segment.offsets[segment.row_of(10)] + 30
    if fault == "flipped":
        disk.flip(segment.file.path, offset)
    else:
        disk.bad_sectors.add((segment.file.path, offset // 512))
    for _ in range(500):
        if not store.compact_step():
            break
    else:
        raise AssertionError("house-keeping does not come to an end")
    assert 10 in store.lost
    assert store.get(10) is None
    kept = {message.sequence: message.payload for message in store.read(1, None, 1000, 1 << 20).messages}
    left = {*range(5, 300, 5), *range(300, 401)}.difference(store.lost)
    assert kept == {sequence: b"%d" % (sequence - 1) * 10 for sequence in left}


def test_a_read_ends_where_a_record_and_a_digest_contradict_each_other():
    store = open_store(FaultyDisk(Random(1)))
    fill(store)
    segment = store._index.blocks[0]
    segment.offsets[4] += 1
    assert store.get(5) is None
    assert store.lost == [5]
    assert store.get(6) is not None


def test_the_oldest_time_is_that_of_the_oldest_message_when_a_spilled_segment_was_rewritten():
    store = open_store(FaultyDisk(Random(1)))
    fill(store, 100)
    while store.compact_step():
        pass
    for sequence in range(1, 21):
        store.remove(sequence)
    while store.compact_step():
        pass
    assert store._index.blocks[0].generation == 1 and store._index.blocks[0].spilled is not None
    assert store.first_time_ns == store.aging_time_ns == store.get(store.first_sequence).time_ns == 1020
