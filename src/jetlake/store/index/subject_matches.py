"""Which subjects of a store pass a filter, remembered from one question to the next."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from jetlake.protocol.subjects import has_wildcards
from jetlake.store.steps import Steps, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["SubjectMatches"]

_CACHED_IDS_MAX = 2_000_000
_CHANGES_MIN = 4096
_PREPARED = 2048
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

    __slots__ = ("_cached_ids", "_changes", "_changes_base", "_ids", "_matching", "_names")

    def __init__(self, ids: dict[bytes, int], names: list[bytes]) -> None:
        self._ids = ids
        self._names = names
        # Every change of the subjects since `_changes_base`: n came into use, ~n went out of use. No list, which would
        # take its time when it goes.
        self._changes: array[int] = array("q")
        self._changes_base = 0
        self._matching: dict[SubjectFilter, _Matching] = {}
        self._cached_ids = 0

    def passing(self, subject_filter: SubjectFilter) -> set[int] | tuple[int, ...]:
        """Return the numbers of the subjects that pass the filter; not to be changed, and not to be kept."""
        ids = self._ids
        if subject_filter.literals is not None:
            return tuple(ids[literal] for literal in subject_filter.patterns if literal in ids)
        matching = self._matching.pop(subject_filter, None)
        if matching is None:
            matching = _Matching()
        # Put back as the newest: the oldest goes first when the filters hold too much.
        self._matching[subject_filter] = matching
        held = len(matching.ids)
        self._bring_up_to_date(matching, subject_filter.matches)
        self._cached_ids += len(matching.ids) - held
        while self._cached_ids > _CACHED_IDS_MAX and len(self._matching) > 1:
            oldest = next(iter(self._matching))
            self._cached_ids -= len(self._matching.pop(oldest).ids)
        return matching.ids

    def prepare(self, subject_filter: SubjectFilter) -> Steps[None]:
        """Find in steps which subjects pass the filter, so that `passing` has little left to do."""
        if self._is_prepared(subject_filter):
            return
        fresh = self._begin()
        for group in self._groups(subject_filter.matches):
            fresh.ids.update(group)
            yield
        self._remember(subject_filter, fresh)

    def listed(self, subject_filter: SubjectFilter) -> Steps[array[int]]:
        """Return the numbers of the subjects that pass the filter, ascending; only few are remembered."""
        if self._is_prepared(subject_filter):
            return array("I", (yield from sort_in_steps(list(self.passing(subject_filter)))))
        fresh = self._begin()
        found: array[int] = array("I")
        for group in self._groups(subject_filter.matches):
            found.extend(group)
            yield
        if len(found) <= _REMEMBERED_MAX:
            fresh.ids.update(found)
            self._remember(subject_filter, fresh)
        return found

    def _is_prepared(self, subject_filter: SubjectFilter) -> bool:
        """Return whether `passing` has little left to do."""
        matching = self._matching.get(subject_filter)
        return subject_filter.literals is not None or (matching is not None and matching.seen >= self._changes_base)

    def _begin(self) -> _Matching:
        fresh = _Matching()
        fresh.seen = self._changes_base + len(self._changes)
        return fresh

    def _groups(self, matches: Callable[[bytes], bool]) -> Iterator[list[int]]:
        """Yield the numbers of subjects that match, of some subjects at a time."""
        start = 0
        while start < len(self._names):
            end = start + _PREPARED
            yield [number for number, name in enumerate(self._names[start:end], start) if name and matches(name)]
            start = end

    def _remember(self, subject_filter: SubjectFilter, fresh: _Matching) -> None:
        """Let `passing` go on from what was found in steps, and add what has changed meanwhile."""
        before = self._matching.pop(subject_filter, None)
        self._cached_ids += len(fresh.ids) - (len(before.ids) if before is not None else 0)
        self._matching[subject_filter] = fresh

    def covered(self, pattern: bytes) -> set[int] | tuple[int, ...]:
        """Return the numbers of the subjects that one pattern covers."""
        if not has_wildcards(pattern):
            number = self._ids.get(pattern)
            return () if number is None else (number,)
        if pattern == b">":
            return set(self._ids.values())
        return self.passing(SubjectFilter((pattern,)))

    def _bring_up_to_date(self, matching: _Matching, matches: Callable[[bytes], bool]) -> None:
        end = self._changes_base + len(self._changes)
        if matching.seen < self._changes_base:
            matching.ids = {number for subject, number in self._ids.items() if matches(subject)}
        elif matching.seen < end:
            names = self._names
            for change in self._changes[matching.seen - self._changes_base :]:
                if change < 0:
                    matching.ids.discard(~change)
                elif names[change] and matches(names[change]):
                    matching.ids.add(change)
        matching.seen = end

    def note(self, change: int) -> None:
        """Note that a number came into use, or the complement of one that went out of use."""
        self._changes.append(change)
        if len(self._changes) > _CHANGES_MIN and len(self._changes) > 2 * len(self._ids):
            # Whoever has not seen these looks at all subjects again, which are fewer.
            self._changes_base += len(self._changes)
            self._changes = array("q")
