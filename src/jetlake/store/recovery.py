"""Bringing a store back from its files: what is there, what is gone, what is lost. It always comes to an end."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

from jetlake.store.disk import Disk
from jetlake.store.mark import Mark
from jetlake.store.record import OVERHEAD
from jetlake.store.scan import Scan, scan
from jetlake.store.segment import HEADER_SIZE, Segment, SegmentHeader, segment_number
from jetlake.store.sequence_list import CHUNK
from jetlake.store.subject_index import SubjectIndex

__all__ = ["Recovered", "build_rows", "recover"]

_ASIDE = ".tmp"


class Recovered:
    """What the files hold.

    Attributes:
        key: the stream's key; 0 when there was nothing to learn it from.
        segments: with a living row for each good record; tombstones are not yet applied.
        tombstones: the sequences that are gone, as (first, last), in any order.
        missing: the sequences that should be there and are not, as (first, last); tombstones explain some.
        last_sequence: the highest one that was ever used.
        next_number: the number of the next segment.
        unsynced: the segments whose bytes may not be safe yet.
    """

    def __init__(self) -> None:
        self.key = 0
        self.segments: list[Segment] = []
        self.subjects = SubjectIndex()
        self.tombstones: list[tuple[int, int]] = []
        self.missing: list[tuple[int, int]] = []
        self.lost_bytes = 0
        self.last_sequence = 0
        self.last_time_ns = 0
        self.next_number = 1
        self.unsynced: list[Segment] = []


def recover(disk: Disk, folder: Path, mark: Mark, new_key: Callable[[], int]) -> Recovered:
    """Read all segments of a folder, one after the other."""
    found = Recovered()
    names = disk.list(folder)
    _clear_aside(disk, folder, names)
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    found.next_number = max(numbers, default=0) + 1
    headers = {number: _read_header(disk, folder, number) for number in numbers}
    found.key = mark.key or next((header.key for header in headers.values() if header is not None), 0) or new_key()
    # A file from elsewhere is left alone: its records would not verify here.
    own = [number for number in numbers if _belongs(headers[number], number, found.key)]
    content: Scan | None = None
    for place, number in enumerate(own):
        position = content.position if content is not None else 0
        read = _read_segment(disk, folder, found.key, number, headers[number], position)
        if read is None:
            continue
        segment, content = read
        following = own[place + 1] if place + 1 < len(own) else None
        _take_in(found, segment, content, None if following is None else headers[following])
        if following is not None:
            segment.seal()
    _find_the_end(found, content, mark)
    return found


def _clear_aside(disk: Disk, folder: Path, names: list[str]) -> None:
    for name in names:
        if name.endswith(_ASIDE):
            try:
                disk.remove(folder / name)
            except OSError:
                # It is in nobody's way.
                pass


def _read_header(disk: Disk, folder: Path, number: int) -> SegmentHeader | None:
    segment = Segment(disk, folder, 0, number, 1)
    try:
        return SegmentHeader.unpack(disk.read(segment.open(), HEADER_SIZE, 0))
    except OSError:
        return None
    finally:
        segment.close()


def _belongs(header: SegmentHeader | None, number: int, key: int) -> bool:
    """Whether a file is one of this stream's; a damaged header leaves it to its records to tell."""
    return header is None or (header.key == key and header.number == number)


def _read_segment(
    disk: Disk, folder: Path, key: int, number: int, header: SegmentHeader | None, position: int
) -> tuple[Segment, Scan] | None:
    segment = Segment(disk, folder, key, number, position + 1)
    if header is not None:
        segment.first = header.first_sequence
        segment.generation = header.generation
        segment.high_water = header.high_water
    try:
        data = segment.read_all()
    except OSError:
        return None
    content = scan(data, HEADER_SIZE, segment.seed, segment.first - 1)
    if header is None and content.sequences:
        segment.first = content.sequences[0]
    segment.size = segment.end = max(content.end, HEADER_SIZE)
    if segment.hasher is not None:
        segment.hasher.update(data[: segment.size])
    return segment, content


def _take_in(found: Recovered, segment: Segment, content: Scan, following: SegmentHeader | None) -> None:
    build_rows(segment, content, found.subjects)
    found.segments.append(segment)
    found.unsynced.append(segment)
    found.tombstones += content.tombstones
    for first, last in content.tombstones:
        segment.note_tombstone(first, last)
    found.missing += content.missing
    found.lost_bytes += content.damaged_bytes
    found.last_time_ns = max(found.last_time_ns, content.last_time_ns)
    found.last_sequence = max(found.last_sequence, content.highest, segment.high_water)
    if (
        following is not None
        and following.number == segment.number + 1
        and content.position + 1 < following.first_sequence
    ):
        found.missing.append((content.position + 1, following.first_sequence - 1))
        found.lost_bytes += content.torn_bytes


def build_rows(segment: Segment, content: Scan, subjects: SubjectIndex) -> None:
    """Give a segment a living row for each message of a scan, and each subject its sequences."""
    sequences = content.sequences
    count = len(sequences)
    ids = subjects.ids
    tails = subjects.tails
    numbers: array[int] = array("I")
    for subject, sequence in zip(content.subjects, sequences, strict=True):
        number = ids.get(subject)
        if number is None:
            number = subjects.add(subject, sequence)
        else:
            tail = tails[number]
            if type(tail) is array and len(tail) < CHUNK:
                tail.append(sequence)
            else:
                subjects.grow(number, sequence)
        numbers.append(number)
    segment.live_count = count
    segment.live_bytes = sum(content.sizes)
    segment.sizes, segment.times, segment.offsets = content.sizes, content.times, content.offsets
    segment.subject_ids = numbers
    segment.live = bytearray(b"\x01") * count
    if count and sequences[-1] - segment.first + 1 != count:
        segment.sequences = sequences


def _find_the_end(found: Recovered, content: Scan | None, mark: Mark) -> None:
    """Find the last sequence that was ever used, and what is missing at the end of the log."""
    found.last_sequence = max(found.last_sequence, mark.flushed, mark.synced)
    if content is None:
        if mark.synced:
            found.missing.append((1, mark.synced))
        return
    if content.torn_bytes and not mark.key:
        # Nothing but the torn bytes tells how many records were there: rather leave sequences out than use one twice.
        found.last_sequence += content.torn_bytes // (OVERHEAD + 1) + 1
    # What was written and never known to be safe is no loss: nobody was promised anything.
    end = max(mark.synced, content.highest if content.open_damage else 0)
    if content.position < end:
        found.missing.append((content.position + 1, end))
        found.lost_bytes += content.torn_bytes
