"""The encrypted disk is the disk below it to everyone who reads and writes, whatever they do."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.store.files.encrypted_disk import HEADER_BYTES, MAGIC, EncryptedDisk
from tests.support.faulty_disk import FaultyDisk

PATH = Path("/f")
KEY = bytes(32)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 100), st.integers(0, 70)),
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(0, 40)),
        st.tuples(st.just("zeros"), st.integers(0, 100), st.integers(0, 40)),
        st.tuples(st.just("truncate"), st.integers(0, 160), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("second"), st.integers(0, 60), st.integers(0, 20)),
    ),
    max_size=14,
)


class WeakDisk(EncryptedDisk):
    """Ciphertext with many zeros, so that what is left of a block often has nothing else; a whole block always has."""

    def _apply(self, header, nonce, data, offset):
        return bytes(
            byte ^ ((place * 7 // 3) & 1 or 0xF0 * (place % 16 == 9)) for place, byte in enumerate(data, offset)
        )


def make(cipher="chacha", seed=1):
    platter = FaultyDisk(Random(seed))
    return platter, WeakDisk(platter, KEY) if cipher == "weak" else EncryptedDisk(platter, KEY, cipher)


@settings(max_examples=200)
@given(STEPS, st.sampled_from(["aes", "chacha", "weak"]), st.integers(0, 1 << 30))
def test_it_reads_what_a_disk_in_the_clear_reads(steps, cipher, seed):
    random = Random(seed)
    platter, encrypted = make(cipher)
    plain = FaultyDisk(Random(2))
    disks = (encrypted, plain)
    handles = [disk.open(PATH, create=True) for disk in disks]
    for step, place, size in steps:
        data = bytes(size) if step == "zeros" else random.randbytes(size)
        if cipher == "weak":
            data = bytes(byte & 1 for byte in data)
        if step == "reopen":
            for disk, handle in zip(disks, handles, strict=True):
                disk.close(handle)
            if random.random() < 0.5 and cipher != "weak":
                encrypted = EncryptedDisk(platter, KEY, "aes")  # as after a restart, with another cipher for new files
                disks = (encrypted, plain)
            handles = [disk.open(PATH) for disk in disks]
        for disk, handle in zip(disks, handles, strict=True):
            if step == "truncate":
                disk.truncate(handle, place)
            elif step == "append":
                disk.write(handle, data, disk.size(handle))
            elif step == "second":
                other = disk.open(PATH)
                disk.write(other, data, place)
                disk.close(other)
            elif step != "reopen":
                disk.write(handle, data, place)
        size = plain.size(handles[1])
        assert encrypted.size(handles[0]) == size
        for start, count in ((0, size), (random.randint(0, size), random.randint(0, 40)), (size, 5), (size + 3, 5)):
            expected = plain.read(handles[1], count, start)
            assert encrypted.read(handles[0], count, start) == expected, (step, start, count)


@pytest.mark.parametrize("cipher", ["aes", "chacha"])
def test_nothing_is_in_the_clear_and_no_keystream_is_used_twice(cipher):
    platter, disk = make(cipher)
    contents = []
    for number in range(2):
        handle = disk.open(Path(f"/{number}"), create=True)
        disk.write(handle, b"A" * 4000, 0)
        contents.append(platter.content(Path(f"/{number}"))[HEADER_BYTES:])
    assert contents[0] != contents[1]
    assert b"AAAA" not in contents[0]
    # What is cut off and written again has another keystream, and what stays can still be read.
    handle = disk.open(Path("/0"))
    disk.truncate(handle, 1000)
    disk.write(handle, b"A" * 3000, 1000)
    again = platter.content(Path("/0"))[HEADER_BYTES:]
    assert again[:1000] == contents[0][:1000]
    assert not any(again[n : n + 8] == contents[0][n : n + 8] for n in range(1000, 3990))
    fresh = EncryptedDisk(platter, KEY, cipher)
    assert fresh.read(fresh.open(Path("/0")), 4000, 0) == b"A" * 4000


def test_a_cut_and_a_new_file_in_the_same_place_have_other_nonces():
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"one", 0)
    before = platter.content(PATH)
    disk.truncate(handle, 0)
    disk.write(handle, b"one", 0)
    assert platter.content(PATH) != before


def restored(platter, *, cipher="aes"):
    """The disk as a copy of the platter has it, after a start."""
    copy = FaultyDisk(Random(9))
    copy.put(PATH, platter.content(PATH))
    return copy, EncryptedDisk(copy, KEY, cipher)


@pytest.mark.parametrize("cipher", ["aes", "chacha"])
@pytest.mark.parametrize("size", [1, 15, 16, 40, 4000])
@pytest.mark.parametrize("reserved", [0, 1, 30, 5000])
def test_what_is_appended_to_two_copies_of_a_file_has_two_keystreams(cipher, size, reserved):
    """A copy that is restored and goes on, and the files that went on without it."""
    platter, disk = make(cipher)
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"x" * size, 0)
    disk.truncate(handle, size + reserved)
    first = -(-size // 16) * 16 + 16 if reserved else size  # Zeros of the store are in the blocks before.
    ciphertexts = []
    for _ in range(2):
        copy, again = restored(platter)
        handle = again.open(PATH)
        for number in range(3):
            again.write(handle, b"A" * 1000, size + 1000 * number)
            again.sync(handle)
        assert again.read(handle, size + 3000, 0) == b"x" * size + b"A" * 3000
        ciphertexts.append(copy.content(PATH)[HEADER_BYTES:])
        third = EncryptedDisk(copy, KEY, cipher)
        assert third.read(third.open(PATH), size + 3000, 0) == b"x" * size + b"A" * 3000
    one, two = ciphertexts
    assert not any(one[n : n + 8] == two[n : n + 8] for n in range(first, size + 2990))


def test_an_overwritten_place_has_its_nonce_for_good():
    """Or what is behind it could not be read any more."""
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"x" * 100, 0)
    copy, again = restored(platter)
    handle = again.open(PATH)
    again.write(handle, b"y" * 10, 40)
    assert again.read(handle, 100, 0) == b"x" * 40 + b"y" * 10 + b"x" * 50
    again.write(handle, b"z" * 10, 100)
    third = EncryptedDisk(copy, KEY)
    assert third.read(third.open(PATH), 110, 0) == b"x" * 40 + b"y" * 10 + b"x" * 50 + b"z" * 10


def test_many_starts_leave_room_for_cuts():
    platter, disk = make()
    content = b""
    for number in range(100):
        handle = disk.open(PATH, create=True)
        disk.write(handle, b"%03d" % number, len(content))
        content += b"%03d" % number
        disk = EncryptedDisk(platter, KEY)
        assert disk.read(disk.open(PATH), 1000, 0) == content
    handle = disk.open(PATH)
    before = platter.content(PATH)[HEADER_BYTES + 100 :]
    disk.truncate(handle, 100)
    disk.write(handle, content[100:], 100)
    after = platter.content(PATH)[HEADER_BYTES + 100 :]
    assert before[:8] != after[:8]
    assert disk.read(handle, 1000, 0) == content


@pytest.mark.parametrize("slot", [0, HEADER_BYTES // 2])
def test_a_new_header_replaces_both_when_it_was_synced(slot):
    for offset in range(80):
        platter, disk = make(seed=offset)
        handle = disk.open(PATH, create=True)
        disk.write(handle, b"content", 0)
        copy, again = restored(platter)
        handle = again.open(PATH)
        for place in (7, 14, 21):
            again.write(handle, b"content", place)
            again.sync(handle)
        copy.flip(PATH, slot + offset, 0x40)
        third = EncryptedDisk(copy, KEY)
        assert third.read(third.open(PATH), 28, 0) == b"content" * 4, offset


@pytest.mark.parametrize("slot", [0, HEADER_BYTES // 2])
def test_one_damaged_header_costs_nothing(slot):
    for offset in range(80):
        platter, disk = make(seed=offset)
        handle = disk.open(PATH, create=True)
        disk.write(handle, b"content", 0)
        platter.flip(PATH, slot + offset, 0x40)
        again = EncryptedDisk(platter, KEY)
        assert again.read(again.open(PATH), 7, 0) == b"content", offset


def test_without_headers_or_with_another_key_a_file_is_zeros_and_can_be_written_anew():
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"content", 0)
    other = EncryptedDisk(platter, bytes(31) + b"x")
    handle = other.open(PATH)
    assert other.read(handle, 100, 0) == bytes(7)
    assert not other.is_encrypted(PATH)
    assert disk.is_encrypted(PATH)
    other.truncate(handle, 0)
    other.write(handle, b"next", 0)
    assert other.read(handle, 100, 0) == b"next"
    assert platter.content(PATH).startswith(MAGIC)


def test_a_flipped_bit_flips_that_bit():
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"content" * 10, 0)
    platter.flip(PATH, HEADER_BYTES + 33, 0x10)
    expected = bytearray(b"content" * 10)
    expected[33] ^= 0x10
    assert disk.read(handle, 70, 0) == expected


def test_a_full_disk_takes_a_cut_and_the_next_write_saves_the_nonce_first():
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"A" * 100, 0)

    def refuse(operation, path):
        if operation == "write":
            raise OSError(28, "No space left on device")

    platter.fault = refuse
    disk.truncate(handle, 40)
    with pytest.raises(OSError, match="No space"):
        disk.write(handle, b"B", 40)
    platter.fault = None
    disk.write(handle, b"B" * 60, 40)
    again = EncryptedDisk(platter, KEY)
    assert again.read(again.open(PATH), 200, 0) == b"A" * 40 + b"B" * 60


def test_many_cuts_of_one_file():
    platter, disk = make()
    handle = disk.open(PATH, create=True)
    disk.write(handle, b"A" * 300, 0)
    for number in range(250, 50, -1):
        disk.truncate(handle, number)
        disk.write(handle, b"%c" % number, number)
    again = EncryptedDisk(platter, KEY)
    assert again.read(again.open(PATH), 200, 0) == b"A" * 51 + b"\x33"
