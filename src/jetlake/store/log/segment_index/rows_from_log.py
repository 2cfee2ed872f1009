"""Reading the rows of a spilled segment from the log itself, where its segment index is gone or damaged."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate, chain

from jetlake.store.log.scan import scan
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["read_rows"]


def read_rows(segment: Segment, number_of: Callable[[bytes], int]) -> list[int]:
    """Set columns and tombstones of a spilled segment from its records; return the living rows without a good record.

    Args:
        number_of: gives the number of a subject.

    Raises:
        OSError: the disk refused.
    """
    rows = len(segment.live)
    content = scan(segment.file.read_all(segment.size), HEADER_SIZE, segment.checksum, segment.first - 1)
    sizes, numbers, offsets = (array("I", bytes(4 * rows)) for _ in range(3))
    times = array("q", bytes(8 * rows))
    for position, sequence in enumerate(content.sequences):
        row = segment.row_of(sequence)
        if row >= 0:
            sizes[row], offsets[row], times[row] = (
                content.sizes[position],
                content.offsets[position],
                content.times[position],
            )
            numbers[row] = number_of(content.subjects[position])
    segment.sizes, segment.subject_ids, segment.offsets = sizes, numbers, offsets
    # Rows without a record stand between others, and times never go back.
    segment.times = array("q", accumulate(times, max))
    # The next segment index is to describe removals from other segments, as the one before did.
    segment.tombstones.ranges = array("Q", chain.from_iterable(content.tombstones))
    segment.index_parts = None
    return [row for row in segment.live_rows(0, rows) if not sizes[row]]
