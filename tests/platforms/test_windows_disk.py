"""The disk for Windows: names of open files change, as the store expects of every disk."""

import os

import pytest

from jetlake.store.files.windows_disk import WindowsDisk


@pytest.fixture
def disk():
    return WindowsDisk()


@pytest.fixture
def file(disk, tmp_path):
    """A file in a directory, held open, and its handle."""
    (tmp_path / "stream").mkdir()
    path = tmp_path / "stream" / "segment"
    handle = disk.open(path, create=True)
    disk.write(handle, b"before", 0)
    return path, handle


def test_a_handle_follows_its_file_when_the_directory_is_renamed(disk, file, tmp_path):
    path, handle = file
    disk.replace(path.parent, tmp_path / "moved")
    disk.write(handle, b"after", 6)
    disk.sync(handle)
    assert (tmp_path / "moved" / "segment").read_bytes() == b"beforeafter"
    assert (disk.read(handle, 100, 3), disk.size(handle), disk.data_size(handle)) == (b"oreafter", 11, 11)
    disk.close(handle)


def test_a_handle_of_a_removed_or_replaced_file_gives_errors_and_can_be_closed(disk, file, tmp_path):
    path, handle = file
    other = disk.open(tmp_path / "other", create=True)
    disk.write(other, b"new", 0)
    disk.replace(tmp_path / "other", path)
    assert disk.read(other, 10, 0) == b"new" == path.read_bytes()
    for refused in (lambda: disk.read(handle, 1, 0), lambda: disk.write(handle, b"x", 0), lambda: disk.sync(handle)):
        with pytest.raises(OSError, match="removed"):
            refused()
    disk.remove(path)
    assert not path.exists()
    disk.close(handle)
    disk.close(other)
    with pytest.raises(OSError, match=os.strerror(9)):
        disk.close(handle)


def test_a_rename_that_the_system_refuses_leaves_the_handles_usable(disk, file, tmp_path):
    path, handle = file
    with pytest.raises(FileNotFoundError):
        disk.replace(path, tmp_path / "missing" / "name")
    assert disk.read(handle, 6, 0) == b"before"
    disk.close(handle)
