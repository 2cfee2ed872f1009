"""The window of message ids: exact within it, forgotten after it, bounded always."""

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.stream.deduplication import DeduplicationWindow, IdTable

SECOND = 1_000_000_000


def test_an_id_is_known_for_the_window_and_forgotten_soon_after():
    ids = DeduplicationWindow(120 * SECOND)
    ids.remember(b"a", 7, 0)
    assert ids.find(b"a", 119 * SECOND) == 7
    assert ids.find(b"b", 119 * SECOND) == 0
    assert ids.find(b"a", 122 * SECOND) == 0
    assert len(ids) == 0


def test_a_window_of_zero_remembers_nothing():
    ids = DeduplicationWindow(0)
    ids.remember(b"a", 1, 0)
    assert ids.find(b"a", 0) == 0


def test_messages_that_were_never_stored_are_forgotten():
    ids = DeduplicationWindow(10 * SECOND)
    for sequence in range(1, 6):
        ids.remember(b"%d" % sequence, sequence, sequence * SECOND)
    ids.forget_from(3)
    assert [ids.find(b"%d" % sequence, 5 * SECOND) for sequence in range(1, 6)] == [1, 2, 0, 0, 0]
    ids.remember(b"4", 3, 5 * SECOND)
    assert ids.find(b"4", 6 * SECOND) == 3


def test_a_smaller_window_applies_to_what_is_known():
    ids = DeduplicationWindow(120 * SECOND)
    ids.remember(b"a", 1, 0)
    ids.resize(SECOND)
    assert ids.find(b"a", 3 * SECOND) == 0
    ids.remember(b"b", 2, 3 * SECOND)
    ids.resize(0)
    assert ids.find(b"b", 3 * SECOND) == 0


def test_the_same_id_again_in_recovery_counts_from_its_last_message():
    ids = DeduplicationWindow(10 * SECOND)
    ids.remember(b"a", 1, 0)
    ids.remember(b"b", 2, SECOND)
    ids.remember(b"a", 3, 8 * SECOND)
    assert ids.find(b"a", 12 * SECOND) == 3
    assert ids.find(b"b", 12 * SECOND) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3 * SECOND)), max_size=200))
def test_it_agrees_with_a_plain_dict_up_to_a_hundredth_of_the_window(steps):
    window = 10 * SECOND
    slack = window // 100
    ids, stored, now = DeduplicationWindow(window), {}, 0
    for sequence, (name, step) in enumerate(steps, 1):
        now += step
        message_id = b"%d" % name
        found = ids.find(message_id, now)
        first, time = stored.get(message_id, (0, -window))
        if now - time < window:
            assert found == first
        elif now - time > window + slack:
            assert found == 0
        if not found:
            ids.remember(message_id, sequence, now)
            stored[message_id] = (sequence, now)
    assert len(ids) <= len(stored)


def test_many_ids_expire_at_once_and_leave_memory_a_few_at_a_time():
    ids = DeduplicationWindow(10 * SECOND)
    ids.remember_run({b"%d" % number: number + 1 for number in range(20_000)}, 0)
    assert ids.find(b"7", 11 * SECOND) == 0
    assert 15_000 < len(ids) < 20_000
    assert ids.finder(11 * SECOND)(b"19999") == 0
    ids.remember(b"19999", 20_001, 11 * SECOND)
    turns = 0
    while ids.has_expired:
        ids.forget_expired(11 * SECOND)
        turns += 1
    assert turns > 5
    assert ids.entries() == [(b"19999", 20_001, 11 * SECOND)]
    assert ids.find(b"19999", 11 * SECOND) == 20_001


def test_ids_of_undone_messages_are_free_and_so_are_their_sequences():
    ids = DeduplicationWindow(10 * SECOND)
    ids.remember_run({b"%d" % number: number for number in range(1, 2001)}, 0)
    ids.forget_from(500)
    assert (ids.find(b"499", 0), ids.find(b"500", 0), ids.has_between(500, 2000)) == (499, 0, False)
    ids.remember_run({b"%d" % number: 500 + number for number in range(1000, 2000)}, 0)
    assert [entry[1] for entry in ids.between(499, 1501)] == [499, *range(1500, 1502)]


# The table of message ids: a dict that never has to grow as a whole


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9000), st.integers(1, 4000)), max_size=12))
def test_a_table_agrees_with_a_dict(steps):
    table, model = IdTable(), {}
    for sequence, (adds, first, count) in enumerate(steps, 1):
        ids = [b"%d" % number for number in range(first, first + count)]
        if adds:
            table.update(dict.fromkeys(ids, sequence))
            model.update(dict.fromkeys(ids, sequence))
        else:
            for message_id in ids:
                table.discard(message_id, model.get(message_id, 1))
                model.pop(message_id, None)
    get = table.getter()
    assert len(table) == len(model)
    assert all(get(b"%d" % number) == model.get(b"%d" % number, 0) for number in range(0, 13_000, 7))


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 4000)), max_size=8), st.booleans())
def test_a_run_of_ids_is_added_whole_or_not_at_all(runs, twice):
    table, model, next_sequence = IdTable(), {}, 1
    for first, count in runs:
        ids = [b"%d" % number for number in range(first, first + count)]
        if twice:
            ids.append(ids[0])
        sequences = list(range(next_sequence, next_sequence + len(ids)))
        is_new = model.keys().isdisjoint(ids) and not twice
        assert table.add_new(ids, sequences) == is_new
        if is_new:
            model.update(zip(ids, sequences, strict=True))
            next_sequence += len(ids)
    get = table.getter()
    assert len(table) == len(model)
    assert all(get(message_id) == sequence for message_id, sequence in model.items())


def test_an_id_with_a_newer_sequence_stays():
    table = IdTable()
    table.update({b"a": 1})
    table.update({b"a": 2})
    table.discard(b"a", 1)
    assert table.get(b"a") == 2
    table.clear()
    assert (table.get(b"a"), len(table)) == (0, 0)


def test_no_part_of_a_large_table_is_large():
    table = IdTable()
    for first in range(0, 100_000, 1000):
        table.update({b"%d" % number: number for number in range(first, first + 1000)})
    assert max(map(len, table._parts)) < 1000
