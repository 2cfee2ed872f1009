"""Subjects in spilled blocks answer as a plain list of sequences does, whatever was removed."""

from __future__ import annotations

from random import Random

import pytest

from jetlake.store.index.postings import Postings
from jetlake.store.index.spilled_subjects import SpilledSubjects
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.memory_store import _MemoryBlock

SUBJECTS = 6
ROWS = 40


class SpilledBlock(_MemoryBlock):
    """A block with the postings that it was spilled with, which know how many sequences came before."""

    __slots__ = ("spilled_postings",)

    def postings(self) -> Postings:
        return self.spilled_postings


def spilled_block(index: SubjectIndex, first: int, random: Random) -> tuple[SpilledBlock, dict[int, int]]:
    """A block whose sequences were spilled, and the subject of each."""
    block = SpilledBlock(first)
    rows = {first + row: random.randrange(SUBJECTS) for row in range(ROWS)}
    for sequence, number in rows.items():
        block.subject_ids.append(index.append(b"s.%d" % number, sequence))
        block.times.append(sequence)
        block.live.append(1)
    block.live_count = ROWS
    numbers = set(block.subject_ids)
    block.spilled_postings, _ = index.postings_below(sorted(numbers), first + ROWS)
    block.spilled = block.described()
    index.begin_spill(block, block.spilled_postings, first + ROWS)
    index.finish_spill()
    return block, rows


@pytest.mark.parametrize("without_counts", [(), (4,), (0, 3)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_every_question_is_answered_as_by_a_list(seed: int, without_counts: tuple[int, ...]) -> None:
    random = Random(seed)
    index = SubjectIndex()
    for number in range(SUBJECTS):
        assert index.number_of(b"s.%d" % number) == number
    blocks, subjects = [], {}
    for place in range(5):
        block, rows = spilled_block(index, 1 + place * ROWS, random)
        blocks.append(block)
        subjects |= rows
    for place in without_counts:  # They have no segment index that tells them.
        blocks[place].spilled_postings.earlier = None
    last = max(subjects)
    removable = sorted(subjects) if seed % 2 else list(range(1, last // 2))
    for _ in range(30):
        for sequence in random.sample(removable, 3):
            block = blocks[(sequence - 1) // ROWS]
            if block.live[sequence - block.first]:
                block.live[sequence - block.first] = 0
                block.live_count -= 1
                index.remove(subjects.pop(sequence), sequence)
        for number in range(SUBJECTS):
            mine = [sequence for sequence in sorted(subjects) if subjects[sequence] == number]
            at = random.randint(1, last)
            if not mine:
                assert not index.has(number)
                continue
            assert (index.count(number), index.first(number), index.last(number)) == (len(mine), mine[0], mine[-1])
            assert index.count_from(number, at) == sum(sequence >= at for sequence in mine)
            assert index.at_or_after(number, at) == min((each for each in mine if each >= at), default=0)
            assert index.at_or_before(number, at) == max((each for each in mine if each <= at), default=0)
            assert index.from_(number, at, 4) == [sequence for sequence in mine if sequence >= at][:4]
    index.spilled.begin_recount()
    while index.spilled.is_recounting:
        index.recount_step()
    assert sum(map(index.count, index.numbers.ids.values())) == len(subjects)


def test_running_counts_go_on_from_a_blocks_own() -> None:
    spilled = SpilledSubjects()
    block = _MemoryBlock(100)
    rows = Postings.of_rows([(0, 100), (0, 101)])
    rows.earlier = type(rows.counts)("Q", [40])  # blocks before it were dropped
    block.subject_ids.extend([0, 0])
    block.times.extend([1, 1])
    block.live.extend(b"\x01\x01")
    block.live_count = 2
    block.spilled = block.described()
    spilled.add(block, rows, 102)
    assert (spilled.ever_spilled[0], spilled.count(0)) == (42, 2)
