"""Subjects in spilled blocks: counters in memory, the sequences themselves in the blocks' postings.

The reasons are in decision 23 (docs/decisions).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence

from jetlake.store.index.block import Block
from jetlake.store.index.postings import Postings, bloom_may_contain
from jetlake.store.steps import Steps, in_groups, sort_in_steps

__all__ = ["SpilledSubjects"]

_BLOOM_TESTS_MAX = 32
"""More subjects than this are hardly ever all missing from a block."""
_LOOKED_UP_MAX = 8
"""More subjects than this are not looked up one by one: the postings of all are read."""
_SUBJECTS_PER_STEP = 1024


class SpilledSubjects:
    """How many messages each subject has in blocks whose sequences left memory, and where to look for them.

    Attributes:
        blocks: the spilled blocks, ascending; a store's newest blocks are not among them.
        end: every sequence below this one is in a spilled block.
        counts: by number, how many spilled messages live.
        ever_spilled: by number, how many messages were spilled since the subject got its number, removed ones included.
        lows, highs: by number, sequences of the subject between which all its spilled messages lie.
        dead_high: above this sequence no spilled message was removed or lost.
    """

    __slots__ = (
        "_recounted",
        "_recounted_end",
        "_starts",
        "blocks",
        "counts",
        "dead_high",
        "end",
        "ever_spilled",
        "highs",
        "lows",
    )

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._starts: list[int] = []
        # New counts for all blocks below a sequence, while messages are recounted.
        self._recounted: array[int] | None = None
        self._recounted_end = 0
        self.end = 0
        self.dead_high = 0
        self.counts: array[int] = array("Q")
        self.ever_spilled: array[int] = array("Q")
        self.lows: array[int] = array("Q")
        self.highs: array[int] = array("Q")

    # Changes

    def add(self, block: Block, postings: Postings, end: int) -> None:
        """Take over a block whose sequences reach up to `end`; its postings have the living ones."""
        self.add_block(block, end)
        self._count(postings)

    def add_block(self, block: Block, end: int) -> None:
        """Take over a block whose sequences reach up to `end`, none of which counts yet."""
        self.blocks.append(block)
        self._starts.append(block.first)
        self.end = end

    def add_sequences(self, number: int, first: int, last: int, count: int, spilled: int) -> None:
        """Count this many living sequences of one subject in the newest block, from the first to the last.

        Args:
            spilled: how many of its sequences were ever spilled, dead ones of the newest block included.
        """
        if not self.counts[number]:
            self.lows[number] = first
        self.counts[number] += count
        self.ever_spilled[number] = spilled
        self.highs[number] = last

    def _count(self, postings: Postings) -> None:
        if not postings.numbers:
            return
        self.make_room(postings.numbers[-1] + 1)
        counts, spilled, lows, highs = self.counts, self.ever_spilled, self.lows, self.highs
        sequences = postings.sequences
        # The running count continues from the block's own: blocks before it may have been dropped, or read again.
        earlier = postings.earlier or [spilled[number] for number in postings.numbers]
        start = 0
        for number, count, before in zip(postings.numbers, postings.counts, earlier, strict=True):
            if not counts[number]:
                lows[number] = sequences[start]
            start += count
            counts[number] += count
            spilled[number] = before + count
            highs[number] = sequences[start - 1]

    def make_room(self, numbers: int) -> None:
        """Have counters for this many subjects."""
        missing = numbers - len(self.counts)
        if missing > 0:
            for column in (self.counts, self.ever_spilled, self.lows, self.highs):
                column.frombytes(bytes(8 * missing))

    def adopt(
        self,
        blocks: list[Block],
        end: int,
        counts: array[int],
        spilled: array[int],
        lows: array[int],
        highs: array[int],
    ) -> None:
        """Take over blocks together with the counters over them, as they were written down."""
        self.blocks = blocks
        self._starts = [block.first for block in blocks]
        self.end = end
        self.counts, self.ever_spilled, self.lows, self.highs = counts, spilled, lows, highs

    def drop(self, block: Block) -> None:
        """Remove a block without a living row."""
        position = self.blocks.index(block)
        del self.blocks[position], self._starts[position]

    def remove(self, number: int, sequence: int) -> None:
        """Count a message that died."""
        self.remove_many(number, 1, sequence)

    def remove_many(self, number: int, count: int, last: int) -> None:
        """Count this many messages of one subject that died in one block, up to a sequence."""
        self.counts[number] -= count
        if self._recounted is not None and last < self._recounted_end:
            self._recounted[number] -= count
        self.dead_high = max(self.dead_high, last)

    def clear(self) -> None:
        """Forget all subjects: no spilled message lives."""
        self.dead_high = max(self.dead_high, self.end)
        self._recounted = None
        for column in (self.counts, self.ever_spilled, self.lows, self.highs):
            del column[:]

    # Recounting

    def begin_recount(self) -> None:
        """Begin to recount all messages, after some with unknown subjects died; these are counted until the end."""
        self._recounted, self._recounted_end = array("Q"), 0

    @property
    def is_recounting(self) -> bool:
        """Whether a recount was begun and has not ended."""
        return self._recounted is not None

    def recount_block(self) -> None:
        """Recount the next block by its postings; after the last block the new counts replace the old.

        Raises:
            StoreError: the disk does not give the postings back.
        """
        recounted = self._recounted
        assert recounted is not None
        recounted.frombytes(bytes(8 * (len(self.counts) - len(recounted))))
        position = bisect_left(self._starts, self._recounted_end)
        if position == len(self.blocks):
            self.counts, self._recounted = recounted, None
            return
        block = self.blocks[position]
        postings = block.postings()
        if self._recounted is not recounted:
            # Reading the postings showed that more messages are lost, and a new recount has begun.
            return
        if len(postings.sequences) != block.live_count:
            postings = postings.only(block.lives)
        for number, count in zip(postings.numbers, postings.counts, strict=True):
            recounted[number] += count
        self._recounted_end = self._starts[position + 1] if position + 1 < len(self.blocks) else self.end

    # Questions

    def count(self, number: int) -> int:
        """Return how many spilled messages a subject has."""
        return self.counts[number] if number < len(self.counts) else 0

    def first(self, number: int) -> int:
        """Return the oldest spilled sequence of a subject, or 0."""
        if not self.count(number):
            return 0
        low = self.lows[number]
        if not self._lives(low):
            low = self.lows[number] = self._after(number, low + 1)
        return low

    def last(self, number: int) -> int:
        """Return the newest spilled sequence of a subject, or 0."""
        if not self.count(number):
            return 0
        high = self.highs[number]
        if not self._lives(high):
            high = self.highs[number] = self._before(number, high - 1)
        return high

    def at_or_after(self, number: int, sequence: int) -> int:
        """Return a subject's first spilled sequence that is not below this one, or 0."""
        if not self.count(number) or sequence > self.highs[number]:
            return 0
        first = self.first(number)
        if sequence <= first:
            return first
        if self.counts[number] <= 2:
            last = self.last(number)
            return last if last >= sequence else 0
        return self._after(number, sequence)

    def at_or_before(self, number: int, sequence: int) -> int:
        """Return a subject's last spilled sequence that is not above this one, or 0."""
        if not self.count(number) or sequence < self.lows[number]:
            return 0
        return self.last(number) if sequence >= self.highs[number] else self._before(number, sequence)

    def from_(self, number: int, sequence: int, limit: int) -> list[int]:
        """Up to `limit` spilled sequences of a subject that are not below this one, ascending."""
        found: list[int] = []
        if not self.count(number):
            return found
        if limit == 1:
            found.append(self.at_or_after(number, sequence))
            return found if found[0] else []
        sequence = max(sequence, self.lows[number])
        for block in self._blocks_with(number, sequence, self.highs[number]):
            posted = block.posted(number).sequences
            part = _living(block, posted[bisect_left(posted, sequence) :])
            found.extend(part[: limit - len(found)])
            if len(found) >= limit:
                break
        return found

    def count_from(self, number: int, sequence: int) -> int:
        """Return how many spilled messages of a subject are not below this sequence."""
        count = self.count(number)
        if not count or sequence > self.highs[number]:
            return 0
        if sequence <= self.lows[number]:
            return count
        # Above the last gap the postings' running counts tell the number; below it, blocks are looked at one by one.
        gap = min(self.dead_high, self.highs[number])
        if sequence > gap:
            return self._count_above(number, sequence)
        low, position, high = (self._block_at(each) for each in (self.lows[number], sequence, gap))
        if position - low < high - position:
            return count - self._count_between(number, self.lows[number], sequence - 1)
        above = self._count_above(number, gap + 1) if gap < self.highs[number] else 0
        return self._count_between(number, sequence, gap) + above

    def sequences_in(self, block: Block, numbers: Sequence[int], below: int) -> Steps[list[int]]:
        """Return the living sequences of these subjects in a block, as far as they are below this one, ascending.

        Some of them may have died, or the whole block, when the next one asks.

        Args:
            numbers: ascending.
        """
        found: list[int] = []
        postings = (yield from block.postings_in_steps()) if len(numbers) > _LOOKED_UP_MAX else None
        for group in _posted(block, postings, numbers):
            if not block.live_count:
                # The block was emptied meanwhile, and may have no file any more.
                return []
            for posted in group:
                found += _living(block, posted[: bisect_left(posted, below)])
            yield
        return (yield from sort_in_steps(found))

    def block_from(self, sequence: int, numbers: Collection[int]) -> Block | None:
        """Return the first block from this sequence on that may have messages of these subjects."""
        for position in range(bisect_left(self._starts, sequence), len(self.blocks)):
            if self._may_have(self.blocks[position], numbers):
                return self.blocks[position]
        return None

    def blocks_with(self, numbers: Collection[int]) -> list[Block]:
        """Return the blocks that may have messages of these subjects, ascending."""
        return [block for block in self.blocks if self._may_have(block, numbers)]

    def _may_have(self, block: Block, numbers: Collection[int]) -> bool:
        if len(numbers) > _BLOOM_TESTS_MAX:
            return block.live_count > 0
        return block.live_count > 0 and any(bloom_may_contain(block.bloom, number) for number in numbers)

    # Searching

    def _block_at(self, sequence: int) -> int:
        return max(bisect_right(self._starts, sequence) - 1, 0)

    def _lives(self, sequence: int) -> bool:
        block = self.blocks[self._block_at(sequence)]
        return block.lives(sequence)

    def _blocks_with(self, number: int, first: int, last: int) -> Iterator[Block]:
        """Yield the blocks that may have sequences of a subject between two sequences, ascending."""
        for position in range(self._block_at(first), len(self.blocks)):
            block = self.blocks[position]
            if block.first > last:
                break
            if block.live_count and bloom_may_contain(block.bloom, number):
                yield block

    def _after(self, number: int, sequence: int) -> int:
        for block in self._blocks_with(number, sequence, self.highs[number]):
            posted = block.posted(number).sequences
            for found in posted[bisect_left(posted, sequence) :]:
                if block.lives(found):
                    return found
        return 0

    def _before(self, number: int, sequence: int) -> int:
        for position in range(self._block_at(sequence), -1, -1):
            block = self.blocks[position]
            if not block.live_count or not bloom_may_contain(block.bloom, number):
                continue
            posted = block.posted(number).sequences
            for found in reversed(posted[: bisect_right(posted, sequence)]):
                if block.lives(found):
                    return found
        return 0

    def _count_above(self, number: int, sequence: int) -> int:
        """Return how many spilled messages of a subject are at or above a sequence that lies above `dead_high`."""
        for block in self._blocks_with(number, sequence, self.highs[number]):
            posted, earlier = block.posted(number)
            if not posted:
                continue
            if earlier is None:  # The block has no segment index that tells its running counts.
                return self._count_between(number, sequence, self.highs[number])
            return self.ever_spilled[number] - earlier - bisect_left(posted, sequence)
        return 0

    def _count_between(self, number: int, first: int, last: int) -> int:
        count = 0
        for block in self._blocks_with(number, first, last):
            posted = block.posted(number).sequences
            count += len(_living(block, posted[bisect_left(posted, first) : bisect_right(posted, last)]))
        return count


def _posted(block: Block, postings: Postings | None, numbers: Sequence[int]) -> Iterator[list[array[int]]]:
    """Yield what a block's postings have of these subjects, of some subjects at a time.

    Args:
        postings: None when few subjects are looked up.
    """
    if postings is None:
        yield [block.posted(number).sequences for number in numbers]
        return
    if len(numbers) < len(postings.numbers):
        for group in in_groups(numbers, _SUBJECTS_PER_STEP):
            yield [postings.of(number).sequences for number in group]
        return
    for positions in in_groups(range(len(postings.numbers)), _SUBJECTS_PER_STEP):
        yield [postings.at(position) for position in positions if _is_among(numbers, postings.numbers[position])]


def _is_among(numbers: Sequence[int], number: int) -> bool:
    """Return whether a number is one of these, which are ascending."""
    position = bisect_left(numbers, number)
    return position < len(numbers) and numbers[position] == number


def _living(block: Block, sequences: array[int]) -> list[int]:
    """Return the living ones of a block's sequences."""
    if block.live_count == block.row_count:
        return list(sequences)
    return [sequence for sequence in sequences if block.lives(sequence)]
