"""The sync of macOS, which only its own `fcntl` call makes durable."""

import errno
import os
from types import SimpleNamespace

import pytest

from jetlake import platform


@pytest.fixture
def synced(monkeypatch):
    """What was synced, by which call; `answer` is the number of the error that F_FULLFSYNC gives."""
    calls = SimpleNamespace(made=[], answer=None)

    def control(handle, command):
        calls.made.append("full" if command == 51 else command)
        if calls.answer is not None:
            raise OSError(calls.answer, os.strerror(calls.answer))

    monkeypatch.setattr(platform, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=control))
    monkeypatch.setattr(platform, "_has_full_sync", True)
    monkeypatch.setattr(os, "fsync", lambda handle: calls.made.append("plain"))
    return calls


def test_directories_take_the_full_sync_too(synced, tmp_path):
    platform.sync_directory(tmp_path)
    assert synced.made == ["full"]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_without_it_takes_the_plain_one(synced, number):
    synced.answer = number
    platform._full_sync(1)
    assert synced.made == ["full", "plain"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_not_asked_by_another_call(synced, number):
    synced.answer = number
    with pytest.raises(OSError, match=os.strerror(number)):
        platform._full_sync(1)
    assert synced.made == ["full"]
