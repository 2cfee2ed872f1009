"""What `MessageStore` promises, on every store."""

from __future__ import annotations

import pytest

from jetlake.errors import StoreError
from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.store.interface import BULK_REMOVAL, StoreLimits
from jetlake.store.memory_store import MemoryStore
from jetlake.store.message_store import MessageStore
from jetlake.store.steps import finish
from jetlake.store.subject_filter import SubjectFilter

LOTS = 1 << 30


def fill(store: MessageStore, count: int, subjects: int = 3, start_ns: int = 1000) -> None:
    for number in range(count):
        store.append(b"s.%d" % (number % subjects), b"", b"payload %d" % number, start_ns + number)


def sequences(store: MessageStore, *patterns: bytes, first: int = 1, last: int | None = None) -> list[int]:
    """All matching sequences, read in small runs."""
    found: list[int] = []
    subject_filter = SubjectFilter.of(patterns)
    while True:
        run = store.read(first, subject_filter, 7, LOTS, last)
        found += [message.sequence for message in run.messages]
        assert run.next_sequence > first or not run.messages
        if not run.messages:
            return found
        first = run.next_sequence


def test_a_new_store_is_empty(store: MessageStore) -> None:
    assert (store.first_sequence, store.last_sequence, store.messages, store.bytes) == (0, 0, 0, 0)
    assert (store.first_time_ns, store.last_time_ns, store.subject_count, store.deleted_count) == (0, 0, 0, 0)
    assert store.get(1) is None
    assert store.last_for(b">") is None
    assert store.read(1, None, 10, LOTS).messages == []
    assert store.deleted(1, 3) == [1, 2]
    assert store.lost == []
    assert not store.needs_flush()


def test_what_is_appended_can_be_read_at_once_and_after_the_flush(store: MessageStore) -> None:
    assert store.append(b"a.b", b"", b"hello", 5) == 1
    assert store.append(b"a.c", b"NATS/1.0\r\nx: y\r\n\r\n", b"", 6) == 2
    for _ in range(2):
        first, second = store.get(1), store.get(2)
        assert first is not None and second is not None
        assert (first.sequence, first.time_ns, first.subject, first.header, first.payload) == (
            1,
            5,
            b"a.b",
            b"",
            b"hello",
        )
        assert (second.subject, second.header, second.payload) == (b"a.c", b"NATS/1.0\r\nx: y\r\n\r\n", b"")
        assert store.read(1, None, 10, LOTS).messages == [first, second]
        store.flush()


def test_bytes_count_by_the_formula_of_the_storage_type(store: MessageStore) -> None:
    header = b"NATS/1.0\r\n\r\n"
    store.append(b"test", b"", b"hello", 1)
    assert store.bytes == (25 if isinstance(store, MemoryStore) else 39)
    store.append(b"test", header, b"hello", 1)
    assert store.bytes == (50 + len(header) if isinstance(store, MemoryStore) else 82 + len(header))
    store.remove(1)
    store.remove(2)
    assert store.bytes == 0


def test_times_never_go_back(store: MessageStore) -> None:
    store.append(b"a", b"", b"", 100)
    store.append(b"a", b"", b"", 50)
    message = store.get(2)
    assert message is not None and message.time_ns == 100
    assert store.last_time_ns == 100


def test_runs_end_at_messages_bytes_and_the_last_sequence(store: MessageStore) -> None:
    fill(store, 100)
    assert [m.sequence for m in store.read(10, None, 5, LOTS).messages] == [10, 11, 12, 13, 14]
    assert store.read(10, None, 5, LOTS).next_sequence == 15
    one = store.bytes // 100
    assert len(store.read(1, None, 100, 3 * one + 5).messages) == 3
    assert len(store.read(1, None, 100, 1).messages) == 1, "one message comes whatever its size"
    run = store.read(95, None, 100, LOTS, 97)
    assert [m.sequence for m in run.messages] == [95, 96, 97]
    assert run.next_sequence == 98
    assert store.read(101, None, 10, LOTS).next_sequence == 101
    assert store.read(500, None, 10, LOTS).next_sequence == 500


