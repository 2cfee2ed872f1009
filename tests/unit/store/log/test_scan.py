"""A file that is read in windows says the same as one that is read at once."""

from __future__ import annotations

from random import Random

import pytest

from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.log.record import find_record, pack_message, pack_tombstone
from jetlake.store.log.scan import Scan, scan, scan_long

CHECKSUM = PLAIN_HASHING.checksum(b"record", 77)


def some_log(random: Random) -> bytes:
    """Records, tombstones, damage and zeros, as chance has them."""
    data = bytearray()
    sequence = 0
    for _ in range(random.randint(0, 60)):
        kind = random.random()
        sequence += 1
        if kind < 0.7:
            data += pack_message(
                sequence, 1000 + sequence, b"s.%d" % (sequence % 3), b"", random.randbytes(9), CHECKSUM
            )
        elif kind < 0.8:
            sequence += 2
            data += pack_tombstone(sequence - 2, sequence, 1000 + sequence, CHECKSUM)
        elif kind < 0.9:
            data += random.randbytes(random.randint(1, 50))
        else:
            data += bytes(random.randint(1, 300))
    return bytes(data)


def told(found: Scan) -> tuple[object, ...]:
    return (
        list(found.sequences),
        list(found.offsets),
        list(found.sizes),
        found.subjects,
        found.tombstones,
        found.missing,
        found.position,
        found.highest,
        found.end,
        found.torn_bytes,
        found.last_time_ns,
    )


@pytest.mark.parametrize("window", [128, 500, 1 << 20])
def test_windows_change_nothing(window: int) -> None:
    for seed in range(300):
        data = some_log(Random(seed))
        for position in (0, None):
            whole = scan(data, 0, CHECKSUM, position)
            in_windows = scan_long(
                lambda size, at, data=data: data[at : at + size], len(data), 0, CHECKSUM, position, window
            )
            assert told(in_windows) == told(whole), (seed, position)


def test_a_search_gives_up_when_there_is_nothing_but_garbage() -> None:
    record = pack_message(1, 1000, b"s", b"", b"first", CHECKSUM)
    reads: list[int] = []

    def read(size: int, at: int) -> bytes:
        reads.append(at)
        return (record + bytes(size))[:size] if not at else b"\x01" * size

    found = scan_long(read, 1 << 60, 0, CHECKSUM, 0, 1 << 20)
    assert (list(found.sequences), found.end) == ([1], len(record))
    assert len(reads) < 1000


@pytest.mark.parametrize("last_sequence", [0, 1 << 20, (1 << 40) - (1 << 32) - 2, 1 << 40, 1 << 50])
@pytest.mark.parametrize("filler", [b"\0", b"\x01", b"\0\0\0\x40", b"text"])
def test_the_next_record_is_found_behind_anything(last_sequence: int, filler: bytes) -> None:
    for flags in (0, 1 << 62, 1 << 63):
        record = pack_message((last_sequence + 5) | flags, 1000, b"s", b"", b"here", CHECKSUM)
        for length in range(40):
            data = (filler * 40)[:length] + record + b"behind"
            assert find_record(data, 0, CHECKSUM, last_sequence) == length
    assert find_record(filler * 100, 0, CHECKSUM, last_sequence) == -1
