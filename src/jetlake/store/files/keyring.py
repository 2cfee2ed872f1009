"""The key of an encrypted store: a random one, sealed by the configuration's key, in two copies of a file.

Invariants:

- The files of the store are encrypted by a random key, which never changes. A rotation seals that key again, and no
  other file is written.
- A key that opens neither file changes nothing, and neither does a keyring that opens no file of the store: it is
  another store's, which may have the same key in its configuration.
- Whether all files are encrypted is sealed with the key. Who could say that they are not would let a start take files
  in the clear, and with them streams that this server never stored.
- Whether the hashes in the store's files are keyed is sealed too, and never changes: a store that had files before it
  had a key keeps plain ones.
- Both files are replaced atomically, one after the other: a crash in between leaves one that the old key opens and one
  that the new key opens, and either key alone is enough. One of the files may be damaged or gone.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import scrypt
from pathlib import Path
from typing import Any

import msgspec

from jetlake.errors import ConfigError
from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.disk import Disk

__all__ = ["KEYRING_NAMES", "OpenKeyring", "has_keyring", "new_keyring", "open_keyring"]

KEYRING_NAMES = ("encryption.json", "encryption.copy.json")
_VERSION = 3
_UNSEALED_STATE = 1  # The version that said `is_whole` without sealing it.
_PLAIN_HASHES = 2  # The last version whose stores all have plain hashes.
_BYTES_MAX = 64 * 1024
# The cost of a guess: 32 MiB of memory and a tenth of a second.
_COST = 1 << 15
_COST_MAX = 1 << 20


class Keyring(msgspec.Struct, kw_only=True):
    """A keyring's file.

    Attributes:
        cipher: the cipher that sealed the key, and the cipher of new files.
        salt, cost: how the key of the configuration becomes the one that seals.
        sealed: nonce, ciphertext and tag of the store's key.
        is_whole: whether all files of the store are encrypted; a start encrypts the rest.
        is_authenticated: whether the hashes in the files are keyed.
    """

    version: int
    cipher: str
    salt: str
    cost: int
    sealed: str
    is_whole: bool = False
    is_authenticated: bool = False


class OpenKeyring:
    """A keyring that the key of the configuration has opened.

    Attributes:
        key: the store's key.
        is_whole: whether all files of the store are encrypted.
        is_authenticated: whether the hashes in the files are keyed.
        was_rotated: whether the previous key opened it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        secret: str,
        cipher: str,
        key: bytes,
        *,
        is_whole: bool,
        is_authenticated: bool,
    ) -> None:
        self.key = key
        self.is_authenticated = is_authenticated
        self.is_whole = is_whole
        self.was_rotated = False
        self._disk = disk
        self._folder = folder
        self._secret = secret
        self._cipher = cipher

    def write(self) -> None:
        """Seal the store's key by the configuration's, and replace both files.

        Raises:
            OSError: the disk refused; one of the files still opens with the key that opened it before, or this one.
        """
        salt, nonce = os.urandom(16), os.urandom(12)
        keyring = Keyring(
            version=_VERSION,
            cipher=self._cipher,
            salt=b64encode(salt).decode(),
            cost=_COST,
            sealed="",
            is_whole=self.is_whole,
            is_authenticated=self.is_authenticated,
        )
        cipher = _aead(self._cipher, _derive(self._secret, salt, _COST))
        keyring.sealed = b64encode(nonce + cipher.encrypt(nonce, self.key, _authenticated(keyring, salt))).decode()
        for name in KEYRING_NAMES:
            replace_file(self._disk, self._folder / name, msgspec.json.encode(keyring))

    def finish(self) -> None:
        """Note that all files of the store are encrypted.

        Raises:
            OSError: the disk refused.
        """
        self.is_whole = True
        self.write()


def has_keyring(disk: Disk, folder: Path) -> bool:
    """Return whether the store in the folder is encrypted."""
    return any(disk.is_file(folder / name) for name in KEYRING_NAMES)


