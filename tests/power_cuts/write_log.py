"""The log of everything that was written to a disk, in order, and the images that a power cut may leave of it.

A disk with a write cache promises one thing: what it had taken before a flush is there after that flush. Of later
writes any may be there and any may not, in whole sectors. A cut is a position in the log, so that one run of a program
can be cut anywhere, any number of times, afterwards.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
PAGE = 4096
_ENTRY = struct.Struct("<BdQI")
_WRITE, _FLUSH = 0, 1
_COPY_BYTES = 1024 * 1024


class LogWriter:
    """Appends what a disk was asked to do.

    Attributes:
        count: how many entries there are.
    """

    def __init__(self, path):
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - open for as long as the disk is there
        self.count = 0

    def close(self):
        self._file.close()

    def write(self, now, offset, data):
        """Note a write."""
        self._file.write(_ENTRY.pack(_WRITE, now, offset, len(data)) + data)
        self.count += 1

    def flush(self, now):
        """Note a flush, of all writes before it."""
        self._file.write(_ENTRY.pack(_FLUSH, now, 0, 0))
        self.count += 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A write, or a flush.

    Attributes:
        time: when it came, of the machine's steady clock.
        offset: where on the disk it was written.
        start, size: where in the log's file the bytes are, and how many; a flush has none.
    """

    is_flush: bool
    time: float
    offset: int
    start: int
    size: int


def read_log(path):
    """Return the entries of a log, in their order."""
    entries = []
    with Path(path).open("rb") as file:
        place = 0
        while len(head := file.read(_ENTRY.size)) == _ENTRY.size:
            kind, time, offset, size = _ENTRY.unpack(head)
            place += _ENTRY.size
            entries.append(Entry(kind == _FLUSH, time, offset, place, size))
            place += size
            file.seek(place)
    return entries


class CutDisk:
    """A disk whose power is cut at one position of its log after the other, never going back.

    Args:
        path: the file of the log.
        image: a file with what was on the disk before the log began. It is changed: the durable writes go there.
        random: decides what is left of the writes that no flush has made durable.
    """

    def __init__(self, path, image, random):
        self.entries = read_log(path)
        self._log = Path(path).open("rb")  # noqa: SIM115 - open for as long as there are cuts
        self._image = Path(image)
        self._random = random
        self._durable = 0

    def close(self):
        self._log.close()

    def cut(self, position, target):
        """Write to the target what a power cut leaves, when the first so many entries have happened.

        Returns:
            What was done with the writes that were not flushed, in words.
        """
        flushed = position
        while flushed > self._durable and not self.entries[flushed - 1].is_flush:
            flushed -= 1
        with self._image.open("r+b") as image:
            for entry in self.entries[self._durable : flushed]:
                if not entry.is_flush:
                    image.seek(entry.offset)
                    image.write(self._bytes(entry))
        self._durable = max(self._durable, flushed)
        copy_sparse(self._image, target)
        doubtful = [entry for entry in self.entries[self._durable : position] if not entry.is_flush]
        words, kept = self._choose(doubtful)
        with Path(target).open("r+b") as cut_image:
            for offset, data in kept:
                cut_image.seek(offset)
                cut_image.write(data)
        return f"{words}, of {len(doubtful)} writes"

    def _choose(self, doubtful):
        """Return in words which writes are left, and these, as offset and bytes."""
        random = self._random
        way = random.choice(["nothing", "everything", "the first", "any", "any, torn at pages", "any, torn at sectors"])
        if way == "nothing":
            return way, []
        if way == "everything":
            return way, [(entry.offset, self._bytes(entry)) for entry in doubtful]
        if way == "the first":
            count = random.randint(0, len(doubtful))
            return f"the first {count}", [(entry.offset, self._bytes(entry)) for entry in doubtful[:count]]
        chance = random.choice([0.1, 0.5, 0.9])
        unit = {"any": None, "any, torn at pages": PAGE, "any, torn at sectors": SECTOR}[way]
        kept = []
        for entry in doubtful:
            data = self._bytes(entry)
            size = unit or len(data)
            starts = [start for start in range(0, len(data), size) if random.random() < chance]
            kept += [(entry.offset + start, data[start : start + size]) for start in starts]
        return f"{way} with a chance of {chance}", kept

    def _bytes(self, entry):
        self._log.seek(entry.start)
        return self._log.read(entry.size)


def copy_sparse(source, target):
    """Copy a file without its holes."""
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        write.truncate(size)
        place = 0
        while place < size:
            try:
                place = os.lseek(read.fileno(), place, os.SEEK_DATA)
            except OSError:
                return  # Nothing but a hole follows.
            end = os.lseek(read.fileno(), place, os.SEEK_HOLE)
            while place < end:
                data = os.pread(read.fileno(), min(_COPY_BYTES, end - place), place)
                os.pwrite(write.fileno(), data, place)
                place += len(data)
