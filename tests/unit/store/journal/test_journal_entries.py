"""Journal entries that no journal writes: a right hash over them is not enough to believe them."""

import struct

import pytest

from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.journal.file_journal import JournalEntries, encode_state, replay

STATE = encode_state(ConsumerState())


@pytest.mark.parametrize(
    "entry",
    [
        struct.pack("<BQQIq", b"D"[0], 1, 1, 0xFFFFFFFF, 0),
        struct.pack("<BQQIq", b"D"[0], 1, 1, (1 << 20) + 1, 0),
        struct.pack("<BQQIq", b"d"[0], 1, 1, 3, 0) + bytes(16),
        struct.pack("<BI", b"a"[0], 0xFFFFFFFF) + bytes(64),
        struct.pack("<BQQQQIII", b"S"[0], 1, 1, 0, 0, 0xFFFFFFFF, 0, 0),
    ],
)
def test_an_entry_that_tells_of_more_than_is_ever_written_is_damage(entry):
    assert replay([STATE, entry]) is None


def test_the_longest_run_is_read():
    entries = JournalEntries()
    entries.delivered_run(1, list(range(1, 10_001)), 5)
    state = replay([STATE, entries.pack()])
    assert state is not None
    assert (len(state.pending), state.delivered_stream) == (10_000, 10_000)


def test_deliveries_are_packed_before_the_acknowledgements_that_need_them():
    entries = JournalEntries()
    entries.acked([2, 1])
    entries.ack_floor(2, 2)
    entries.delivered_run(1, [1, 2, 5], 7)
    state = replay([STATE, entries.pack()])
    assert (list(state.pending), state.floor_stream, state.delivered_stream) == ([5], 2, 5)


def test_entries_that_were_cleared_pack_to_nothing():
    entries = JournalEntries()
    entries.position(3, 4)
    assert entries
    entries.clear()
    assert (bool(entries), entries.pack()) == (False, b"")