@pytest.mark.parametrize("header", [b"", b"NATS/1.0\r\nx: y\r\n\r\n"], ids=["plain", "headed"])
def test_columns_are_the_first_of_what_a_read_returns(store: MessageStore, header: bytes) -> None:
    for number in range(40):
        given = header if number % 3 == 0 else b""
        store.append(b"s.%d" % (number % 12), given, b"payload" * (number % 5), 1000 + number)
    for flushed in (False, True):
        if flushed:
            store.flush()
        for first, count, size, last in [
            (1, 40, LOTS, 40),
            (0, 7, LOTS, 40),
            (9, 99, 300, 40),
            (3, 40, 1, 40),
            (5, 9, LOTS, 8),
        ]:
            columns = store.read_columns(first, count, size, last)
            assert columns is not None
            assert columns.messages() == store.read(first, None, count, size, last).messages[: len(columns)]
            columns.keep(1)
            assert [message.sequence for message in columns.messages()] == [max(first, 1)]
    assert store.read_columns(41, 1, LOTS, 50) is None
    store.remove(20)
    columns = store.read_columns(15, 40, LOTS, 40)
    assert columns is None or 20 not in columns.sequences


def test_reads_by_subject(store: MessageStore) -> None:
    fill(store, 60)
    store.append(b"other", b"", b"", 5000)
    assert sequences(store, b"s.1") == list(range(2, 61, 3))
    assert sequences(store, b"s.1", b"s.2") == [n for n in range(1, 61) if n % 3 != 1]
    assert sequences(store, b"s.*") == list(range(1, 61))
    assert sequences(store, b"other") == [61]
    assert sequences(store, b"nothing") == []
    assert sequences(store, b"s.1", first=30, last=40) == [32, 35, 38]
    assert store.read(1, SubjectFilter((b"nothing",)), 5, LOTS).next_sequence == 62
    run = store.read(1, SubjectFilter((b"s.1",)), 3, LOTS)
    assert [m.sequence for m in run.messages] == [2, 5, 8] and run.next_sequence == 9


def test_runs_by_subject_end_at_their_bytes(store: MessageStore) -> None:
    fill(store, 60)
    one = store.bytes // 60
    for patterns in ((b"s.1",), (b"s.1", b"s.2")):
        assert len(store.read(1, SubjectFilter(patterns), 50, 3 * one + 5).messages) == 3
        assert len(store.read(1, SubjectFilter(patterns), 50, 1).messages) == 1


def test_a_long_way_to_the_next_match_is_skipped(store: MessageStore) -> None:
    store.append(b"rare.1", b"", b"", 1)
    fill(store, 9000)
    store.append(b"rare.2", b"", b"", 10**6)
    store.append(b"rare.1", b"", b"", 10**6)
    assert sequences(store, b"rare.*") == [1, 9002, 9003]


def test_skipped_sequences_are_used_up(store: MessageStore) -> None:
    store.skip()
    assert (store.first_sequence, store.last_sequence, store.messages) == (2, 1, 0)
    assert store.append(b"a", b"", b"", 1) == 2
    store.skip(3)
    assert store.append(b"a", b"", b"", 1) == 6
    store.skip(100_000)
    assert store.append(b"a", b"", b"", 1) == 100_007
    assert store.deleted_count == 100_003
    assert store.deleted(store.first_sequence, store.last_sequence + 1)[:4] == [3, 4, 5, 7]
    assert sequences(store) == [2, 6, 100_007]
    assert store.count(3) == 2


