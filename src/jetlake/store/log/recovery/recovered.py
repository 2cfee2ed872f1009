"""The content of a store's files as recovery found it: messages, removals, and what is missing."""

from __future__ import annotations

from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.record import SEQUENCE_MASK
from jetlake.store.log.segment import Segment
from jetlake.store.sequence_ranges import Range

__all__ = ["Recovered"]


class Recovered:
    """The recovered content of a store's files.

    Attributes:
        key: the stream's key, a new one when there was nothing to learn it from.
        segments: with a living row for each good record; tombstones are not yet applied.
        tombstones: the sequences that are gone, as (first, last), in any order.
        missing: the sequences that should be there and are not, as (first, last); tombstones explain some.
        half_erased: what a crash left of messages that were being erased, as (first, last).
        incomplete: what a crash left of groups, as (first, last).
        unsure: the numbers of segments whose tombstones may be lost, each with the sequences of which one is lost if it
            is so, as (first, last); None when it is so in any case.
        torn: the numbers of segments that a crash left with remains of records that no client was promised.
        dropped: the sequences at the end that were used for messages that no client was promised, as (first, last).
        safe_sequence: the last one that was known to be safe: what is missing above it, no client was promised either.
        last_sequence: the highest one that was ever used.
        next_number: the number of the next segment, unless a file has it that is not the stream's.
        taken_numbers: the numbers that files have, whosever they are.
        by_index: the segments that were taken in by their segment indexes, which describe removals too.
        unsynced: the segments whose bytes may not be safe yet.
        safe_end: a segment's number and how many of its bytes are safe, as all segments before it are.
    """

    def __init__(self) -> None:
        self.key = 0
        self.segments: list[Segment] = []
        self.subjects = SubjectIndex()
        self.tombstones: list[tuple[int, int]] = []
        self.missing: list[tuple[int, int]] = []
        self.half_erased: list[tuple[int, int]] = []
        self.incomplete: list[tuple[int, int]] = []
        self.unsure: list[tuple[int, Range | None]] = []
        self.torn: set[int] = set()
        self.dropped: tuple[int, int] | None = None
        self.safe_sequence = SEQUENCE_MASK
        self.lost_bytes = 0
        self.last_sequence = 0
        self.last_time_ns = 0
        self.next_number = 1
        self.taken_numbers: set[int] = set()
        self.by_index: list[Segment] = []
        self.unsynced: list[Segment] = []
        self.safe_end = (0, 0)
