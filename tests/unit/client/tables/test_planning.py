from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.client.tables.planning import Backlog, SequenceRange, admit, cut, waits_for_more


@given(
    first=st.integers(1, 10**12),
    length=st.integers(0, 10**9),
    size=st.floats(0, 1e12),
    messages=st.integers(1, 10**6),
    size_max=st.integers(1, 10**9),
    low=st.integers(1, 5),
    extra=st.integers(0, 60),
)
def test_pieces_cover_the_range_once(first, length, size, messages, size_max, low, extra):
    pieces = cut(
        SequenceRange(first, first + length),
        size,
        messages_per_partition=messages,
        bytes_per_partition=size_max,
        min_partitions=low,
        max_partitions=low + extra,
    )
    assert len(pieces) <= low + extra
    if not length:
        assert pieces == []
        return
    assert pieces[0].first == first
    assert pieces[-1].end == first + length
    assert all(a.end == b.first for a, b in pairwise(pieces))
    sizes = [len(piece) for piece in pieces]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def plan(length, size=0.0, **changes):
    settings = {"messages_per_partition": 100, "bytes_per_partition": 1000, "min_partitions": 1, "max_partitions": 8}
    return [len(piece) for piece in cut(SequenceRange(1, 1 + length), size, **{**settings, **changes})]


def test_cut_by_messages_and_by_bytes():
    assert plan(100) == [100]
    assert plan(101) == [50, 51]
    assert plan(100, size=2500.0) == [33, 33, 34]
    assert plan(10_000) == [1250] * 8
    assert plan(3, min_partitions=5) == [1, 1, 1]
    assert plan(-5) == []


def test_limits_are_shared_in_proportion():
    backlogs = {"A": Backlog(1, 901, 10.0), "B": Backlog(11, 111, 10.0), "C": Backlog(5, 5)}
    assert admit(backlogs) == {"A": 901, "B": 111, "C": 5}
    assert admit(backlogs, max_messages=100) == {"A": 91, "B": 21, "C": 5}
    assert admit(backlogs, max_messages=5000) == {"A": 901, "B": 111, "C": 5}
    assert admit(backlogs, max_bytes=1000) == {"A": 91, "B": 21, "C": 5}
    assert admit(backlogs, max_messages=10, max_bytes=1000) == {"A": 10, "B": 12, "C": 5}


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.integers(1, 10**6))
def test_nobody_starves_and_nobody_gets_too_much(lengths, limit):
    backlogs = {str(index): Backlog(1, 1 + length) for index, length in enumerate(lengths)}
    ends = admit(backlogs, max_messages=limit)
    taken = [ends[str(index)] - 1 for index in range(len(lengths))]
    assert all(0 < take <= length if length else take == 0 for take, length in zip(taken, lengths, strict=True))
    assert sum(taken) <= limit + len(lengths)


@pytest.mark.parametrize(("count", "waited_s", "waits"), [(5, 1.0, True), (10, 1.0, False), (5, 60.0, False)])
def test_waiting_for_more(count, waited_s, waits):
    assert waits_for_more({"S": Backlog(1, 1 + count)}, 10, waited_s, 60.0) is waits
