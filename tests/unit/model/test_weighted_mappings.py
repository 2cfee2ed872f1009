"""Weighted mappings: which subject a draw selects, what is left of 100 percent, and which mapping wins."""

import pytest

from jetlake.model.weighted_mappings import MappingDestination, MappingOptions, WeightedMappings


def mapping(source, **weights):
    destinations = tuple(MappingDestination(subject=subject, weight=weight) for subject, weight in weights.items())
    return MappingOptions(source=source, destinations=destinations)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"b": 100}, {"b": 100}),
        ({"b": 30, "c": 20}, {"b": 30, "c": 20, "a": 50}),
        ({"a": 40}, {"a": 40, None: 60}),
        ({"a": 40, "b": 10}, {"a": 40, "b": 10, None: 50}),
        ({"b": 0}, {"a": 100}),
        ({}, {"a": 100}),
    ],
)
def test_every_draw_counts(weights, expected):
    numbers = iter(range(100))
    mappings = WeightedMappings([mapping("a", **weights)], lambda _: next(numbers))
    found = {}
    for _ in range(100):
        mapped = mappings.apply(b"a")
        key = mapped.decode() if mapped is not None else None
        found[key] = found.get(key, 0) + 1
    assert found == expected


def test_the_exact_subject_wins_over_patterns_and_the_first_pattern_over_others():
    mappings = WeightedMappings([mapping("a.*", x=100), mapping("a.>", **{"y.>": 100}), mapping("a.b", z=100)])
    subjects = (b"a.b", b"a.c", b"a.c.d", b"b.c")
    assert [mappings.apply(subject) for subject in subjects] == [b"z", b"x", b"y.c.d", b"b.c"]
