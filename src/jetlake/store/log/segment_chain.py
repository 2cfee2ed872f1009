"""The order of a log's segments: each begins behind the one before, is sealed when full, and dropped when unwritten."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from jetlake.store.index.index import Index
from jetlake.store.log.durability import Durability
from jetlake.store.log.segment import Segment

__all__ = ["SegmentChain", "SegmentNumbers"]

_MOVED_MAX = 4096


class SegmentNumbers:
    """The numbers that new segments get, ascending.

    Args:
        following: the number after all segments.
        taken: numbers in the names of files, of which some may be foreign.
    """

    def __init__(self, following: int, taken: Collection[int]) -> None:
        self._next = following
        self._taken = taken

    def take(self) -> int:
        """Return the next number that no file has."""
        while self._next in self._taken:
            self._next += 1
        self._next += 1
        return self._next - 1

    def return_to(self, number: int) -> None:
        """Return this number next: the segments that had it and higher ones were dropped unwritten."""
        self._next = number


class SegmentChain:
    """The segments of a log, of which the newest is appended to.

    Args:
        index: of the segments; its active one is the newest.
        durability: notes which files have gone.
        numbers: the numbers of new segments.

    Attributes:
        dead: the segments in which nothing lives any more.
        full: those behind which another began, until they are sealed.
    """

    def __init__(self, index: Index[Segment], durability: Durability, numbers: SegmentNumbers) -> None:
        self.dead: list[Segment] = []
        self.full: list[Segment] = []
        self._index = index
        self._durability = durability
        self._numbers = numbers

    def resume(self) -> None:
        """Continue behind what the index holds: make the last segment ready for the next append, or roll."""
        index = self._index
        active = index.active
        if active.spilled is None and not active.live and active.sequences is None:
            self.move_on()
        elif (
            active.spilled is not None
            or active.sequences is not None
            or active.is_damaged
            or active.first + len(active.live) <= index.last_sequence
        ):
            self.roll()
        self.seal_full()

    def move_on(self) -> None:
        """Continue behind the last sequence in the newest segment, which has no row, or in another one.

        The first sequence in a file's header must not be far from the sequences of its records.
        """
        index = self._index
        if index.active.size and index.last_sequence - index.active.high_water > _MOVED_MAX:
            self.roll()
        else:
            index.move_active(index.last_sequence + 1)

    def roll(self) -> Segment:
        """Begin a new segment; the old one is sealed once it is written."""
        full = self._index.active
        file = full.file
        segment = Segment(file.disk, file.folder, full.key, self._numbers.take(), self._index.last_sequence + 1)
        self._index.begin_block(segment)
        self.full.append(full)
        if not full.live_count:
            self.dead.append(full)
        return segment

    def seal_full(self) -> None:
        """Seal the full segments: all that they hold is written."""
        for segment in self.full:
            if segment.file.handle is not None:
                segment.file.cut_zeros(segment.size)
            segment.seal()
        if self.full and (on_full := self._index.hooks.on_full) is not None:
            on_full()
        self.full.clear()

    def roll_back_above(self, sequence: int) -> None:
        """Roll back the rows above a sequence and the segments begun for them, of which nothing is in the files."""
        self.full.clear()
        index = self._index
        while index.last_sequence > sequence:
            self._roll_back_last(sequence)
        while not index.active.size and not index.active.live and self._fits_previous(sequence):
            self._drop_newest()

    def _roll_back_last(self, target: int) -> None:
        """Roll back the newest row, or the newest segment when it has none."""
        index = self._index
        active = index.active
        if not active.live:
            if not active.size and self._fits_previous(target):
                self._drop_newest()
                index.last_sequence = max(index.active.first + len(index.active.live) - 1, target)
            else:
                index.move_active(target + 1)
                index.last_sequence = target
            return
        index.last_sequence = active.first + len(active.live) - 1
        if index.last_sequence > target:
            index.roll_back_last()

    def _fits_previous(self, target: int) -> bool:
        """Return whether the segment before the newest can take the message after `target`: its rows are dense."""
        if len(self._index.blocks) < 2:
            return False
        previous = self._index.blocks[-2]
        if previous.spilled is not None:
            return False
        return previous.sequences is None and previous.first + len(previous.live) > target

    def _drop_newest(self) -> None:
        """Remove the newest segment, to which nothing could be written.

        Its sequences go to other messages: the sync that makes those safe makes it safe that the file is gone.
        """
        segment = self._index.active
        file = segment.file
        file.close()
        try:
            file.disk.remove(file.path)
        except OSError as error:
            self._durability.roll_back_failed(
                "remove what a failed write left", error, partial(file.disk.remove, file.path)
            )
        self._durability.forget(segment)
        self._index.drop_block(segment)
        active = self._index.active
        self._numbers.return_to(active.number + 1)
        self.dead = [segment for segment in self.dead if segment is not active]
