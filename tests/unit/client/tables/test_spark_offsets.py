from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.client.tables.planning import BatchRange, StreamOffset
from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.errors import OffsetError

CREATED = "2026-11-15T06:24:26.803Z"

sequences = st.integers(1, 2**63 - 1)
batches = st.builds(
    BatchRange,
    first=st.none() | sequences,
    bytes=st.integers(0, 2**60),
    messages=st.none() | st.integers(0, 2**60),
    soft=st.booleans(),
    taken=st.none() | st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), max_size=3).map(tuple),
    expiring=st.lists(st.tuples(st.integers(1, 99), sequences), max_size=3).map(tuple),
)
stream_offsets = st.builds(
    StreamOffset,
    created=st.just(CREATED),
    next=sequences,
    held=st.booleans(),
    seen=st.none() | st.tuples(sequences, st.just(CREATED)),
    lost=st.integers(0, 2**60),
    owner=st.text(max_size=5),
    batch=st.none() | batches,
)


@given(st.dictionaries(st.text("ABC", min_size=1, max_size=3), stream_offsets, min_size=1, max_size=3))
def test_round_trip(streams):
    offset = Offset(tuple(streams.items()))
    assert read_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_what_the_log_holds():
    offset = StreamOffset(CREATED, 5301, seen=(5400, CREATED), batch=BatchRange(1, 99))
    assert Offset((("ORDERS", offset), ("IDLE", StreamOffset(CREATED, 7)))).to_json() == {
        "v": 2,
        "streams": {
            "ORDERS": {"created": CREATED, "next": 5301, "seen": [5400, CREATED], "batch": {"from": 1, "bytes": 99}},
            "IDLE": {"created": CREATED, "next": 7},
        },
    }


def test_a_start_in_words():
    offset = Offset(start="latest")
    assert offset.to_json() == {"v": 2, "start": "latest"}
    assert read_offset(offset.to_json()) == offset
    assert read_offset({"v": 1, "start": "latest"}) == offset
    assert offset.of("S") is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"v": 3, "streams": {}}, "version 3"),
        ({"v": [2], "streams": {}}, "version"),
        ({"offset": 7}, "not an offset of the jetstream source"),
        (7, "not an offset"),
        ({"v": 1}, "broken"),
        ({"v": 1, "streams": {"S": {"next": 4}}}, "broken"),
        ({"v": 1, "streams": {"S": {"created": CREATED, "next": "x"}}}, "broken"),
        ({"v": 1, "streams": {"S": {"created": CREATED, "next": 3, "taken": [1]}}}, "broken"),
        ({"v": 1, "streams": [1]}, "broken"),
    ],
)
def test_what_is_no_offset(value, reason):
    with pytest.raises(OffsetError, match=reason):
        read_offset(value)


def test_the_range_of_a_batch_belongs_to_that_batch_alone():
    end = StreamOffset(CREATED, 20, batch=BatchRange(10))
    assert end.range_after(StreamOffset(CREATED, 8)) == (10, 20)
    assert end.position.range_after(end) == (20, 20)


def test_a_range_of_version_1_begins_where_the_batch_before_ended_unless_it_says_otherwise():
    def entry(**fields):
        return read_offset({"v": 1, "streams": {"S": {"created": CREATED, **fields}}}).of("S")

    before = entry(next=10)
    assert entry(next=20).range_after(before) == (10, 20)
    first = entry(next=20, **{"from": 15})
    assert first.range_after(before) == (15, 20)
    # A stream that had nothing in a batch kept its entry, range and all.
    assert first.range_after(first) == (20, 20)


def test_offsets_of_the_first_release_are_still_read():
    folder = Path(__file__).parents[3] / "spark" / "resources" / "checkpoint-v1" / "offsets"
    files = sorted(folder.glob("[0-9]*"))
    assert files
    for file in files:
        lines = file.read_text().splitlines()
        assert read_offset(json.loads(lines[-1])).streams
