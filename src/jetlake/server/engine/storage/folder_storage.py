"""The storage of streams and consumers in folders under the store directory.

The reasons are in decision 13 (docs/decisions). What handles the files of a stream is loaded with the first stream: a
server without streams starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jetlake.errors import DecodeError, StoreError
from jetlake.model.enums import StorageType
from jetlake.server.engine.storage.folder_removals import FolderRemovals
from jetlake.store.store_folder import StoreFolder

if TYPE_CHECKING:
    from jetlake.model.stream import StreamConfig
    from jetlake.server.engine.storage.storage import StreamStorage
    from jetlake.store.stream_folder import StreamFolder

__all__ = ["FolderStorage"]


class FolderStorage:
    """A storage in a server's folder; memory streams are not stored.

    Args:
        folder: the server's.
        report: logs streams that cannot be opened, which stay unchanged, and lost messages.
        note: notified of files removed at the start, and of files that are not the store's.

    Attributes:
        set_aside: what could not be opened, by account and folder, and why.
        removals: removes the folders of streams and consumers.
    """

    def __init__(
        self,
        folder: StoreFolder,
        report: Callable[[str], None],
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.set_aside: dict[tuple[str, str], str] = {}
        self._removals = FolderRemovals(folder.remover)
        self.removals: FolderRemovals | None = self._removals
        self.folder = folder
        self._report = report
        self._note = note

    def create(self, account: str, config: StreamConfig, created_ns: int, *, held: bool = False) -> StreamStorage:
        """Create the storage of a new stream.

        Args:
            held: a restart removes the stream with all that it holds, unless `release` came before.

        Raises:
            StoreError: the disk refused.
        """
        from jetlake.model.encoding.codec import encode
        from jetlake.server.engine.storage.folder_stream_storage import FolderStreamStorage, StreamRecord

        folder = self.folder.stream(account, config.name)
        if (account, "") in self.set_aside or (account, folder.path.name) in self.set_aside:
            self._check_free(account, folder)
        if config.storage is StorageType.MEMORY:
            from jetlake.server.engine.storage.storage import MemoryStreamStorage

            return MemoryStreamStorage()
        folder.stage_new(encode(StreamRecord(config=config, created_ns=created_ns)), held=held)
        return FolderStreamStorage(
            folder, self._removals, self._report, self._note, is_mirror=config.mirror is not None
        )

    def _check_free(self, account: str, folder: StreamFolder) -> None:
        try:
            if folder.exists() and not folder.remove_stillborn(self._note):
                raise StoreError(
                    "make the stream", f"{folder.path} holds one that could not be opened; move it away first"
                )
            self.set_aside.pop((account, folder.path.name), None)
        except OSError as error:
            raise StoreError.of(f"read {folder.path}", error) from error

    def recover(self, account: str) -> Iterator[tuple[StreamConfig, int, StreamStorage]]:
        """Open the account's streams."""
        try:
            vanished = self.folder.vanished(account)
            folders = self.folder.streams(account, self._note)
        except StoreError as error:
            self.set_aside[account, ""] = str(error)
            self._report(f"The streams of account {account} can not be opened: {error}. Nothing was changed")
            return
        if damaged := self.folder.damaged_lines(account):
            self._report(
                f"streams.list of account {account} has {damaged} lines that are not authentic, perhaps torn by a "
                "power cut: if the folders of their streams are missing, that is not noticed"
            )
        for name in sorted(vanished):
            self.set_aside[account, name] = "its folder is missing, although the stream was not deleted"
            self._report(
                f"The folder of stream {name} of account {account} is missing, although the stream was not "
                "deleted: put it back before a restart, create the stream again, or take its line out of streams.list"
            )
        if not folders:
            return
        from jetlake.server.engine.storage.folder_stream_storage import (
            FolderStreamStorage,
            StreamRecord,
            check_name,
            record_of,
            tidy,
            told,
        )

        for folder in folders:
            try:
                folder.look()
                meta = folder.read_meta()
                if meta is None and folder.remove_stillborn(self._note):
                    continue
                record = record_of(folder, StreamRecord, meta)
                check_name(folder, record.config.name)
                is_mirror = record.config.mirror is not None
                storage = FolderStreamStorage(folder, self._removals, self._report, self._note, is_mirror=is_mirror)
            except (OSError, DecodeError, StoreError) as error:
                self._leave_alone(account, folder, told(error))
                continue
            except Exception as error:  # Whatever the files of one stream do, the others must start.
                self._leave_alone(account, folder, f"reading it failed with {error!r}")
                continue
            tidy(folder, self._note)
            if folder.listed is not None:
                folder.listed.add(folder.path.name)
            yield record.config, record.created_ns, storage
            folder.use()

    def _leave_alone(self, account: str, folder: StreamFolder, reason: str) -> None:
        # sometimes: a stream is set aside
        self.set_aside[account, folder.path.name] = reason
        if folder.listed is not None:
            folder.listed.strike(folder.path.name)  # It may be moved away.
        self._report(
            f"Stream in {folder.path} can not be opened: {reason}. Nothing in it was changed: repair it (a copy of "
            "meta.json is enough when only that is damaged) and restart, or move the folder away to free the name"
        )
