"""Postings of one block, and the Bloom filters by which blocks are passed by."""

from random import Random

from jetlake.store.index.postings import Postings, bloom_filter, bloom_may_contain


def test_sequences_are_found_by_subject() -> None:
    postings = Postings.of_rows([(7, 10), (3, 11), (7, 12), (9, 13)])
    assert list(postings.numbers) == [3, 7, 9]
    assert [list(postings.of(number).sequences) for number in (3, 7, 9, 8)] == [[11], [10, 12], [13], []]


def test_dead_sequences_and_subjects_without_others_are_left_out() -> None:
    postings = Postings.of_rows([(7, 10), (3, 11), (7, 12), (9, 13)]).only({10, 13}.__contains__)
    assert list(postings.numbers) == [7, 9]
    assert list(postings.sequences) == [10, 13]
    assert postings.earlier is None


def test_a_mask_never_denies_a_subject_and_mostly_denies_others() -> None:
    numbers = Random(1).sample(range(1_000_000), 100)
    bloom = bloom_filter(numbers)
    assert all(bloom_may_contain(bloom, number) for number in numbers)
    assert sum(bloom_may_contain(bloom, number) for number in range(2048)) <= 100
