"""Starting JetStream: the folder, its limits, and the engine with an account for each that may use it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError
from jetlake.model.account import AccountLimits
from jetlake.model.encoding.durations import format_duration, nanoseconds
from jetlake.model.rules.limits import ServerLimits
from jetlake.server.config.options import JetStreamLimits, JetStreamOptions
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.server.version import API_LEVEL
from jetlake.store.files.disk import RealDisk
from jetlake.store.stream_folder import StoreFolder

if TYPE_CHECKING:
    from jetlake.server.shell.server import Server

__all__ = ["FolderLock", "jetstream_folder", "start_engine"]

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class FolderLock:
    """The claim of one server on its store directory; the system takes it back when the process dies.

    A directory that can only be read cannot be claimed, and needs not be: nobody writes there.

    Raises:
        ConfigError: the directory cannot be made or opened, or another server has it.
    """

    def __init__(self, options: JetStreamOptions) -> None:
        folder = Path(jetstream_folder(options))
        self._handle = -1
        try:
            if not folder.is_dir():
                RealDisk().make_folder(folder)
            self._handle = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"storage directory {folder} is in use by another server") from None
        except OSError as error:
            self.release()
            if error.errno not in _READ_ONLY or not folder.is_dir():
                raise ConfigError(f"could not use storage directory {folder}: {error.strerror}") from None

    def release(self) -> None:
        """Give the directory back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def jetstream_folder(options: JetStreamOptions) -> str:
    """The folder that the data lies in."""
    return str(Path(options.store_dir).absolute() / "jetstream")


def start_engine(server: Server, options: JetStreamOptions, limits: dict[str, JetStreamLimits]) -> Engine:
    """An engine for these accounts, with everything recovered that its folder holds.

    Raises:
        StoreError: what lies in the folder cannot be read.
    """
    folder = jetstream_folder(options)
    storage = FolderStorage(StoreFolder(RealDisk(), Path(options.store_dir)), server.log.error, server.log.warn)
    engine = Engine(server.clock, _engine_options(server, options, folder), storage)
    engine.report = server.log.error
    _log_start(server, engine, folder)
    for name, account_limits in limits.items():
        engine.enable(server.account(name), _account_limits(account_limits))
    for account in server.options.accounts:
        if account.name not in limits:
            engine.refuse(server.account(account.name))
    return engine


def _engine_options(server: Server, options: JetStreamOptions, folder: str) -> EngineOptions:
    return EngineOptions(
        server_name=server.name,
        domain=options.domain,
        sync_interval_ns=0 if options.sync_interval_s is None else nanoseconds(options.sync_interval_s),
        strict=options.strict,
        max_memory=options.max_memory if options.max_memory >= 0 else _machine_memory() * 3 // 4,
        max_storage=options.max_storage if options.max_storage >= 0 else _free_space(folder) * 3 // 4,
        limits=ServerLimits(
            max_ack_pending=max(options.max_ack_pending, 0),
            max_request_batch=max(options.max_request_batch, 0),
            duplicate_window=nanoseconds(options.duplicate_window_s),
        ),
        ack_subject_v2=server.options.ack_subject_v2,
        max_payload=server.options.max_payload,
    )


def _account_limits(limits: JetStreamLimits) -> AccountLimits:
    return AccountLimits(**{name: getattr(limits, name) for name in limits.__struct_fields__})


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_space(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _log_start(server: Server, engine: Engine, folder: str) -> None:
    options = engine.options
    sync = "always" if not options.sync_interval_ns else format_duration(options.sync_interval_ns)
    server.log.info("Starting JetStream")
    server.log.info("---------------- JETSTREAM ----------------")
    server.log.info(f"  Strict:          {'true' if options.strict else 'false'}")
    server.log.info(f"  Max Memory:      {_readable_size(options.max_memory)}")
    server.log.info(f"  Max Storage:     {_readable_size(options.max_storage)}")
    server.log.info(f'  Store Directory: "{folder}"')
    server.log.info(f"  Sync Interval:   {sync}")
    if options.domain:
        server.log.info(f"  Domain:          {options.domain}")
    server.log.info(f"  API Level:       {API_LEVEL}")
    server.log.info("-------------------------------------------")


def _readable_size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TB"
