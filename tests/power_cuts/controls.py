"""Programs without a server that prove the recorded disks: one that syncs must lose nothing, one that does not must."""

import os
import threading
from pathlib import Path

RECORD = b"%08d" + b"." * 92


class Control:
    """Appends, new files and renames, by a thread each, noted with the position of the log.

    Args:
        volume: the `RecordedVolume` to write to.
        syncs: whether anything is synced before it is noted.

    Attributes:
        appended, made, replaced: what was promised: the position of the log, and a number.
    """

    def __init__(self, volume, *, syncs):
        self._volume = volume
        self._syncs = syncs
        self.appended = []
        self.made = []
        self.replaced = []

    def run(self, count):
        """Do each so many times."""
        threads = [threading.Thread(target=step, args=(count,)) for step in (self._append, self._make, self._replace)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _append(self, count):
        handle = os.open(self._volume.path / "appended", os.O_RDWR | os.O_CREAT)
        self._sync_folder()
        for number in range(count):
            os.pwrite(handle, RECORD % number, number * 100)
            if self._syncs:
                os.fdatasync(handle)
            self.appended.append((self._volume.position(), number))
        os.close(handle)

    def _make(self, count):
        for number in range(count):
            self._write(f"made{number}", number)
            self._sync_folder()
            self.made.append((self._volume.position(), number))

    def _replace(self, count):
        for number in range(count):
            self._write("aside", number)
            (self._volume.path / "aside").replace(self._volume.path / "replaced")
            self._sync_folder()
            self.replaced.append((self._volume.position(), number))

    def _write(self, name, number):
        handle = os.open(self._volume.path / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(handle, RECORD % number)
        if self._syncs:
            os.fdatasync(handle)
        os.close(handle)

    def _sync_folder(self):
        if self._syncs:
            handle = os.open(self._volume.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle)
            os.close(handle)

    def lost(self, position, folder):
        """Return how many promises that were given before the cut at a position are broken in what it has left."""
        folder = Path(folder)
        appended = _read(folder / "appended")
        promised = [number for when, number in self.appended if when <= position]
        lost = sum(appended[number * 100 : number * 100 + 100] != RECORD % number for number in promised)
        promised = [number for when, number in self.made if when <= position]
        lost += sum(_read(folder / f"made{number}") != RECORD % number for number in promised)
        promised = [number for when, number in self.replaced if when <= position]
        if promised:
            replaced = _read(folder / "replaced")
            lost += not replaced or int(replaced[:8]) < promised[-1]
        return lost


def _read(path):
    return path.read_bytes() if path.exists() else b""
