"""The tombstones of a segment know which sequences they cover, also after a write was taken back."""

from jetlake.store.log.segment_tombstones import SegmentTombstones


def test_low_and_high_enclose_all_tombstones():
    tombstones = SegmentTombstones()
    assert (tombstones.low, tombstones.high) == (0, 0)
    tombstones.add(7, 9)
    tombstones.add(3, 3)
    assert (tombstones.low, tombstones.high, list(tombstones.ranges)) == (3, 9, [7, 9, 3, 3])


def test_tombstones_of_sequences_that_were_taken_back_are_forgotten():
    tombstones = SegmentTombstones()
    for first, last in ((2, 3), (8, 9), (5, 5)):
        tombstones.add(first, last)
    tombstones.forget_after(5)
    assert (tombstones.low, tombstones.high, list(tombstones.ranges)) == (2, 5, [2, 3, 5, 5])
    tombstones.forget_after(1)
    assert (tombstones.low, tombstones.high, len(tombstones.ranges)) == (0, 0, 0)
