"""Where streams and consumers have their files: `<store_dir>/jetstream/<account>/streams/<stream>/…`.

::

    streams/ORDERS/
      meta.json, meta.copy.json    the configuration, as whoever keeps the stream writes it
      msgs/                        the messages: a `file_store`
      consumers/worker/
        meta.json, meta.copy.json
        0000000001.journal         the consumer's journal
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import msgspec
from xxhash import xxh3_64_hexdigest

from jetlake.errors import StoreError
from jetlake.store.atomic_file import ASIDE_SUFFIX, read_file, replace_file
from jetlake.store.consumer_journal import FileJournal
from jetlake.store.disk import Disk
from jetlake.store.file_store import SEGMENT_BYTES, FileStore
from jetlake.store.open_files import OpenFiles, files_max
from jetlake.store.own_files import CONSUMER_FILES, CONSUMERS, STREAM_FILES, STREAMS, Layout, foreign_names, told

__all__ = ["ConsumerFolder", "StoreFolder", "StreamFolder", "folder_name"]

META_VERSION = 1
_META = "meta.json"
_META_COPY = "meta.copy.json"
_DELETED = ".deleted"
_UNFINISHED = {_META + ASIDE_SUFFIX, _META_COPY + ASIDE_SUFFIX}
_NAME_MAX = 120
_escape = re.compile(r"[^A-Za-z0-9_$=-]")


class _Envelope(msgspec.Struct):
    """A meta file: the JSON of its owner, with a version and a checksum around it."""

    version: int
    checksum: str
    meta: msgspec.Raw


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def folder_name(name: str) -> str:
    """A name as that of a folder: it stays within its parent, and different names stay different."""
    safe = _escape.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    if len(safe) <= _NAME_MAX:
        return safe or "%"
    return f"{safe[:_NAME_MAX]}~{xxh3_64_hexdigest(name.encode())}"


def _ignore(_text: str) -> None:
    """Take no note."""


class _Folder:
    """A folder with a meta file."""

    layout: Layout

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk = disk
        self.path = path

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.disk.is_folder(self.path)

    def write_meta(self, meta: bytes) -> None:
        """Keep this JSON; it is on disk when this returns, and a crash leaves the old one or the new one.

        Raises:
            StoreError: the disk refused; the old one is still there.
        """
        checksum = xxh3_64_hexdigest(meta).encode()
        data = b'{"version":%d,"checksum":"%s","meta":%s}\n' % (META_VERSION, checksum, meta)
        try:
            if not self.exists():
                self.disk.make_folder(self.path)
                self.disk.sync_folder(self.path.parent)
            replace_file(self.disk, self.path / _META, data)
            # For the day when the first one is damaged; nobody waits for it.
            replace_file(self.disk, self.path / _META_COPY, data, durable=False)
        except OSError as error:
            raise StoreError.of(f"write {self.path / _META}", error) from error

    def read_meta(self) -> bytes | None:
        """The JSON that was kept; None when there is none, or neither it nor its copy is whole."""
        for name in (_META, _META_COPY):
            try:
                envelope = _decode_envelope(read_file(self.disk, self.path / name))
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            meta = bytes(envelope.meta)
            if envelope.version == META_VERSION and envelope.checksum == xxh3_64_hexdigest(meta):
                return meta
        return None

    def remove_stillborn(self, note: Callable[[str], None] = _ignore) -> bool:
        """Remove the folder if a crash left it before it got its first meta file; whether it did.

        Args:
            note: told of the removal.

        Raises:
            OSError: the disk refused.
        """
        names = self.disk.names(self.path)
        if not _UNFINISHED.issuperset(names) or not all(self.disk.is_file(self.path / name) for name in names):
            return False
        for name in names:
            self.disk.remove(self.path / name)
        self.disk.remove_folder(self.path)
        note(f"Removed {self.path}, which was left unfinished by a crash")
        return True

    def foreign(self) -> list[str]:
        """The names in the folder that the store did not write.

        Raises:
            OSError: the disk refused.
        """
        return list(foreign_names(self.disk, self.path, self.layout))

    def delete(self) -> None:
        """Remove the folder with all that is in it; it is gone for good as soon as it is renamed.

        Raises:
            StoreError: the disk refused; it is still there, or its rest is removed at the next start.
        """
        try:
            taken = set(self.disk.names(self.path.parent))
            aside = next(
                name for number in range(len(taken) + 1) if (name := f"{self.path.name}{_DELETED}{number}") not in taken
            )
            target = self.path.with_name(aside)
            self.disk.replace(self.path, target)
            self.disk.sync_folder(self.path.parent)
            _remove_tree(self.disk, target)
        except OSError as error:
            raise StoreError.of(f"remove {self.path}", error) from error


class ConsumerFolder(_Folder):
    """The files of one consumer."""

    layout = CONSUMER_FILES

    def open_journal(self, note: Callable[[str], None] = _ignore) -> FileJournal:
        """The consumer's journal; the folder must be there.

        Args:
            note: told when there are files and none tells where the consumer stood.
        """
        return FileJournal(self.disk, self.path, owner=self.owner, note=note)

    @property
    def owner(self) -> str:
        """Stream and consumer."""
        return f"{self.path.parents[1].name}/{self.path.name}"


class StreamFolder(_Folder):
    """The files of one stream.

    Args:
        open_files: shared by all streams of a server; None for a stream alone.
    """

    layout = STREAM_FILES

    def __init__(self, disk: Disk, path: Path, open_files: OpenFiles | None = None) -> None:
        super().__init__(disk, path)
        self._open_files = open_files

    def open_store(
        self,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        note: Callable[[str], None] = _ignore,
        report: Callable[[str], None] = _ignore,
    ) -> FileStore:
        """The stream's messages, recovered if there are any.

        Args:
            note: told of what recovery removed, and of what is not the store's.
            report: told of messages that are found to be lost.

        Raises:
            StoreError: the folder cannot be made, or the disk does not give back what is in it.
        """
        return FileStore(
            self.disk,
            self.path / "msgs",
            segment_bytes=segment_bytes,
            open_files=self._open_files,
            segment_list=self.path / "segments",
            note=note,
            report=report,
        )

    def consumer(self, name: str) -> ConsumerFolder:
        """The place of a consumer, which may not be there yet."""
        return ConsumerFolder(self.disk, self.path / "consumers" / folder_name(name))

    def consumers(self, note: Callable[[str], None] = _ignore) -> list[ConsumerFolder]:
        """The places of all consumers; what a crash left half removed goes.

        Args:
            note: told of what was removed and of what is not the store's.

        Raises:
            StoreError: the disk refused, so that nobody knows which consumers there are.
        """
        folders = _folders(self.disk, self.path / "consumers", CONSUMERS, note)
        return [ConsumerFolder(self.disk, path) for path in folders]


class StoreFolder:
    """The folder of a server: `jetstream` in its store directory.

    Args:
        store_dir: as the server was told; nothing is made before the first stream.
    """

    def __init__(self, disk: Disk, store_dir: Path) -> None:
        self.disk = disk
        self.path = store_dir / "jetstream"
        self._open_files = OpenFiles(files_max())

    def accounts(self) -> list[str]:
        """The names of the accounts that have streams, in order."""
        return [unquote(name) for name in self.disk.names(self.path) if self.disk.is_folder(self.path / name)]

    def stream(self, account: str, name: str) -> StreamFolder:
        """The place of a stream, which may not be there yet."""
        return StreamFolder(self.disk, self._streams(account) / folder_name(name), self._open_files)

    def streams(self, account: str, note: Callable[[str], None] = _ignore) -> list[StreamFolder]:
        """The places of all streams of an account; what a crash left half removed goes.

        Args:
            note: told of what was removed and of what is not the store's.

        Raises:
            StoreError: the disk refused, so that nobody knows which streams there are.
        """
        path = self._streams(account)
        folders = _folders(self.disk, path, STREAMS, note) if _is_there(self.disk, path.parent) else []
        return [StreamFolder(self.disk, path, self._open_files) for path in folders]

    def _streams(self, account: str) -> Path:
        return self.path / folder_name(account) / "streams"


def _folders(disk: Disk, path: Path, layout: Layout, note: Callable[[str], None]) -> list[Path]:
    """The folders of streams or consumers in a folder, without those that are being removed."""
    if not _is_there(disk, path):
        return []
    try:
        names = disk.names(path)
        foreign = list(foreign_names(disk, path, layout))
    except OSError as error:
        raise StoreError.of(f"read {path}", error) from error
    if foreign:
        note(f"{path} holds what the store did not write, and leaves alone: {told(foreign)}")
    found = []
    for name in names:
        inner = layout.folder(name)
        if inner is None or name in foreign:
            continue
        if _DELETED in name:
            _finish_removal(disk, path / name, inner, note)
        else:
            found.append(path / name)
    return found


def _is_there(disk: Disk, path: Path) -> bool:
    """Whether there is a folder of that name.

    Raises:
        StoreError: something else has the name, or the disk refused.
    """
    try:
        if disk.is_folder(path):
            return True
        if path.name in disk.names(path.parent):
            raise StoreError(f"read {path}", "it is no folder, and the store follows no symbolic links")
    except OSError as error:
        raise StoreError.of(f"read {path}", error) from error
    return False


def _finish_removal(disk: Disk, path: Path, layout: Layout, note: Callable[[str], None]) -> None:
    """Remove the rest of a folder that was being removed, unless there is something in it that is not the store's."""
    try:
        if foreign := list(foreign_names(disk, path, layout, deep=True)):
            note(f"{path} was being removed and stays, for what the store did not write: {told(foreign)}")
            return
        _remove_tree(disk, path)
    except OSError as error:
        # It is in nobody's way.
        note(f"{path} was being removed, and the rest of it stays: {error.strerror}")
        return
    note(f"Removed {path}, the rest of what was deleted before the last stop")


def _remove_tree(disk: Disk, path: Path) -> None:
    """Remove a folder with all that is in it; of a link only the link."""
    for name in disk.names(path):
        if disk.is_folder(path / name):
            _remove_tree(disk, path / name)
        else:
            disk.remove(path / name)
    disk.remove_folder(path)