def open_keyring(
    disk: Disk, folder: Path, secret: str, previous: str, cipher: str, opens: Callable[[bytes], bool]
) -> OpenKeyring | None:
    """Open the keyring of a store; None when there is none.

    Where the previous key opens it, or one of its files is missing, stale or damaged, both are rewritten.

    Args:
        secret: the key of the configuration.
        previous: the key before the last rotation; empty = none.
        cipher: of new files.
        opens: whether a store's key opens the files of this store.

    Raises:
        ConfigError: no key opens it, its files are damaged, or it belongs to another store; nothing was changed.
        OSError: the disk refused.
    """
    if not has_keyring(disk, folder):
        return None
    found = [_read(disk, folder / name) for name in KEYRING_NAMES]
    keyrings = [keyring for keyring in found if keyring is not None]
    if not keyrings:
        raise ConfigError(
            f"{folder / KEYRING_NAMES[0]} and its copy are damaged: restore one of them from a backup; "
            "without it nothing opens the streams. Nothing was changed"
        )
    is_foreign = False
    for number, each in enumerate((secret, previous)):
        for keyring in keyrings if each else ():
            key = _unseal(keyring, each)
            if key is not None and not opens(key):
                is_foreign = True  # The copy may be this store's.
            elif key is not None:
                opened = OpenKeyring(
                    disk,
                    folder,
                    secret,
                    cipher,
                    key,
                    is_whole=keyring.is_whole,
                    is_authenticated=keyring.version > _PLAIN_HASHES and keyring.is_authenticated,
                )
                opened.was_rotated = number == 1
                is_current = keyring.version == _VERSION and keyring.cipher == cipher
                if opened.was_rotated or found[0] != found[1] or not is_current:
                    opened.write()
                return opened
    if is_foreign:
        raise ConfigError(
            f"{folder / KEYRING_NAMES[0]} is the keyring of another store: it opens none of the files here. Restore "
            "the one that was backed up with these streams. Nothing was changed"
        )
    raise ConfigError(
        f"the streams in {folder} are encrypted with another key: neither `key` nor `prev_key` of the section "
        f"jetstream opens {folder / KEYRING_NAMES[0]}. Nothing was changed"
    )


def new_keyring(disk: Disk, folder: Path, secret: str, cipher: str, *, is_empty: bool) -> OpenKeyring:
    """Make the keyring of a store that is not encrypted yet.

    Args:
        is_empty: whether the store has no files: it is whole then, and will have keyed hashes.

    Raises:
        OSError: the disk refused.
    """
    key = os.urandom(32)
    made = OpenKeyring(disk, folder, secret, cipher, key, is_whole=is_empty, is_authenticated=is_empty)
    made.write()
    return made


def _read(disk: Disk, path: Path) -> Keyring | None:
    """Return what the file says; None when it is not there, or says nothing that makes sense."""
    try:
        keyring = msgspec.json.decode(read_file(disk, path, _BYTES_MAX), type=Keyring)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_known = keyring.version in (_UNSEALED_STATE, _PLAIN_HASHES, _VERSION) and keyring.cipher in ("aes", "chacha")
    return keyring if is_known and 1 < keyring.cost <= _COST_MAX else None


def _unseal(keyring: Keyring, secret: str) -> bytes | None:
    """Return the store's key; None when this is not the key that sealed it, or the file is damaged."""
    from cryptography.exceptions import InvalidTag

    try:
        salt, sealed = b64decode(keyring.salt), b64decode(keyring.sealed)
        cipher = _aead(keyring.cipher, _derive(secret, salt, keyring.cost))
        key = cipher.decrypt(sealed[:12], sealed[12:], _authenticated(keyring, salt))
    except (InvalidTag, ValueError):
        return None
    return bytes(key) if len(key) == 32 else None


def _authenticated(keyring: Keyring, salt: bytes) -> bytes:
    """Return what the seal authenticates besides the key."""
    if keyring.version == _UNSEALED_STATE:
        return salt
    state = salt + (b"whole" if keyring.is_whole else b"partial")
    if keyring.version == _PLAIN_HASHES:
        return state
    return state + (b" keyed" if keyring.is_authenticated else b" plain")


def _derive(secret: str, salt: bytes, cost: int) -> bytes:
    return scrypt(secret.encode(), salt=salt, n=cost, r=8, p=1, maxmem=cost * 2048, dklen=32)


def _aead(cipher: str, key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

    return AESGCM(key) if cipher == "aes" else ChaCha20Poly1305(key)
