"""Work in steps gives what it gives at once, whatever happens in between."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.store.index import subject_matches
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.memory_store import MemoryStore
from jetlake.store.steps import drained, finish, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter


@given(st.lists(st.integers(0, 50)), st.integers(1, 7))
def test_groups_have_everything_in_order(items, size):
    groups = list(in_groups(items, size))
    assert [item for group in groups for item in group] == items
    assert all(0 < len(group) <= size for group in groups)
    left = items.copy()
    assert list(drained(left, size)) == groups
    assert left == []


def test_sorting_in_steps():
    for count in (0, 1, 60, 5000, 20_000):
        numbers = list(range(count))
        assert finish(sort_in_steps(numbers.copy())) == numbers
        Random(count).shuffle(numbers)
        steps = sort_in_steps(numbers)
        assert finish(steps) == list(range(count))
    names = [b"s.%d" % number for number in range(5000)]
    assert finish(sort_in_steps(names.copy())) == sorted(names)


def test_a_few_are_sorted_without_a_step_and_taken_from_their_list():
    few = [3, 1, 2]
    steps = sort_in_steps(few)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == [1, 2, 3]
    assert few == []


def test_a_filter_that_is_prepared_while_subjects_come_and_go():
    random = Random(3)
    index = SubjectIndex()
    sequences = {}

    def change(number):
        subject = b"%b.%d" % (random.choice([b"a", b"b"]), number)
        if subject in sequences:
            index.remove(index.numbers.ids[subject], sequences.pop(subject))
        else:
            sequences[subject] = len(sequences) + 1_000_000 + number
            index.add(subject, sequences[subject])

    for number in range(9000):
        change(number)
    subject_filter = SubjectFilter((b"a.*",))
    for round_ in range(3):
        steps = 0
        for _ in index.numbers.matches.prepare(subject_filter):
            steps += 1
            for _ in range(50):
                change(random.randrange(12_000))
        assert bool(steps) == (round_ == 0), "what is known need not be looked for again"
        wanted = {index.numbers.ids[subject] for subject in sequences if subject.startswith(b"a.")}
        assert set(index.numbers.matches.passing(subject_filter)) == wanted


@pytest.mark.parametrize("remembered", [0, 16 * 1024])
def test_subjects_that_pass_are_listed_without_a_set_that_grows_with_them(monkeypatch, remembered):
    monkeypatch.setattr(subject_matches, "_REMEMBERED_MAX", remembered)
    index = SubjectIndex()
    for number in range(9000):
        index.add(b"%b.%d" % (b"ab"[number % 2 : number % 2 + 1], number), number + 1)
    matches, subject_filter = index.numbers.matches, SubjectFilter((b"a.*",))
    for _ in range(2):
        assert list(finish(matches.listed(subject_filter))) == list(range(0, 9000, 2))
        assert (subject_filter in matches._matching) == bool(remembered)
    assert list(finish(matches.listed(SubjectFilter((b"a.4", b"a.2", b"a.1"))))) == [2, 4]
    index.remove(4, 5)
    index.add(b"a.new", 10_000)
    index.add(b"a.newer", 10_001)
    assert list(finish(matches.listed(subject_filter))) == [*range(0, 9000, 2), 9000]


def test_a_purge_in_steps_removes_what_was_there_and_nothing_else():
    for seed in range(30):
        random = Random(seed)
        store = MemoryStore()
        store.removals_per_step = random.choice([1, 3, 50])
        for number in range(200):
            store.append(b"s.%d" % random.randrange(20), b"", b"", number)
        for sequence in random.sample(range(1, 201), random.choice([0, 40])):
            store.remove(sequence)
        pattern = random.choice([None, b"s.*", b"s.1", b"*.3"])
        subject_filter = None if pattern is None else SubjectFilter((pattern,))
        below = random.choice([None, 90])
        keep = random.choice([None, 10]) if below is None else None
        before = {sequence for sequence in range(1, 201) if store.has(sequence)}
        passing = sorted(
            sequence
            for sequence in before
            if subject_filter is None or subject_filter.matches(store.get(sequence).subject)
        )
        wanted = [sequence for sequence in passing if below is None or sequence < below]
        if keep:
            wanted = passing[:-keep]
        steps = store.purge_in_steps(subject_filter, below=below, keep=keep)
        gone_meanwhile = set()
        while True:
            try:
                next(steps)
            except StopIteration:
                break
            store.append(b"s.%d" % random.randrange(30), b"", b"", 1000)
            other = random.randrange(1, 201)
            if store.remove(other):
                gone_meanwhile.add(other)
        left = {sequence for sequence in range(1, 201) if store.has(sequence)}
        assert left == before - set(wanted) - gone_meanwhile
        assert all(store.has(sequence) for sequence in range(201, store.last_sequence + 1))
        assert store.messages == len(left) + store.last_sequence - 200


@pytest.mark.parametrize(("subjects", "at_once"), [(1, 8192), (100, 8192), (20_000, 2048)])
def test_a_purge_of_the_oldest_takes_as_many_at_once_as_have_few_subjects(subjects, at_once):
    store = MemoryStore()
    for number in range(20_000):
        store.append(b"s.%d" % (number % subjects), b"", b"", number)
    removed = []
    before = store.messages
    for _ in store.purge_in_steps(keep=1):
        removed.append(before - store.messages)
        before = store.messages
    assert store.messages == 1
    assert at_once // 4 <= max(removed) <= at_once


def test_steps_over_a_store_that_was_emptied_meanwhile():
    store = MemoryStore()
    for number in range(5000):
        store.append(b"s.%d" % number, b"", b"", number)
    newest, purge = store.last_per_subject_in_steps(), store.purge_in_steps(SubjectFilter((b"s.*",)))
    for steps in (newest, purge):
        for _ in range(4):
            next(steps)
    store.purge()
    store.append(b"s.new", b"", b"", 5001)
    assert all(sequence <= 5000 for sequence in finish(newest))
    assert finish(purge) == 0
    assert store.messages == 1