def test_the_first_sequence_can_be_set_ahead(store: MessageStore) -> None:
    store.advance_to(1000)
    assert (store.first_sequence, store.last_sequence) == (1000, 999)
    assert store.append(b"a", b"", b"", 1) == 1000
    store.advance_to(5000)
    assert (store.first_sequence, store.last_sequence, store.messages) == (5000, 4999, 0)
    assert store.append(b"a", b"", b"", 1) == 5000
    with pytest.raises(ValueError, match="was used already"):
        store.advance_to(100)


def test_no_sequence_is_so_high_that_its_record_could_not_be_read_again(store: MessageStore) -> None:
    fill(store, 3)
    for too_high in (SEQUENCE_MAX + 1, 2**60, 2**63 - 1):
        with pytest.raises(StoreError, match="the highest one is"):
            store.advance_to(too_high)
        with pytest.raises(StoreError, match="the highest one is"):
            store.skip(too_high - 3)
        with pytest.raises(StoreError, match="the highest one is"):
            store.purge(below=too_high)
        with pytest.raises(StoreError, match="the highest one is"):
            finish(store.purge_in_steps(below=too_high))
    assert (store.messages, store.last_sequence) == (3, 3)
    store.advance_to(SEQUENCE_MAX)
    assert store.append(b"a", b"", b"", 1) == SEQUENCE_MAX
    assert store.append_run([(b"a", b"", b"", b"")] * 2, 1) == SEQUENCE_MAX + 1


def test_a_stream_at_the_highest_sequence_goes_on_one_by_one(store: MessageStore) -> None:
    store.advance_to(SEQUENCE_MAX)
    store.append_run([(b"a", b"", b"", b"")] * 5, 1)
    store.skip()
    assert store.purge(below=SEQUENCE_MAX + 2, follows_append=True) == 2
    assert finish(store.purge_in_steps(below=SEQUENCE_MAX + 3)) == 1
    assert store.purge(below=SEQUENCE_MAX + 6) == 2
    assert store.append(b"a", b"", b"", 1) == SEQUENCE_MAX + 6
    with pytest.raises(StoreError, match="the highest one is"):
        store.purge(below=SEQUENCE_MAX + 8)
    with pytest.raises(StoreError, match="the highest one is"):
        store.skip(2)
    assert (store.messages, store.last_sequence) == (1, SEQUENCE_MAX + 6)


def test_removing(store: MessageStore) -> None:
    fill(store, 30)
    assert store.remove(10)
    assert not store.remove(10)
    assert not store.remove(31)
    assert not store.remove(0)
    assert store.get(10) is None
    assert (store.messages, store.deleted_count, store.deleted(store.first_sequence, store.last_sequence + 1)) == (
        29,
        1,
        [10],
    )
    assert store.remove(1)
    assert store.first_sequence == 2
    assert store.remove(2)
    assert store.first_sequence == 3
    assert store.remove(30)
    assert store.last_sequence == 30, "the last sequence stays"
    assert sequences(store) == [n for n in range(3, 30) if n != 10]
    assert store.append(b"s.0", b"", b"", 9999) == 31


def test_removing_everything_leaves_the_next_sequence_as_the_first(store: MessageStore) -> None:
    fill(store, 5)
    for sequence in (3, 1, 5, 2, 4):
        store.remove(sequence)
    assert (store.first_sequence, store.last_sequence, store.messages, store.bytes) == (6, 5, 0, 0)
    assert (store.first_time_ns, store.last_time_ns) == (0, 1004)
    assert store.subjects() == {}
    assert store.subject_count == 0
    assert store.deleted_count == 0


def test_erasing_removes_as_well(store: MessageStore) -> None:
    fill(store, 5)
    assert store.remove(2, erase=True)
    store.flush()
    assert store.remove(3, erase=True)
    assert not store.remove(3, erase=True)
    assert sequences(store) == [1, 4, 5]
    assert [message.payload for message in store.read(1, None, 9, LOTS).messages] == [
        b"payload 0",
        b"payload 3",
        b"payload 4",
    ]


