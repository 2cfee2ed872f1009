"""A disk that keeps every write and every flush in a log: a file system of one file, for a loop device to sit on.

    python tests/power_cuts/recorded_disk.py FOLDER

The folder has the disk's content as `image`. The log is written to `log`, how many entries it has stands in `count`,
and the file `disk` is the disk as soon as `ready` is there. The program speaks the kernel's FUSE protocol itself, as
far as a loop device asks for it: reads, writes, and fsync, which is what a loop device makes of a flush.
"""

import ctypes
import errno
import mmap
import os
import stat
import struct
import sys
import time
from pathlib import Path

from tests.power_cuts.write_log import LogWriter

COUNT = struct.Struct("<Q")
"""The content of the file `count`."""

_GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC = 3, 4, 14, 15, 16, 17, 18, 20
_FLUSH, _INIT, _DESTROY = 25, 26, 38
_UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET

_IN = struct.Struct("<IIQQ16x")
_OUT = struct.Struct("<IiQ")
_IO = struct.Struct("<QQI")
_IO_SIZE = 40
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_OPEN_OUT = struct.Struct("<QII")
_VERSION = (7, 31)
_FLAGS = 1 << 5 | 1 << 22  # BIG_WRITES, MAX_PAGES
_DIRECT_IO = 1
_WRITE_MAX = 1024 * 1024
_PAGE = 4096
_ONE_DAY_S = 86_400
_MNT_DETACH = 2


class RecordedDisk:
    """The file system: one file, which is mounted over another one."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._disk = self._folder / "disk"
        self._disk.touch()
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._log = LogWriter(self._folder / "log")
        self._count = _map(self._folder / "count", COUNT.size)
        self._size = (self._folder / "image").stat().st_size
        self._image = _map(self._folder / "image", self._size)
        self._answers = {
            _INIT: self._init,
            _GETATTR: self._attributes,
            _SETATTR: self._attributes,
            _OPEN: lambda _: _OPEN_OUT.pack(1, _DIRECT_IO, 0),
            _READ: self._read,
            _WRITE: self._write,
            _FSYNC: self._fsync,
            _RELEASE: lambda _: b"",
            _FLUSH: lambda _: b"",
            _STATFS: lambda _: bytes(80),
        }

    def mount(self):
        options = f"fd={self._device},rootmode={stat.S_IFREG | 0o600:o},user_id=0,group_id=0"
        _system_call("mount", b"recorded", bytes(self._disk), b"fuse", 0, options.encode())

    def unmount(self):
        _system_call("umount2", bytes(self._disk), _MNT_DETACH)

    def serve(self):
        """Answer the kernel until the file is unmounted."""
        while True:
            try:
                request = os.read(self._device, _WRITE_MAX + _PAGE)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            _, operation, unique, _ = _IN.unpack_from(request)
            if operation in _UNANSWERED:
                continue
            answer = self._answers.get(operation)
            body = answer(request[_IN.size :]) if answer is not None else None
            if body is None:
                os.write(self._device, _OUT.pack(_OUT.size, -errno.ENOSYS, unique))
            else:
                os.write(self._device, _OUT.pack(_OUT.size + len(body), 0, unique) + body)
            if operation == _DESTROY:
                return

    def _init(self, _body):
        (self._folder / "ready").touch()
        return _INIT_OUT.pack(*_VERSION, 0, _FLAGS, 16, 12, _WRITE_MAX, 1, _WRITE_MAX // _PAGE, 0, 0)

    def _attributes(self, _body):
        blocks = self._size // 512
        mode = stat.S_IFREG | 0o600
        return _ATTRIBUTES.pack(_ONE_DAY_S, 0, 0, 1, self._size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, _PAGE, 0)

    def _read(self, body):
        _, offset, size = _IO.unpack_from(body)
        return self._image[offset : offset + size]

    def _write(self, body):
        _, offset, size = _IO.unpack_from(body)
        data = body[_IO_SIZE : _IO_SIZE + size]
        self._image[offset : offset + size] = data
        self._log.write(time.monotonic(), offset, data)
        self._counted()
        return struct.pack("<II", size, 0)

    def _fsync(self, _body):
        self._log.flush(time.monotonic())
        self._counted()
        return b""

    def _counted(self):
        """Tell how many entries there are before the kernel hears of the last of them."""
        COUNT.pack_into(self._count, 0, self._log.count)


def _map(path, size):
    with Path(path).open("a+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _system_call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main():
    disk = RecordedDisk(sys.argv[1])
    disk.mount()
    disk.serve()


if __name__ == "__main__":
    main()
