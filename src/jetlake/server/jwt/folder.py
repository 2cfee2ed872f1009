"""The folder of a full resolver: a file `<public key>.jwt` for each account, as nats-server and nsc lay it out.

What always holds: a file is replaced whole and synced before the update is answered, so that after a crash an account
has its old token or its new one, and a revocation that was confirmed is not lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jetlake import platform
from jetlake.auth.keys import ACCOUNT, kind_of
from jetlake.errors import ConfigError, TokenError
from jetlake.server.config.operator_options import FolderOptions
from jetlake.store.files.disk import RealDisk

__all__ = ["AccountFolder"]

_SUFFIX = ".jwt"
_LENGTH_MAX = 1024 * 1024


class AccountFolder:
    """The tokens of accounts on disk.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """

    def __init__(self, options: FolderOptions) -> None:
        self._options = options
        self._path = platform.expand_user(options.directory).absolute()
        self._disk = RealDisk()
        try:
            if not self._path.is_dir():
                self._disk.make_folder(self._path)
        except OSError as error:
            raise ConfigError(f"resolver: cannot use the folder {self._path}: {error.strerror}") from None

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> Iterator[tuple[str, str | None]]:
        """Yield the accounts with their tokens; None where a file cannot be read.

        Raises:
            ConfigError: the folder cannot be read.
        """
        try:
            names = sorted(self._disk.names(self._path))
        except OSError as error:
            raise ConfigError(f"resolver: cannot read the folder {self._path}: {error.strerror}") from None
        for name in names:
            account = name.removesuffix(_SUFFIX)
            if account != name and kind_of(account) == ACCOUNT:
                yield account, self._read(account)

    def _read(self, account: str) -> str | None:
        try:
            with self._file(account).open(encoding="ascii") as file:
                text = file.read(_LENGTH_MAX + 1)
        except (OSError, UnicodeDecodeError):
            return None
        return text.strip() if len(text) <= _LENGTH_MAX else None

    def write(self, account: str, token: str, count: int) -> None:
        """Store the token of an account, beside `count` others.

        Raises:
            TokenError: the folder is full, or the disk refused.
        """
        limit, file = self._options.limit, self._file(account)
        if 0 < limit <= count and not file.exists():
            raise TokenError("jwtstore is full")
        aside = file.with_suffix(".jwt.tmp")
        try:
            handle = self._disk.open(aside, create=True)
            try:
                self._disk.truncate(handle, 0)
                self._disk.write(handle, token.encode(), 0)
                self._disk.sync(handle)
            finally:
                self._disk.close(handle)
            self._disk.replace(aside, file)
            self._disk.sync_folder(self._path)
        except OSError as error:
            raise TokenError(f"cannot write {file}: {error.strerror}") from None

    def delete(self, account: str) -> None:
        """Remove an account's file, or rename it to `.jwt.deleted`.

        Raises:
            TokenError: the disk refused.
        """
        file = self._file(account)
        try:
            if self._options.hard_delete:
                self._disk.remove(file)
            else:
                self._disk.replace(file, file.with_suffix(".jwt.deleted"))
            self._disk.sync_folder(self._path)
        except FileNotFoundError:
            raise TokenError(f"account {account} has no file") from None
        except OSError as error:
            raise TokenError(f"cannot delete {file}: {error.strerror}") from None

    @property
    def allows_delete(self) -> bool:
        """Whether accounts may be deleted by a request."""
        return self._options.allow_delete

    def _file(self, account: str) -> Path:
        return self._path / f"{account}{_SUFFIX}"
