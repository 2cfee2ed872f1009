"""The list of an account's streams."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jetlake.store.files.name_list import NameList
from tests.support.faulty_disk import FaultyDisk

PATH = Path("/account/streams.list")


def test_names_are_added_once_and_struck_off() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    listed = NameList(disk, PATH)
    for name in ("A", "B", "A"):
        listed.add(name)
    listed.strike("B")
    listed.strike("unknown")
    assert disk.content(PATH) == b"+A\n-B\n"
    assert NameList(disk, PATH).read() == {"A"}
    listed.add("B")
    assert NameList(disk, PATH).read() == {"A", "B"}
    listed.strike("B")
    assert NameList(disk, PATH).read() == {"A"}
    listed.replace({"A", "C"})
    assert disk.content(PATH) == b"+A\n+C\n"


def test_a_torn_line_counts_for_nothing() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    disk.put(PATH, b"+A\n\xff\n\n+B")
    assert NameList(disk, PATH).read() == {"A"}
    assert NameList(disk, PATH.with_name("missing")).read() == set()


def test_a_full_disk_strikes_off_and_keeps_no_half_line() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    listed = NameList(disk, PATH)
    listed.add("A")
    listed.add("AB")
    disk.capacity = disk.used() + 2
    listed.add("refused")
    listed.strike("A")
    listed.sync()
    assert NameList(disk, PATH).read() == {"AB"}
    disk.capacity = None
    listed.add("C")
    assert NameList(disk, PATH).read() == {"AB", "C"}


def test_a_name_that_could_not_be_struck_off_is_struck_off_by_the_sync() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(PATH.parent)
    listed = NameList(disk, PATH)
    listed.add("A")

    def fail(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(5, "Input/output error", str(path))

    disk.fault = fail
    listed.strike("A")
    with pytest.raises(OSError, match="Input/output error"):
        listed.sync()
    disk.fault = None
    listed.sync()
    disk.cut_power()
    assert NameList(disk, PATH).read() == set()
