from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from jetlake.protocol.subjects import is_subset, matches
from jetlake.spark.filters import Bounds, bounds_of, narrow_subjects
from jetlake.spark.message_columns import MessageColumns
from jetlake.spark.subject_filters import cover, keep_matching

token = st.sampled_from(["a", "b", "*"])
patterns = st.tuples(st.lists(token, min_size=1, max_size=3), st.booleans()).map(
    lambda pair: ".".join([*pair[0], ">"] if pair[1] else pair[0])
)
literals = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("filters", "covered"),
    [
        ((), ">"),
        (("a.b",), "a.b"),
        (("o.eu.x", "o.us.x"), "o.*.x"),
        (("o.eu.>", "o.us.x"), "o.*.>"),
        (("o.eu", "o.us.x"), "o.>"),
        (("a", "b"), "*"),
        (("a", "b.c"), ">"),
        (("a.>", "b"), ">"),
    ],
)
def test_cover(filters, covered):
    assert cover(filters) == covered


@given(st.lists(patterns, min_size=1, max_size=4))
def test_cover_covers(filters):
    whole = cover(tuple(filters)).encode()
    assert all(is_subset(single.encode(), whole) for single in filters)


def test_keep_matching():
    subjects = ["a.x", "b.x", "a.y", "c", "b.y"]
    columns = MessageColumns(
        np.arange(1, 6),
        np.arange(5),
        pa.array([subject.encode() for subject in subjects], pa.binary()),
        pa.array([b""] * 5, pa.binary()),
        pa.array([b"%d" % n for n in range(5)], pa.binary()),
    )
    kept = keep_matching(columns, ("a.*", "b.y"))
    assert kept.sequence.tolist() == [1, 3, 5]
    assert kept.payload.to_pylist() == [b"0", b"2", b"4"]
    assert keep_matching(columns, (">",)) is columns
    assert len(keep_matching(columns, ("z",))) == 0


def time(second):
    return datetime.datetime(1970, 1, 1, 0, 0, second, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], Bounds()),
        ([IsNotNull(("sequence",)), GreaterThan(("sequence",), 4), LessThan(("sequence",), 9)], Bounds(5, 9)),
        ([GreaterThanOrEqual(("sequence",), 4), LessThanOrEqual(("sequence",), 9)], Bounds(4, 10)),
        ([EqualTo(("sequence",), 4)], Bounds(4, 5)),
        ([In(("sequence",), (9, 2, 4))], Bounds(2, 10)),
        (
            [GreaterThanOrEqual(("timestamp",), time(1)), LessThan(("timestamp",), time(3))],
            Bounds(1, None, 1000000, 3000000),
        ),
        ([EqualTo(("subject",), "a.b")], Bounds(subjects=("a.b",))),
        ([In(("subject",), ("a.b", "c", "a.b"))], Bounds(subjects=("a.b", "c"))),
        ([StringStartsWith(("subject",), "a.b.")], Bounds(subjects=("a.b.>",))),
        ([StringStartsWith(("subject",), "a.bc")], Bounds(subjects=("a.>",))),
        ([StringStartsWith(("subject",), "abc")], Bounds()),
        ([EqualTo(("subject",), "a.*")], Bounds()),
        ([StringStartsWith(("subject",), "a."), EqualTo(("subject",), "a.b")], Bounds(subjects=("a.b",))),
        ([EqualTo(("subject",), "a"), EqualTo(("subject",), "b")], Bounds(subjects=())),
        ([EqualTo(("stream",), "S"), In(("stream",), ("S", "T"))], Bounds(streams=frozenset("S"))),
        ([StringContains(("subject",), "x"), EqualTo(("data",), b"y"), Not(EqualTo(("sequence",), 3))], Bounds()),
    ],
)
def test_bounds(filters, bounds):
    assert bounds_of(filters) == bounds


@given(st.lists(patterns, max_size=3), st.lists(patterns, min_size=1, max_size=3), literals)
def test_narrowed_filters_take_exactly_what_both_take(filters, others, subject):
    narrowed = narrow_subjects(tuple(filters), tuple(others))
    if narrowed is None:
        return

    def takes(all_of):
        return any(matches(single.encode(), subject.encode()) for single in all_of)

    assert takes(narrowed) == ((takes(filters) or not filters) and takes(others))
