"""A run of messages is stored exactly as the same messages one by one."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.memory_store import MemoryStore
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/s")

messages = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b.c", b"d" * 40]),
        st.just(b"reply"),
        st.sampled_from([b"", b"", b"NATS/1.0\r\nk: v\r\n\r\n"]),
        st.integers(0, 300).map(lambda size: b"x" * size),
    ),
    min_size=1,
    max_size=40,
)


def contents(store):
    last = store.last_sequence
    return (
        [store.get(sequence) for sequence in range(1, last + 1)],
        (store.messages, store.bytes, store.first_sequence, last, store.last_time_ns),
        store.subjects(b">"),
        [store.last_sequence_for(subject) for subject in (b"a", b"b.c", b"*.c")],
    )


def file_store(disk):
    # Segments so short that runs go over their ends.
    return FileStore(disk, FOLDER, segment_bytes=1000)


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=6), st.booleans())
def test_a_run_is_the_same_as_its_messages(runs, have_own_times):
    disks = [FaultyDisk(Random(0)), FaultyDisk(Random(0))]
    for make in (lambda disk: MemoryStore(), file_store):
        by_run, one_by_one = (make(disk) for disk in disks)
        for time_ns, run in enumerate(runs, 1):
            times = [100 * time_ns + number if have_own_times else time_ns for number in range(len(run))]
            first = by_run.append_run(run, times if have_own_times else time_ns)
            sequences = [
                one_by_one.append(subject, header, payload, own_ns)
                for (subject, _, header, payload), own_ns in zip(run, times, strict=True)
            ]
            assert first == sequences[0]
            assert contents(by_run) == contents(one_by_one)
            for store in (by_run, one_by_one):
                store.flush()
        assert contents(by_run) == contents(one_by_one)
        for store in (by_run, one_by_one):
            store.close()
    assert contents(file_store(disks[0])) == contents(file_store(disks[1]))


def test_times_do_not_go_back():
    store = MemoryStore()
    store.append(b"a", b"", b"", 10)
    store.append_run([(b"a", b"", b"", b"")], 5)
    store.append_run([(b"a", b"", b"", b"")] * 3, [9, 12, 11])
    assert [store.get(sequence).time_ns for sequence in (2, 3, 4, 5)] == [10, 10, 12, 12]


def test_a_run_that_cannot_be_written_is_undone_as_a_whole():
    disk = FaultyDisk(Random(0))
    store = file_store(disk)
    store.append_run([(b"a", b"", b"", b"kept")], 1)
    store.flush()
    disk.capacity = 0
    store.append_run([(b"a", b"", b"", b"x" * 300)] * 10, 2)
    with pytest.raises(StoreError):
        store.flush()
    assert (store.messages, store.last_sequence) == (1, 1)
    disk.capacity = None
    assert store.append_run([(b"b", b"", b"", b"next")], 3) == 2
    store.flush()
    store.close()
    assert [message.payload for message in contents(file_store(disk))[0]] == [b"kept", b"next"]
