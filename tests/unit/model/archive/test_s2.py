"""S2 framing: what nats-server wrote is read, what we write is read back, and damage is refused."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import DecodeError
from jetlake.model.archive.s2 import IDENTIFIER, S2Reader, compress, decompress_block

REAL = (Path(__file__).parent / "resources" / "stream-2.15.s2").read_bytes()


def read(data, piece=None):
    reader = S2Reader()
    blocks = []
    for start in range(0, len(data), piece or len(data) or 1):
        blocks += reader.feed(data[start : start + (piece or len(data))])
    return b"".join(blocks), reader.is_whole


def test_a_stream_of_nats_server_is_read_however_it_is_cut():
    whole, is_whole = read(REAL)
    assert is_whole
    assert whole.startswith(b"NATSARC1")
    assert whole.endswith(bytes(5))
    assert read(REAL, 1) == read(REAL, 1000) == (whole, True)


def test_the_resource_has_copies_that_snappy_does_not_know():
    """The slow decoder is what reads it."""
    import cramjam

    at = len(IDENTIFIER)
    length = int.from_bytes(REAL[at + 1 : at + 4], "little")
    block = REAL[at + 8 : at + 4 + length]
    with pytest.raises(cramjam.DecompressionError):
        cramjam.snappy.decompress_raw(block)
    assert decompress_block(block).startswith(b"NATSARC1")


@given(st.lists(st.binary(max_size=5000), max_size=4), st.integers(1, 3000))
def test_what_is_written_is_read_back(blocks, piece):
    data = IDENTIFIER + b"".join(compress(block) for block in blocks)
    assert read(data, piece) == (b"".join(blocks), True)


def test_words_that_repeat_take_less_room():
    block = b"the same words again and again " * 2000
    assert len(compress(block)) < len(block) / 10


@pytest.mark.parametrize(
    ("name", "elements", "out"),
    [
        ("a literal", b"\x08abc", b"abc"),
        ("a literal of a long length", bytes([60 << 2, 99]) + b"x" * 100, b"x" * 100),
        ("a near copy", b"\x0cabcd\x01\x04", b"abcdabcd"),
        ("a far copy", b"\x0cabcd\x0e\x04\x00", b"abcdabcd"),
        ("a copy that overlaps itself", b"\x00a\x0d\x01", b"a" * 8),
        ("a repeated offset", b"\x0cabcd\x01\x04\x01\x00", b"abcd" * 3),
        ("a repeated offset, one byte of length", b"\x0cabcd\x01\x04\x15\x00\x04", b"abcd" * 5),
        ("a repeated offset, two bytes of length", b"\x0cabcd\x01\x04\x19\x00\x00\x00", b"abcd" * 67),
    ],
)
def test_elements_of_a_block(name, elements, out):
    length = bytes([len(out)]) if len(out) < 128 else bytes([len(out) & 127 | 128, len(out) >> 7])
    assert decompress_block(length + elements) == out


@pytest.mark.parametrize(
    "damaged",
    [
        b"hello, this is no archive",
        b"\xff\x06\x00\x00sNaPpX",
        IDENTIFIER + b"\x02\x04\x00\x00abcd",
        IDENTIFIER + b"\x00\x02\x00\x00ab",
        IDENTIFIER + b"\x00\x06\x00\x00aaaa\x80\x80",
        IDENTIFIER + b"\x00\x09\x00\x00aaaa\xff\xff\xff\xff\x7f",
        IDENTIFIER + b"\x00\xff\xff\xff",
    ],
)
def test_what_is_no_stream_is_refused(damaged):
    with pytest.raises(DecodeError, match="s2: "):
        read(damaged)


@pytest.mark.parametrize("seed", range(3))
def test_every_flipped_byte_is_noticed(seed):
    random = Random(seed)
    for _ in range(60):
        data = bytearray(REAL)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            out, is_whole = read(bytes(data))
        except DecodeError:
            continue
        assert not is_whole or out == read(REAL)[0]


def test_chunks_that_readers_may_skip_are_skipped():
    data = IDENTIFIER + b"\x80\x03\x00\x00xyz" + IDENTIFIER + compress(b"abc") + b"\xfe\x01\x00\x00\x00"
    assert read(data) == (b"abc", True)
