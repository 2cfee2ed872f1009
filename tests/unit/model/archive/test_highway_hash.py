"""HighwayHash-64 against the test vectors of its authors."""

import struct

import pytest

from jetlake.model.archive.highway_hash import highway_hash

KEY = struct.pack("<4Q", 0x0706050403020100, 0x0F0E0D0C0B0A0908, 0x1716151413121110, 0x1F1E1D1C1B1A1918)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0x907A56DE22C26E53),
        (1, 0x7EAB43AAC7CDDD78),
        (2, 0xB8D0569AB0B53D62),
        (3, 0x5C6BEFAB8A463D80),
        (4, 0xF205A46893007EDA),
    ],
)
def test_vectors(length, expected):
    assert int.from_bytes(highway_hash(KEY, bytes(range(length))), "little") == expected
