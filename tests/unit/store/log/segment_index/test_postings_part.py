"""Postings in pages: every subject is found by few small reads, and damage is never taken for an answer."""

from array import array
from random import Random

import pytest

from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.index.postings import Posted, Postings
from jetlake.store.log.segment import IndexParts
from jetlake.store.log.segment_index.postings_part import PostingsPart, pack_postings, table_size
from jetlake.store.steps import finish

AT = 11


def postings_of(subjects: int, sequences_max: int, seed: int) -> Postings:
    random = Random(seed)
    numbers = sorted(random.sample(range(5 * subjects), subjects))
    rows = [(number, sequence) for number in numbers for sequence in range(random.randint(1, sequences_max))]
    postings = Postings.of_rows((number, 1 + place) for place, (number, _) in enumerate(rows))
    postings.earlier = array("Q", (random.randrange(1 << 40) for _ in numbers))
    return postings


CHECKSUM = PLAIN_HASHING.checksum(b"segment index")


class File:
    """A file with postings, which remembers what was read of it."""

    def __init__(self, postings: Postings, *, counts_earlier: bool = True) -> None:
        table, parts = finish(pack_postings(postings, CHECKSUM))
        self._pages = b"".join(parts)
        self.data = bytearray(bytes(AT) + table + self._pages + b"names")
        self.size = len(table) + len(self._pages)
        self.reads: list[int] = []
        subjects = AT, len(self._pages), CHECKSUM.number(table), len(postings.numbers)
        self._parts = IndexParts(0, 0, 0, *subjects, counts_earlier)
        assert len(table) == table_size(len(postings.numbers), len(self._pages))

    def part(self) -> PostingsPart:
        return PostingsPart(self._read, self._parts, CHECKSUM)

    def _read(self, size: int, offset: int) -> bytes:
        self.reads.append(size)
        return bytes(self.data[offset : offset + size])


@pytest.mark.parametrize(("subjects", "sequences_max"), [(0, 1), (1, 1), (255, 3), (256, 1), (3000, 9), (3, 5000)])
def test_every_subject_is_found_by_few_small_reads(subjects: int, sequences_max: int) -> None:
    postings = postings_of(subjects, sequences_max, seed=subjects)
    file = File(postings)
    whole = finish(file.part().read_all())
    assert whole is not None
    for name in ("numbers", "starts", "counts", "sequences", "earlier"):
        assert getattr(whole, name) == getattr(postings, name), name
    for number in range(-(-5 * subjects // 3)):
        file.reads.clear()
        found = file.part().find(3 * number)
        assert found == postings.of(3 * number)
        assert len(file.reads) <= (3 if subjects > 2047 else 2)
        assert sum(file.reads) <= 8 * (subjects * sequences_max * 8 // 4096 + 9) + 13 * 4096 + 8 * sequences_max
    without = File(postings, counts_earlier=False)
    assert [without.part().find(number).earlier for number in postings.numbers] == [None] * subjects


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_page_gives_no_answer_and_others_still_do(seed: int) -> None:
    postings = postings_of(700, 4, seed)
    file = File(postings)
    random = Random(seed)
    refused = 0
    for _ in range(150):
        at = AT + random.randrange(file.size)
        file.data[at] ^= 1 << random.randrange(8)
        assert finish(file.part().read_all()) is None
        for number in random.sample(list(postings.numbers), 3):
            found = file.part().find(number)
            assert found in (None, postings.of(number))
            refused += found is None
        file.data[at] = File(postings).data[at]
    assert 0 < refused < 450
    file.data = file.data[: AT + file.size - 8]
    assert finish(file.part().read_all()) is None
    assert isinstance(file.part().find(postings.numbers[0]), Posted)
