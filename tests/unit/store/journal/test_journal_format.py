"""Journal entries that no journal writes: a right hash over them is not enough to believe them."""

import struct

import pytest

from jetlake.store.journal import journal_format
from jetlake.store.journal.consumer_state import ConsumerState

STATE = journal_format.encode_state(ConsumerState())


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
    assert journal_format.replay([STATE, entry]) is None


def test_the_longest_run_is_read():
    run = journal_format.run_entry(1, list(range(1, 10_001)), 5)
    state = journal_format.replay([STATE, run])
    assert state is not None
    assert (len(state.pending), state.delivered_stream) == (10_000, 10_000)
