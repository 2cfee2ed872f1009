"""JetStream in a server: the claim on its folder, the engine with its accounts, and the committer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake import platform
from jetlake.errors import ConfigError, StoreError
from jetlake.model.account import AccountLimits
from jetlake.model.encoding.durations import format_duration, nanoseconds
from jetlake.model.rules.limits import ServerLimits
from jetlake.server.config.options import GLOBAL_ACCOUNT, JetStreamLimits, JetStreamOptions, Options
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.server.shell.account_table import AccountTable
from jetlake.server.shell.committer import Committer, has_events
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.shell.log import Log
from jetlake.server.shell.redo_commits import RedoCommits
from jetlake.server.version import API_LEVEL
from jetlake.store.files.disk import Disk, RealDisk
from jetlake.store.log.open_files import files_max
from jetlake.store.redo.redo_log import FILE_NAMES, RedoLog
from jetlake.store.store_folder import StoreFolder

if TYPE_CHECKING:  # Loaded with the first stream, and what few servers ever need with that.
    from jetlake.store.file_store import FileStore

__all__ = ["JetStreamService", "jetstream_folder"]

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class _FolderLock:
    """The lock of one server on its store directory; the operating system releases it when the process dies.

    Both a file beside the data folder and the folder itself are locked: the folder may be mounted or linked into
    several store directories, each with a lock file of its own, and the file may be deleted; but not every file system
    locks a folder. A read-only directory cannot be locked, and need not be.

    Raises:
        ConfigError: the directory cannot be made or opened, or another server has locked it.
    """

    def __init__(self, options: JetStreamOptions) -> None:
        folder = Path(jetstream_folder(options))
        self._handles: list[int] = []
        try:
            if not folder.is_dir():
                RealDisk().make_folder(folder)
            self._lock(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
            if platform.HAS_DIRECTORY_HANDLES:
                with suppress(OSError):
                    self._lock(folder, os.O_RDONLY | os.O_DIRECTORY)
        except _LockedError:
            self.release()
            raise ConfigError(f"storage directory {folder} is in use by another server") from None
        except OSError as error:
            self.release()
            if error.errno not in _READ_ONLY or not folder.is_dir():
                raise ConfigError(f"could not use storage directory {folder}: {error.strerror}") from None

    def _lock(self, path: Path, flags: int) -> None:
        handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
        self._handles.append(handle)
        try:
            platform.lock_file(handle)
        except BlockingIOError:
            raise _LockedError from None

    def release(self) -> None:
        """Release the lock."""
        while self._handles:
            os.close(self._handles.pop())


class _LockedError(Exception):
    """Another process holds a lock."""


def jetstream_folder(options: JetStreamOptions) -> str:
    """Name the folder that holds the data."""
    return str(Path(options.store_dir).absolute() / "jetstream")


class JetStreamService:
    """The engine of a server from its recovery to its clean end.

    Args:
        report_defect: takes an internal error, with the place where it was raised.
    """

    def __init__(
        self,
        clock: Clock,
        log: Log,
        accounts: AccountTable,
        engine_loop: EngineLoop,
        report_defect: Callable[[str, Exception], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._accounts = accounts
        self._engine_loop = engine_loop
        self._report_defect = report_defect
        self._disk = _real_disk()
        self._lock: _FolderLock | None = None
        self._redo_log: RedoLog | None = None

    def start(self, server_name: str, options: Options) -> None:
        """Claim the folder, recover everything that it holds, and let the engine loop drive the engine.

        Raises:
            ConfigError: the folder cannot be used.
            StoreError: what lies in the folder cannot be read.
        """
        assert options.jetstream is not None
        self._lock = _FolderLock(options.jetstream)
        disk = self._open_disk(options.jetstream)
        engine = self._recover(server_name, options, options.jetstream, disk)
        engine_loop = self._engine_loop
        engine_loop.engine = engine
        redo = None
        if options.jetstream.key is None and engine.commit.always:
            # Its files are written over and over in their place, which an encrypted store does with no message.
            self._redo_log = RedoLog(disk, Path(jetstream_folder(options.jetstream)))
            redo = RedoCommits(
                self._redo_log,
                engine_loop.loop,
                redo_store=_redo_store,
                refused=engine.commit.failed,
                report=self._log.error,
            )
        engine_loop.committer = Committer(
            engine.commit,
            engine_loop.loop,
            engine_loop.synced,
            files_max(),
            begin_writeback=_begin_writeback,
            redo=redo,
            sync_if_short=_sync_if_short,
            has_events=has_events(engine_loop.loop) if engine_loop.is_own else None,
        )
        engine_loop.schedule()

    def _open_disk(self, jetstream: JetStreamOptions) -> Disk:
        """Return the disk of the store, encrypted where the options say so.

        Raises:
            ConfigError: the store is encrypted with another key, or with one and the options have none.
        """
        disk, folder, log = self._disk, Path(jetstream_folder(jetstream)), self._log
        if jetstream.key is None:
            if not _is_empty(disk, folder):
                from jetlake.store.files.encryption import check_not_encrypted

                check_not_encrypted(disk, folder)
            return disk
        from jetlake.store.files.encryption import open_encrypted
        from jetlake.store.files.keyring import has_keyring
        from jetlake.store.redo.replay import replay

        if not has_keyring(disk, folder):
            # What is in the redo log of a store in the clear goes to its files before these are encrypted.
            replay(disk, folder, log.error)
            left = [name for name in disk.names(folder) if name.startswith(FILE_NAMES)]
            if left:
                raise ConfigError(
                    f"{folder / left[0]} is not encrypted and could not be replayed: "
                    "start once without `key`, and remove it when the log says that it is not needed"
                )
        previous = jetstream.previous_key.reveal() if jetstream.previous_key is not None else ""
        try:
            return open_encrypted(disk, folder, jetstream.key.reveal(), previous, jetstream.cipher, log.info)
        except OSError as error:
            raise StoreError(f"open the encrypted store in {folder}", str(error), errno=error.errno) from None

    def _recover(self, server_name: str, options: Options, jetstream: JetStreamOptions, disk: Disk) -> Engine:
        folder = jetstream_folder(jetstream)
        log, accounts = self._log, self._accounts
        behind_redo: frozenset[str] = frozenset()
        # An encrypted store has no redo log: a file of that name is not the store's, and its hashes have no key.
        if jetstream.key is None and not _is_empty(disk, Path(folder)):
            from jetlake.store.redo.replay import replay

            behind_redo = replay(disk, Path(folder), log.error)
        store_folder = StoreFolder(
            disk,
            Path(jetstream.store_dir),
            jetstream.index_cache,
            behind_redo,
            marks_flushes=jetstream.sync_interval_s is not None,
        )
        storage = FolderStorage(store_folder, log.error, log.warn)
        engine = Engine(self._clock, _engine_options(server_name, options, jetstream, folder), storage)
        engine.report = log.error
        _log_start(log, engine, folder, jetstream.cipher if jetstream.key is not None else "")
        limits = {account.name: account.jetstream for account in options.accounts if account.jetstream is not None}
        only_system = all(account.name == options.system_account for account in options.accounts)
        if only_system and options.operators is None:
            limits[GLOBAL_ACCOUNT] = JetStreamLimits()
        for name, account_limits in limits.items():
            engine.enable(accounts.get_or_create(name), _account_limits(account_limits), _tiers(account_limits))
        for account in options.accounts:
            if account.name not in limits:
                engine.disable(accounts.get_or_create(account.name))
        return engine

    def apply(self, options: Options) -> None:
        """Put the accounts' limits of a reload into force; accounts may come with JetStream, get it and lose it."""
        engine = self._engine_loop.engine
        if engine is None:
            return
        for account in options.accounts:
            limits = account.jetstream
            if limits is None:
                engine.disable(self._accounts.get_or_create(account.name))
            else:
                engine.enable(self._accounts.get_or_create(account.name), _account_limits(limits), _tiers(limits))
        if options.operators is not None:
            present = {account.name for account in options.accounts}
            for name in set(engine.jetstreams) - present:
                engine.disable(self._accounts.get_or_create(name))

    async def stop(self) -> None:
        """Wait for the syncs under way, close the engine, and release the folder; nothing when it has not started."""
        engine_loop = self._engine_loop
        engine, engine_loop.engine = engine_loop.engine, None
        committer, engine_loop.committer = engine_loop.committer, None
        if committer is not None:
            await committer.stop()
        if engine is not None:
            try:
                engine.close()
            except Exception as error:
                self._report_defect("closing JetStream", error)
            if self._redo_log is not None:
                self._redo_log.close()
                self._redo_log = None
            for account in self._accounts.by_name.values():
                account.js = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _real_disk() -> Disk:
    if platform.LOCKS_OPEN_FILES:
        from jetlake.store.files.windows_disk import WindowsDisk

        return WindowsDisk()
    return RealDisk()


