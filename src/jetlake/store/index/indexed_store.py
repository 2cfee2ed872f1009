"""What both stores share: everything that is decided by the index alone. Where the bytes lie is up to the subclass."""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from jetlake.errors import StoreError
from jetlake.store.index.index_reader import BlockType, IndexReader
from jetlake.store.interface import BULK_REMOVAL, Incoming, StoreLimits
from jetlake.store.steps import Steps, finish, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["IndexedStore"]

# How many subjects a step of a purge looks at.
_STEP_SUBJECTS = 1024


class IndexedStore(IndexReader[BlockType]):
    """A store over blocks of rows and an index of subjects; see `interface.MessageStore` for the promises."""

    durable = False
    removals_per_step = 512
    """How many messages a step of a purge removes."""

    def __init__(self, first_block: BlockType) -> None:
        super().__init__(first_block)
        self.on_removed: Callable[[int, bytes, int], None] | None = None
        self.on_purged: Callable[[], None] | None = None
        self.may_forget: Callable[[int, int], bool] | None = None
        self.on_undone: Callable[[StoreError], None] | None = None
        # The limit a subject was held to so far, and up to which sequence.
        self._enforced_per_subject = 0
        self._enforced_sequence = 0
        # Below this one there are only messages that do not grow old.
        self._aged_below = 0

    # What the subclass adds

    @abstractmethod
    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int: ...

    def append_run(self, messages: Sequence[Incoming], time_ns: int) -> int:
        first = self.last_sequence + 1
        append = self.append
        for subject, _, header, payload in messages:
            append(subject, header, payload, time_ns)
        return first

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def _skip(self, count: int) -> None:
        """Use up sequences: rows, log and `last_sequence`."""

    @abstractmethod
    def _log_removed(self, first: int, last: int, follows_append: bool) -> None:
        """Nothing is left from `first` to `last`: make it last."""

    @abstractmethod
    def _emptied(self, block: BlockType) -> None:
        """The last living row of a block has died."""

    @abstractmethod
    def _erase(self, block: BlockType, row: int, sequence: int) -> None:
        """Overwrite what the disk holds of a row that has died."""

    # Removal

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        found = self._locate(sequence)
        if found is None:
            return False
        block, row = found
        self._kill(block, row, sequence)
        self._log_removed(sequence, sequence, False)
        if sequence == self.first_sequence:
            self._settle_first()
        if erase:
            self._erase(block, row, sequence)
        return True

    def purge(
        self,
        subject_filter: SubjectFilter | None = None,
        *,
        below: int | None = None,
        keep: int | None = None,
        follows_append: bool = False,
    ) -> int:
        if follows_append:
            self.flush()
        return finish(self._purge(subject_filter, below, keep, follows_append, sys.maxsize))

    def purge_in_steps(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        return self._purge(subject_filter, below, keep, False, self.removals_per_step)

    def _purge(
        self, subject_filter: SubjectFilter | None, below: int | None, keep: int | None, follows_append: bool, step: int
    ) -> Steps[int]:
        end = self.last_sequence + 1
        count = 0
        if subject_filter is not None:
            found = yield from self._purgeable(subject_filter, end if below is None else min(below, end), end, keep)
            for group in in_groups(found, step):
                count += self._remove_many(group, follows_append)
                yield
            return count
        if self.last_sequence and not self.messages:
            self.first_sequence = end
        if below is not None:
            end = min(below, end)
        if keep:
            end = min(end, self._newest(keep))
        if end > self.last_sequence:  # all of them go, which is quick
            step = sys.maxsize
        while self.messages and self.first_sequence < end:
            # Neighbours go several times as fast as scattered messages.
            count += self._remove_below(min(end, self.first_sequence + 8 * step), follows_append)
            yield
        if below is not None and not keep and below > self.last_sequence + 1:
            self.advance_to(below)
        elif not self.messages:
            self.first_sequence = self.last_sequence + 1
        return count

    def advance_to(self, first_sequence: int) -> None:
        if first_sequence <= self.last_sequence:
            raise ValueError(f"sequence {first_sequence} was used already, the last one is {self.last_sequence}")
        self._remove_below(self.last_sequence + 1, False)
        if first_sequence > self.last_sequence + 1:
            self._skip(first_sequence - self.last_sequence - 1)
        self.first_sequence = first_sequence

    def skip(self, count: int = 1) -> None:
        self._skip(count)
        if not self.messages:
            self.first_sequence = self.last_sequence + 1

    @property
    def aging_sequence(self) -> int:
        return max(self.first_sequence, self._aged_below)

    @property
    def aging_time_ns(self) -> int:
        if self._aged_below <= self.first_sequence:
            return self.first_time_ns
        sequence = next(self._live_between(self._aged_below, self.last_sequence + 1), 0)
        found = self._locate(sequence)
        return found[0].times[found[1]] if found is not None else 0

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        self.flush()
        removed = 0
        if limits.max_per_subject > 0:
            removed = self._remove_many(self._over_subject_limit(limits.max_per_subject), True)
        self._enforced_per_subject = limits.max_per_subject
        self._enforced_sequence = self.last_sequence
        if 0 < limits.max_messages < self.messages:
            removed += self._remove_below(self._newest(limits.max_messages), True)
        if 0 < limits.max_bytes < self.bytes:
            removed += self._remove_below(self._newest_bytes(limits.max_bytes), True)
        if limits.max_age_ns > 0 and 0 < self.aging_time_ns <= now_ns - limits.max_age_ns:
            removed += self._remove_aged(self.first_at_or_after(now_ns - limits.max_age_ns + 1), ageless)
        return removed

    def _remove_aged(self, sequence: int, ageless: Sequence[int]) -> int:
        """Remove every message below a sequence, but for these, and pass those by from now on."""
        start = self.aging_sequence
        passed = ageless[bisect_left(ageless, start) : bisect_left(ageless, sequence)]
        if start == self.first_sequence and not passed:
            return self._remove_below(sequence, True)
        aged = set(self._live_between(start, sequence)).difference(passed)
        self._aged_below = sequence
        return self._remove_many(sorted(aged), True)

    def _live_between(self, first: int, end: int) -> Iterator[int]:
        """The sequences of the messages from the first one on and below the end."""
        for index in range(self._block_index(first), len(self._blocks)):
            block = self._blocks[index]
            if block.first >= end:
                break
            rows = block.live_rows(block.row_at_or_after(first), block.row_at_or_after(end))
            yield from map(block.sequence_of, rows)

    def _over_subject_limit(self, limit: int) -> list[int]:
        """The oldest messages of subjects that have more than the limit, of those that may have changed."""
        index = self._subjects
        numbers: Iterable[int]
        if limit != self._enforced_per_subject:
            numbers = index.ids.values()
        else:
            numbers = self._appended_since(self._enforced_sequence)
        over: list[int] = []
        for number in numbers:
            excess = index.count(number) - limit
            if excess > 0:
                over += index.from_(number, 0, excess)
        over.sort()
        return over

    def _appended_since(self, sequence: int) -> set[int]:
        """The subjects of living messages above a sequence."""
        numbers: set[int] = set()
        for index in range(self._block_index(sequence + 1), len(self._blocks)):
            block = self._blocks[index]
            row = block.row_at_or_after(sequence + 1)
            numbers.update(compress(block.subject_ids[row:], block.live[row:]))
        return numbers

    def _newest(self, count: int) -> int:
        """The sequence from which on there are so many messages (or all, if there are fewer)."""
        if count >= self.messages:
            return self.first_sequence
        if not self.deleted_count:
            return self.last_sequence - count + 1
        excess = self.messages - count
        for block in self._blocks:
            if block.live_count <= excess:
                excess -= block.live_count
                continue
            return block.sequence_of(block.live_rows(0, len(block.live))[excess])
        return self.last_sequence + 1

    def _newest_bytes(self, limit: int) -> int:
        """The sequence from which on the messages take at most so many bytes."""
        excess = self.bytes - limit
        for block in self._blocks:
            if block.live_bytes < excess:
                excess -= block.live_bytes
                continue
            row = block.next_live(0)
            while row >= 0 and excess > 0:
                excess -= block.sizes[row]
                row = block.next_live(row + 1)
            if row >= 0:
                return block.sequence_of(row)
        return self.last_sequence + 1

    def _purgeable(self, subject_filter: SubjectFilter, below: int, end: int, keep: int | None) -> Steps[list[int]]:
        """The sequences that a purge by subject removes, ascending; from `end` on there was nothing at its start."""
        index = self._subjects
        yield from self.prepare(subject_filter)
        found: list[int] = []
        total = 0
        for group in in_groups(list(index.passing(subject_filter)), _STEP_SUBJECTS):
            for number in group:
                if index.has(number):
                    count = index.count(number)
                    total += count - index.count_from(number, end)
                    found += index.from_(number, 0, count - index.count_from(number, below))
            yield
        found = yield from sort_in_steps(found)
        if keep:
            del found[max(total - keep, 0) :]
        return found

    def _remove_many(self, sequences: list[int], follows_append: bool) -> int:
        """Remove these messages, given in ascending order."""
        if not sequences:
            return 0
        on_removed = self.on_removed
        in_bulk = len(sequences) > BULK_REMOVAL
        if in_bulk:
            self.on_removed = None
        first = before = sequences[0]
        count = 0
        for sequence in sequences:
            found = self._locate(sequence)
            if found is not None:
                self._kill(found[0], found[1], sequence)
                count += 1
            if sequence > before + 1:
                self._log_removed(first, before, follows_append)
                first = sequence
            before = sequence
        self._log_removed(first, before, follows_append)
        self._settle_first()
        self.on_removed = on_removed
        if in_bulk and self.on_purged is not None:
            self.on_purged()
        return count

    def _remove_below(self, sequence: int, follows_append: bool) -> int:
        """Remove every message below a sequence."""
        if not self.messages or sequence <= self.first_sequence:
            return 0
        first = self.first_sequence
        count = self._count_below(sequence)
        if count > BULK_REMOVAL:
            self._kill_below(sequence)
        else:
            at = first
            for _ in range(count):
                found = self._locate(at)
                if found is not None:
                    self._kill(found[0], found[1], at)
                    self._settle_first()
                at = self.first_sequence
        self._log_removed(first, min(sequence - 1, self.last_sequence), follows_append)
        self._settle_first()
        if count > BULK_REMOVAL and self.on_purged is not None:
            self.on_purged()
        return count

    def _count_below(self, sequence: int) -> int:
        """How many messages are below a sequence, counted from the front: mostly these are few."""
        count = 0
        for block in self._blocks:
            if block.first >= sequence:
                break
            count += block.count_live(0, block.row_at_or_after(sequence))
        return count

    def _kill(self, block: BlockType, row: int, sequence: int) -> None:
        """Take one living message out of the index."""
        size = block.sizes[row]
        number = block.subject_ids[row]
        subject = self._subjects.names[number]
        block.live[row] = 0
        block.live_count -= 1
        block.live_bytes -= size
        self.messages -= 1
        self.bytes -= size
        self._subjects.remove(number, sequence)
        block.forget(row, row + 1)
        if not block.live_count:
            self._emptied(block)
        if self.on_removed is not None:
            self.on_removed(sequence, subject, size)

    def _kill_below(self, sequence: int) -> None:
        """Take all messages below a sequence out of the index, block by block."""
        numbers: set[int] = set()
        keeps_some = sequence <= self.last_sequence
        for block in [block for block in self._blocks if block.first < sequence and block.live_count]:
            start, end = block.next_live(0), block.row_at_or_after(sequence)
            live = block.live[start:end]
            count = block.count_live(0, end)
            is_emptied = count == block.live_count
            size = block.live_bytes if is_emptied else sum(compress(block.sizes[start:end], live))
            if keeps_some:
                numbers.update(compress(block.subject_ids[start:end], live))
            block.live[start:end] = bytes(end - start)
            block.live_count -= count
            block.live_bytes -= size
            self.messages -= count
            self.bytes -= size
            block.forget(start, end)
            if not block.live_count:
                self._emptied(block)
        if self.messages:
            for number in numbers:
                self._subjects.remove_below(number, sequence)
        else:
            self._subjects.clear()

    def _settle_first(self) -> None:
        """Move the first sequence to the oldest message that is left."""
        if not self.messages:
            if self.last_sequence:
                self.first_sequence = self.last_sequence + 1
            return
        index = self._block_index(self.first_sequence)
        block = self._blocks[index]
        row = block.next_live(block.row_at_or_after(self.first_sequence))
        while row < 0:
            index += 1
            block = self._blocks[index]
            row = block.next_live(0)
        self.first_sequence = block.sequence_of(row)
