"""A segment of the log: the rows of one file, written and read as records."""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from itertools import compress
from pathlib import Path

from xxhash import xxh3_64, xxh3_64_intdigest

from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Block
from jetlake.store.log.log_file import LogFile
from jetlake.store.log.record import HASH_SIZE, HEAD_SIZE, links_in, pack_erased, seed_of, unpack_message, unpack_run
from jetlake.store.log.scan import scan
from jetlake.store.log.segment_header import HEADER_SIZE, SegmentHeader, segment_name
from jetlake.store.message import StoredMessage

__all__ = ["DamagedSegmentError", "Segment"]

# Rows further apart than this are read one by one rather than with what lies between them.
_READ_GAP = 32 * 1024
_READ_SPAN = 4 * 1024 * 1024


class DamagedSegmentError(Exception):
    """A record is not there as it was written; whoever reads must look at the whole segment first."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.number)
        self.segment = segment


class Segment(Block):
    """Rows whose records lie in one file, the newest of them still in memory.

    Attributes:
        file: where the records are written.
        number: its place in the log.
        generation: how often it was rewritten.
        explained: up to which sequence the last rewrite told what is gone; 0 when that is not known.
        offsets: where each row's record begins.
        size: how much of the file is written and known to be good.
        end: the same with what waits to be written.
        pending: the records that wait.
        verified: whether every living row's record is known to be whole.
        digest: the hash of the whole file up to `size`; None when an erased record changed it.
        dead_records: whether the file holds records of rows that have died.
        tombstones_low, tombstones_high: the sequences its tombstones speak of lie between these; 0 when it has none.
        write_generation: the store's flush that wrote to it last.
        birth_generation: the store's flush that made the file; 0 while there is none.
        is_settled: compressed, or known not to be worth it.
        worth_below: rewriting is worth its while when fewer bytes than this live; -1 until the segment is full.
    """

    __slots__ = (
        "birth_generation",
        "dead_records",
        "digest",
        "end",
        "explained",
        "file",
        "generation",
        "hasher",
        "high_water",
        "is_settled",
        "key",
        "number",
        "offsets",
        "pending",
        "seed",
        "size",
        "tombstones_high",
        "tombstones_low",
        "verified",
        "worth_below",
        "write_generation",
    )

    def __init__(self, disk: Disk, folder: Path, key: int, number: int, first: int) -> None:
        super().__init__(first)
        self.file = LogFile(disk, folder / segment_name(number))
        self.key = key
        self.number = number
        self.seed = seed_of(key, number)
        self.generation = 0
        self.explained = 0
        self.high_water = max(first - 1, 0)
        self.offsets: array[int] = array("I")
        self.size = 0
        self.end = HEADER_SIZE
        self.pending: list[bytes] = []
        self.verified = True
        self.hasher: xxh3_64 | None = xxh3_64()
        self.digest: int | None = None
        self.dead_records = False
        self.tombstones_low = 0
        self.tombstones_high = 0
        self.write_generation = 0
        self.birth_generation = 0
        self.worth_below = -1
        self.is_settled = False

    def explains_itself(self, last: int) -> bool:
        """Whether the file tells of everything up to this sequence that is gone from it, without other files."""
        if not self.generation or self.dead_records:
            return False
        return last <= self.explained or (bool(self.live) and last <= self.sequence_of(len(self.live) - 1))

    # Writing

    def header(self) -> SegmentHeader:
        """Return the file's header."""
        return SegmentHeader(self.number, self.generation, self.key, self.first, self.high_water)

    def note_tombstone(self, first: int, last: int) -> None:
        """Extend the range of sequences that the segment's tombstones cover."""
        low = self.tombstones_low
        self.tombstones_low = min(low, first) if low else first
        self.tombstones_high = max(self.tombstones_high, last)

    def write_pending(self, tail_bytes: int) -> None:
        """Write what waits, the header too if the file is new; on an error `size` stays as it is.

        Args:
            tail_bytes: how much of what was written stays in memory for those who read it next.

        Raises:
            OSError: the disk refused.
        """
        data = b"".join(self.pending)
        start = self.size
        if start == 0:
            self.high_water = max(self.first - 1, 0)
            header = self.header().pack()
            self.file.create()
            self.file.write(header + data, 0)
            self._hash(header)
            start = HEADER_SIZE
        else:
            self.file.write(data, start)
        self._hash(data)
        self.size = self.end = start + len(data)
        self.pending.clear()
        self.file.tail.keep(start, data, tail_bytes)

    def take_back(self, size: int) -> None:
        """Forget what waits and what was written behind `size`, and cut the file there.

        Raises:
            OSError: the file could not be cut.
        """
        self.pending.clear()
        if self.size > size:
            self.hasher = None
            self.file.tail.clear()
        self.size = size
        self.end = size or HEADER_SIZE
        if self.file.handle is not None:
            self.file.truncate(size)

    def _hash(self, data: bytes) -> None:
        if self.hasher is not None:
            self.hasher.update(data)

    def seal(self) -> None:
        """Seal a full segment: release what only a writer needs."""
        if self.hasher is not None:
            self.digest = self.hasher.intdigest()
            self.hasher = None
        self.worth_below = (self.live_bytes if self.generation else self.size) // 2
        self.file.tail.clear()
        self.shrink()

    def shrink(self) -> None:
        """Release the columns' spare capacity."""
        self.sizes = self.sizes[:]
        self.subject_ids = self.subject_ids[:]
        self.times = self.times[:]
        self.offsets = self.offsets[:]
        self.live = self.live[:]

    # Rows

    def add_dead(self, count: int, time_ns: int) -> None:
        super().add_dead(count, time_ns)
        if self.sequences is None:
            self.offsets.frombytes(bytes(4 * count))

    def pop(self) -> None:
        super().pop()
        self.offsets.pop()

    def drop_dead_rows(self) -> None:
        self.offsets = array("I", compress(self.offsets, self.live))
        super().drop_dead_rows()

    def forget(self, start: int, end: int) -> None:
        self.dead_records = True

    # Reading

    def bytes_between(self, start: int, end: int) -> tuple[bytes, int]:
        """A buffer that holds the file's bytes from `start` to `end`, and where in the file the buffer begins.

        Raises:
            DamagedSegmentError: the file is shorter than it was.
            OSError: the disk refused.
        """
        if end <= self.size:
            if (found := self.file.tail.find(start, end)) is not None:
                return found
            data = self.file.read(end - start, start)
            if len(data) < end - start:
                raise DamagedSegmentError(self)
            return data, start
        waiting = b"".join(self.pending)
        self.pending[:] = (waiting,)
        written = self.size or HEADER_SIZE
        if start >= written:
            return waiting, written
        before, base = self.bytes_between(start, written)
        return before[start - base :] + waiting, start

    def load(self, row: int, names: list[bytes]) -> StoredMessage:
        offset = self.offsets[row]
        end = offset + self.sizes[row]
        if self.file.tail.offsets or end > self.size:
            data, base = self.bytes_between(offset, end)
            data = data[offset - base : end - base]
        else:
            data = self.file.read(end - offset, offset)
        # A single message is not worth trusting blindly: the disk may have changed since the segment was looked at. And
        # what the record tells need not be fetched from columns that are far apart in memory.
        message = unpack_message(data, self.seed)
        if message is None or message.sequence != self.sequence_of(row):
            raise DamagedSegmentError(self)
        return message

    def load_run(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        offsets = self.offsets
        first = offsets[start]
        if offsets[end - 1] + self.sizes[end - 1] - first > max_bytes:
            # Records lie in the order of their rows, so that the last that fits is found by its place.
            end = max(bisect_right(offsets, first + max_bytes, start, end) - 1, start + 1)
        return self._load_span(
            self.sequence_slice(start, end),
            offsets[start:end],
            self.sizes[start:end],
            self.times[start:end],
            self.subject_ids[start:end],
            names,
        )

    def load_rows(self, rows: list[int], max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        rows = self.fitting(rows, max_bytes)
        if rows[-1] - rows[0] + 1 == len(rows):
            return self.load_run(rows[0], rows[-1] + 1, max(max_bytes, _READ_SPAN), names)
        messages: list[StoredMessage] = []
        place = 0
        while place < len(rows):
            stop = self._span(rows, place)
            part = rows[place:stop]
            messages += self._load_span(
                [self.sequence_of(row) for row in part],
                [self.offsets[row] for row in part],
                [self.sizes[row] for row in part],
                [self.times[row] for row in part],
                [self.subject_ids[row] for row in part],
                names,
            )
            if len(messages) < stop:
                break
            place = stop
        return messages

    def _span(self, rows: list[int], place: int) -> int:
        """Return the place up to which rows lie close enough for one read."""
        offsets, sizes = self.offsets, self.sizes
        begin = offsets[rows[place]]
        end = begin + sizes[rows[place]]
        for at in range(place + 1, len(rows)):
            offset = offsets[rows[at]]
            if offset - end > _READ_GAP or offset - begin > _READ_SPAN:
                return at
            end = offset + sizes[rows[at]]
        return len(rows)

    def _load_span(
        self,
        sequences: range | array[int] | list[int],
        offsets: array[int] | list[int],
        sizes: array[int] | list[int],
        times: array[int] | list[int],
        subject_ids: array[int] | list[int],
        names: list[bytes],
    ) -> list[StoredMessage]:
        """The messages of rows that lie close together, from one buffer."""
        try:
            data, base = self.bytes_between(offsets[0], offsets[-1] + sizes[-1])
        except OSError:
            if len(offsets) == 1:
                raise
            return self._load_before_fault(sequences, names)
        return unpack_run(data, base, sequences, offsets, sizes, times, subject_ids, names)

    def _load_before_fault(self, sequences: range | array[int] | list[int], names: list[bytes]) -> list[StoredMessage]:
        """The messages up to the first that the disk does not give back; that one raises when it is asked for."""
        messages = [self.load(self.row_of(sequences[0]), names)]
        for sequence in sequences[1:]:
            try:
                messages.append(self.load(self.row_of(sequence), names))
            except OSError:
                break
        return messages

    def matches_digest(self, data: bytes) -> bool:
        """Return whether the bytes have the file's digest."""
        if self.digest is None:
            return False
        return len(data) == self.size and int(xxh3_64_intdigest(data)) == self.digest

    def write_again(self) -> None:
        """Write the whole file over itself, for a sync that can be trusted after one that failed.

        Raises:
            OSError: the disk refused, or does not give back what was written: only a start can tell what is left.
        """
        if self.size:
            data = self.file.read_all(self.size)
            content = scan(data, HEADER_SIZE, self.seed, None)
            if len(data) < self.size or content.end != self.size or content.damaged_bytes:
                raise OSError(errno.EIO, "it does not hold what was written", str(self.file.path))
            self.file.write(data, 0)
        self.file.truncate(self.size)

    def write_from(self, start: int) -> None:
        """Write what the file holds from `start` on over itself, good records and bad; not what cannot be read.

        Raises:
            OSError: the disk refused to write.
        """
        if start < self.size:
            file = self.file
            try:
                data = file.read(self.size - start, start)
            except OSError:
                return
            if file.blocks is None:  # A compressed one was synced before it got its name.
                file.write(data, start)

    # Erasing

    def is_grouped(self, row: int) -> bool:
        """Whether a row's record is one of a group.

        Raises:
            OSError: the disk refused.
        """
        head = self.file.read(HEAD_SIZE, self.offsets[row])
        return len(head) == HEAD_SIZE and links_in(head) != 0

    def erase(self, row: int, noise: bytes) -> None:
        """Overwrite the record of a dead row, which must be written already.

        Args:
            noise: random bytes, as many as `erasable` says.

        Raises:
            OSError: the disk refused.
        """
        subject_length = len(noise) // 2
        head = self.file.read(HEAD_SIZE, self.offsets[row])
        marked = self.sequence_of(row) | (links_in(head) if len(head) == HEAD_SIZE else 0)
        data = pack_erased(marked, self.times[row], subject_length, noise, self.seed)
        self.file.write(data, self.offsets[row])
        self.file.tail.clear()
        self.digest = None
        self.hasher = None

    def erasable(self, row: int) -> int:
        """How many bytes of a row's record are overwritten: all but lengths, sequence, time and hash."""
        return self.sizes[row] - HEAD_SIZE - HASH_SIZE