def test_a_large_message_is_erased(store: MessageStore) -> None:
    fill(store, 1)
    # Half of it is more than the length of a subject can say.
    store.append(b"s.0", b"", b"x" * 140_000, 5000)
    store.flush()
    assert store.remove(2, erase=True)
    store.flush()
    assert sequences(store) == [1]


def test_last_by_subject(store: MessageStore) -> None:
    fill(store, 30)
    store.append(b"other", b"", b"x", 5000)
    assert store.last_sequence_for(b"s.0") == 28
    assert store.last_sequence_for(b"s.*") == 30
    assert store.last_sequence_for(b">") == 31
    assert store.last_sequence_for(b"none") == 0
    assert store.last_sequence_for(b"none.>") == 0
    message = store.last_for(b"other")
    assert message is not None and message.payload == b"x"
    store.remove(28)
    assert store.last_sequence_for(b"s.0") == 25
    assert store.last_for(b"none") is None


def test_a_subject_that_looks_like_a_pattern_is_a_pattern_when_asked_for(store: MessageStore) -> None:
    store.append(b"f.*", b"", b"literal", 1)
    store.append(b"f.a", b"", b"", 1)
    assert store.last_sequence_for(b"f.*") == 2
    assert store.subjects() == {b"f.*": 1, b"f.a": 1}


def test_by_time(store: MessageStore) -> None:
    fill(store, 30, start_ns=1000)
    assert store.first_at_or_after(0) == 1
    assert store.first_at_or_after(1010) == 11
    store.remove(11)
    assert store.first_at_or_after(1010) == 12
    assert store.first_at_or_after(1029) == 30
    assert store.first_at_or_after(1030) == 31


def test_last_per_subject(store: MessageStore) -> None:
    fill(store, 30)
    store.append(b"other", b"", b"", 5000)
    assert store.last_per_subject() == [28, 29, 30, 31]
    assert store.last_per_subject(SubjectFilter((b"s.*",))) == [28, 29, 30]
    assert store.last_per_subject(None, 20) == [18, 19, 20]
    assert store.last_per_subject(SubjectFilter((b"s.1", b"other")), 2) == [2]
    store.remove(29)
    assert store.last_per_subject(SubjectFilter((b"s.1",))) == [26]


def test_subjects_and_counts(store: MessageStore) -> None:
    fill(store, 30)
    store.append(b"other", b"", b"", 5000)
    assert store.subjects() == {b"s.0": 10, b"s.1": 10, b"s.2": 10, b"other": 1}
    assert store.subjects(b">") == store.subjects()
    assert store.subjects(b"s.1") == {b"s.1": 10}
    assert store.subjects(b"*") == {b"other": 1}
    assert store.subjects(b"x") == {}
    assert store.subject_count == 4
    assert store.count(0) == store.count(1) == 31
    assert store.count(20) == 12
    assert store.count(32) == 0
    assert store.count(1, SubjectFilter((b"s.1",))) == 10
    assert store.count(10, SubjectFilter((b"s.1",))) == 7
    assert store.count(10, SubjectFilter((b"s.1", b"other"))) == 8
    store.remove(20)
    assert store.count(10, SubjectFilter((b"s.1",))) == 6
    assert store.count(10) == 21
    assert store.count(20) == 11


def test_a_filter_follows_subjects_that_come_and_go(store: MessageStore) -> None:
    pattern = SubjectFilter((b"s.*", b"t.*"))
    for round_ in range(3):
        store.append(b"s.%d" % round_, b"", b"", 1)
        store.append(b"other.%d" % round_, b"", b"", 1)
        store.append(b"t.%d" % round_, b"", b"", 1)
        assert store.count(1, pattern) == 2
        assert len(store.read(1, pattern, 10, LOTS).messages) == 2
        store.purge(SubjectFilter((b"s.%d" % round_, b"t.%d" % round_)))
        assert store.count(1, pattern) == 0


