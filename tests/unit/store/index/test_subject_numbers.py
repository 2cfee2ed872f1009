"""Numbers of subjects: given, used again, and found by names that a start left packed."""

from array import array

import pytest

from jetlake.store.index import packed_names, subject_numbers
from jetlake.store.index.packed_names import PackedNames
from jetlake.store.index.subject_numbers import SubjectNumbers

NAMES = [b"a", b"", b"bb", b"ccc", b"", b"dddd"]


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> SubjectNumbers:
    monkeypatch.setattr(subject_numbers, "_UNPACKED_AT_ONCE", 0)
    monkeypatch.setattr(packed_names, "_NAMES_PER_STEP", 2)
    numbers = SubjectNumbers()
    numbers.adopt(PackedNames(array("I", map(len, NAMES)), b"".join(NAMES)))
    return numbers


def test_names_stay_packed_until_one_is_asked_for(numbers: SubjectNumbers) -> None:
    assert len(numbers) == 4
    assert [numbers.is_used(number) for number in range(7)] == [True, False, True, True, False, True, False]
    assert numbers.are_packed
    assert numbers.ids[b"ccc"] == 3
    assert not numbers.are_packed
    assert (numbers.names, len(numbers)) == (NAMES, 4)
    assert numbers.matches.covered(b">") == {0, 2, 3, 5}


def test_names_are_unpacked_in_steps(numbers: SubjectNumbers) -> None:
    steps = 0
    while numbers.unpack_step():
        steps += 1
    assert steps >= 3
    assert not numbers.are_packed and numbers.names == NAMES


def test_a_step_does_not_change_what_is_asked_in_between(numbers: SubjectNumbers) -> None:
    assert numbers.unpack_step()
    assert len(numbers) == 4 and numbers.is_used(5)
    assert numbers.ids == {b"a": 0, b"bb": 2, b"ccc": 3, b"dddd": 5}
    assert not numbers.unpack_step()


def test_a_free_number_is_not_given_away_before_segment_indexes_have_claimed_theirs(numbers: SubjectNumbers) -> None:
    assert numbers.claim([1, 3], [b"claimed", b"ccc"])
    assert numbers.add(b"from the log") == 6
    numbers.find_free()
    assert [numbers.add(b"new %d" % each) for each in range(2)] == [4, 7]
    assert numbers.names == [b"a", b"claimed", b"bb", b"ccc", b"new 0", b"dddd", b"from the log", b"new 1"]


def test_free_numbers_of_packed_names_are_used_again(numbers: SubjectNumbers) -> None:
    numbers.find_free()
    assert numbers.are_packed
    assert sorted(numbers.add(b"new %d" % each) for each in range(3)) == [1, 4, 6]
    numbers.release(2)
    assert numbers.add(b"e") == 2


def test_clearing_forgets_packed_names(numbers: SubjectNumbers) -> None:
    assert numbers.unpack_step()
    numbers.clear()
    assert not numbers.are_packed and len(numbers) == 0
    assert not numbers.unpack_step()
    assert numbers.add(b"first") == 0
