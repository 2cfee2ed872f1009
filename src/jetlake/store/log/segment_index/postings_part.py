"""The postings in a segment index, in pages with hashes of their own: one subject is found by reading few of them.

A table comes first, which tells the hash of each page, and with which subject each page of the directory begins. The
pages hold the directory, an entry for each subject, and then the sequences.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

from jetlake.store.columns import column_bytes, column_parts, read_column
from jetlake.store.files.checksum import Checksum
from jetlake.store.index.postings import Posted, Postings
from jetlake.store.log.segment import IndexParts
from jetlake.store.steps import Steps

__all__ = ["PostingsPart", "pack_postings", "table_size"]

PAGE = 4096
_ENTRY = 16
_ENTRIES_PER_PAGE = PAGE // _ENTRY
# How much is packed in a step.
_PART = 256 * 1024
# A directory that is not longer is read together with the table: a disk is asked once instead of twice.
_READ_AHEAD_MAX = 32 * 1024
# Behind the last subject: no subject has this number.
_END = 0xFFFF_FFFF

Read = Callable[[int, int], bytes]
"""Reads this many bytes at an offset, or fewer where the file ends."""


def table_size(subject_count: int, pages_size: int) -> int:
    """Return how long the table is."""
    return 8 * -(-pages_size // PAGE) + 4 * -(-_directory_size(subject_count) // PAGE)


def pack_postings(postings: Postings, checksum: Checksum) -> Steps[tuple[bytes, list[bytes]]]:
    """Return the table and the pages of postings, those in parts."""
    numbers = postings.numbers + array("I", (_END,))
    hashes: array[int] = array("Q")
    parts: list[bytes] = []
    rest = b""
    for part in chain(_directory(postings, numbers), column_parts(postings.sequences, _PART)):
        data = rest + part
        end = len(data) // PAGE * PAGE
        if end:
            parts.append(data[:end])
            hashes.extend(_hashes(parts[-1], checksum))
        rest = data[end:]
        yield
    parts.append(rest)
    hashes.extend(_hashes(rest, checksum))
    return column_bytes(hashes) + column_bytes(numbers[::_ENTRIES_PER_PAGE]), parts


def _directory(postings: Postings, numbers: array[int]) -> Iterator[bytes]:
    """Yield the directory in parts; `numbers` has the subjects' numbers and the end marker."""
    count = _PART // _ENTRY
    for start in range(0, len(numbers), count):
        part = numbers[start : start + count]
        entries = array("I", bytes(_ENTRY * len(part)))
        entries[::4], entries[1::4] = part, postings.starts[start : start + count]
        if postings.earlier is not None:
            earlier = read_column("I", column_bytes(postings.earlier[start : start + count]))
            earlier.frombytes(bytes(8 * len(part) - 4 * len(earlier)))  # for the end marker
            entries[2::4], entries[3::4] = earlier[::2], earlier[1::2]
        yield column_bytes(entries)


def _directory_size(subject_count: int) -> int:
    return _ENTRY * (subject_count + 1)


def _hashes(pages: bytes, checksum: Checksum) -> array[int]:
    view = memoryview(pages)
    return array("Q", [checksum.number(view[start : start + PAGE]) for start in range(0, len(pages), PAGE)])


class PostingsPart:
    """The postings in one file, for as long as the file is open.

    Args:
        read: reads the file.
        parts: where the table begins, its hash, and how long the pages are.
        checksum: of the table and of each page.
    """

    def __init__(self, read: Read, parts: IndexParts, checksum: Checksum) -> None:
        self._read = read
        self._checksum = checksum
        self._size = parts.subjects_size
        self._table_hash = parts.subjects_hash
        self._count = parts.subject_count
        self._counts_earlier = parts.counts_earlier
        self._table_at = parts.subjects_at
        self._pages_at = self._table_at + table_size(self._count, self._size)
        self._hashes: array[int] = array("Q")
        self._firsts: array[int] = array("I")
        self._ahead = b""

    def read_all(self) -> Steps[Postings | None]:
        """Return the postings of all subjects; None when something is damaged."""
        end = _directory_size(self._count)
        if not self._read_table() or self._size < end:
            return None
        numbers, starts, earlier, sequences = array("I"), array("I"), array("Q"), array("Q")
        for start in range(0, self._size, _PART):
            yield
            data = self._pages(start, min(start + _PART, self._size))
            if data is None:
                return None
            entries = read_column("I", data[: max(end - start, 0)])
            numbers.extend(entries[::4])
            starts.extend(entries[1::4])
            halves = array("I", bytes(len(entries) * 2))
            halves[::2], halves[1::2] = entries[2::4], entries[3::4]
            earlier.extend(read_column("Q", column_bytes(halves)))
            sequences.extend(read_column("Q", data[max(end - start, 0) :]))
        yield
        return Postings.of_starts(numbers[:-1], starts, sequences, earlier[:-1] if self._counts_earlier else None)

    def find(self, number: int) -> Posted | None:
        """Return the postings of one subject; None when something is damaged."""
        if not self._read_table():
            return None
        page = bisect_right(self._firsts, number) - 1
        if page < 0:
            return Posted(array("Q"), None)
        directory_size = _directory_size(self._count)
        # The entry behind the subject's tells where its sequences end.
        data = self._pages(page * PAGE, min((page + 1) * PAGE + _ENTRY, directory_size))
        if data is None:
            return None
        entries = read_column("I", data)
        position = 4 * bisect_left(entries[::4], number)
        if position + 4 >= len(entries) or entries[position] != number:
            return Posted(array("Q"), None)
        start, end = (directory_size + 8 * entries[at] for at in (position + 1, position + 5))
        sequences = self._pages(start, end)
        if sequences is None:
            return None
        earlier = entries[position + 2] | entries[position + 3] << 32
        return Posted(read_column("Q", sequences), earlier if self._counts_earlier else None)

    def _read_table(self) -> bool:
        """Read the table; False when it is damaged."""
        size = self._pages_at - self._table_at
        pages_ahead = min(PAGE * -(-_directory_size(self._count) // PAGE), self._size)
        data = self._read(size + (pages_ahead if pages_ahead <= _READ_AHEAD_MAX else 0), self._table_at)
        table, self._ahead = data[:size], data[size:]
        if len(table) < size or self._checksum.number(table) != self._table_hash:
            return False
        hashes_size = 8 * -(-self._size // PAGE)
        self._hashes = read_column("Q", table[:hashes_size])
        self._firsts = read_column("I", table[hashes_size:])
        return True

    def _pages(self, start: int, end: int) -> bytes | None:
        """Return the bytes from one place to another; None when a page that they are on is damaged."""
        first, last = start // PAGE, -(-end // PAGE)
        begin = first * PAGE
        stop = min(last * PAGE, self._size)
        if stop <= len(self._ahead):
            data = self._ahead[begin:stop]
        else:
            data = self._read(stop - begin, self._pages_at + begin)
        if start > end or _hashes(data, self._checksum) != self._hashes[first:last]:
            return None
        return data[start - begin : end - begin]