def _is_empty(disk: Disk, folder: Path) -> bool:
    """Return whether nothing is stored yet: a start with an empty store loads nothing that recovers one."""
    try:
        return not disk.names(folder)
    except OSError:
        return False


def _engine_options(name: str, options: Options, jetstream: JetStreamOptions, folder: str) -> EngineOptions:
    interval_s = jetstream.sync_interval_s
    return EngineOptions(
        server_name=name,
        domain=jetstream.domain,
        sync_interval_ns=0 if interval_s is None else nanoseconds(interval_s),
        strict=jetstream.strict,
        max_memory=jetstream.max_memory if jetstream.max_memory >= 0 else platform.machine_memory() * 3 // 4,
        max_storage=jetstream.max_storage if jetstream.max_storage >= 0 else platform.free_bytes(folder) * 3 // 4,
        limits=ServerLimits(
            max_ack_pending=max(jetstream.max_ack_pending, 0),
            max_request_batch=max(jetstream.max_request_batch, 0),
            duplicate_window=nanoseconds(jetstream.duplicate_window_s),
            batches_per_stream=jetstream.batches_per_stream,
            batches_total=jetstream.batches_total,
            batch_messages=jetstream.batch_messages,
            batch_timeout=nanoseconds(jetstream.batch_timeout_s),
        ),
        ack_subject_v2=options.ack_subject_v2,
        max_payload=options.max_payload,
    )


