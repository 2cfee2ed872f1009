"""A segment of the log: the rows of one file, written and read as records; the file, its newest bytes in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from xxhash import xxh3_64

from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Block, DamagedBlockError, SpilledRows
from jetlake.store.index.packed_rows import pack_live, unpack_live, unpack_sequences
from jetlake.store.index.postings import Posted, Postings
from jetlake.store.log.record import are_good, checksum_of, first_record, record_size, unpack_message, unpack_run
from jetlake.store.log.segment_header import HEADER_SIZE, SegmentHeader, segment_name
from jetlake.store.log.segment_tombstones import SegmentTombstones
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.steps import Steps, finish

if TYPE_CHECKING:
    from jetlake.store.log.compressed_blocks import CompressedBlocks
    from jetlake.store.log.spiller import Spiller

__all__ = [
    "COLUMNS",
    "LIVE",
    "POSTINGS",
    "SECOND_ASIDE_SUFFIX",
    "IndexParts",
    "LogFile",
    "Segment",
    "Tail",
    "table_of",
]

# Rows further apart than this are read one by one rather than with what lies between them.
_READ_GAP = 32 * 1024
_READ_SPAN = 4 * 1024 * 1024
_PEEKS_MAX = 16
_LOOKUPS_MAX = 64


_COLUMN_NAMES = ("sizes", "subject_ids", "times", "offsets")
LIVE, COLUMNS, POSTINGS = "live", "columns", "postings"


class IndexParts(msgspec.Struct, gc=False, frozen=True):
    """Where the parts of a segment index are, and their hashes: columns of rows, and subjects.

    Attributes:
        subject_count: how many subjects there are.
        counts_earlier: whether the postings know how many sequences were spilled before the segment.
    """

    columns_at: int
    columns_size: int
    columns_hash: int
    subjects_at: int
    subjects_size: int
    subjects_hash: int
    subject_count: int
    counts_earlier: bool


class Segment(Block):
    """Rows whose records lie in one file, the newest of them still in memory.

    Columns, `live` and postings of a spilled segment that has a segment index are in memory only while they are used:
    each is released when the cache is full, and loaded again when it is next read.

    Attributes:
        file: where the records are written.
        number: its place in the log.
        generation: how often it was rewritten.
        explained: the sequence up to which tombstones of the last rewrite cover all gaps; 0 when unknown.
        offsets: where each row's record begins.
        size: how much of the file is written and known to be good.
        end: the same with what waits to be written.
        pending: the records that wait.
        verified: whether every living row's record is known to be whole.
        digest: the hash of the whole file up to `size`; None when an erased record changed it.
        dead_records: whether the file holds records of rows that have died.
        tombstones: which sequences its tombstones cover.
        segment index: where its columns can be read; None while they have to stay in memory.
        packed_live, packed_sequences: which rows live, and which sequences there are, while those are released.
        loader: reads the parts of a spilled segment back; None while all are in memory.
        peeks: how many single messages were read since the columns were released.
        lookups: how many subjects' postings were read since the postings were released.
        is_damaged: messages were lost from it, so that only the log itself tells all about it.
        damaged_bytes: how many of its bytes were found not to be understood, since the store was opened.
        write_generation: the store's flush that wrote to it last.
        birth_generation: the store's flush that made the file; 0 while there is none.
        is_compression_done: compressed, or known not to be worth it.
        worth_below: rewriting is worth its while when fewer bytes than this live; -1 until the segment is full.
    """

    __slots__ = (
        "_postings",
        "birth_generation",
        "checksum",
        "damaged_bytes",
        "dead_records",
        "digest",
        "end",
        "explained",
        "file",
        "generation",
        "hasher",
        "high_water",
        "index_parts",
        "is_compression_done",
        "is_damaged",
        "key",
        "loader",
        "lookups",
        "number",
        "offsets",
        "packed_live",
        "packed_sequences",
        "peeks",
        "pending",
        "size",
        "tombstones",
        "verified",
        "worth_below",
        "write_generation",
    )

    def __init__(self, disk: Disk, folder: Path, key: int, number: int, first: int) -> None:
        super().__init__(first)
        self.file = LogFile(disk, folder, segment_name(number))
        self.key = key
        self.number = number
        self.checksum = checksum_of(disk.hashing, key, number)
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
        self.write_generation = 0
        self.birth_generation = 0
        self.worth_below = -1
        self.is_compression_done = False
        self.is_damaged = False
        self.damaged_bytes = 0
        self.peeks = 0
        self.lookups = 0
        self.tombstones = SegmentTombstones()
        self.index_parts: IndexParts | None = None
        self.loader: Spiller | None = None
        self.packed_live = b""
        self.packed_sequences = b""
        self._postings: Postings | None = None

    @property
    def is_ready(self) -> bool:
        return self.verified and self.spilled is None and self.file.handle is not None

    # Parts that can be released. A released part is an unset slot, so that a part in memory is read like any other
    # attribute: properties in the place of the slots made each read take 1.4 to 1.8 times as long (`timeit`).

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Bring back a part that was released: its slot is unset."""
            if name in ("live", "sequences") and self.spilled is not None:
                rows = self.spilled.rows
                self.live = unpack_live(self.packed_live, rows)
                self.sequences = unpack_sequences(self.packed_sequences, self.first)
                if self.loader is not None:
                    self.loader.hold(self, LIVE, rows if self.sequences is None else 9 * rows)
            elif name in _COLUMN_NAMES and self.loader is not None:
                self.loader.load_columns(self)
            else:
                raise AttributeError(name)
            # A cache with little room may have released it already.
            return getattr(self, name)

    def load_columns(self) -> bool:
        if self.spilled is None or self.loader is None or _is_set(self, "offsets"):
            return False
        self.loader.load_columns(self)
        return True

    def bring_back(self) -> bool:
        """Have the columns in memory; False when messages turned out to be lost on the way."""
        count = self.live_count
        self.load_columns()
        return self.live_count == count

    def release(self, part: str) -> None:
        """Release a part of a spilled segment."""
        if part == POSTINGS:
            self._postings = None
            self.lookups = 0
        elif part == LIVE:
            self.packed_live = finish(pack_live(self.live, self.live_count))
            del self.live, self.sequences
        else:
            del self.sizes, self.subject_ids, self.times, self.offsets
            self.peeks = 0

    def pack_live_rows(self) -> bytes:
        """Return which rows of a spilled segment live, in few bytes, whether `live` is in memory or released."""
        return finish(pack_live(self.live, self.live_count)) if _is_set(self, "live") else self.packed_live

    def release_all(self, index_parts: IndexParts, packed_sequences: bytes) -> None:
        """Release whatever a segment index has that has just been written."""
        self.index_parts, self.packed_sequences = index_parts, packed_sequences
        for part in (LIVE, COLUMNS, POSTINGS):
            self.release(part)
        self.tombstones.ranges = array("Q")

    def begin_released(
        self, spilled: SpilledRows, packed_live: bytes, packed_sequences: bytes, index_parts: IndexParts
    ) -> None:
        """Begin as a spilled segment that has a segment index, and nothing else in memory."""
        self.spilled, self.index_parts = spilled, index_parts
        self.release(COLUMNS)
        del self.live, self.sequences
        self.packed_live, self.packed_sequences = packed_live, packed_sequences

    def postings(self) -> Postings:
        if self._postings is None:
            assert self.loader is not None
            self._postings = postings = self.loader.load_postings(self)
            self.loader.hold(self, POSTINGS, postings.size)
            return postings
        return self._postings

    def postings_in_steps(self) -> Steps[Postings]:
        if self._postings is not None or self.loader is None:
            return self.postings()
        index_parts = self.index_parts
        postings = yield from self.loader.load_postings_in_steps(self)
        if self._postings is None and self.index_parts is index_parts and self.live_count:
            self._postings = postings
            self.loader.hold(self, POSTINGS, postings.size)
        return postings

    def posted(self, number: int) -> Posted:
        if self._postings is None and self.lookups < _LOOKUPS_MAX and self.loader is not None:
            self.lookups += 1
            if (found := self.loader.find_posted(self, number)) is not None:
                return found
        return self.postings().of(number)

    # Writing

    def header(self) -> SegmentHeader:
        """Return the file's header."""
        return SegmentHeader(self.number, self.generation, self.key, self.first, self.high_water)

    def write_pending(self, tail_bytes: int) -> int:
        """Write what waits, the header too if the file is new, and return how many bytes that was.

        On an error `size` stays as it is.

        Args:
            tail_bytes: how much of the newest data stays in memory for readers.

        Raises:
            OSError: the disk refused.
        """
        data = b"".join(self.pending)
        start = self.size
        if start == 0:
            self.high_water = max(self.first - 1, 0)
            data = self.header().pack(self.file.disk.hashing) + data
            self.file.create()
        self.file.write(data, start)
        if self.hasher is not None:
            self.hasher.update(data)
        self.size = self.end = start + len(data)
        self.pending.clear()
        self.file.tail.keep(start, data, tail_bytes)
        return len(data)

    def roll_back(self, size: int, last: int) -> None:
        """Drop pending records and everything written behind `size`, and truncate the file there.

        Args:
            last: the last sequence that stays used; tombstones of later ones are forgotten too.

        Raises:
            OSError: the file could not be cut.
        """
        self.pending.clear()
        self.tombstones.forget_after(last)
        if self.size > size:
            self.hasher = None
            self.file.tail.clear()
        self.size = size
        self.end = size or HEADER_SIZE
        if self.file.handle is not None:
            self.file.truncate(size)

    def seal(self) -> None:
        """Seal a full segment: release what only a writer needs."""
        if self.hasher is not None:
            self.digest = self.hasher.intdigest()
            self.hasher = None
        self.worth_below = (self.live_bytes if self.generation else self.size) // 2
        self.file.tail.clear()
        if self.spilled is None:
            # Without the columns' spare capacity.
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

    def forget(self, start: int, end: int) -> None:
        self.dead_records = True

    # Reading

    def bytes_between(self, start: int, end: int) -> tuple[bytes, int]:
        """Return a buffer that holds the file's bytes from `start` to `end`, and where in the file the buffer begins.

        Raises:
            DamagedBlockError: the file is shorter than it was.
            OSError: the disk refused.
        """
        if end <= self.size:
            if (found := self.file.tail.find(start, end)) is not None:
                return found
            data = self.file.read(end - start, start)
            if len(data) < end - start:
                raise DamagedBlockError(self)
            return data, start
        waiting = b"".join(self.pending)
        self.pending[:] = (waiting,)
        written = self.size or HEADER_SIZE
        if start >= written:
            return waiting, written
        before, base = self.bytes_between(start, written)
        return before[start - base :] + waiting, start

    def size_and_subject(self, row: int, numbers: dict[bytes, int]) -> tuple[int, int]:
        if self.spilled is not None:
            with suppress(OSError, DamagedBlockError):  # The columns tell as well.
                message = self._peek(row)
                if message is not None and (number := numbers.get(message.subject)) is not None:
                    return record_size(message.subject, message.header, message.payload), number
        return self.sizes[row], self.subject_ids[row]

    def load(self, row: int, name_of: Callable[[int], bytes]) -> StoredMessage:
        message = self._peek(row) or _load_at(self, self.offsets[row], self.sizes[row])
        if message is None or message.sequence != self.sequence_of(row):
            raise DamagedBlockError(self)
        return message

    def _peek(self, row: int) -> StoredMessage | None:
        """Return a message of a spilled segment whose columns are released, and need not be read for so few.

        A record tells by itself whether it is the right one.
        """
        if self.spilled is None or self.loader is None or self.peeks > _PEEKS_MAX or _is_set(self, "offsets"):
            return None
        self.peeks += 1
        offsets = self.loader.offsets_of(self, row)
        if offsets is None or offsets[1] > self.size:
            return None
        offset, end = offsets
        message = unpack_message(first_record(self.file.read(end - offset, offset)), self.checksum)
        return message if message is not None and message.sequence == self.sequence_of(row) else None

    def load_run_columns(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> MessageColumns:
        offsets = self.offsets
        first = offsets[start]
        if offsets[end - 1] + self.sizes[end - 1] - first > max_bytes:
            # Records lie in the order of their rows, so that the last that fits is found by its place.
            end = max(bisect_right(offsets, first + max_bytes, start, end) - 1, start + 1)
        return _load_span(
            self,
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
        position = 0
        while position < len(rows):
            stop = _span(self.offsets, self.sizes, rows, position)
            part = rows[position:stop]
            messages += _load_span(
                self,
                [self.sequence_of(row) for row in part],
                [self.offsets[row] for row in part],
                [self.sizes[row] for row in part],
                [self.times[row] for row in part],
                [self.subject_ids[row] for row in part],
                names,
            ).messages()
            if len(messages) < stop:
                break
            position = stop
        return messages


def _load_at(segment: Segment, offset: int, size: int) -> StoredMessage | None:
    """Return the message whose record is there; None when there is no good one."""
    end = offset + size
    if segment.file.tail.offsets or end > segment.size:
        data, base = segment.bytes_between(offset, end)
        data = data[offset - base : end - base]
    else:
        data = segment.file.read(end - offset, offset)
    # A single message is not worth trusting blindly: the disk may have changed since the segment was looked at. And
    # what the record tells need not be fetched from columns that are far apart in memory.
    return unpack_message(data, segment.checksum)


def _load_span(
    segment: Segment,
    sequences: range | array[int] | list[int],
    offsets: array[int] | list[int],
    sizes: array[int] | list[int],
    times: array[int] | list[int],
    subject_ids: array[int] | list[int],
    names: list[bytes],
) -> MessageColumns:
    """Return the messages of rows that lie close together, from one buffer."""
    try:
        data, base = segment.bytes_between(offsets[0], offsets[-1] + sizes[-1])
    except OSError:
        if len(offsets) == 1:
            raise
        return MessageColumns.of(_load_before_fault(segment, sequences, names))
    # On a disk that authenticates, a segment's digest does not vouch for records, because it has no key.
    is_trusted = not segment.checksum.is_keyed or segment.file.tail.has(offsets[0])
    if not is_trusted and not are_good(data, base, offsets, sizes, segment.checksum):
        raise DamagedBlockError(segment)
    return unpack_run(data, base, sequences, offsets, sizes, times, subject_ids, names)


def _load_before_fault(
    segment: Segment, sequences: range | array[int] | list[int], names: list[bytes]
) -> list[StoredMessage]:
    """Return the messages before the first that the disk does not return; reading that one raises."""
    messages = [segment.load(segment.row_of(sequences[0]), names.__getitem__)]
    for sequence in sequences[1:]:
        try:
            messages.append(segment.load(segment.row_of(sequence), names.__getitem__))
        except OSError:
            break
    return messages


def _span(offsets: array[int], sizes: array[int], rows: list[int], position: int) -> int:
    """Return the place up to which rows lie close enough for one read."""
    begin = offsets[rows[position]]
    end = begin + sizes[rows[position]]
    for at in range(position + 1, len(rows)):
        offset = offsets[rows[at]]
        if offset - end > _READ_GAP or offset - begin > _READ_SPAN:
            return at
        end = offset + sizes[rows[at]]
    return len(rows)


def _is_set(segment: Segment, name: str) -> bool:
    """Return whether a part is in memory; asking for it otherwise would bring it back."""
    try:
        object.__getattribute__(segment, name)
    except AttributeError:
        return False
    return True


SECOND_ASIDE_SUFFIX = f".2{ASIDE_SUFFIX}"
"""Of a file that is compressed or no longer compressed and not in place; a rewrite may have one of its own."""

_COMPRESSED = b"JLCB"

_AHEAD_BYTES = 64 * 1024
_READ_BYTES = 4096


class Tail:
    """The tail of a file in memory: consecutive chunks, the oldest of which are dropped above a size.

    Attributes:
        offsets: where in the file each chunk begins.
    """

    __slots__ = ("_chunks", "_size", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._chunks: list[bytes] = []
        self._size = 0

    def keep(self, offset: int, data: bytes, max_bytes: int) -> None:
        """Append bytes that were written at an offset."""
        self._chunks.append(data)
        self.offsets.append(offset)
        self._size += len(data)
        if self._size <= 2 * max_bytes:
            return
        # Many at once: a list is slow to shorten at its front.
        drop = 0
        while self._size > max_bytes and drop < len(self._chunks) - 1:
            self._size -= len(self._chunks[drop])
            drop += 1
        del self._chunks[:drop], self.offsets[:drop]

    def has(self, start: int) -> bool:
        """Return whether everything from an offset on is in memory."""
        return bool(self.offsets) and start >= self.offsets[0]

    def find(self, start: int, end: int) -> tuple[bytes, int] | None:
        """Return bytes that hold those between two offsets, and where they begin; None when they are not in memory."""
        offsets = self.offsets
        if not offsets or start < offsets[0]:
            return None
        position = bisect_right(offsets, start) - 1
        data = self._chunks[position]
        if end <= offsets[position] + len(data):
            return data, offsets[position]
        last = bisect_right(offsets, end - 1)
        return b"".join(self._chunks[position:last]), offsets[position]

    def clear(self) -> None:
        """Drop everything: the next read goes to the disk."""
        self.offsets.clear()
        self._chunks.clear()
        self._size = 0


class LogFile:
    """The file of a segment.

    A file may be compressed: it is read as if it were not, and a write makes it uncompressed first.

    Attributes:
        disk: where the file is.
        folder, name: which file there.
        handle: None while the file is not open.
        tail: the newest written bytes, kept in memory.
        blocks: the blocks of a compressed file, while it is open.
        is_plain: whether the file is known not to be compressed; set to False when a compressed file replaces it.
        ahead: the file's length, if zeros follow what is written; 0 when that is not known.
    """

    __slots__ = ("ahead", "blocks", "disk", "folder", "handle", "is_plain", "name", "tail")

    def __init__(self, disk: Disk, folder: Path, name: str) -> None:
        self.disk = disk
        self.folder = folder
        self.name = name
        self.handle: int | None = None
        self.tail = Tail()
        self.blocks: CompressedBlocks | None = None
        self.is_plain = False
        self.ahead = 0

    @property
    def path(self) -> Path:
        """The file's whole name; of thousands of files, few are opened."""
        return self.folder / self.name

    def create(self) -> None:
        """Open an empty file of this name, unless the file is open."""
        if self.handle is None:
            self.handle = self.disk.open(self.path, create=True)
            self.disk.truncate(self.handle, 0)
            self.is_plain = True

    def open(self) -> int:
        """Open the file, unless it is open, and return its handle."""
        if self.handle is None:
            handle = self.disk.open(self.path)
            try:
                self.blocks = None if self.is_plain else table_of(self.disk, handle)
                self.is_plain = self.blocks is None
            except OSError:
                # A compressed file must not be taken for one that is not.
                self.disk.close(handle)
                raise
            self.handle = handle
        return self.handle

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        handle, self.handle = self.handle, None
        self.blocks = None
        if handle is not None:
            self.disk.close(handle)

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset.

        Raises:
            OSError: the disk refused.
        """
        handle = self.open() if self.handle is None else self.handle
        if self.blocks is not None:
            self._decompress()
            handle = self.open()
        self.disk.write(handle, data, offset)

    def truncate(self, size: int) -> None:
        """Cut an open file.

        Raises:
            OSError: the disk refused.
        """
        self._decompress()
        self.ahead = 0
        self.disk.truncate(self.open(), size)

    def extend(self, size: int, max_bytes: int) -> None:
        """Make an open file longer than the bytes that are written, unless the disk refuses.

        A sync after a write that changes no length has less to do. Nothing is allocated: zeros follow what is written.

        Args:
            size: how much is written.
            max_bytes: the greatest length.
        """
        ahead = min(size + max(_AHEAD_BYTES, size // 4), max_bytes)
        if size < ahead:
            with suppress(OSError):
                self.truncate(ahead)
                self.ahead = ahead

    def cut_zeros(self, size: int) -> None:
        """Roll back what `extend` did, unless the disk refuses."""
        if self.ahead > size:
            with suppress(OSError):
                self.truncate(size)

    def _decompress(self) -> None:
        """Rewrite a compressed file as it was, durably: the next write to it may be acknowledged."""
        if self.blocks is None:
            return
        content = self.read(self.blocks.size, 0)
        aside = self.folder / (self.name + SECOND_ASIDE_SUFFIX)
        handle = self.disk.open(aside, create=True)
        try:
            self.disk.truncate(handle, 0)
            self.disk.write(handle, content, 0)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)
        self.disk.replace(aside, self.path)
        self.disk.sync_folder(self.folder)
        self.close()

    def read(self, size: int, offset: int) -> bytes:
        """Read this many bytes at an offset, or fewer where the file ends.

        Raises:
            OSError: the disk refused.
        """
        handle = self.handle if self.handle is not None else self.open()
        if self.blocks is not None:
            return self.blocks.read(self.disk, handle, size, offset)
        return self.disk.read(handle, size, offset)

    def read_all(self, size: int, start: int = 0) -> bytes:
        """Read bytes of the file, with zeros for what the disk does not return.

        Raises:
            OSError: the file cannot even be opened, or the disk gives nothing of it back; a later attempt may succeed.
        """
        try:
            return self.read(size, start)
        except OSError as error:
            chunks = []
            is_readable = False
            if self.blocks is not None:
                # What is in memory says nothing of the disk.
                self.blocks.forget()
            for offset in range(start, start + size, _READ_BYTES):
                length = min(_READ_BYTES, start + size - offset)
                try:
                    chunks.append(self.read(length, offset).ljust(length, b"\0"))
                    is_readable = True
                except OSError:
                    chunks.append(bytes(length))
            if not is_readable:
                raise error
            return b"".join(chunks)

    def cut(self, size: int) -> None:
        """Cut the file, if it is still there.

        Raises:
            OSError: the disk refused.
        """
        try:
            self.open()
            self.truncate(size)
        except FileNotFoundError:
            pass


def table_of(disk: Disk, handle: int) -> CompressedBlocks | None:
    """Return the table of a compressed file; None when the file is not compressed.

    Raises:
        OSError: the disk refused.
    """
    size = disk.size(handle)
    at_end = disk.read(handle, len(_COMPRESSED), max(size - len(_COMPRESSED), 0))
    if at_end != _COMPRESSED and disk.read(handle, len(_COMPRESSED), HEADER_SIZE) != _COMPRESSED:
        return None
    from jetlake.store.log.compressed_blocks import read_table

    return read_table(disk, handle)
