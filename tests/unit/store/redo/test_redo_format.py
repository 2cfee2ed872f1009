"""The redo log's bytes: whatever a power cut leaves of them, an entry is there whole or not at all."""

from random import Random

import pytest

from jetlake.store.redo.redo_format import (
    FIRST_ENTRY,
    Header,
    find_entries,
    find_header,
    is_unused,
    pack_entry,
    pack_part,
)
from jetlake.store.redo.redo_format import unpack_parts as unpack

SALT = 2**64 - 3
PIECES = [
    pack_part(b"A/streams/S/msgs", 7, 1, 0, 44, b"first"),
    pack_part(b"A/streams/T/msgs", 2**64 - 1, 2**32 - 1, 2, 4096, b"second"),
]


@pytest.fixture
def data():
    """A file with three entries, of two parts, one and none."""
    file = bytearray(FIRST_ENTRY)
    for parts in (PIECES, PIECES[1:], []):
        file += pack_entry(parts, SALT, len(file))
    return bytes(file)


def test_parts_come_back(data):
    bodies, damaged_bytes = find_entries(data + bytes(100), SALT)
    assert bodies == [b"".join(PIECES), PIECES[1], b""] and damaged_bytes == 0
    first, second = unpack(bodies[0])
    assert first == ("A/streams/S/msgs", 7, 1, 0, 44, b"first")
    assert second == ("A/streams/T/msgs", 2**64 - 1, 2**32 - 1, 2, 4096, b"second")


def test_an_entry_that_is_cut_anywhere_is_the_end(data):
    starts = [FIRST_ENTRY]
    for body in find_entries(data, SALT)[0]:
        starts.append(starts[-1] + 16 + len(body))
    for size in range(FIRST_ENTRY, len(data)):
        whole = sum(end <= size for end in starts[1:])
        for rest in (b"", bytes(50)):
            bodies, damaged_bytes = find_entries(data[:size] + rest, SALT)
            assert len(bodies) == whole and damaged_bytes == 0


def test_one_flipped_bit_costs_one_entry_and_is_told_when_others_follow(data):
    whole, _ = find_entries(data, SALT)
    for place in range(FIRST_ENTRY, len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        bodies, damaged_bytes = find_entries(bytes(flipped), SALT)
        assert len(bodies) == 2 and all(body in whole for body in bodies)
        assert bool(damaged_bytes) == (place < len(data) - 16), "the last entry may not have been synced"


def test_entries_of_another_salt_or_place_are_none(data):
    assert find_entries(data, SALT - 1) == ([], 0)
    assert find_entries(data[:FIRST_ENTRY] + b"\0" + data[FIRST_ENTRY:], SALT) == ([], 0)


def test_what_begins_an_entry_is_not_known_to_who_writes_messages():
    marks = {pack_entry([], salt, FIRST_ENTRY)[:4] for salt in range(100)}
    assert len(marks) == 100, "a file full of such bytes would have to be hashed millions of times"


def test_no_bytes_are_too_odd():
    random = Random(1)
    mark = pack_entry([], SALT, 0)[:4]
    for _ in range(300):
        noise = mark + random.choice((b"", b"\xff\xff\xff\xff", b"\x01\0\0\0")) + random.randbytes(40)
        assert find_entries(bytes(FIRST_ENTRY) + noise * 3, SALT)[0] == []
        list(unpack(noise))
        find_header(noise)


def test_the_newer_header_counts_and_a_torn_one_leaves_the_one_before():
    old, new = Header(4, 40), Header(5, 50)
    file = bytearray(FIRST_ENTRY)
    assert find_header(bytes(file)) is None
    for header in (old, new):
        file[header.offset : header.offset + len(header.pack())] = header.pack()
    assert find_header(bytes(file)) == new
    for place in range(new.offset, new.offset + len(new.pack())):
        torn = bytearray(file)
        torn[place] ^= 0x10
        assert find_header(bytes(torn)) == old


def test_a_file_whose_first_header_was_cut_short_had_no_entry(data):
    for header in (Header(1, 10), Header(2, 20)):
        for size in range(len(header.pack())):
            file = bytes(header.offset) + header.pack()[:size]
            assert find_header(file) is None and is_unused(file) and is_unused(file + bytes(9000))
            assert not is_unused(file.ljust(FIRST_ENTRY, b"\0") + data[FIRST_ENTRY:])
    assert not is_unused(b"somebody's file")
