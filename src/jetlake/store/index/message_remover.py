"""Removing messages: one, many by a purge, and the oldest by the stream's limits."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from jetlake.errors import StoreError
from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.store.index.block import Block
from jetlake.store.index.index import BlockType, Index
from jetlake.store.interface import BULK_REMOVAL, StoreLimits
from jetlake.store.steps import Steps, drained, finish, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["MessageRemover", "RemovalLog"]

# How many subjects a step of a purge looks at.
_STEP_SUBJECTS = 1024
# How many messages that grew too old go at once, when there is no hook for single messages.
_AGED_AT_ONCE = 4 * BULK_REMOVAL
# More neighbours than this go block by block, when there is no hook for single messages.
_ONE_BY_ONE_MAX = 64

ErasedBlock = TypeVar("ErasedBlock", bound=Block, contravariant=True)


class RemovalLog(Protocol[ErasedBlock]):
    """What makes removals last."""

    def flush_appends(self) -> None:
        """Write the appends that wait, before removals that make room for them."""
        ...

    def skip(self, count: int) -> None:
        """Use up sequences: rows, log and the index's `last_sequence`."""
        ...

    def sync_groups(self, last: int) -> None:
        """Make groups safe before messages up to `last` are removed."""
        ...

    def removed(self, first: int, last: int, follows_append: bool) -> None:
        """Write a tombstone: nothing is left from `first` to `last`."""
        ...

    def removed_below(self, sequence: int) -> None:
        """Count lost messages below a sequence as removed."""
        ...

    def erase(self, block: ErasedBlock, row: int, sequence: int) -> None:
        """Overwrite what the disk holds of a row that has died."""
        ...


