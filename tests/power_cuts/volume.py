"""Disks with file systems: a recorded one for a program to write to, and what a power cut has left of it."""

import contextlib
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.power_cuts.recorded_disk import COUNT
from tests.power_cuts.write_log import copy_sparse

ROOT = Path(__file__).parents[2]

FILE_SYSTEMS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], 128),
    "xfs": (["mkfs.xfs", "-q", "-f"], 320),
    "btrfs": (["mkfs.btrfs", "-q", "-f"], 160),
}
"""The command that makes each, and how many MiB it needs."""

START_S = 20


class RecordedVolume:
    """A file system on a disk that keeps every write in a log.

    Args:
        folder: where disk and log are; it is made.
        image: the file with the disk's content, which is copied.

    Attributes:
        path: where the file system is mounted.
        image: what was on the disk before the log began.
        log: the log of writes.
    """

    def __init__(self, folder, image):
        self._folder = Path(folder)
        self._folder.mkdir(parents=True)
        self.path = self._folder / "volume"
        self.path.mkdir()
        self.image = self._folder / "before"
        self.log = self._folder / "log"
        copy_sparse(image, self.image)
        copy_sparse(image, self._folder / "image")
        self._server = None
        self._loop = None
        self._count = None

    def __enter__(self):
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.power_cuts.recorded_disk", str(self._folder)], cwd=ROOT
        )
        deadline = time.monotonic() + START_S
        while not (self._folder / "ready").exists():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the recorded disk did not start")
            time.sleep(0.01)
        with (self._folder / "count").open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), COUNT.size)
        self._loop = _run("losetup", "--find", "--show", self._folder / "disk")
        try:
            _run("mount", self._loop, self.path)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise TornFileSystemError(error.stderr) from None
        return self

    def __exit__(self, *_):
        for command in (["umount", self.path], ["losetup", "-d", self._loop], ["umount", self._folder / "disk"]):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(*command)
        try:
            self._server.wait(START_S)
        finally:
            self._server.kill()
        self._count.close()

    def position(self):
        """How many entries the log has: a promise that is given now must survive every cut from here on."""
        return COUNT.unpack_from(self._count)[0]


class TornFileSystemError(Exception):
    """A cut tore what the file system needs to be mounted at all, as ext4's superblock of two sectors."""


@contextlib.contextmanager
def mounted(image, folder):
    """The file system of an image, as long as the block runs.

    Raises:
        TornFileSystemError: it cannot be mounted.
    """
    folder.mkdir(exist_ok=True)
    loop = _run("losetup", "--find", "--show", image)
    try:
        try:
            _run("mount", loop, folder)
        except subprocess.CalledProcessError as error:
            raise TornFileSystemError(error.stderr) from None
        try:
            yield folder
        finally:
            _run("umount", folder)
    finally:
        _run("losetup", "-d", loop)


def make_image(kind, path, mib=None):
    """Make an image with an empty file system of that kind."""
    command, least = FILE_SYSTEMS[kind]
    with Path(path).open("wb") as file:
        file.truncate((mib or least) * 1024 * 1024)
    _run(*command, path)


def missing():
    """What this machine lacks for recorded disks; an empty list where it has all."""
    lacks = [] if os.geteuid() == 0 else ["root"]
    lacks += [path for path in ("/dev/fuse", "/dev/loop-control") if not Path(path).exists()]
    return lacks + [name for name in ("losetup", "mount", "mkfs.ext4") if shutil.which(name) is None]


def _run(*command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    return done.stdout.strip()