def test_purging_everything(store: MessageStore) -> None:
    fill(store, 30)
    assert store.purge() == 30
    assert (store.first_sequence, store.last_sequence, store.messages, store.bytes) == (31, 30, 0, 0)
    assert store.purge() == 0
    assert store.append(b"a", b"", b"", 1) == 31
    assert store.first_sequence == 31


def test_purging_below_a_sequence(store: MessageStore) -> None:
    fill(store, 30)
    store.remove(5)
    assert store.purge(below=1) == 0
    assert store.purge(below=11) == 9
    assert (store.first_sequence, store.messages) == (11, 20)
    assert store.purge(below=31) == 20
    assert store.first_sequence == 31
    assert store.purge(below=100) == 0
    assert (store.first_sequence, store.last_sequence) == (100, 99)


def test_purging_all_but_the_newest(store: MessageStore) -> None:
    fill(store, 30)
    store.remove(28)
    assert store.purge(keep=5) == 24
    assert sequences(store) == [25, 26, 27, 29, 30]
    assert store.purge(keep=100) == 0


def test_purging_by_subject(store: MessageStore) -> None:
    fill(store, 30)
    assert store.purge(SubjectFilter((b"s.1",)), below=10) == 3
    assert sequences(store, b"s.1") == [11, 14, 17, 20, 23, 26, 29]
    assert store.purge(SubjectFilter((b"s.1",)), keep=2) == 5
    assert sequences(store, b"s.1") == [26, 29]
    assert store.purge(SubjectFilter((b"s.1", b"s.0")), keep=3) == 9
    assert sequences(store, b"s.1", b"s.0") == [26, 28, 29]
    assert store.purge(SubjectFilter((b"s.*",))) == 13
    assert store.messages == 0


def test_a_rollup_purges_after_its_append(store: MessageStore) -> None:
    fill(store, 9)
    rollup = store.append(b"s.1", b"", b"all of it", 9000)
    assert store.purge(SubjectFilter((b"s.1",)), below=rollup, follows_append=True) == 3
    assert sequences(store, b"s.1") == [rollup]
    store.flush()
    store.sync()
    store.flush()
    assert sequences(store) == [1, 3, 4, 6, 7, 9, 10]


def test_limits_by_count_and_bytes(store: MessageStore) -> None:
    fill(store, 30)
    assert store.enforce(StoreLimits(max_messages=20), 0) == 10
    assert sequences(store) == list(range(11, 31))
    one = store.bytes // 20
    assert store.enforce(StoreLimits(max_bytes=5 * one), 0) == 15
    assert store.messages == 5
    assert store.enforce(StoreLimits(max_bytes=1), 0) == 5
    assert (store.messages, store.first_sequence) == (0, 31)
    assert store.enforce(StoreLimits(max_messages=1, max_bytes=1, max_per_subject=1, max_age_ns=1), 10**9) == 0


def test_limits_by_subject(store: MessageStore) -> None:
    limits = StoreLimits(max_per_subject=2)
    fill(store, 30)
    assert store.enforce(limits, 0) == 24
    assert sequences(store) == [25, 26, 27, 28, 29, 30]
    store.append(b"s.0", b"", b"", 9000)
    store.append(b"s.0", b"", b"", 9000)
    store.append(b"s.0", b"", b"", 9000)
    assert store.enforce(limits, 0) == 3
    assert sequences(store, b"s.0") == [32, 33]
    assert store.enforce(limits, 0) == 0
    assert store.enforce(StoreLimits(max_per_subject=1), 0) == 3, "a lower limit holds for all subjects"