class MessageRemover(Generic[BlockType]):
    """Takes messages out of the index and has the log remember it; see `MessageStore` for the promises."""

    def __init__(self, index: Index[BlockType], log: RemovalLog[BlockType]) -> None:
        self._index = index
        self._log = log
        # The limit a subject was held to so far, and up to which sequence.
        self._enforced_per_subject = 0
        self._enforced_sequence = 0
        # Below this one there are only messages that do not grow old.
        self._aged_below = 0

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Remove one message; False when it is not there. With `erase` its bytes are overwritten on the disk too."""
        index = self._index
        self._log.sync_groups(sequence)
        found = index.locate(sequence)
        if found is None:
            return False
        block, row = found
        index.kill(block, row, sequence)
        self._log.removed(sequence, sequence, False)
        if sequence == index.first_sequence:
            index.update_first_sequence()
        if erase:
            self._log.erase(block, row, sequence)
        return True

    def purge(
        self,
        subject_filter: SubjectFilter | None = None,
        *,
        below: int | None = None,
        keep: int | None = None,
        follows_append: bool = False,
    ) -> int:
        """Remove the messages that pass the filter and return how many there were."""
        if follows_append:
            self._log.flush_appends()
        return finish(self.purge_in_steps(subject_filter, below, keep, sys.maxsize, follows_append))

    def purge_in_steps(
        self,
        subject_filter: SubjectFilter | None,
        below: int | None,
        keep: int | None,
        step: int,
        follows_append: bool = False,
    ) -> Steps[int]:
        """Purge about `step` messages at a time; what is appended meanwhile stays."""
        index = self._index
        if below is not None and subject_filter is None and not keep:
            self._check_jump(below)
        if step < sys.maxsize:
            # The sequences of appends that are undone between two steps go to other messages.
            with suppress(StoreError):
                self._log.flush_appends()
        if not follows_append:
            self._log.sync_groups(index.last_sequence)
        end = index.last_sequence + 1
        count = 0
        if subject_filter is not None:
            limit = end if below is None else min(below, end)
            return (yield from self._purge_matching(subject_filter, limit, end, keep, step, follows_append))
        if index.last_sequence and not index.messages:
            index.first_sequence = end
        if below is not None:
            end = min(below, end)
        if keep:
            end = min(end, index.newest(keep))
        if end > index.last_sequence:  # all of them go, which is quick
            step = sys.maxsize
        while index.messages and index.first_sequence < end:
            if step < sys.maxsize:
                yield from self._load_oldest()
            count += self._remove_few_below(end, step, follows_append)
            yield
        if below is not None and not keep and below > index.last_sequence + 1:
            self.advance_to(below)
        elif not index.messages:
            index.first_sequence = index.last_sequence + 1
        self._log.removed_below(index.first_sequence if below is None or keep else below)
        return count

    def advance_to(self, first_sequence: int) -> None:
        """Remove everything and make `first_sequence` the next one to be used; it must lie ahead of the last."""
        index = self._index
        if first_sequence <= index.last_sequence:
            raise ValueError(f"sequence {first_sequence} was used already, the last one is {index.last_sequence}")
        self._check_jump(first_sequence)
        self._log.sync_groups(index.last_sequence)
        self._remove_below(index.last_sequence + 1, False)
        if first_sequence > index.last_sequence + 1:
            self._log.skip(first_sequence - index.last_sequence - 1)
        index.first_sequence = first_sequence

    def skip(self, count: int = 1, time_ns: int = 0) -> None:
        """Use up sequences without storing anything; the last one at a time, when it is known."""
        index = self._index
        self._check_jump(index.last_sequence + count)
        index.last_time_ns = max(index.last_time_ns, time_ns)
        self._log.skip(count)
        if not index.messages:
            index.first_sequence = index.last_sequence + 1

    @property
    def aging_sequence(self) -> int:
        """Where the messages begin that can grow too old; those before were passed by as ageless."""
        return max(self._index.first_sequence, self._aged_below)

    @property
    def aging_time_ns(self) -> int:
        """The time of the oldest of them; 0 when there is none."""
        index = self._index
        if self._aged_below <= index.first_sequence:
            return index.first_time_ns
        return index.time_of(next(index.live_between(self._aged_below, index.last_sequence + 1), 0))

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        """Remove the oldest messages until the limits hold, and return how many went."""
        index = self._index
        self._log.flush_appends()
        removed = 0
        if limits.max_per_subject > 0:
            removed = self._remove_many(self._over_subject_limit(limits.max_per_subject), True)
        self._enforced_per_subject = limits.max_per_subject
        self._enforced_sequence = index.last_sequence
        if 0 < limits.max_messages < index.messages:
            removed += self._remove_below(index.newest(limits.max_messages), True)
        if 0 < limits.max_bytes < index.bytes:
            removed += self._remove_below(index.newest_bytes(limits.max_bytes), True)
        if limits.max_age_ns > 0 and 0 < self.aging_time_ns <= now_ns - limits.max_age_ns:
            removed += self._remove_aged(index.first_at_or_after(now_ns - limits.max_age_ns + 1), ageless)
        return removed

    def enforce_in_steps(self, limits: StoreLimits, step: int) -> Steps[int]:
        """Remove the oldest messages until all limits except the age limit hold, about `step` of them at a time."""
        index = self._index
        with suppress(StoreError):
            self._log.flush_appends()
        last = index.last_sequence
        self._log.sync_groups(last)
        count = 0
        if limits.max_per_subject > 0:
            count += yield from self._enforce_per_subject(limits.max_per_subject, step)
            self._enforced_per_subject = limits.max_per_subject
            self._enforced_sequence = last  # Messages appended meanwhile are left to the next `enforce`.
        while 0 < limits.max_messages < index.messages:
            end = index.newest(limits.max_messages)
            while index.first_sequence < end:
                yield from self._load_oldest()
                count += self._remove_few_below(end, step, False)
                yield
        while index.messages and 0 < limits.max_bytes < index.bytes:
            yield from self._load_oldest()
            if index.bytes > limits.max_bytes:
                count += self._remove_few_below(index.newest_bytes(limits.max_bytes, 8 * step), step, False)
            yield
        return count

    def _enforce_per_subject(self, limit: int, step: int) -> Steps[int]:
        """Remove the oldest messages of every subject that has more than the limit."""
        tails = self._index.subjects.tails
        count = 0
        for start in range(0, len(tails), _STEP_SUBJECTS):
            while over := self._over_limit(range(start, min(start + _STEP_SUBJECTS, len(tails))), limit, step):
                count += self._remove_many(over, False)
                yield
            yield
        return count

    def _remove_aged(self, sequence: int, ageless: Sequence[int]) -> int:
        """Remove messages below a sequence, but for these, and pass those by from now on.

        A bounded number goes: where messages are left that are too old, `aging_time_ns` tells.
        """
        index = self._index
        start = next(index.live_between(self.aging_sequence, sequence), sequence)
        at_once = _AGED_AT_ONCE if index.hooks.on_removed is None else BULK_REMOVAL
        sequence = min(sequence, start + at_once)
        passed = ageless[bisect_left(ageless, start) : bisect_left(ageless, sequence)]
        if start == index.first_sequence and not passed:
            return self._remove_below(sequence, True)
        aged = set(index.live_between(start, sequence)).difference(passed)
        self._aged_below = sequence
        return self._remove_many(sorted(aged), True)

    def _over_subject_limit(self, limit: int) -> list[int]:
        """Return the oldest messages of changed subjects that have more than the limit."""
        if 0 < self._enforced_per_subject <= limit:
            return self._over_limit(self._index.subjects_above(self._enforced_sequence), limit)
        return self._over_limit(range(len(self._index.subjects.tails)), limit)  # one that is free has no message

    def _over_limit(self, numbers: Iterable[int], limit: int, at_most: int = sys.maxsize) -> list[int]:
        """Return about `at_most` of the oldest messages of the subjects that have more than the limit."""
        subjects = self._index.subjects
        is_counted = self._index.is_counted
        over: list[int] = []
        for number in numbers:
            excess = subjects.count(number) - limit
            if excess > 0 and not is_counted:
                # Some of the counted messages may have died; only living ones count for the limit.
                excess = len(subjects.from_(number, 0, excess + limit)) - limit
            if excess == 1:
                # The usual case, which needs no postings.
                over.append(subjects.first(number))
            elif excess > 0:
                over += subjects.from_(number, 0, min(excess, at_most))
            if len(over) >= at_most:
                break
        over.sort()
        return over

    def _purge_matching(
        self, subject_filter: SubjectFilter, below: int, end: int, keep: int | None, step: int, follows_append: bool
    ) -> Steps[int]:
        """Remove the messages below a sequence that pass the filter; from `end` on there was nothing at the start."""
        subjects = self._index.subjects
        numbers = yield from subjects.numbers.matches.listed(subject_filter)
        if keep:
            below = min(below, (yield from self._oldest_kept(numbers, end, keep)))
        count = 0
        at = 0
        newest = subjects.spilled.blocks[-1].first if subjects.spilled.blocks else 0
        waiting = numbers[:]
        # Block by block, so that the list does not grow with the stream; the newest blocks, not yet spilled, come last.
        while (yield from self._are_spilled(waiting)):
            block = subjects.spilled.block_from(at, numbers)
            if block is None or block.first >= below:
                break
            found = yield from subjects.spilled.sequences_in(block, numbers, below)
            at = block.first + 1
            for group in drained(found, step):
                count += self._remove_many(group, follows_append)
                yield
            yield
        found = yield from self._matching_here(numbers, below)
        # Blocks that were spilled meanwhile, or to the end: not all subjects of the newest one counted as spilled.
        at = max(at, newest)
        spilled: list[int] = []
        while (block := subjects.spilled.block_from(at, numbers)) is not None:
            spilled += yield from subjects.spilled.sequences_in(block, numbers, below)
            at = block.first + 1
        if spilled:
            found = yield from sort_in_steps(spilled + found)  # Duplicates are removed once.
        yield
        for group in drained(found, step):
            count += self._remove_many(group, follows_append)
            yield
        return count

    def _are_spilled(self, numbers: array[int]) -> Steps[bool]:
        """Return whether one of these subjects has spilled messages; those at the end that have none are taken off."""
        spilled = self._index.subjects.spilled
        while numbers and not spilled.count(numbers[-1]):
            numbers.pop()
            if not len(numbers) % _STEP_SUBJECTS:
                yield
        return bool(numbers)

    def _oldest_kept(self, numbers: array[int], end: int, keep: int) -> Steps[int]:
        """Find the oldest of the newest `keep` messages of these subjects below a sequence; 0 when there are fewer."""
        spilled = self._index.subjects.spilled
        newest = yield from self._matching_here(numbers, end)
        for block in reversed(spilled.blocks_with(numbers)):
            if len(newest) >= keep and block.last_row_sequence < newest[-keep]:
                break
            if not block.live_count:
                # It was emptied meanwhile, and may have no file any more.
                continue
            found = yield from spilled.sequences_in(block, numbers, end)
            # A block that was spilled meanwhile has sequences that were found before it was.
            overlaps = found and newest and found[-1] >= newest[0]
            newest = sorted({*found, *newest}) if overlaps else found + newest
            yield
        return newest[-keep] if len(newest) >= keep else 0

    def _matching_here(self, numbers: array[int], below: int) -> Steps[list[int]]:
        """Return the sequences of these subjects below a sequence that are not in spilled blocks, ascending."""
        subjects = self._index.subjects
        found: list[int] = []
        for group in in_groups(numbers, _STEP_SUBJECTS):
            for number in group:
                if subjects.has(number):
                    found += subjects.below_here(number, below)
            yield
        return (yield from sort_in_steps(found))

    def _remove_many(self, sequences: list[int], follows_append: bool) -> int:
        """Remove these messages, given in ascending order."""
        if not sequences:
            return 0
        index, hooks = self._index, self._index.hooks
        on_removed = hooks.on_removed
        in_bulk = len(sequences) > BULK_REMOVAL
        if in_bulk:
            hooks.on_removed = None
        first = before = sequences[0]
        count = 0
        for sequence in sequences:
            found = index.locate(sequence)
            if found is not None:
                index.kill(found[0], found[1], sequence)
                count += 1
            if sequence > before + 1:
                self._log.removed(first, before, follows_append)
                first = sequence
            before = sequence
        self._log.removed(first, before, follows_append)
        index.update_first_sequence()
        hooks.on_removed = on_removed
        if in_bulk and hooks.on_purged is not None:
            hooks.on_purged()
        return count

    def _load_oldest(self) -> Steps[None]:
        """Get ready to remove the oldest messages: spill what is being spilled, and read the columns of their block."""
        index = self._index
        while index.subjects.spill_step():
            yield
        with suppress(StoreError):
            if index.blocks[index.block_index(index.first_sequence)].load_columns():
                yield

    def _remove_few_below(self, sequence: int, step: int, follows_append: bool) -> int:
        """Remove the oldest messages below a sequence, of few subjects: neighbours go quicker than scattered ones."""
        index = self._index
        if step == sys.maxsize:
            return self._remove_below(sequence, follows_append)
        end = min(sequence, index.first_sequence + 8 * step)
        with suppress(StoreError):  # The sequences of a segment that cannot be read are removed all the same.
            end = index.end_of_few(sequence, 8 * step)
        return self._remove_below(end, follows_append)

    def _remove_below(self, sequence: int, follows_append: bool) -> int:
        """Remove every message below a sequence."""
        index = self._index
        if not index.messages or sequence <= index.first_sequence:
            return 0
        first = index.first_sequence
        count = index.count_below(sequence)
        if count > BULK_REMOVAL or (count > _ONE_BY_ONE_MAX and index.hooks.on_removed is None):
            index.kill_below(sequence)
        else:
            at = first
            for _ in range(count):
                found = index.locate(at)
                if found is not None:
                    index.kill(found[0], found[1], at)
                    index.update_first_sequence()
                at = index.first_sequence
        self._log.removed(first, min(sequence - 1, index.last_sequence), follows_append)
        index.update_first_sequence()
        if count > BULK_REMOVAL and index.hooks.on_purged is not None:
            index.hooks.on_purged()
        if count:
            self._log.removed_below(sequence)
        return count

    def _check_jump(self, sequence: int) -> None:
        """Refuse to jump to a sequence whose bits would be taken for marks of a record.

        Raises:
            StoreError: the sequence is too high.
        """
        if sequence > max(SEQUENCE_MAX, self._index.last_sequence + 1):
            raise StoreError(f"continue at sequence {sequence}", f"the highest one is {SEQUENCE_MAX}")
