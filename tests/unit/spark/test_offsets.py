from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import OffsetError
from jetlake.spark.offsets import Offset, StreamOffset, initial_offset, read_offset

CREATED = "2026-11-15T06:24:26.803Z"

stream_offsets = st.builds(
    StreamOffset,
    created=st.just(CREATED),
    next=st.integers(1, 2**63 - 1),
    first=st.none() | st.integers(1, 2**63 - 1),
    bytes=st.integers(0, 2**60),
    lost=st.integers(0, 2**60),
    owner=st.text(max_size=5),
    taken=st.none() | st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), max_size=3).map(tuple),
)


@given(st.dictionaries(st.text("ABC", min_size=1, max_size=3), stream_offsets, min_size=1, max_size=3))
def test_round_trip(streams):
    offset = Offset(tuple(streams.items()))
    assert read_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_what_the_log_holds():
    offset = Offset((("ORDERS", StreamOffset(CREATED, 5301, first=1, bytes=99)),))
    assert offset.to_json() == {
        "v": 1,
        "streams": {"ORDERS": {"created": CREATED, "next": 5301, "from": 1, "bytes": 99}},
    }


def test_a_start_in_words():
    offset = initial_offset("latest")
    assert offset.to_json() == {"v": 1, "start": "latest"}
    assert read_offset(offset.to_json()) == offset
    assert offset.of("S") is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"v": 2, "streams": {}}, "version 2"),
        ({"offset": 7}, "no offset of the jetstream source"),
        (7, "no offset"),
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


def test_a_batch_begins_where_the_one_before_ended_unless_it_says_otherwise():
    before = StreamOffset(CREATED, 10)
    assert StreamOffset(CREATED, 20).start_of(before) == 10
    assert StreamOffset(CREATED, 20, first=15).start_of(before) == 15


def test_offsets_of_the_first_release_are_still_read():
    folder = Path(__file__).parents[2] / "spark" / "resources" / "checkpoint-v1" / "offsets"
    files = sorted(folder.glob("[0-9]*"))
    assert files
    for file in files:
        lines = file.read_text().splitlines()
        assert read_offset(json.loads(lines[-1])).streams
