"""Which subjects pass a filter: the same however it is asked, brought up to date in steps, and within bounds."""

import random

import pytest

from jetlake.protocol.subjects import matches
from jetlake.store.index import subject_matches
from jetlake.store.index.subject_numbers import SubjectNumbers
from jetlake.store.steps import finish
from jetlake.store.subject_filter import SubjectFilter

FILTERS = {
    "few literals": [b"s.%d.x" % number for number in range(5)],
    "many literals": [b"s.%d.x" % number for number in range(300)],
    "a pattern": [b"s.*.x"],
    "an open pattern": [b"s.>"],
    "all": [b">"],
    "one token, as free numbers have": [b"*"],
    "very many tokens": [b".".join([b"*"] * 1000)],
    "many patterns": [b"s.%d.*" % number for number in range(300)] + [b"*.*.y"],
}


@pytest.mark.parametrize("patterns", FILTERS.values(), ids=FILTERS)
def test_subjects_that_come_and_go_pass_as_their_filter_says(patterns):
    numbers, draw = SubjectNumbers(), random.Random(1)
    subject_filter = SubjectFilter(patterns)
    for round_ in range(6):
        for _ in range(700):
            subject = b"s.%d.%b" % (draw.randrange(500), draw.choice([b"x", b"y"]))
            if subject not in numbers.ids:
                numbers.add(subject)
            elif draw.random() < 0.3:
                numbers.release(numbers.ids[subject])
        expected = {
            number for name, number in numbers.ids.items() if any(matches(pattern, name) for pattern in patterns)
        }
        if round_ % 2:
            assert list(finish(numbers.matches.listed(subject_filter))) == sorted(expected)
        assert set(numbers.matches.passing(subject_filter)) == expected


def test_a_filter_catches_up_with_new_subjects_in_steps():
    numbers = SubjectNumbers()
    subject_filter = SubjectFilter([b"s.*.x", b"s.*.y"])
    finish(numbers.matches.prepare(subject_filter))
    for number in range(3000):
        numbers.add(b"s.%d.x" % number)
    assert len(list(numbers.matches.prepare(subject_filter))) >= 10
    assert len(numbers.matches.passing(subject_filter)) == 3000


def test_filters_that_match_nothing_do_not_pile_up(monkeypatch):
    """Each request may bring patterns that nobody asks for again."""
    monkeypatch.setattr(subject_matches, "_HELD_MAX", 100_000)
    numbers = SubjectNumbers()
    numbers.add(b"s")
    for round_ in range(100):
        subject_filter = SubjectFilter([b"%d.%d.*" % (round_, number) for number in range(100)])
        finish(numbers.matches.prepare(subject_filter))
        assert not numbers.matches.passing(subject_filter)
    assert len(numbers.matches._matching) <= 32
