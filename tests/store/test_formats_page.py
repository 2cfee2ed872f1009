"""The page on file formats tells the truth: its example and its sizes are what the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from jetlake.store import meta_folder
from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.journal import journal_format
from jetlake.store.log import durability, segment_header, segment_list
from jetlake.store.log.record import OVERHEAD, checksum_of, pack_message, pack_tombstone, record_size, unpack
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.log.segment_index import format
from jetlake.store.log.snapshot import index_snapshot
from jetlake.store.redo import redo_format

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
KEY = 0x0123456789ABCDEF
TIME_NS = 1_700_000_000_000_000_000


def hex_blocks() -> list[bytes]:
    """The bytes of the page's hexadecimal examples."""
    found = []
    for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL):
        rows = [re.match(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", line) for line in block.splitlines()]
        if all(rows):
            found.append(bytes.fromhex("".join(row[1] for row in rows if row)))
    return found


def test_the_examples_are_what_is_written() -> None:
    checksum = checksum_of(PLAIN_HASHING, KEY, 1)
    hello = pack_message(1, TIME_NS, b"test", b"", b"hello", checksum)
    removal = pack_tombstone(1, 1, TIME_NS, checksum)
    assert hex_blocks() == [hello, removal]
    assert len(hello) == 39
    assert len(removal) == OVERHEAD == 30
    record = unpack(hello, 0, checksum)
    assert record is not None
    assert (record.sequence, record.time_ns, record.subject, record.payload) == (1, TIME_NS, b"test", b"hello")


def test_the_sizes_are_those_of_the_formula() -> None:
    assert record_size(b"test", b"", b"hello") == 39
    assert record_size(b"ORDERS.processed", b"", b"order 4") == 53
    header = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    packed = pack_message(1, 1, b"s", header, b"x", checksum_of(PLAIN_HASHING, KEY, 1))
    assert len(packed) == record_size(b"s", header, b"x") == 34 + 1 + len(header) + 1
    assert HEADER_SIZE == 48
    assert journal_format.HEADER_SIZE == 2 * 28
    assert len(pack_tombstone(2, 9, 1, checksum_of(PLAIN_HASHING, KEY, 1))) == 38


def test_every_format_has_the_version_that_the_page_describes() -> None:
    versions = {
        segment_header.FORMAT_VERSION,
        durability.FORMAT_VERSION,
        journal_format.FORMAT_VERSION,
        segment_list.FORMAT_VERSION,
        redo_format.FORMAT_VERSION,
        meta_folder.META_VERSION,
    }
    assert versions == {1}
    assert format.FORMAT_VERSION == 2
    assert index_snapshot.FORMAT_VERSION == 3
    for magic in ("JLSG", "JLMK", "JLIP", "JLIX", "JLCJ", "JLSL", "JLRH"):
        assert f"`{magic}`" in PAGE
