"""Which sequences each subject has: the subject half of a store's index."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jetlake.store.columns import positions_of
from jetlake.store.index.block import Block
from jetlake.store.index.packed_names import PackedNames
from jetlake.store.index.postings import Postings
from jetlake.store.index.sequence_list import CHUNK, SequenceList
from jetlake.store.index.spilled_subjects import SpilledSubjects
from jetlake.store.index.subject_numbers import SubjectNumbers

__all__ = ["SubjectIndex"]

_SPILLED_AT_ONCE = 4096


class SubjectIndex:
    """Subjects by number and the ascending sequences of each.

    The newest sequences of a subject are its tail: one bare number for a single message, else an array of at most
    `CHUNK`; older ones are in `older`. Sequences of spilled blocks are in neither: `spilled` counts them. The tail of a
    subject all of whose messages are spilled is 0.

    Attributes:
        numbers: which number each subject has.
        tails: the newest sequences of each number.
        older: the sequences before the tail, for subjects with many.
        spilled: the sequences in spilled blocks.
    """

    __slots__ = (
        "_spill",
        "numbers",
        "older",
        "spilled",
        "tails",
    )

    def __init__(self) -> None:
        self.numbers = SubjectNumbers()
        self.tails: list[int | array[int]] = []
        self.older: dict[int, SequenceList] = {}
        self.spilled = SpilledSubjects()
        self._spill: Iterator[None] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    # Changes

    def add(self, subject: bytes, sequence: int) -> int:
        """Give a new subject its number and first sequence."""
        number = self.numbers.add(subject)
        if number == len(self.tails):
            self.tails.append(sequence)
        else:
            self.tails[number] = sequence
        return number

    def grow(self, number: int, sequence: int) -> None:
        """Append a sequence to a tail that is a bare number or full."""
        tail = self.tails[number]
        if isinstance(tail, int):
            self.tails[number] = array("Q", (tail, sequence)) if tail else sequence
        elif len(tail) < CHUNK:
            tail.append(sequence)
        else:
            self.older.setdefault(number, SequenceList()).push(array("Q", tail))
            self.tails[number] = array("Q", (sequence,))

    def append(self, subject: bytes, sequence: int) -> int:
        """Append a sequence to a subject, new or not; the subject's number."""
        number = self.numbers.ids.get(subject)
        if number is None:
            return self.add(subject, sequence)
        tail = self.tails[number]
        if type(tail) is array and len(tail) < CHUNK:
            tail.append(sequence)
        else:
            self.grow(number, sequence)
        return number

    def append_run(self, subjects: Sequence[bytes], sequences: Iterable[int]) -> list[int]:
        """Append a sequence to each of these subjects, as `append` does; the subjects' numbers."""
        find = self.numbers.ids.get
        tails = self.tails
        numbers: list[int] = []
        add_number = numbers.append
        for subject, sequence in zip(subjects, sequences, strict=True):
            number = find(subject)
            if number is None:
                number = self.add(subject, sequence)
            else:
                tail = tails[number]
                if type(tail) is array and len(tail) < CHUNK:
                    tail.append(sequence)
                else:
                    self.grow(number, sequence)
            add_number(number)
        return numbers

    def remove(self, number: int, sequence: int) -> None:
        """Remove one sequence; a subject without sequences goes."""
        tail = self.tails[number]
        if sequence < self.spilled.end and not 0 < self._first_here(number) <= sequence:
            self.spilled.remove(number, sequence)
            if not tail:
                self._release_unused(number)
            return
        if isinstance(tail, int):
            if tail == sequence:
                self._release_unused(number)
            return
        if sequence < tail[0]:
            older = self.older.get(number)
            if older is not None:
                older.remove(sequence)
                if not older.count:
                    del self.older[number]
            return
        at = bisect_left(tail, sequence)
        if at < len(tail) and tail[at] == sequence:
            del tail[at]
            self._normalize_tail(number, tail)

    def remove_below(self, number: int, sequence: int) -> None:
        """Remove all sequences of a subject below this one, but for those in spilled blocks."""
        self._cut_below(number, sequence)
        if not self.tails[number]:
            self._release_unused(number)

    def remove_spilled(self, counts: Mapping[int, int], below: int) -> None:
        """Remove this many sequences of each of these subjects, all in one spilled block and below this one."""
        for number, count in counts.items():
            self.spilled.remove_many(number, count, below - 1)
            if not self.tails[number]:
                self._release_unused(number)

    def _cut_below(self, number: int, sequence: int) -> tuple[int, int]:
        """Cut the tail and the older list below a sequence; return the last sequence cut off, and how many."""
        older = self.older.get(number)
        last = count = 0
        if older is not None:
            last, count = older.at_or_before(sequence - 1), older.count
            older.remove_below(sequence)
            count -= older.count
            if not older.count:
                del self.older[number]
        tail = self.tails[number]
        if isinstance(tail, int):
            if 0 < tail < sequence:
                self.tails[number] = 0
                return tail, 1
        elif tail[0] < sequence:
            at = bisect_left(tail, sequence)
            last, count = tail[at - 1], count + at
            del tail[:at]
            if len(tail) < 2:
                self.tails[number] = tail[0] if tail else 0
        return last, count

    def clear(self) -> None:
        """Forget all subjects."""
        self.numbers.clear()
        self.tails.clear()
        self.older.clear()
        self.spilled.clear()
        self._spill = None

    def _normalize_tail(self, number: int, tail: array[int]) -> None:
        """Give a tail that lost sequences its proper form."""
        older = self.older.get(number)
        if tail:
            if len(tail) == 1 and older is None:
                self.tails[number] = tail[0]
            return
        if older is None:
            self._release_unused(number)
            return
        self.tails[number] = older.pop()
        if not older.count:
            del self.older[number]

    def _release_unused(self, number: int) -> None:
        """Release a number whose tail is empty, unless spilled blocks have messages of the subject."""
        self.tails[number] = 0
        if not self.spilled.count(number) and self.numbers.is_used(number):
            self.numbers.release(number)

    # Spilling

    def postings_below(self, numbers: list[int], end: int) -> tuple[Postings, list[bytes]]:
        """Return what the tails of subjects hold below a sequence, as postings, and the subjects themselves.

        Args:
            numbers: ascending; free numbers have nothing.
        """
        present: array[int] = array("I")
        counts: array[int] = array("I")
        sequences: array[int] = array("Q")
        tails = self.tails
        add_number, add_count, add_sequence = present.append, counts.append, sequences.append
        for number in numbers:
            tail = tails[number]
            if isinstance(tail, int):  # a single one, as many subjects have
                if 0 < tail < end:
                    add_number(number)
                    add_sequence(tail)
                    add_count(1)
                continue
            before = len(sequences)
            older = self.older.get(number)
            if older is not None:
                for chunk in older.chunks:
                    sequences.extend(chunk[: bisect_left(chunk, end)])
            sequences.extend(tail[: bisect_left(tail, end)])
            if len(sequences) > before:
                add_number(number)
                add_count(len(sequences) - before)
        self.spilled.make_room(present[-1] + 1 if present else 0)
        earlier = array("Q", map(self.spilled.ever_spilled.__getitem__, present))
        return Postings(present, counts, sequences, earlier), list(map(self.numbers.names.__getitem__, present))

    def begin_spill(self, block: Block, postings: Postings, end: int) -> None:
        """Begin to let sequences below `end` be found by the block's postings, subject by subject.

        Args:
            postings: with all living sequences below `end` that are in no other spilled block, and perhaps more.
        """
        self.finish_spill()
        self.spilled.add_block(block, end)
        self._spill = self._spill_in_steps(postings, block, end)

    def spill_step(self) -> bool:
        """Continue spilling; False when nothing was begun."""
        if self._spill is None:
            return False
        if next(self._spill, True):
            self._spill = None
        return True

    def finish_spill(self) -> None:
        """Take all steps that are left."""
        while self.spill_step():
            pass

    def _spill_in_steps(self, postings: Postings, block: Block, end: int) -> Iterator[None]:
        """Move the sequences below `end` of one subject after the other from its tail to the counters."""
        assert postings.earlier is not None
        tails, spilled = self.tails, self.spilled
        columns = postings.numbers, postings.counts, postings.earlier
        for start in range(0, len(postings.numbers), _SPILLED_AT_ONCE):
            if start:
                yield
            if len(postings.sequences) != block.live_count:
                # Running counts, which postings continue with, tell nothing below what has died since.
                spilled.dead_high = max(spilled.dead_high, end - 1)
            group = [column[start : start + _SPILLED_AT_ONCE] for column in columns]
            for number, count, earlier in zip(*group, strict=True):
                tail = tails[number]
                if isinstance(tail, int):
                    if 0 < tail < end:
                        tails[number] = 0
                        spilled.add_sequences(number, tail, tail, 1, earlier + count)
                elif (first := self._first_here(number)) < end:
                    spilled.add_sequences(number, first, *self._cut_below(number, end), earlier + count)

    def recount_step(self) -> None:
        """Recount the messages of one more spilled block; at the end, drop the subjects without a message.

        Raises:
            StoreError: the disk does not tell which messages the block has.
        """
        self.spilled.recount_block()
        if not self.spilled.is_recounting:
            self.release_unused()

    # Recovery

    def adopt_names(self, names: PackedNames) -> None:
        """Take over the names by number that were written down."""
        self.numbers.adopt(names)
        self.tails = [0] * len(names)

    def number_of(self, subject: bytes) -> int:
        """Return the number of a subject, which gets one when it has none."""
        number = self.numbers.ids.get(subject)
        return self.add(subject, 0) if number is None else number

    def claim(self, numbers: Sequence[int], subjects: list[bytes]) -> bool:
        """Give subjects the numbers that they have in a segment index; False when one of them is another's.

        Args:
            numbers: ascending.
        """
        is_theirs = self.numbers.claim(numbers, subjects)
        self.tails += [0] * (len(self.numbers.names) - len(self.tails))
        return is_theirs

    def append_rows(self, rows: Iterable[tuple[int, int]]) -> None:
        """Append sequences of subjects that have a number, each as (number, sequence)."""
        tails = self.tails
        for number, sequence in rows:
            tail = tails[number]
            if type(tail) is array and len(tail) < CHUNK:
                tail.append(sequence)
            else:
                self.grow(number, sequence)

    def release_unused(self) -> None:
        """Release every number whose subject has no message, and collect the free numbers."""
        self.spilled.make_room(len(self.tails))
        for number in positions_of(self.spilled.counts, 0, len(self.tails)):
            if not self.tails[number]:
                self._release_unused(number)
        self.numbers.find_free()

    # Questions about one subject

    def has(self, number: int) -> bool:
        """Return whether a number that was asked for earlier still stands for a subject."""
        return self.numbers.is_used(number)

    def first(self, number: int) -> int:
        """Return the oldest sequence of a subject."""
        return self.spilled.first(number) or self._first_here(number)

    def _first_here(self, number: int) -> int:
        older = self.older.get(number) if self.older else None
        if older is not None:
            return older.first()
        tail = self.tails[number]
        return tail if isinstance(tail, int) else tail[0]

    def last(self, number: int) -> int:
        """Return the newest sequence of a subject."""
        tail = self.tails[number]
        if isinstance(tail, int):
            return tail or self.spilled.last(number)
        return tail[-1]

    def count(self, number: int) -> int:
        """Return how many messages a subject has."""
        tail = self.tails[number]
        if isinstance(tail, int):
            return self.spilled.count(number) + (1 if tail else 0)
        older = self.older.get(number)
        return self.spilled.count(number) + len(tail) + (older.count if older is not None else 0)

    def count_from(self, number: int, sequence: int) -> int:
        """Return how many messages of a subject are not below this sequence."""
        spilled = self.spilled.count_from(number, sequence) if sequence < self.spilled.end else 0
        tail = self.tails[number]
        if isinstance(tail, int):
            return spilled + int(0 < tail >= sequence)
        if sequence > tail[0]:
            return len(tail) - bisect_left(tail, sequence)
        older = self.older.get(number)
        return spilled + len(tail) + (older.count_from(sequence) if older is not None else 0)

    def at_or_after(self, number: int, sequence: int) -> int:
        """Return a subject's first sequence that is not below this one, or 0."""
        if sequence < self.spilled.end and (found := self.spilled.at_or_after(number, sequence)):
            return found
        tail = self.tails[number]
        if isinstance(tail, int):
            return tail if tail >= sequence else 0
        if sequence > tail[-1]:
            return 0
        if sequence < tail[0]:
            older = self.older.get(number)
            found = older.at_or_after(sequence) if older is not None else 0
            return found or tail[0]
        return tail[bisect_left(tail, sequence)]

    def at_or_before(self, number: int, sequence: int) -> int:
        """Return a subject's last sequence that is not above this one, or 0."""
        tail = self.tails[number]
        if isinstance(tail, int):
            found = tail if tail <= sequence else 0
        elif at := bisect_right(tail, sequence):
            return tail[at - 1]
        else:
            older = self.older.get(number)
            found = older.at_or_before(sequence) if older is not None else 0
        return found or self.spilled.at_or_before(number, sequence)

    def from_(self, number: int, sequence: int, limit: int) -> list[int]:
        """Up to `limit` sequences of a subject that are not below this one, ascending."""
        found = self.spilled.from_(number, sequence, limit) if sequence < self.spilled.end else []
        tail = self.tails[number]
        if isinstance(tail, int):
            if len(found) < limit and 0 < tail >= sequence:
                found.append(tail)
            return found
        if sequence < tail[0] and len(found) < limit:
            older = self.older.get(number)
            if older is not None:
                found += older.from_(sequence, limit - len(found))
        if len(found) < limit:
            at = bisect_left(tail, sequence)
            found.extend(tail[at : at + limit - len(found)])
        return found

    def below_here(self, number: int, sequence: int) -> list[int]:
        """Return the sequences of a subject below this one that are not in spilled blocks, ascending."""
        tail = self.tails[number]
        if isinstance(tail, int):  # a single one, as many subjects have
            return [tail] if 0 < tail < sequence else []
        first = self._first_here(number)
        count = self.count_from(number, first) - self.count_from(number, max(sequence, first))
        return self.from_(number, first, count)