def _account_limits(limits: JetStreamLimits) -> AccountLimits:
    return AccountLimits(**{name: getattr(limits, name) for name in AccountLimits.__struct_fields__})


def _tiers(limits: JetStreamLimits) -> dict[str, AccountLimits]:
    return {name: _account_limits(tier) for name, tier in limits.tiers}


def _begin_writeback(syncable: Syncable) -> None:
    from jetlake.store.file_store import FileStore

    if isinstance(syncable, FileStore):
        syncable.begin_writeback()


def _sync_if_short(syncable: Syncable) -> bool:
    from jetlake.store.file_store import FileStore

    return isinstance(syncable, FileStore) and syncable.sync_if_short()


def _redo_store(syncable: Syncable) -> FileStore | None:
    from jetlake.store.file_store import FileStore

    return syncable if isinstance(syncable, FileStore) else None


def _log_start(log: Log, engine: Engine, folder: str, cipher: str) -> None:
    options = engine.options
    sync = "always" if not options.sync_interval_ns else format_duration(options.sync_interval_ns)
    log.info("Starting JetStream")
    log.info("---------------- JETSTREAM ----------------")
    log.info(f"  Strict:          {'true' if options.strict else 'false'}")
    log.info(f"  Max Memory:      {_readable_size(options.max_memory)}")
    log.info(f"  Max Storage:     {_readable_size(options.max_storage)}")
    log.info(f'  Store Directory: "{folder}"')
    log.info(f"  Sync Interval:   {sync}")
    if cipher:
        log.info(f"  Encryption:      {cipher}")
    if options.domain:
        log.info(f"  Domain:          {options.domain}")
    log.info(f"  API Level:       {API_LEVEL}")
    log.info("-------------------------------------------")


def _readable_size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TB"
