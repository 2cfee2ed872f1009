"""The list of an account's streams."""

from __future__ import annotations

from pathlib import Path
from random import Random

from faulty_disk import FaultyDisk
from jetlake.store.files.name_list import NameList

PATH = Path("/account/streams.list")


def test_names_are_added_once_and_struck_off() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    listed = NameList(disk, PATH)
    for name in ("A", "B", "A"):
        listed.add(name)
    listed.strike("B")
    listed.strike("unknown")
    assert disk.content(PATH) == b"+A\n+B\n-B\n"
    assert NameList(disk, PATH).read() == {"A"}
    listed.replace({"A", "C"})
    assert disk.content(PATH) == b"+A\n+C\n"


def test_a_torn_line_counts_for_nothing() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    disk.put(PATH, b"+A\n\xff\n\n+B")
    assert NameList(disk, PATH).read() == {"A"}
    assert NameList(disk, PATH.with_name("missing")).read() == set()
