"""Reading the rows of a filed segment from the log itself, where its index piece is gone or damaged."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate, chain

from jetlake.store.log.scan import scan
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["read_rows"]


def read_rows(segment: Segment, number_of: Callable[[bytes], int]) -> list[int]:
    """Set columns and tombstones of a filed segment by its records; the living rows without a good record are returned.

    Args:
        number_of: gives the number of a subject.

    Raises:
        OSError: the disk refused.
    """
    rows = len(segment.live)
    content = scan(segment.file.read_all(segment.size), HEADER_SIZE, segment.seed, segment.first - 1)
    sizes, numbers, offsets = (array("I", bytes(4 * rows)) for _ in range(3))
    times = array("q", bytes(8 * rows))
    for place, sequence in enumerate(content.sequences):
        row = segment.row_of(sequence)
        if row >= 0:
            sizes[row], offsets[row], times[row] = content.sizes[place], content.offsets[place], content.times[place]
            numbers[row] = number_of(content.subjects[place])
    segment.sizes, segment.subject_ids, segment.offsets = sizes, numbers, offsets
    # Rows without a record stand between others, and times never go back.
    segment.times = array("q", accumulate(times, max))
    # The next piece is to tell of removals from other segments, as the one before did.
    segment.tombstones.ranges = array("Q", chain.from_iterable(content.tombstones))
    segment.piece = None
    return [row for row in segment.live_rows(0, rows) if not sizes[row]]
