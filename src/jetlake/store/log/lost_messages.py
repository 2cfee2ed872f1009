"""Lost messages: sequences whose records the disk no longer returns, reported until they are removed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from pathlib import Path

from jetlake.store.log.segment_list import SegmentList
from jetlake.store.sequence_ranges import Range, format_ranges, ranges_of, without

__all__ = ["LOST_MAX", "LostMessages"]

LOST_MAX = 100_000
"""How many lost sequences are listed one by one."""


class LostMessages:
    """Keeps the list of lost sequences, here and in the list of segments.

    Attributes:
        sequences: of the lost messages, ascending.
        bytes: how much of the files could not be understood.

    Args:
        report: logs messages that are found to be lost.
    """

    def __init__(self, folder: Path, segments: SegmentList, report: Callable[[str], None]) -> None:
        self.sequences: list[int] = []
        self.bytes = 0
        self._folder = folder
        self._segments = segments
        self._report = report
        self._removed: list[Range] = []

    def expect_removed(self, gone: list[Range]) -> None:
        """Count no message between these sequences until `begin`: their removal is about to be applied."""
        self._removed = gone

    def begin(self, sequences: list[int], size: int) -> None:
        """Take over the losses that recovery found; the caller then writes the list of segments."""
        self.sequences = sorted({*self.sequences, *sequences})
        self.bytes += size
        self._removed = []
        if sequences:
            self._report_lost(sequences)

    def add(self, sequences: list[int], size: int) -> None:
        """Note messages whose records turned out to be damaged."""
        sequences = without(ranges_of(sequences), self._removed, LOST_MAX)
        if not sequences:
            return
        self.bytes += size
        for sequence in sequences:
            insort(self.sequences, sequence)
        self._report_lost(sequences)
        self._save()

    def report_lost_removals(self, segments: set[int]) -> None:
        """Report that removals may be lost with the damaged tombstones of these segments."""
        if segments:
            numbers = format_ranges(ranges_of(sorted(segments)))
            self._report(
                f"Segments of {self._folder} are damaged: {numbers}. Removals that were logged there may be lost, and "
                "messages that were removed may be back"
            )

    def forget(self, first: int, last: int) -> None:
        """Take the lost messages between two sequences for removed."""
        if self.any_between(first, last):
            sequences = self.sequences
            self.sequences = sequences[: bisect_left(sequences, first)] + sequences[bisect_right(sequences, last) :]
            self._save()

    def forget_below(self, sequence: int) -> list[Range]:
        """Take the lost messages below a sequence for removed; their ranges."""
        position = bisect_left(self.sequences, sequence)
        if not position:
            return []
        gone = ranges_of(self.sequences[:position])
        self.sequences = self.sequences[position:]
        self._save()
        return gone

    def any_between(self, first: int, last: int) -> bool:
        """Return whether a message between two sequences is lost."""
        position = bisect_left(self.sequences, first)
        return position < len(self.sequences) and self.sequences[position] <= last

    def _save(self) -> None:
        self._segments.lose(ranges_of(self.sequences))

    def _report_lost(self, sequences: list[int]) -> None:
        count = f"{len(sequences):,} messages" if len(sequences) > 1 else "1 message"
        self._report(
            f"{count} in {self._folder} can not be read and are lost: sequences {format_ranges(ranges_of(sequences))}. "
            "A purge up to the last of them ends this report"
        )
