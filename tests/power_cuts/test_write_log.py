"""What a power cut leaves of a recorded disk: all that was flushed, and any sectors of the rest."""

from random import Random

import pytest

from tests.power_cuts.write_log import PAGE, SECTOR, CutDisk, LogWriter, copy_sparse

SIZE = 8 * PAGE


@pytest.fixture
def recorded(tmp_path):
    """A disk that held `0` everywhere, two writes that were flushed, and two after them that were not."""
    image = tmp_path / "image"
    image.write_bytes(b"0" * SIZE)
    log = LogWriter(tmp_path / "log")
    log.write(1.0, 0, b"1" * PAGE)
    log.write(2.0, PAGE, b"2" * PAGE)
    log.flush(3.0)
    log.write(4.0, PAGE, b"3" * PAGE)
    log.write(5.0, 4 * PAGE, b"4" * 2 * PAGE)
    assert log.count == 5
    log.close()
    return tmp_path


def cut(folder, position, seed):
    """The disk after a cut, in sectors, each a letter."""
    copy_sparse(folder / "image", folder / "before")
    disk = CutDisk(folder / "log", folder / "before", Random(seed))
    disk.cut(position, folder / "cut")
    disk.close()
    data = (folder / "cut").read_bytes()
    sectors = [data[start : start + SECTOR] for start in range(0, SIZE, SECTOR)]
    assert all(len(set(sector)) == 1 for sector in sectors)
    return "".join(chr(sector[0]) for sector in sectors)


def test_what_was_flushed_is_there_and_of_the_rest_anything(recorded):
    left = {cut(recorded, 5, seed) for seed in range(200)}
    page = PAGE // SECTOR
    for disk in left:
        assert disk[:page] == "1" * page
        assert set(disk[page : 2 * page]) <= {"2", "3"}
        assert set(disk[4 * page : 6 * page]) <= {"0", "4"}
        assert set(disk[2 * page : 4 * page] + disk[6 * page :]) == {"0"}
    # Nothing, everything, the second without the first, torn at a page and at a sector.
    seconds = {(disk[page : 2 * page], disk[4 * page : 6 * page]) for disk in left}
    assert {("2" * page, "0" * 2 * page), ("3" * page, "4" * 2 * page), ("2" * page, "4" * 2 * page)} <= seconds
    assert any(second == "0" * page + "4" * page for _, second in seconds)
    assert any(set(first) == {"2", "3"} for first, _ in seconds)


def test_before_a_flush_nothing_is_certain_and_nothing_later_is_there(recorded):
    left = {cut(recorded, 2, seed) for seed in range(100)}
    assert all(set(disk) <= {"0", "1", "2"} for disk in left)
    assert "0" * (SIZE // SECTOR) in left


def test_one_log_is_cut_many_times_in_order(recorded):
    copy_sparse(recorded / "image", recorded / "before")
    disk = CutDisk(recorded / "log", recorded / "before", Random(1))
    for position in (0, 1, 3, 4, 5):
        disk.cut(position, recorded / "cut")
        assert ((recorded / "cut").read_bytes()[:PAGE] == b"1" * PAGE) or position < 3
    disk.close()
