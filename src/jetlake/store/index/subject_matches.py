"""Which subjects of a store pass a filter, remembered from one question to the next."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, compress

from jetlake.protocol.subjects import has_wildcards
from jetlake.store.steps import Steps, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["SubjectMatches"]

# What the filters may hold: numbers of subjects, and their patterns, each of which takes as much as many numbers.
_HELD_MAX = 2_000_000
_PATTERN_WEIGHT = 32
_CHANGES_MIN = 4096
# Subjects that one step looks at, with one pattern, and with several: a look-up for each of their tokens. Where a
# subject leads to all of the patterns' tree, one is work enough.
_PREPARED = 2048
_PREPARED_BY_SEVERAL = 256
_PATTERN_BYTES_PER_STEP = 16_384
# Changes of subjects that one step applies to what is known of a filter.
_CHANGES_AT_ONCE = 256
# Literals that are looked up one by one each time; the numbers of more are remembered.
_LOOKED_UP_MAX = 16
# A set of more numbers takes its time to grow, and to be looked at by the garbage collection.
_REMEMBERED_MAX = 16 * 1024


class _Matching:
    """The subjects that pass one filter, brought up to date by the changes since it was last used."""

    __slots__ = ("ids", "seen")

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.seen = -1


class SubjectMatches:
    """The numbers of the subjects that pass each filter that was asked about.

    Args:
        ids: the number of each subject.
        names: the subject of each number; b"" for one that is free.
    """

    __slots__ = ("_changes", "_changes_base", "_held", "_ids", "_matching", "_names")

    def __init__(self, ids: dict[bytes, int], names: list[bytes]) -> None:
        self._ids = ids
        self._names = names
        # Every change of the subjects since `_changes_base`: n came into use, ~n went out of use. No list, which would
        # take its time when it goes.
        self._changes: array[int] = array("q")
        self._changes_base = 0
        self._matching: dict[SubjectFilter, _Matching] = {}
        self._held = 0

    def passing(self, subject_filter: SubjectFilter) -> set[int] | tuple[int, ...]:
        """Return the numbers of the subjects that pass the filter; not to be changed, and not to be kept."""
        ids = self._ids
        if _is_looked_up(subject_filter):
            return tuple(ids[literal] for literal in subject_filter.patterns if literal in ids)
        matching = self._matching.pop(subject_filter, None)
        if matching is None:
            matching = _Matching()
            self._held += _weight(subject_filter)
        # Put back as the newest: the oldest goes first when the filters hold too much.
        self._matching[subject_filter] = matching
        held = len(matching.ids)
        self._bring_up_to_date(matching, subject_filter)
        self._held += len(matching.ids) - held
        while self._held > _HELD_MAX and len(self._matching) > 1:
            oldest = next(iter(self._matching))
            self._held -= len(self._matching.pop(oldest).ids) + _weight(oldest)
        return matching.ids

    def prepare(self, subject_filter: SubjectFilter) -> Steps[None]:
        """Find in steps which subjects pass the filter, so that `passing` has little left to do."""
        if self._is_prepared(subject_filter):
            yield from self._catch_up(subject_filter)
            return
        yield from subject_filter.compile()
        fresh = self._begin()
        for group in self._groups(subject_filter):
            fresh.ids.update(group)
            yield
        self._remember(subject_filter, fresh)

    def listed(self, subject_filter: SubjectFilter) -> Steps[array[int]]:
        """Return the numbers of the subjects that pass the filter, ascending; only few are remembered."""
        if subject_filter.literals is not None or self._is_prepared(subject_filter):
            yield from self.prepare(subject_filter)
        if self._is_prepared(subject_filter):
            return array("I", (yield from sort_in_steps(list(self.passing(subject_filter)))))
        yield from subject_filter.compile()
        fresh = self._begin()
        found: array[int] = array("I")
        for group in self._groups(subject_filter):
            found.extend(group)
            yield
        if len(found) <= _REMEMBERED_MAX:
            fresh.ids.update(found)
            self._remember(subject_filter, fresh)
        return found

    def _is_prepared(self, subject_filter: SubjectFilter) -> bool:
        """Return whether `passing` has little left to do."""
        matching = self._matching.get(subject_filter)
        return _is_looked_up(subject_filter) or (matching is not None and matching.seen >= self._changes_base)

    def _catch_up(self, subject_filter: SubjectFilter) -> Steps[None]:
        """Bring what is known of a filter up to date in steps, but for what changes meanwhile."""
        matching = self._matching.get(subject_filter)
        if matching is None:
            return
        yield from subject_filter.compile()
        while matching is self._matching.get(subject_filter) and matching.seen >= self._changes_base:
            if self._changes_base + len(self._changes) - matching.seen <= _CHANGES_AT_ONCE:
                return
            held = len(matching.ids)
            self._apply_changes(matching, subject_filter, matching.seen + _CHANGES_AT_ONCE)
            self._held += len(matching.ids) - held
            yield

    def _begin(self) -> _Matching:
        fresh = _Matching()
        fresh.seen = self._changes_base + len(self._changes)
        return fresh

    def _groups(self, subject_filter: SubjectFilter) -> Iterator[list[int]]:
        """Yield the numbers of subjects that pass, of some subjects or literals at a time; ascending with wildcards."""
        if subject_filter.literals is not None:
            find = self._ids.get
            for literals in in_groups(subject_filter.patterns, _PREPARED):
                yield [number for number in map(find, literals) if number is not None]
            return
        passes = subject_filter.passes
        size = _PREPARED
        if len(subject_filter.patterns) > 1:
            bytes_walked = sum(map(len, subject_filter.patterns))
            size = max(min(_PREPARED_BY_SEVERAL, _PATTERN_BYTES_PER_STEP // bytes_walked), 1)
        start = 0
        while start < len(self._names):
            end = start + size
            names = self._names[start:end]
            # A name is empty where its number is free, which some patterns would match.
            yield [number for number in compress(range(start, end), map(passes, names)) if self._names[number]]
            start = end

    def _remember(self, subject_filter: SubjectFilter, fresh: _Matching) -> None:
        """Install the matches found in steps, and apply the changes since."""
        before = self._matching.pop(subject_filter, None)
        self._held += len(fresh.ids) - (len(before.ids) if before is not None else -_weight(subject_filter))
        self._matching[subject_filter] = fresh

    def covered(self, pattern: bytes) -> set[int] | tuple[int, ...]:
        """Return the numbers of the subjects that one pattern covers."""
        if not has_wildcards(pattern):
            number = self._ids.get(pattern)
            return () if number is None else (number,)
        if pattern == b">":
            return set(self._ids.values())
        return self.passing(SubjectFilter((pattern,)))

    def _bring_up_to_date(self, matching: _Matching, subject_filter: SubjectFilter) -> None:
        end = self._changes_base + len(self._changes)
        if matching.seen < self._changes_base:
            matching.ids = set(chain.from_iterable(self._groups(subject_filter)))
            matching.seen = end
        elif matching.seen < end:
            self._apply_changes(matching, subject_filter, end)

    def _apply_changes(self, matching: _Matching, subject_filter: SubjectFilter, end: int) -> None:
        """Apply the changes of subjects up to the one with this number."""
        names, matches, base = self._names, subject_filter.matches, self._changes_base
        for change in self._changes[matching.seen - base : end - base]:
            if change < 0:
                matching.ids.discard(~change)
            elif names[change] and matches(names[change]):
                matching.ids.add(change)
        matching.seen = end

    def note(self, change: int) -> None:
        """Note that a number came into use, or the complement of one that went out of use."""
        self._changes.append(change)
        if len(self._changes) > _CHANGES_MIN and len(self._changes) > 2 * len(self._ids):
            # A filter that has not seen these changes matches all subjects again, which are fewer.
            self._changes_base += len(self._changes)
            self._changes = array("q")


def _is_looked_up(subject_filter: SubjectFilter) -> bool:
    """Return whether the filter's subjects are looked up each time."""
    return subject_filter.literals is not None and len(subject_filter.patterns) <= _LOOKED_UP_MAX


def _weight(subject_filter: SubjectFilter) -> int:
    return _PATTERN_WEIGHT * len(subject_filter.patterns)
