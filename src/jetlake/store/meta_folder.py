"""A folder with a meta file: how it is made, how its configuration is kept, and how it goes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from jetlake.errors import StoreError
from jetlake.store.files.atomic_file import ASIDE_SUFFIX, read_file, replace_file, sync_file, write_file
from jetlake.store.files.disk import Disk, Kind
from jetlake.store.files.folders import free_name, remove_all
from jetlake.store.files.own_files import Layout, foreign_names, foreign_names_within
from jetlake.store.files.removal import Removal
from jetlake.store.files.unsynced_names import UnsyncedNames

__all__ = ["CONSUMERS_NAME", "META_VERSION", "FolderWrite", "MetaFolder", "ignore"]

META_VERSION = 1
CONSUMERS_NAME = "consumers"
"""The subfolder of a stream with the folders of its consumers."""
_META = "meta.json"
_META_COPY = "meta.copy.json"
# Two, so that the next one can be written while the one before is synced.
_ASIDE = (_META + ASIDE_SUFFIX, f"{_META}.2{ASIDE_SUFFIX}")
_METAS = {_META, _META_COPY}
_UNFINISHED = {*_ASIDE, _META_COPY + ASIDE_SUFFIX}


class _Envelope(msgspec.Struct):
    """A meta file: the JSON of its owner, with a version and a checksum around it."""

    version: int
    checksum: str
    meta: msgspec.Raw


class _Staged(NamedTuple):
    """A meta file on its way: its bytes, and where they are written already; None when they must be written again."""

    data: bytes
    aside: Path | None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def ignore(_text: str) -> None:
    """Take no note."""


class MetaFolder:
    """A folder with a meta file; what is staged becomes durable by `sync`, with a group commit.

    A new folder is created by the thread that syncs it, or earlier by the first write into it.
    """

    layout: Layout
    depth: int
    """How many folders there are from the account's to this one."""
    inner: tuple[str, ...] = ()
    """The folders that a new one has from the beginning."""

    changes_names = True
    failure: StoreError | None = None

    def __init__(
        self,
        disk: Disk,
        path: Path,
        names: UnsyncedNames | None = None,
        parent: MetaFolder | None = None,
    ) -> None:
        self.disk = disk
        self.path = path
        self._parent = parent
        self.names = names or UnsyncedNames(disk)
        # The lock guards what the thread that syncs touches as well.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._staged: _Staged | None = None
        self._in_sync: Path | None = None
        self._is_new = False
        self._is_held = False
        self._is_made = True
        self._is_own = True  # not another program's that has the same name
        self._is_adopted = False
        self._stillborn: StoreError | None = None
        self._is_gone = False
        self._found: dict[str, Kind] | None = None

    @property
    def identity(self) -> str:
        """The folder's path from the account's on, which the hashes of a disk that authenticates include."""
        return "/".join(self.path.parts[-self.depth :])

    def _checksum_of(self, meta: bytes) -> str:
        return self.disk.hashing.checksum(b"meta", owner=self.identity).of(meta).hex()

    def _sealed(self, meta: bytes) -> bytes:
        checksum = self._checksum_of(meta).encode()
        return b'{"version":%d,"checksum":"%s","meta":%s}\n' % (META_VERSION, checksum, meta)

    @property
    def is_made(self) -> bool:
        """Whether there may be something on the disk: False for a new folder until `make`."""
        return self._is_made

    @property
    def is_adopted(self) -> bool:
        """Whether a start found the folder, and nothing has been promised of it since: a power cut may undo it."""
        return self._is_adopted

    def exists(self) -> bool:
        """Return whether the folder is there."""
        return self.disk.is_folder(self.path)

    def write_meta(self, meta: bytes) -> None:
        """Keep this JSON; it is on disk when this returns, and a crash leaves the old one or the new one.

        Raises:
            StoreError: the disk refused; the old one is still there.
        """
        self.stage_meta(meta)
        self.sync()

    def stage_new(self, meta: bytes, *, held: bool = False) -> None:
        """Stage the meta file of a folder that is not there yet, without a look at the disk.

        Args:
            held: the folder stays unfinished, whatever is synced in it, until `release`.
        """
        self._staged = _Staged(self._sealed(meta), None)
        self._is_new, self._is_made, self._is_own, self._is_held = True, False, False, held

    def release(self) -> None:
        """Let the next sync finish a folder that was held."""
        self._is_held = False

    def stage_meta(self, meta: bytes) -> None:
        """Write this JSON beside the one that is kept, in a new folder if there is none; `sync` puts it in its place.

        A folder without a meta file and with one that waits was never finished: no client got an answer about it.

        Raises:
            StoreError: the disk refused; the old one is still there.
        """
        try:
            if self._is_made and not self.exists():
                self.stage_new(meta)
            self.make()
            with self._lock:
                data = self._sealed(meta)
                self._staged = _Staged(data, self._write_aside(data))
            self.names.changed(self.path)
        except OSError as error:
            raise StoreError.of(f"write {self.path / _META}", error) from error

    def stage_for_sync(self, meta: bytes) -> None:
        """Have the next `sync` write this JSON and put it in its place; the disk is left alone until then."""
        with self._lock:
            self._staged = _Staged(self._sealed(meta), None)

    def make(self) -> None:
        """Make the folder if it is a new one; may run in any thread.

        The meta file that waits comes before all else in the folder: it shows that the folder was never finished.

        Raises:
            OSError: the disk refused.
        """
        if self._is_made:
            return
        with self._lock:
            if self._is_made or self._is_gone or self._parent_is_gone():
                return
            if not self._is_own:
                self._make_own()
                self._is_own = True
            if self._staged is not None:
                self._staged = _Staged(self._staged.data, self._write_aside(self._staged.data))
            for name in self.inner:
                with suppress(FileExistsError):
                    self.disk.add_folder(self.path / name)
            self.names.changed(self.path)
            self._is_made = True

    def _make_own(self) -> None:
        try:
            self._add_folder()
        except FileExistsError:
            # The rest of a failed creation, or another program's folder.
            if not self.remove_stillborn():
                raise
            self._add_folder()
        self.names.changed(self.path.parent)

    def _add_folder(self) -> None:
        missing = [self.path]
        while missing:
            try:
                self.disk.add_folder(missing[-1])
            except FileNotFoundError:
                if not self._may_make(missing[-1].parent):
                    raise
                missing.append(missing[-1].parent)
            except FileExistsError:
                if missing.pop() == self.path:
                    raise
            else:
                self.names.changed(missing.pop().parent)

    def _may_make(self, _folder: Path) -> bool:
        """Return whether a folder above may be made as well."""
        return True

    def _write_aside(self, data: bytes) -> Path:
        aside = next(path for name in _ASIDE if (path := self.path / name) != self._in_sync)
        if self._staged is not None:
            # It may be in the place that is written to.
            self._staged = _Staged(self._staged.data, None)
        write_file(self.disk, aside, data)
        return aside

    def flush(self) -> None:
        """Nothing waits for a write: `stage_meta` has written, or `sync` will."""

    def sync(self) -> None:
        """Install staged metadata; it is durable when this returns. May run in another thread.

        Raises:
            StoreError: the disk refused; the next sync tries again, unless the folder is a new one.
        """
        with self._sync_lock:
            if self._stillborn is not None:
                raise self._stillborn
            if self._is_adopted and self._staged is None:
                self.ensure_made()
                return
            staged = None
            try:
                self.make()
                if self._is_held:
                    return
                with self._lock:
                    staged, self._staged = self._staged, None
                    if staged is None or self._is_gone:
                        return
                    self._in_sync = staged.aside
                self._install(staged)
            except OSError as error:
                with self._lock:
                    if staged is not None:
                        self._staged = self._staged or _Staged(staged.data, None)
                if self.is_gone():
                    return
                refusal = StoreError.of(f"write {self.path / _META}", error)
                if self._is_new:
                    # The client that created it got an error.
                    self._stillborn = refusal
                raise refusal from error
            finally:
                self._in_sync = None
            self._is_new = self._is_adopted = False

    def _install(self, staged: _Staged) -> None:
        aside = staged.aside
        if aside is None:
            # What a sync refused may be marked as written all the same: a second one would tell nothing.
            with self._lock:
                aside = self._in_sync = self._write_aside(staged.data)
        sync_file(self.disk, aside)
        with self._lock:
            if self._is_gone:
                return
            self.disk.replace(aside, self.path / _META)
            self.names.changed(self.path)
        self.names.sync(self.path)
        with self._lock, suppress(OSError):
            # For the day when the first one is damaged; no caller waits for it.
            if not self._is_gone:
                replace_file(self.disk, self.path / _META_COPY, staged.data, durable=False)

    def close(self) -> None:
        """Sync staged metadata; a folder without changes stays as it is.

        Raises:
            StoreError: the disk refused.
        """
        if self._is_new or self._staged is not None:
            self.sync()

    def retry(self) -> None:
        """Nothing to do: the next sync writes again what a failed one left in doubt."""

    def adopt(self) -> None:
        """Take over a folder that was found: its name, or its meta file's, may not be safe yet.

        The caller notes the folder above as changed.
        """
        self.names.changed(self.path)
        self._is_adopted = True

    def look(self) -> None:
        """List the folder once for all that opens it, until `use`.

        Raises:
            OSError: the disk refused.
        """
        self._found = self.disk.kinds(self.path)

    def use(self) -> None:
        """Forget what `look` saw: from now on the folder changes."""
        self._found = None

    def lacks(self, name: str) -> bool:
        """Return whether `look` found no such name; False without a `look`."""
        return self._found is not None and name not in self._found

    def ensure_made(self) -> None:
        """Return when a folder is on disk with its meta file: before that nothing in it can be promised.

        Raises:
            StoreError: the disk refused.
        """
        if self._is_new:
            self.sync()
        elif self._is_adopted:
            try:
                self.names.sync(self.path)
            except OSError as error:
                if self.is_gone():
                    return
                raise StoreError.of(f"make {self.path} safe", error) from error
            self._is_adopted = False

    def keep_file(self, name: str, data: bytes) -> None:
        """Put a small file into the folder, unless the folder is gone; in the thread that syncs.

        A power cut may leave a torn one until this returns.

        Raises:
            StoreError: the disk refused.
        """
        try:
            with self._lock:
                if not self._is_gone:
                    replace_file(self.disk, self.path / name, data, durable=False)
            sync_file(self.disk, self.path / name)
            self.disk.sync_folder(self.path)
        except OSError as error:
            if not self.is_gone():
                raise StoreError.of(f"write {self.path / name}", error) from error

    def read_meta(self) -> bytes | None:
        """Return the JSON that was kept; None when there is none, or neither it nor its copy is whole."""
        return next((meta for name in (_META, _META_COPY) if (meta := self._read(name)) is not None), None)

    def newer_version(self) -> int:
        """Return the version of meta files that a later release wrote; 0 where none did."""
        for name in (_META, _META_COPY):
            try:
                envelope = _decode_envelope(read_file(self.disk, self.path / name))
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if envelope.version > META_VERSION and envelope.checksum == self._checksum_of(bytes(envelope.meta)):
                return envelope.version
        return 0

    def read_unfinished(self) -> bytes | None:
        """Return the JSON that waits for its first sync; None when there is none, or a power cut has torn it."""
        return next((meta for name in _ASIDE if (meta := self._read(name)) is not None), None)

    def finish(self) -> None:
        """Keep the JSON that `read_unfinished` returns: a killed process left it.

        Raises:
            OSError: the disk refused.
        """
        aside = next((self.path / name for name in _ASIDE if self._read(name) is not None), None)
        if aside is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        sync_file(self.disk, aside)
        self.disk.replace(aside, self.path / _META)
        self.names.changed(self.path)
        if self._found is not None:
            self.look()

    def _read(self, name: str) -> bytes | None:
        try:
            envelope = _decode_envelope(read_file(self.disk, self.path / name))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        meta = bytes(envelope.meta)
        is_whole = envelope.version == META_VERSION and envelope.checksum == self._checksum_of(meta)
        return meta if is_whole else None

    def remove_stillborn(self, note: Callable[[str], None] = ignore) -> bool:
        """Remove the folder if a crash left it before it got its first meta file; whether it did.

        Args:
            note: logs the removal.

        Raises:
            OSError: the disk refused.
        """
        names = self.disk.names(self.path)
        if names and (_UNFINISHED.isdisjoint(names) or not _METAS.isdisjoint(names)):
            return False
        if any(foreign_names_within(self.disk, self.path, self.layout)):
            return False
        self.disk.replace(self.path, aside := free_name(self.disk, self.path))
        # A power cut must not bring it back under its name without the file that tells what it is.
        self.disk.sync_folder(self.path.parent)
        remove_all(self.disk, aside)
        # sometimes: an unfinished folder is removed
        note(f"Removed {self.path}, which was left unfinished by a crash")
        return True

    def tidy(self, note: Callable[[str], None]) -> list[str]:
        """Remove the files that a crash left before they got their names; the names that the store did not write.

        Args:
            note: logs each file that was removed.

        Raises:
            OSError: the disk refused.
        """
        kinds = self._found if self._found is not None else self.disk.kinds(self.path)
        foreign = foreign_names(self.layout, kinds)
        for name in kinds:
            if name.endswith(ASIDE_SUFFIX) and name not in foreign:
                path = self.path / name
                with suppress(OSError):
                    self.disk.remove(path)
                    note(f"Removed {path}, which was left unfinished by a crash")
        return foreign

    def removal(self) -> Removal:
        """Return the folder's way out; its name is free once that is flushed."""
        return Removal(self.path, self.names, self._move_aside)

    def _move_aside(self) -> Path | None:
        with self._lock:
            if not self._is_own:
                self._is_gone = True
                return None
            target = free_name(self.disk, self.path)
            self.names.move(self.path, lambda: self.disk.replace(self.path, target), self.path / CONSUMERS_NAME)
            self._is_gone = True
        return target

    def _parent_is_gone(self) -> bool:
        return self._parent is not None and self._parent.is_gone()

    def is_gone(self) -> bool:
        """Return whether the folder was moved aside, alone or with one above it: its content need not be durable."""
        with self._lock:
            is_gone = self._is_gone
        return is_gone or self._parent_is_gone()

    def discard(self) -> None:
        """Write nothing more: the folder went with one above it."""
        with self._lock:
            self._is_gone = True
        self.names.forget(self.path)


class FolderWrite:
    """The writing of a new folder, before and apart from its sync: the folder then survives a kill, not a power cut.

    Args:
        folder: a new one.
    """

    # It makes names, and yet must not wait behind the few folders that are synced at a time.
    changes_names = False
    failure: StoreError | None = None

    def __init__(self, folder: MetaFolder) -> None:
        self._folder = folder

    def flush(self) -> None:
        """Nothing waits: `sync` writes."""

    def sync(self) -> None:
        """Write the folder and its meta file; runs in another thread.

        Raises:
            StoreError: the disk refused.
        """
        try:
            self._folder.make()
        except OSError as error:
            if not self._folder.is_gone():
                raise StoreError.of(f"write {self._folder.path}", error) from error

    def retry(self) -> None:
        """Nothing to do: the next sync writes again."""
