"""Opening an encrypted store: the keyring, and the files that were written before the store had one.

A store in the clear gets its keyring first. Then each of its files is rewritten, encrypted,
and replaces the old file; a crash in between leaves some of either kind, and the next start continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from jetlake.errors import ConfigError
from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.files.disk import Disk, Kind
from jetlake.store.files.encrypted_disk import HEADER_BYTES, MAGIC, EncryptedDisk
from jetlake.store.files.keyring import KEYRING_NAMES, has_keyring, new_keyring, open_keyring
from jetlake.store.files.own_files import ACCOUNT, Layout

__all__ = ["check_not_encrypted", "open_encrypted"]

_COPY_BYTES = 1024 * 1024


def check_not_encrypted(disk: Disk, folder: Path) -> None:
    """Refuse to open an encrypted store without a key.

    Raises:
        ConfigError: the store is encrypted.
    """
    if has_keyring(disk, folder):
        raise ConfigError(
            f"the streams in {folder} are encrypted: set `key` in the section jetstream of the configuration. "
            "Nothing was changed"
        )


def open_encrypted(
    disk: Disk, folder: Path, secret: str, previous: str, cipher: str, report: Callable[[str], None]
) -> EncryptedDisk:
    """Return the disk that encrypts the store in a folder, once all its files are encrypted.

    Args:
        disk: holds the ciphertext; what the redo log of an unencrypted store has is in its files.
        secret: the key of the configuration.
        previous: the key before the last rotation; empty = none.
        cipher: of new files.
        report: logs what is done to the store.

    Raises:
        ConfigError: the key is another one, or the keyring is missing, damaged or another store's; nothing was
            changed.
        OSError: the disk refused.
    """
    keyring = open_keyring(
        disk, folder, secret, previous, cipher, lambda key: _opens_files(disk, folder, EncryptedDisk(disk, key))
    )
    if keyring is None:
        found = next((path for path in _own_files(disk, folder) if _begins_encrypted(disk, path)), None)
        if found is not None:
            raise ConfigError(
                f"{folder / KEYRING_NAMES[0]} and its copy are missing, but {found} is encrypted: restore one of them "
                "from a backup; without it nothing opens the streams. Nothing was changed"
            )
        is_empty = next(_own_files(disk, folder), None) is None
        keyring = new_keyring(disk, folder, secret, cipher, is_empty=is_empty)
        report(f"JetStream encryption: created a keyring, {folder / KEYRING_NAMES[0]}; back it up with the streams")
    elif keyring.was_rotated:
        report("JetStream encryption: sealed the keyring with `key`; `prev_key` is no longer needed")
    encrypted = EncryptedDisk(disk, keyring.key, cipher, is_authenticated=keyring.is_authenticated)
    if not keyring.is_whole:
        count = sum(_encrypt(disk, encrypted, path) for path in list(_own_files(disk, folder)))
        keyring.finish()
        if count:
            report(f"JetStream encryption: encrypted {count:,} files that were unencrypted")
    if not keyring.is_authenticated:
        report(
            "JetStream encryption: the store had files before it had this key, or is an earlier version's: its content "
            "is encrypted and not authenticated; restore backups of its streams into an empty store_dir to change that"
        )
    return encrypted


def _own_files(disk: Disk, folder: Path) -> Iterator[Path]:
    """Return the store's own files in the folders of all accounts."""
    for name, kind in disk.kinds(folder).items():
        if kind is Kind.FOLDER:
            yield from _files_within(disk, folder / name, ACCOUNT)


def _files_within(disk: Disk, folder: Path, layout: Layout) -> Iterator[Path]:
    for name, kind in disk.kinds(folder).items():
        if kind is Kind.FILE and layout.has_file(name):
            yield folder / name
        elif kind is Kind.FOLDER and (inner := layout.folder(name)) is not None:
            yield from _files_within(disk, folder / name, inner)


def _opens_files(disk: Disk, folder: Path, encrypted: EncryptedDisk) -> bool:
    """Return whether the disk reads one of the encrypted files, or there are none: any other may be damaged."""
    is_foreign = False
    for path in _own_files(disk, folder):
        with suppress(OSError):  # A file that the disk refuses says nothing.
            if _begins_encrypted(disk, path):
                if encrypted.is_encrypted(path):
                    return True
                # A power cut leaves one of the two headers torn or missing, and never two unreadable ones.
                is_foreign |= _begins_encrypted(disk, path, HEADER_BYTES // 2)
    return not is_foreign


def _begins_encrypted(disk: Disk, path: Path, offset: int = 0) -> bool:
    handle = disk.open(path)
    try:
        return disk.read(handle, len(MAGIC), offset) == MAGIC
    finally:
        disk.close(handle)


def _encrypt(disk: Disk, encrypted: EncryptedDisk, path: Path) -> bool:
    """Put an encrypted copy in the place of a file; False when it is encrypted already."""
    if not disk.is_file(path) or encrypted.is_encrypted(path):
        return False  # An unfinished file may have been the place of a copy meanwhile.
    if path.name.endswith(ASIDE_SUFFIX):
        disk.remove(path)  # It was never finished, and nothing refers to it.
        return False
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    source, target = disk.open(path), encrypted.open(aside, create=True)
    try:
        encrypted.truncate(target, 0)
        size = disk.size(source)
        for offset in range(0, size, _COPY_BYTES):
            data = disk.read(source, min(_COPY_BYTES, size - offset), offset)
            if data.count(0) < len(data):
                encrypted.write(target, data, offset)
        encrypted.truncate(target, size)
        encrypted.sync(target)
    finally:
        disk.close(source)
        encrypted.close(target)
    disk.replace(aside, path)
    disk.sync_folder(path.parent)
    return True