@pytest.mark.parametrize("count", [20, BULK_REMOVAL + 200])
def test_ageless_messages_are_passed_by(store: MessageStore, count: int) -> None:
    fill(store, count, start_ns=1000)
    ageless = [1, 2, 9, count]
    limits = StoreLimits(max_age_ns=100)
    assert store.enforce(limits, 1104, ageless) == 5 - 2
    assert sequences(store) == [1, 2, *range(6, count + 1)]
    assert (store.first_sequence, store.aging_sequence, store.aging_time_ns) == (1, 6, 1005)
    assert store.enforce(limits, 1104, ageless) == 0
    assert store.remove(6) and store.aging_time_ns == 1006
    assert store.enforce(limits, 10**6, ageless) == count - 8
    assert sequences(store) == ageless
    assert (store.messages, store.aging_time_ns) == (4, 0)
    store.append(b"s.0", b"", b"young", 2 * 10**6)
    assert store.aging_time_ns == 2 * 10**6
    assert store.enforce(limits, 10**7, ageless) == 1
    assert store.enforce(StoreLimits(max_messages=2), 10**7, ageless) == 2
    assert sequences(store) == ageless[2:]


def test_limits_by_age(store: MessageStore) -> None:
    fill(store, 30, start_ns=1000)
    limits = StoreLimits(max_age_ns=100)
    assert store.enforce(limits, 1099) == 0
    assert store.enforce(limits, 1100) == 1
    assert store.enforce(limits, 1109) == 9
    assert store.first_sequence == 11
    assert store.first_time_ns == 1010
    assert store.enforce(limits, 5000) == 20


def test_removals_are_told(store: MessageStore) -> None:
    removed: list[tuple[int, bytes]] = []
    purges: list[int] = []
    sizes: list[int] = []

    def on_removed(sequence: int, subject: bytes, size: int) -> None:
        removed.append((sequence, subject))
        sizes.append(size)

    store.hooks.on_removed = on_removed
    store.hooks.on_purged = lambda: purges.append(store.messages)
    fill(store, 10)
    before = store.bytes
    store.remove(4)
    store.enforce(StoreLimits(max_messages=7), 0)
    store.purge(SubjectFilter((b"s.1",)))
    store.purge(below=9)
    assert removed == [
        (4, b"s.0"),
        (1, b"s.0"),
        (2, b"s.1"),
        (5, b"s.1"),
        (8, b"s.1"),
        (3, b"s.2"),
        (6, b"s.2"),
        (7, b"s.0"),
    ]
    assert sum(sizes) == before - store.bytes
    assert purges == []


def test_many_removals_are_told_as_one(store: MessageStore) -> None:
    removed: list[int] = []
    purges: list[int] = []
    store.hooks.on_removed = lambda sequence, subject, size: removed.append(sequence)
    store.hooks.on_purged = lambda: purges.append(store.messages)
    fill(store, 4 * BULK_REMOVAL)
    store.purge(below=2 * BULK_REMOVAL)
    assert store.messages == 2 * BULK_REMOVAL + 1
    store.purge(SubjectFilter((b"s.0", b"s.1")))
    assert removed == []
    assert purges == [2 * BULK_REMOVAL + 1, store.messages]
    assert sequences(store) == [n for n in range(2 * BULK_REMOVAL, 4 * BULK_REMOVAL + 1) if n % 3 == 0]


def test_removals_out_of_order_on_one_subject(store: MessageStore) -> None:
    """A work queue whose messages are acknowledged in any order."""
    count = 5000
    for number in range(count):
        store.append(b"jobs", b"", b"", number)
    for start in range(7):
        for sequence in range(count - start, 0, -7):
            store.remove(sequence)
    assert (store.messages, store.first_sequence, store.subject_count) == (0, count + 1, 0)
    store.flush()
    assert store.append(b"jobs", b"", b"", 10**6) == count + 1
    assert sequences(store, b"jobs") == [count + 1]


def test_deleting_forgets_everything(store: MessageStore) -> None:
    fill(store, 10)
    store.flush()
    store.delete()
    assert isinstance(store, MemoryStore) or not store._folder.exists()  # type: ignore[attr-defined]
