from __future__ import annotations

import pytest

from jetlake.spark.pipelines.delta_sink import held_versions

KNOWN = {"version": 3, "timestamp": 1000, "operation": "WRITE", "operationParameters": {"mode": "Append"}}


def history(*operations):
    """The table's history from version 3 on."""
    entries = [
        {"version": 4 + number, "timestamp": 2000 + 1000 * number, "operation": name, "operationParameters": given}
        for number, (name, given) in enumerate(operations)
    ]
    return [KNOWN, *entries]


APPEND = ("WRITE", {"mode": "Append"})
OPTIMIZE = ("OPTIMIZE", {})


@pytest.mark.parametrize(
    ("operations", "held"),
    [
        ([], {3}),
        ([APPEND, OPTIMIZE, ("DELETE", {"predicate": "x"})], {3, 4, 5, 6}),
        ([APPEND, ("RESTORE", {"version": "3"})], {3, 5}),
        ([APPEND, ("RESTORE", {"version": "2"})], {5}),
        ([APPEND, ("RESTORE", {"version": "2", "timestamp": None}), ("RESTORE", {"version": "4"})], {3, 4, 6}),
        # By a time, in milliseconds, or in a form that is not known here.
        ([APPEND, ("RESTORE", {"datetime": "1500"})], {3, 5}),
        ([APPEND, ("RESTORE", {"datetime": "2000"})], {3, 4, 5}),
        ([APPEND, ("RESTORE", {"datetime": "999"})], {5}),
        ([APPEND, ("RESTORE", {"version": None, "timestamp": "2026-01-01"})], {5}),
        ([APPEND, ("WRITE", {"mode": "Overwrite"})], {5}),
        ([APPEND, ("WRITE", {"mode": "Overwrite", "predicate": "date = '2026-01-01'"})], {3, 4, 5}),
    ],
)
def test_which_versions_are_a_part_of_the_table(operations, held):
    assert held_versions(3, history(*operations)) == held
