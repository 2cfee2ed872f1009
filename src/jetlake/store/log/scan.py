"""Reading a segment's bytes record by record, past whatever is damaged."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from jetlake.store.files.checksum import Checksum
from jetlake.store.log.record import (
    ERASED,
    FOLLOWED,
    HASH_SIZE,
    HEAD_SIZE,
    HEADER_FLAG,
    OVERHEAD,
    PRECEDED,
    RANGE_TOMBSTONE_SIZE,
    SEQUENCE_MASK,
    TOMBSTONE,
    find_record,
    header_at,
    is_half_erased,
    tombstone_last,
    unpack_head,
)

__all__ = ["WINDOW_BYTES", "Scan", "headers_in", "scan", "scan_long"]

WINDOW_BYTES = 160 * 1024 * 1024
"""How much of a file is read at once: more than twice the longest record."""
_GARBAGE_BYTES_MAX = 2 * WINDOW_BYTES
"""When this many bytes hold no record, none follows."""
_OFFSET_MAX = (1 << 32) - 1
_LENGTH_MASK = HEADER_FLAG - 1
_LINKS = FOLLOWED | PRECEDED


class Scan:
    """What the records of a segment say.

    Attributes:
        sequences, offsets, sizes, times, subjects: one entry for each message, in the order of the file.
        tombstones: the sequences that are gone, as (first, last).
        links: the members of groups, as (sequence, `FOLLOWED` and `PRECEDED` marks).
        missing: the sequences that damaged records must have held, as (first, last).
        damaged_bytes: how much could not be understood.
        half_erased: the sequences of messages that were being erased, and are damaged by it.
        hidden_at: the first place in that where a tombstone may have been; 0 for none.
        position: the last sequence up to which nothing is missing but what `missing` says.
        highest: the highest sequence that a record speaks of.
        open_damage: whether damage follows `position`, so that more may be missing than `missing` says.
        end: behind the last good record.
        torn_bytes: how much follows it that is no record; zeros at the end do not count.
        last_time_ns: the newest time in it.
    """

    __slots__ = (
        "damaged_bytes",
        "end",
        "half_erased",
        "hidden_at",
        "highest",
        "last_time_ns",
        "links",
        "missing",
        "offsets",
        "open_damage",
        "position",
        "sequences",
        "sizes",
        "subjects",
        "times",
        "tombstones",
        "torn_bytes",
    )

    def __init__(self, position: int, end: int) -> None:
        self.sequences: array[int] = array("Q")
        self.offsets: array[int] = array("I")
        self.sizes: array[int] = array("I")
        self.times: array[int] = array("q")
        self.subjects: list[bytes] = []
        self.tombstones: list[tuple[int, int]] = []
        self.links: list[tuple[int, int]] = []
        self.missing: list[tuple[int, int]] = []
        self.damaged_bytes = 0
        self.half_erased: list[int] = []
        self.hidden_at = 0
        self.torn_bytes = 0
        self.position = self.highest = position
        self.open_damage = False
        self.end = end
        self.last_time_ns = 0

    def only(self, rows: list[int]) -> Scan:
        """Return the messages at these places of the columns, without the rest."""
        part = Scan(self.position, self.end)
        part.sequences = array("Q", (self.sequences[row] for row in rows))
        part.offsets = array("I", (self.offsets[row] for row in rows))
        part.sizes = array("I", (self.sizes[row] for row in rows))
        part.times = array("q", (self.times[row] for row in rows))
        part.subjects = [self.subjects[row] for row in rows]
        return part

    def drop_until(self, sequence: int) -> bool:
        """Leave out the messages up to a sequence; False when there is none."""
        count = bisect_right(self.sequences, sequence)
        for column in (self.sequences, self.offsets, self.sizes, self.times, self.subjects):
            del column[:count]
        return count > 0

    def append(self, following: Scan, offset: int) -> None:
        """Take over what a scan found that went on behind this one, in bytes that begin at that offset."""
        self.sequences.extend(following.sequences)
        self.offsets.extend(offset + each for each in following.offsets)
        self.sizes.extend(following.sizes)
        self.times.extend(following.times)
        self.subjects += following.subjects
        self.tombstones += following.tombstones
        self.links += following.links
        self.missing += following.missing
        self.damaged_bytes += following.damaged_bytes
        self.half_erased += following.half_erased
        if following.hidden_at:
            self.hidden_at = self.hidden_at or offset + following.hidden_at
        self.position, self.open_damage = following.position, following.open_damage
        self.highest = max(self.highest, following.highest)
        self.last_time_ns = max(self.last_time_ns, following.last_time_ns)
        self.end = offset + following.end


def scan_long(
    read: Callable[[int, int], bytes],
    size: int,
    start: int,
    checksum: Checksum,
    position: int | None,
    window: int = WINDOW_BYTES,
) -> Scan:
    """Read all good records of a file that is too long to be read at once.

    Args:
        read: gives this many bytes of the file, from an offset on.
        size: how long the file is.
    """
    found = Scan(position or 0, start)
    size = min(size, _OFFSET_MAX)
    at = behind = start
    while at < size:
        data = read(min(window, size - at), at)
        if written := len(data.rstrip(b"\0")):
            behind = at + written
        before = None if position is None and not found.sequences else found.position
        part = scan(data, 0, checksum, before, found.open_damage)
        if part.end:
            found.append(part, at)
        is_last = at + len(data) >= size
        if is_last or not data:
            break
        if at - found.end > _GARBAGE_BYTES_MAX:
            behind = size
            break
        # The window's end may lie in a record, which the next one has whole.
        at = found.end if part.end else at + window // 2
        found.open_damage = found.open_damage or not part.end
    found.torn_bytes = max(behind - found.end, 0)
    return found


def scan(data: bytes, start: int, checksum: Checksum, position: int | None, damaged: bool = False) -> Scan:
    """Read all good records.

    Args:
        start: where the first record begins.
        position: the last sequence before these records; None when it is unknown.
        damaged: whether there is damage before these bytes.
    """
    is_first = position is None
    start_position = position = position or 0
    found = Scan(position, start)
    add_sequence = found.sequences.append
    add_offset = found.offsets.append
    add_size = found.sizes.append
    add_time = found.times.append
    add_subject = found.subjects.append
    view = memoryview(data)
    digest, seed, _ = checksum
    size = len(data)
    time_ns = 0
    highest = position
    in_order = True
    at = start
    while at < size:
        if at + OVERHEAD <= size:
            length, sequence, time_ns, subject_length = unpack_head(data, at)
            length &= _LENGTH_MASK
            end = at + length
            if (
                end <= size
                and length >= OVERHEAD + subject_length
                and data[end - HASH_SIZE : end] == digest(view[at : end - HASH_SIZE], seed)
            ):
                if sequence >= FOLLOWED and sequence & _LINKS:
                    sequence = _note_links(found, sequence)
                if sequence < TOMBSTONE:
                    add_sequence(sequence)
                    add_offset(at)
                    add_size(length)
                    add_time(time_ns)
                    add_subject(data[at + HEAD_SIZE : at + HEAD_SIZE + subject_length])
                    if sequence <= position:
                        in_order = False
                    if damaged and sequence > position + 1 and not is_first:
                        found.missing.append((position + 1, sequence - 1))
                    position = sequence
                    if sequence > highest:
                        highest = sequence
                    damaged = is_first = False
                else:
                    last = _tombstone_end(data, at, sequence, length)
                    found.tombstones.append((sequence & SEQUENCE_MASK, last))
                    if last > highest:
                        highest = last
                        if not damaged:
                            position = last
                if time_ns > found.last_time_ns:
                    found.last_time_ns = time_ns
                at = end
                found.end = end
                continue
        following = find_record(data, at + 1, checksum, position)
        if erased := _half_erased(data, at, following if following >= 0 else size, position, checksum):
            found.half_erased += erased
            highest = max(highest, erased[-1])
        if following < 0:
            break
        if not found.hidden_at and not _are_messages(data, at, following, position):
            found.hidden_at = at
        damaged = True
        found.damaged_bytes += following - at
        at = following
    found.torn_bytes = len(data[found.end :].rstrip(b"\0"))
    found.position = position
    found.highest = highest
    found.open_damage = damaged
    return found if in_order else _in_order(found, start_position)


def _are_messages(data: bytes, at: int, end: int, sequence: int) -> bool:
    """Return whether damaged bytes are the records of the messages that follow a sequence, and nothing else.

    A message that was being erased is one too: its record is half overwritten, and a tombstone beside it.
    """
    while at + OVERHEAD <= end:
        length, marked, _, _ = unpack_head(data, at)
        length &= _LENGTH_MASK
        sequence += 1
        if length < OVERHEAD or marked & ~(_LINKS | ERASED) != sequence:
            return False
        at += length
    return at == end


def _half_erased(data: bytes, at: int, end: int, sequence: int, checksum: Checksum) -> list[int]:
    """Return which messages were being erased, of those behind a sequence with whose records damaged bytes begin."""
    erased: list[int] = []
    while at + OVERHEAD <= end:
        length, marked, _, _ = unpack_head(data, at)
        length &= _LENGTH_MASK
        sequence += 1
        if not OVERHEAD <= length <= end - at or marked & ~(_LINKS | ERASED) != sequence:
            break
        if is_half_erased(data, at, length, checksum):
            erased.append(sequence)
        at += length
    return erased


def _tombstone_end(data: bytes, at: int, sequence: int, length: int) -> int:
    """Return the last sequence that a tombstone removes: its own, unless the tombstone covers a range."""
    if sequence & ERASED == 0 and length == RANGE_TOMBSTONE_SIZE:
        return tombstone_last(data, at)
    return sequence & SEQUENCE_MASK


def _note_links(found: Scan, sequence: int) -> int:
    """Note a member of a group; its sequence without the links."""
    found.links.append((sequence & SEQUENCE_MASK, sequence & _LINKS))
    return sequence & ~_LINKS


def headers_in(data: bytes, checksum: Checksum, time_ns: int) -> list[tuple[int, int, bytes]]:
    """Sequence, time and header of the messages in these records that have one and are not older."""
    found = scan(data, 0, checksum, None)
    return [
        (sequence, time, header)
        for sequence, at, time, subject in zip(found.sequences, found.offsets, found.times, found.subjects, strict=True)
        if time >= time_ns and (header := header_at(data, at, len(subject)))
    ]


def _in_order(found: Scan, start_position: int) -> Scan:
    """Return the same without records that stand in the wrong place: a disk wrote a good record over another one.

    As many as possible are kept, so that such a write costs the record it went over and no other.
    """
    kept = _longest_rise(found.sequences, start_position)
    ordered = found.only(kept)
    ordered.tombstones = found.tombstones
    ordered.links = found.links
    ordered.highest = found.highest
    ordered.last_time_ns = found.last_time_ns
    ordered.torn_bytes = found.torn_bytes
    ordered.half_erased = found.half_erased
    ordered.hidden_at = found.hidden_at
    ordered.damaged_bytes = found.damaged_bytes + sum(found.sizes) - sum(ordered.sizes)
    ordered.position = ordered.sequences[-1] if kept else start_position
    left_out = set(range(len(found.sequences))).difference(kept)
    ordered.open_damage = found.open_damage or len(found.sequences) - 1 in left_out
    # It is unknown which of two copies is right, so a gap on either side of one left out counts as missing.
    before, position = -1, start_position
    for row, sequence in zip(kept, ordered.sequences, strict=True):
        was_missing = any(first < sequence and position < last for first, last in found.missing)
        near = {before - 1, before + 1, row - 1, row + 1}
        if position + 1 < sequence and (was_missing or near & left_out):
            ordered.missing.append((position + 1, sequence - 1))
        before, position = row, sequence
    return ordered


def _longest_rise(values: array[int], floor: int) -> list[int]:
    """Return the places of as many values as possible, each greater than the one before it, and all than the floor."""
    ends: list[int] = []  # the smallest value that ends a rise of each length
    rows: list[int] = []  # where it stands
    before: list[int] = []
    for row, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(rows[length - 1] if length else -1)
        if value <= floor:
            continue
        if length == len(ends):
            ends.append(value)
            rows.append(row)
        else:
            ends[length] = value
            rows[length] = row
    rise: list[int] = []
    row = rows[-1] if rows else -1
    while row >= 0:
        rise.append(row)
        row = before[row]
    return rise[::-1]
