"""Records: a run that was packed is unpacked as it was, whatever its messages have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.log.record import pack_run, unpack_run
from jetlake.store.message import StoredMessage

NAMES = [b"a", b"bc", b"bd", b"ijk", b"efgh"]

# Few lengths, so that many runs have records of one size whose subjects or headers differ in length all the same.
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.just(b"reply"),
        st.sampled_from([b"", b"", b"", b"NATS/1.0\r\nk: v\r\n\r\n"]),
        st.sampled_from([b"", b"1", b"22", b"333", b"\xff" * 30]),
    ),
    min_size=1,
    max_size=12,
)


def unpacked(messages, picked):
    """Pack messages, and unpack those at the picked places out of a buffer that begins with the first of them."""
    times = [1_000 + 7 * place for place in range(len(messages))]
    parts, sizes = pack_run(messages, 5, times, PLAIN_HASHING.checksum(b"record", 3), 10_000)
    offsets = [100 + sum(sizes[:place]) for place in range(len(sizes))]
    base = offsets[picked[0]]
    return unpack_run(
        b"".join(parts)[base - 100 :],
        base,
        [5 + place for place in picked],
        [offsets[place] for place in picked],
        [sizes[place] for place in picked],
        [times[place] for place in picked],
        [NAMES.index(messages[place][0]) for place in picked],
        NAMES,
    ).messages()


def expected(messages, picked):
    return [
        StoredMessage(5 + place, 1_000 + 7 * place, messages[place][0], messages[place][2], messages[place][3])
        for place in picked
    ]


@given(MESSAGES, st.data())
def test_a_run_is_unpacked_as_it_was_packed(messages, data):
    places = range(len(messages))
    picked = sorted(data.draw(st.sets(st.sampled_from(places), min_size=1)))
    assert unpacked(messages, picked) == expected(messages, picked)
    assert unpacked(messages, places) == expected(messages, places)


@pytest.mark.parametrize(
    "messages",
    [
        [(b"a", b"", b"", b"22"), (b"bc", b"", b"", b"1"), (b"efgh", b"", b"", b"")],
        [(b"bc", b"", b"", b"333"), (b"a", b"", b"", b"4444"), (b"ijk", b"", b"", b"22")],
    ],
)
def test_records_of_one_size_with_subjects_of_several_lengths(messages):
    places = range(len(messages))
    assert unpacked(messages, places) == expected(messages, places)
