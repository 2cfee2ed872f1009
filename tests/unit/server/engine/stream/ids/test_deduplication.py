"""The window of message ids: exact within it, forgotten after it, bounded always."""

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.stream.ids.deduplication import Deduplication

SECOND = 1_000_000_000


def test_an_id_is_known_for_the_window_and_forgotten_soon_after():
    ids = Deduplication(120 * SECOND)
    ids.remember(b"a", 7, 0)
    assert ids.find(b"a", 119 * SECOND) == 7
    assert ids.find(b"b", 119 * SECOND) == 0
    assert ids.find(b"a", 122 * SECOND) == 0
    assert len(ids) == 0


def test_a_window_of_zero_remembers_nothing():
    ids = Deduplication(0)
    ids.remember(b"a", 1, 0)
    assert ids.find(b"a", 0) == 0


def test_messages_that_were_never_stored_are_forgotten():
    ids = Deduplication(10 * SECOND)
    for sequence in range(1, 6):
        ids.remember(b"%d" % sequence, sequence, sequence * SECOND)
    ids.forget_from(3)
    assert [ids.find(b"%d" % sequence, 5 * SECOND) for sequence in range(1, 6)] == [1, 2, 0, 0, 0]
    ids.remember(b"4", 3, 5 * SECOND)
    assert ids.find(b"4", 6 * SECOND) == 3


def test_a_smaller_window_applies_to_what_is_known():
    ids = Deduplication(120 * SECOND)
    ids.remember(b"a", 1, 0)
    ids.resize(SECOND)
    assert ids.find(b"a", 3 * SECOND) == 0
    ids.remember(b"b", 2, 3 * SECOND)
    ids.resize(0)
    assert ids.find(b"b", 3 * SECOND) == 0


def test_the_same_id_again_in_recovery_counts_from_its_last_message():
    ids = Deduplication(10 * SECOND)
    ids.remember(b"a", 1, 0)
    ids.remember(b"b", 2, SECOND)
    ids.remember(b"a", 3, 8 * SECOND)
    assert ids.find(b"a", 12 * SECOND) == 3
    assert ids.find(b"b", 12 * SECOND) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3 * SECOND)), max_size=200))
def test_it_agrees_with_a_plain_dict_up_to_a_hundredth_of_the_window(steps):
    window = 10 * SECOND
    slack = window // 100
    ids, stored, now = Deduplication(window), {}, 0
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
    ids = Deduplication(10 * SECOND)
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
    ids = Deduplication(10 * SECOND)
    ids.remember_run({b"%d" % number: number for number in range(1, 2001)}, 0)
    ids.forget_from(500)
    assert (ids.find(b"499", 0), ids.find(b"500", 0), ids.has_between(500, 2000)) == (499, 0, False)
    ids.remember_run({b"%d" % number: 500 + number for number in range(1000, 2000)}, 0)
    assert [entry[1] for entry in ids.between(499, 1501)] == [499, *range(1500, 1502)]
