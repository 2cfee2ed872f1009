"""Reading a log's messages: a segment is checked before its first use and where a record turns out to be damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from xxhash import xxh3_64

from jetlake.errors import StoreError
from jetlake.store.index.index import Index
from jetlake.store.index.indexed_store import MessageReader
from jetlake.store.interface import Run
from jetlake.store.log.log import Log
from jetlake.store.log.overwriting import matches_digest
from jetlake.store.log.scan import headers_in, scan
from jetlake.store.log.segment import DamagedSegmentError, Segment
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["CheckedReader"]

# How many records a run of headers is read from.
_HEADERS_RUN = 512
# How much of a segment is looked at in a step.
_CHECKED_BYTES = 1024 * 1024


class _Check:
    """The verification of a segment's digest in steps, as long as the segment does not change."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.hasher = xxh3_64()
        self.position = 0
        self._version = segment.generation, segment.size, segment.digest

    def is_of(self, segment: Segment) -> bool:
        """Return whether it is this segment, unchanged, that is looked at."""
        return self.segment is segment and self._version == (segment.generation, segment.size, segment.digest)


class CheckedReader(MessageReader[Segment]):
    """Reads the messages of a log; messages that the disk does not return are counted as lost."""

    def __init__(self, index: Index[Segment], log: Log) -> None:
        super().__init__(index)
        self._log = log
        self._check: _Check | None = None

    def get(self, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, if it is there.

        Raises:
            StoreError: the disk does not answer.
        """
        checked = None
        while True:
            try:
                return super().get(sequence)
            except DamagedSegmentError as damage:
                checked = self._look_again(damage.segment, checked)
            except OSError as error:
                raise StoreError.of(f"read message {sequence}", error) from error

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        """Return the next messages from `first_sequence` on that pass the filter, at least one if there is one.

        Raises:
            StoreError: the disk does not answer.
        """
        checked = None
        while True:
            try:
                return super().read(first_sequence, subject_filter, max_messages, max_bytes, last_sequence)
            except DamagedSegmentError as damage:
                checked = self._look_again(damage.segment, checked)
            except OSError as error:
                raise StoreError.of(f"read messages from {first_sequence} on", error) from error

    def read_columns(
        self, first_sequence: int, max_messages: int, max_bytes: int, last_sequence: int
    ) -> MessageColumns | None:
        """Return the next messages column by column; None: `read` must tell, or the disk does not answer."""
        with suppress(OSError, DamagedSegmentError):
            return super().read_columns(first_sequence, max_messages, max_bytes, last_sequence)
        return None

    def headers_since(self, time_ns: int) -> Iterator[list[tuple[int, int, bytes]]]:
        """Sequence, time and header of every record that has one and is not older, of removed messages as well.

        Raises:
            StoreError: the disk does not give them back.
        """
        segments = list(self._index.blocks)
        for index, segment in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else None
            if not segment.size or (following is not None and 0 < following.oldest_time_ns < time_ns):
                continue
            if segment not in self._index.blocks:
                # Its file was removed since the last run.
                continue
            data = self._read_segment(segment)
            starts = [offset for offset in segment.offsets[_HEADERS_RUN::_HEADERS_RUN] if offset < len(data)]
            for start, end in pairwise((HEADER_SIZE, *starts, len(data))):
                yield headers_in(data[start:end], segment.seed, time_ns)

    def _read_segment(self, segment: Segment) -> bytes:
        self._log.use((segment,))
        try:
            return segment.file.read_all(segment.size)
        except OSError as error:
            raise StoreError.of(f"read segment {segment.number}", error) from error

    def _prepare(self, segment: Segment) -> None:
        """Open the file of a segment."""
        if segment.file.handle is None:
            self._log.use((segment,))

    def _trust(self, segment: Segment) -> bool:
        """Make sure that a segment's rows can be loaded; False when some could not and are lost."""
        self._prepare(segment)
        if segment.spilled is not None and not segment.bring_back():
            return False
        return segment.verified or self.check(segment)

    def _look_again(self, segment: Segment, checked: Segment | None) -> Segment:
        """Look at the records of a segment after one was found to be damaged; the segment is returned.

        Args:
            checked: the segment that was looked at before, for the same read.

        Raises:
            StoreError: the segment was found intact twice, but the disk returns different bytes each time.
        """
        if self.check(segment, by_records=True) and segment is checked:
            raise StoreError(f"read segment {segment.number}", "the disk does not return the same bytes every time")
        return segment

    def check_step(self, segment: Segment) -> None:
        """Look at the next bytes of a segment that is not verified; it is, once they all were looked at.

        Raises:
            StoreError: the disk does not give them back.
        """
        check = self._check
        if check is None or not check.is_of(segment):
            check = self._check = _Check(segment)
        self._log.use((segment,))
        data = b""
        if segment.digest is not None:
            with suppress(OSError):
                data = segment.file.read(min(_CHECKED_BYTES, segment.size - check.position), check.position)
        check.hasher.update(data)
        check.position += len(data)
        if data and check.position < segment.size:
            return
        self._check = None
        if check.position == segment.size and check.hasher.intdigest() == segment.digest:
            segment.verified = True
        else:
            self.check(segment)

    def check(self, segment: Segment, *, by_records: bool = False) -> bool:
        """Look at a segment's bytes; rows whose records are damaged are lost. False when there are such rows.

        Args:
            by_records: look at every record, whatever the segment's digest says.
        """
        data = self._read_segment(segment)
        segment.verified = True
        if not by_records and matches_digest(segment, data):
            return True
        segment.bring_back()
        content = scan(data, HEADER_SIZE, segment.seed, segment.first - 1)
        segment.damaged_bytes = content.damaged_bytes
        good = dict(zip(content.sequences, content.offsets, strict=True))
        damaged = [
            row
            for row in segment.live_rows(0, len(segment.live))
            if segment.offsets[row] < segment.size and good.get(segment.sequence_of(row)) != segment.offsets[row]
        ]
        # An erased record is its own tombstone; a crash may have cut off the other tombstone at the end of the log.
        erased = {first for first, last in content.tombstones if first == last}.union(content.half_erased)
        for sequence in erased.intersection(map(segment.sequence_of, damaged)):
            self._log.removals.add(sequence, sequence)
        lost = [row for row in damaged if segment.sequence_of(row) not in erased]
        if lost:
            segment.is_damaged = True
            self._log.lost.add(list(map(segment.sequence_of, lost)), sum(segment.sizes[row] for row in lost))
        for row in damaged:
            self._index.kill(segment, row, segment.sequence_of(row))
        self._index.update_first_sequence()
        return not damaged
