"""What the segments tell one after the other: what is removed, missing, torn or in doubt, and where the log ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from itertools import compress
from operator import not_
from pathlib import Path
from typing import NamedTuple

from jetlake.errors import StoreError
from jetlake.store.log.durability import Mark
from jetlake.store.log.groups import incomplete_groups
from jetlake.store.log.record import OVERHEAD
from jetlake.store.log.recovery.recovered import Recovered
from jetlake.store.log.recovery.segment_files import SegmentFile
from jetlake.store.log.scan import Scan
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import segment_name
from jetlake.store.log.segment_index.format import IndexHead
from jetlake.store.log.segment_list import Listed
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot
from jetlake.store.sequence_ranges import Range, ranges_of

__all__ = ["Findings"]


class Evidence(NamedTuple):
    """What a start finds in a store's folder before it reads the segments.

    Attributes:
        names: the files in the folder.
        files: the segments' files by number.
        snapshot: an older index, valid for what the log held then; an empty one when there is none.
        listed: the segments that should be there; None when the list is gone.
    """

    names: Collection[str]
    files: dict[int, SegmentFile]
    snapshot: IndexSnapshot
    listed: Listed | None


class Findings:
    """What is noted on the way through the log, oldest segment first.

    Args:
        folder: named in errors.
        evidence: what the segments are compared with.
        found: gets the findings.

    Attributes:
        position: all missing messages up to this sequence were noted.
    """

    def __init__(self, folder: Path, evidence: Evidence, found: Recovered) -> None:
        _, files, snapshot, listed = evidence
        self.position = snapshot.last_sequence
        self._folder = folder
        self._found = found
        self._files = files
        self._listed = listed.segments if listed is not None else None
        self._torn_before = listed.torn if listed is not None else frozenset()
        self._end_of: Callable[[int], int] = listed.end_of if listed is not None else lambda _number: 0
        self._known_last = max((segment.number for segment in snapshot.segments), default=0)
        self._known_sequence = snapshot.last_sequence
        # Whether damage follows the position, and how many torn bytes.
        self._open_damage = 0
        self._torn_bytes = 0
        self._links: list[tuple[int, int]] = []
        found.last_sequence = snapshot.last_sequence
        found.last_time_ns = snapshot.last_time_ns
        # Losses in files that have been removed since are no longer reported.
        firsts = [file.header.first_sequence for file in files.values() if file.header is not None]
        oldest = min((*firsts, *(self._listed or {}).values()), default=0)
        found.missing = [(sequence, sequence) for sequence in snapshot.lost if sequence >= oldest]
        found.missing += listed.lost if listed is not None else []
        found.lost_bytes = snapshot.lost_bytes

    def note(self, segment: Segment, content: Scan, following: SegmentFile | None) -> None:
        """Note what a scan found in a segment, and what is missing before the following one."""
        found = self._found
        found.tombstones += content.tombstones
        segment.is_damaged |= bool(content.missing or content.damaged_bytes)
        segment.damaged_bytes = content.damaged_bytes
        if not segment.generation:
            self._links += content.links
        for first, last in content.tombstones:
            segment.tombstones.add(first, last)
        found.missing += content.missing
        found.half_erased += ranges_of(sorted(content.half_erased))
        if content.hidden_at:
            # Without the list, which a full disk takes away, it is unknown whether these are a crash's remains.
            is_known = self._listed is None or segment.number in self._torn_before or self._is_struck(segment.number)
            if is_known or (segment.number, content.hidden_at) >= found.safe_end:
                found.torn.add(segment.number)
            else:
                self.doubt(segment.number)
        found.lost_bytes += content.damaged_bytes
        found.last_time_ns = max(found.last_time_ns, content.last_time_ns)
        found.last_sequence = max(found.last_sequence, content.highest)
        self._torn_bytes = content.torn_bytes
        self._open_damage = content.highest if content.open_damage else 0
        self.position = max(self.position, content.position)
        end = self._end_of(segment.number)
        next_header = following.header if following is not None else None
        if next_header is not None and next_header.number == segment.number + 1:
            end = next_header.first_sequence - 1
        if content.position < end:
            found.missing.append((content.position + 1, end))
            self.doubt(segment.number, (content.position + 1, end))
            segment.is_damaged = True
            found.lost_bytes += content.torn_bytes
            self.position = max(self.position, end)

    def note_index(self, head: IndexHead) -> None:
        """Note the content of a segment index, whose segment is complete."""
        found = self._found
        found.tombstones += head.tombstones
        found.last_time_ns = max(found.last_time_ns, head.last_time_ns)
        found.last_sequence = max(found.last_sequence, head.last)
        self._torn_bytes = self._open_damage = 0
        self.position = max(self.position, head.last)

    def note_empty(self, content: Scan) -> None:
        """Note a file in which no record is."""
        self._torn_bytes = content.torn_bytes

    def _is_struck(self, number: int) -> bool:
        """Return whether a segment was struck off the list, before its file goes: no tombstone in it is needed."""
        return self._listed is not None and number not in self._listed and number < max(self._listed, default=0)

    def doubt(self, number: int, missing: Range | None = None) -> None:
        """Note that tombstones of a segment may be lost, unless the snapshot is newer than the segment."""
        if number >= self._known_last:
            self._found.unsure.append((number, missing))

    def _first_behind(self, number: int) -> int | None:
        """Return the first sequence of the following segment; None without one."""
        behind = {
            other: file.header.first_sequence
            for other, file in self._files.items()
            if other > number and file.header is not None
        }
        behind |= {other: first for other, first in (self._listed or {}).items() if other > number}
        return behind[min(behind)] if behind else None

    def note_vanished(self, number: int, mark: Mark) -> None:
        """Note what a listed segment held that is not there, or has nothing left in it."""
        first = (self._listed or {})[number]
        behind = self._first_behind(number)
        self.doubt(number)
        if behind is None:
            if not mark.key:
                # It is unknown how far it went: its sequences might be used again.
                raise StoreError(
                    f"read what is in {self._folder}",
                    f"the newest segment, {segment_name(number)}, is gone, and so is the mark of the last sequence",
                )
            return
        # For older messages the snapshot is authoritative, for the missing ones too.
        if behind - 1 > self._known_sequence:
            self._found.missing.append((max(first, self._known_sequence + 1), behind - 1))
        self.position = max(self.position, behind - 1)

    def note_dead(self, known: Segment) -> None:
        """Note what had died by the snapshot: its tombstones may be damaged, or in segments that are not read."""
        dead = compress(known.sequence_slice(0, len(known.live)), map(not_, known.live))
        self._found.tombstones += ranges_of(dead)

    def note_absent(self, known: Segment, present: set[int], *, lost: bool = True) -> None:
        """Note rows of the snapshot that the file lacks; those without a tombstone are lost."""
        if lost:
            sequences = map(known.sequence_of, known.live_rows(0, len(known.live)))
            self._found.missing += [(sequence, sequence) for sequence in sequences if sequence not in present]

    def find_the_end(self, mark: Mark, *, reuses_sequences: bool) -> None:
        """Find the last sequence that was ever used, and what is missing at the end of the log.

        Args:
            reuses_sequences: sequences that were written and never synced are free again.
        """
        found = self._found
        found.last_sequence = max(found.last_sequence, mark.synced, 0 if reuses_sequences else mark.flushed)
        newest_end = max(((each.number, each.generation, each.size) for each in found.segments), default=(0, 0, 0))
        if newest_end < (mark.safe_end[0], 0, mark.safe_end[1]):
            self.doubt(mark.safe_end[0])
        if self._torn_bytes and not mark.key and not reuses_sequences:
            # Only the torn bytes tell how many records were there: rather leave sequences out than use one twice.
            found.last_sequence += self._torn_bytes // (OVERHEAD + 1) + 1
        # A segment is listed when all before it is safe.
        newest = max(self._listed.values(), default=1) if self._listed is not None else 1
        safe_sequence = max(mark.synced, self._known_sequence, newest - 1)
        if mark.key:
            found.safe_sequence = safe_sequence
        position = self.position
        safe = max(mark.synced, self._open_damage)
        if position < safe:
            found.missing.append((position + 1, safe))
            found.lost_bytes += self._torn_bytes
        # Messages that were never known to be durable are no loss: no client got an acknowledgement.
        position = max(position, safe)
        if position < found.last_sequence:
            # sometimes: a torn end is recovered
            found.dropped = (position + 1, found.last_sequence)
        found.incomplete = incomplete_groups(self._links, self._was_safe, above=safe_sequence)

    def _was_safe(self, sequence: int) -> bool:
        """Return whether a sequence must have been synced: removed, or in a segment removed, rewritten or spilled."""
        if any(first <= sequence <= last for first, last in self._found.tombstones):
            return True
        segments = self._found.segments
        index = bisect_right(segments, sequence, key=lambda segment: segment.first) - 1
        if index >= 0 and (segments[index].generation or segments[index].spilled is not None):
            # Rewritten, or before a segment with a segment index that is trusted.
            return True
        if index + 1 == len(segments) or self._listed is None:
            return False
        newest = max(self._listed, default=0)
        between = range(segments[index].number + 1 if index >= 0 else 1, segments[index + 1].number)
        return any(number < newest and number not in self._listed for number in between)
