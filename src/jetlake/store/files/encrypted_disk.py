"""A disk that encrypts: files below the store are ciphertext, and the store notices nothing of it.

Invariants:

- A file is a header of 4096 bytes, then as many bytes as the store wrote, each at its own place: byte `n` of the store
  is byte `4096 + n` of the file. A torn write, a lost sector or a flipped bit therefore damages what it damages in the
  clear, and nothing beside it; an append never writes a byte again that was safe before.
- The bytes are encrypted by a stream cipher, with a key of their own for each file, made from the store's key and a
  random nonce in the header. Bytes that are cut off and written again get another nonce: no two messages share a
  keystream. Only what the store overwrites in place does: numbers of its mark, and the bytes that erase a message.
- What a process appends first to a file that it found gets another nonce too: the file may be an older copy that was
  restored, and with the newer one there would be two messages under one keystream.
- A block of sixteen aligned bytes that are all zeros was never written: a hole, and zeros for the store too, which
  makes files longer before it writes and finds the end of a log by the zeros that follow. A block is written as a
  whole, with zeros of the store around what it asked for. The last block of a file may be shorter, and so few zeros say
  nothing: it is a hole where the block before it is one, and the two are written together.
- The header stands there twice, each with a hash under the key: one may be torn or damaged. A new one replaces one of
  them, and the other one only after the first was synced. A file whose headers are both unreadable reads as zeros, as
  does a file whose start a power cut took.

             0        2048      4096
    file     | header | header | ciphertext …          header: magic, version, cipher, turn, (from, nonce) …, hash

The cipher itself authenticates nothing: who knows a message's text can turn it into another one. What detects that are
the hashes in the store's files, which are keyed where the disk's `hashing` is. They are ciphertext too, and nobody sees
one: so none can be carried to another place or file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any
from weakref import WeakValueDictionary

from jetlake.errors import ConfigError
from jetlake.store.files.checksum import PLAIN_HASHING, Hashing, KeyedHashing
from jetlake.store.files.disk import Disk, Kind

__all__ = ["CIPHERS", "HEADER_BYTES", "MAGIC", "EncryptedDisk"]

HEADER_BYTES = 4096
MAGIC = b"JLEN"
"""Begins every encrypted file."""
FORMAT_VERSION = 1
CIPHERS = {"aes": 1, "chacha": 2}
"""The ciphers by the numbers that stand in headers."""

_SLOT_BYTES = HEADER_BYTES // 2
_HEAD = Struct("<4sHBxIH2x")
_SPAN = Struct("<Q16s")
_HASH_BYTES = 16
# A file that is cut this often, and written again, is not cut any more with another nonce.
_SPANS_MAX = (_SLOT_BYTES - _HEAD.size - _HASH_BYTES) // _SPAN.size
# A file that so many processes have appended to is continued with the nonce of the last: there is room left for cuts.
_PROCESSES_MAX = _SPANS_MAX // 2
# The latest files of which is remembered that this process has given them a nonce.
_OWN_MAX = 4096
_BLOCK = 16
_ZERO_BLOCK = bytes(_BLOCK)
_SCAN_BYTES = 64 * 1024
# The bytes of one step of a cipher's counter.
_STEPS = {1: 16, 2: 64}


class _Header:
    """The header of one open file, shared by its handles.

    Attributes:
        spans: from which byte on which nonce holds; empty = the file has no header yet.
        turn: of the header that was written last.
        is_found: the file is another process's, and its last nonce too.
        written_to: up to here, a file that was found is known to hold something; what is written before overwrites.
        is_unsaved: the disk refused this header; it is written before anything else is.
        single_turn: the turn in which it was written once, not twice; 0 = none.
        synced_turn: the turn whose header the last sync had; other threads, which sync, set this and nothing else.
    """

    __slots__ = (
        "__weakref__",
        "cipher",
        "ciphers",
        "is_found",
        "is_unsaved",
        "single_turn",
        "spans",
        "synced_turn",
        "turn",
        "written_to",
    )

    def __init__(self, cipher: int, spans: list[tuple[int, bytes]], turn: int) -> None:
        self.cipher = cipher
        self.spans = spans
        self.turn = turn
        self.is_found = False
        self.written_to = 0
        self.is_unsaved = False
        self.single_turn = self.synced_turn = 0
        self.ciphers: dict[bytes, Any] = {}


class _Handle:
    """One open handle.

    Attributes:
        header: None = it was not read yet, the file is empty, or its headers cannot be read.
        end: behind the last byte that was written with this handle; -1 = not known.
    """

    __slots__ = ("end", "header")

    def __init__(self) -> None:
        self.header: _Header | None = None
        self.end = -1


class EncryptedDisk:
    """A `Disk` on another one, whose files it encrypts; names, sizes and times are the other's.

    Args:
        disk: holds the ciphertext.
        key: 32 bytes.
        cipher: of new files: `aes` (256 bits, counter mode) or `chacha` (ChaCha20); each file says what it has.
        is_authenticated: whether the hashes in the store's files are keyed.

    Raises:
        ConfigError: the package `cryptography` is not installed.
    """

    def __init__(self, disk: Disk, key: bytes, cipher: str = "chacha", *, is_authenticated: bool = True) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise ConfigError("encryption needs the package cryptography: install jetlake[encryption]") from None
        self._cipher_of = Cipher
        self._algorithms = algorithms
        self._modes = modes
        self.disk = disk
        self._key = key
        self._hash_key = blake2b(b"header", key=key, digest_size=32).digest()
        hash_key = blake2b(b"hashes", key=key, digest_size=32).digest()
        self.hashing: Hashing = KeyedHashing(hash_key) if is_authenticated else PLAIN_HASHING
        self._cipher = CIPHERS[cipher]
        self._handles: dict[int, _Handle] = {}
        self._headers: WeakValueDictionary[bytes, _Header] = WeakValueDictionary()
        self._own: dict[bytes, None] = {}  # the first nonces of files, the latest last

    # Files

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = self.disk.open(path, create=create)
        self._handles[handle] = _Handle()  # The header is read with the first bytes: many files are opened for less.
        return handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self.disk.close(handle)

    def size(self, handle: int) -> int:
        return max(self.disk.size(handle) - HEADER_BYTES, 0)

    def data_size(self, handle: int) -> int:
        return max(self.disk.data_size(handle) - HEADER_BYTES, 0)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        header = self._header_of(handle)
        if header is None:
            return bytes(max(min(size, self.size(handle) - offset), 0))
        start = offset - offset % _BLOCK
        end = -(-(offset + size) // _BLOCK) * _BLOCK
        data = self.disk.read(handle, end - start, HEADER_BYTES + start)
        plain = self._crypt(header, data, start)
        whole = len(data) - len(data) % _BLOCK
        if _ZERO_BLOCK in data:
            plain = _with_holes(plain, data)
        elif data and not whole and self._is_hole(handle, start - _BLOCK, start):
            plain = bytes(len(data))
        return plain[offset - start : offset - start + size]

    def write(self, handle: int, data: bytes, offset: int) -> None:
        if not data:
            return
        state = self._handles[handle]
        header = self._header_of(handle) or self._begin(handle, state)
        if header.is_unsaved:
            self._save(handle, header)
        elif header.single_turn and header.synced_turn >= header.single_turn:
            self._save_again(handle, header)
        size, end = self.size(handle), offset + len(data)
        if header.is_found and offset >= header.written_to:
            self._continue(handle, header, min(offset, size), size)
        if offset > size:
            self._fill_last(handle, header, size, offset)
        if offset != state.end or end < size:
            before, after = self._around(handle, offset, end, size)
            if before or after:
                data = bytes(before) + data + bytes(after)
                offset -= before
        self.disk.write(handle, self._crypt(header, data, offset), HEADER_BYTES + offset)
        state.end = end

    def truncate(self, handle: int, size: int) -> None:
        state = self._handles[handle]
        present = self.size(handle)
        if size == 0:
            # What is written next begins a new file: with another nonce.
            self.disk.truncate(handle, 0)
            if state.header is not None:
                state.header.spans = []  # Other handles must not continue with it.
            state.header, state.end = None, -1
            return
        header = self._header_of(handle) or self._begin(handle, state)
        state.end = -1
        last = size - size % _BLOCK
        if size < present:
            if self._is_written(handle, size, present):
                with suppress(OSError):  # A full disk must take a cut.
                    self._change_nonce(handle, header, size)
            is_hole, follows_hole = self._is_hole(handle, last, present), self._is_hole(handle, last - _BLOCK, present)
            if last < size and follows_hole and not is_hole:
                self._fill(handle, header, last - _BLOCK, last)
            self.disk.truncate(handle, HEADER_BYTES + size)
            if last < size and is_hole and not follows_hole:
                self._fill(handle, header, last, size)
        elif size > present:
            if header.is_found:
                self._continue(handle, header, present, present)
            self._fill_last(handle, header, present, size)
            is_far = self._is_hole(handle, last - _BLOCK, present)
            self.disk.truncate(handle, HEADER_BYTES + size)
            if last >= present and not is_far:
                self._fill(handle, header, last, size)

    def begin_writeback(self, handle: int, offset: int, size: int) -> None:
        self.disk.begin_writeback(handle, HEADER_BYTES + offset, size)

    def sync(self, handle: int) -> None:
        state = self._handles.get(handle)
        header = state.header if state is not None else None
        turn = header.turn if header is not None and not header.is_unsaved else 0
        self.disk.sync(handle)
        if header is not None:
            header.synced_turn = turn

    # Names

    def sync_folder(self, path: Path) -> None:
        self.disk.sync_folder(path)

    def replace(self, source: Path, target: Path) -> None:
        self.disk.replace(source, target)

    def remove(self, path: Path) -> None:
        self.disk.remove(path)

    def remove_folder(self, path: Path) -> None:
        self.disk.remove_folder(path)

    def make_folder(self, path: Path) -> None:
        self.disk.make_folder(path)

    def add_folder(self, path: Path) -> None:
        self.disk.add_folder(path)

    def names(self, path: Path) -> list[str]:
        return self.disk.names(path)

    def kinds(self, path: Path) -> dict[str, Kind]:
        return self.disk.kinds(path)

    def is_folder(self, path: Path) -> bool:
        return self.disk.is_folder(path)

    def is_file(self, path: Path) -> bool:
        return self.disk.is_file(path)

    # Headers

    def is_encrypted(self, path: Path) -> bool:
        """Return whether the file is empty, or has a header under this key.

        Raises:
            OSError: the disk refused.
        """
        handle = self.open(path)
        try:
            return self._header_of(handle) is not None or not self.disk.size(handle)
        finally:
            self.close(handle)

    def _header_of(self, handle: int) -> _Header | None:
        """Return the header of an open file; another handle may have written or removed it meanwhile."""
        state = self._handles[handle]
        if state.header is None or not state.header.spans:
            state.header = self._load(handle)
        return state.header

    def _load(self, handle: int) -> _Header | None:
        """Read the header of a file; None when it is empty, or neither header can be read."""
        data = self.disk.read(handle, HEADER_BYTES, 0)
        found = [self._unpack(data[:_SLOT_BYTES]), self._unpack(data[_SLOT_BYTES:])]
        headers = [header for header in found if header is not None]
        if not headers:
            return None
        newest = max(headers, key=lambda header: header.turn)
        known = self._headers.get(newest.spans[0][1])
        if known is not None and known.spans and known.turn >= newest.turn:
            return known
        self._headers[newest.spans[0][1]] = newest
        newest.is_found = newest.spans[0][1] not in self._own
        if len(headers) == 1 or headers[0].turn != headers[1].turn:
            newest.single_turn = newest.turn
        return newest

    def _unpack(self, slot: bytes) -> _Header | None:
        if len(slot) < _SLOT_BYTES or not slot.startswith(MAGIC):
            return None
        _, version, cipher, turn, count = _HEAD.unpack_from(slot)
        end = _HEAD.size + count * _SPAN.size
        if version != FORMAT_VERSION or not 0 < count <= _SPANS_MAX or cipher not in _STEPS:
            return None
        if self._hash(slot[:end]) != slot[end : end + _HASH_BYTES]:
            return None
        return _Header(cipher, list(_SPAN.iter_unpack(slot[_HEAD.size : end])), turn)

    def _pack(self, header: _Header) -> bytes:
        body = _HEAD.pack(MAGIC, FORMAT_VERSION, header.cipher, header.turn, len(header.spans))
        body += b"".join(_SPAN.pack(*span) for span in header.spans)
        return (body + self._hash(body)).ljust(_SLOT_BYTES, b"\0")

    def _hash(self, body: bytes) -> bytes:
        return blake2b(body, key=self._hash_key, digest_size=_HASH_BYTES).digest()

    def _begin(self, handle: int, state: _Handle) -> _Header:
        """Write the header of an empty file, or of one without a readable one."""
        header = _Header(self._cipher, [(0, os.urandom(16))], 1)
        self.disk.write(handle, self._pack(header) * 2, 0)
        self._headers[header.spans[0][1]] = state.header = header
        self._remember(header)
        return header

    def _remember(self, header: _Header) -> None:
        """Note that this process has given the file a nonce."""
        header.is_found = False
        self._own[header.spans[0][1]] = None
        if len(self._own) > _OWN_MAX:
            del self._own[next(iter(self._own))]

    def _continue(self, handle: int, header: _Header, offset: int, size: int) -> None:
        """Begin another nonce where this process appends first to a file that it found; not where it overwrites.

        Of a file that was made longer before, the rest of the blocks that hold zeros of the store keeps its nonce.

        Args:
            offset: of the first byte to be written, at most the size.
            size: of the file so far.
        """
        first = offset - offset % _BLOCK
        if not self._is_hole(handle, first, size):
            starts = [size] if offset == size else [min(first + _BLOCK, size), min(first + 2 * _BLOCK, size)]
        elif self._is_hole(handle, first - _BLOCK, size):
            # Zeros may be written in front of what the store appends, from the hole before on.
            starts = [first - _BLOCK]
        else:
            starts = [first]
        for start in starts:
            if start == size or (self._is_hole(handle, start, size) and not self._is_written(handle, start, size)):
                self._remember(header)
                if len(header.spans) < _PROCESSES_MAX:
                    # The first nonce stays: it names the header.
                    self._change_nonce(handle, header, max(start, 1))
                return
        header.written_to = offset + 1

    def _change_nonce(self, handle: int, header: _Header, start: int) -> None:
        """Write with another nonce from this byte on; the bytes behind it are about to be cut off.

        The header goes first: a crash in between leaves bytes behind the cut that mean nothing, and never a cut file
        that continues with the old nonce.
        """
        spans = [span for span in header.spans if span[0] < start]
        if len(spans) < _SPANS_MAX:
            spans.append((start, os.urandom(16)))
        header.turn += 1
        header.spans = spans
        header.is_unsaved = True
        self._save(handle, header)

    def _save(self, handle: int, header: _Header) -> None:
        self.disk.write(handle, self._pack(header), _SLOT_BYTES * (header.turn % 2))
        header.is_unsaved = False
        header.single_turn = header.turn

    def _save_again(self, handle: int, header: _Header) -> None:
        """Write a header that was synced into the place of the one before it."""
        with suppress(OSError):  # The next write tries again.
            self.disk.write(handle, self._pack(header), _SLOT_BYTES * ((header.turn + 1) % 2))
            header.single_turn = 0

    # Ciphers

    def _fill(self, handle: int, header: _Header, start: int, end: int) -> None:
        """Write zeros of the store from `start` to `end`, which are within one block."""
        if start < end:
            self.disk.write(handle, self._crypt(header, bytes(end - start), start), HEADER_BYTES + start)

    def _fill_last(self, handle: int, header: _Header, size: int, end: int) -> None:
        """Write zeros of the store from the end of a file to its block's, or to `end`, unless that is a hole."""
        start = size - size % _BLOCK
        if start < size and not self._is_hole(handle, start, size):
            self._fill(handle, header, size, min(start + _BLOCK, end))

    def _around(self, handle: int, start: int, end: int, size: int) -> tuple[int, int]:
        """Return how many zeros of the store have to be written in front of these bytes and behind them.

        Args:
            size: of the file so far.
        """
        before = after = 0
        first, behind = start - start % _BLOCK, end - end % _BLOCK
        if first < start and self._is_hole(handle, first, size):
            before = start - first
        if behind < end < size and self._is_hole(handle, behind, size):
            after = min(behind + _BLOCK, size) - end
        new_size = max(size, end)
        last = new_size - new_size % _BLOCK
        if last == new_size:
            return before, after
        if end + after > last:
            if start - before > last - _BLOCK and self._is_hole(handle, last - _BLOCK, size):
                before = start - (last - _BLOCK)
        elif end + after == last and self._is_hole(handle, last, size):
            after = new_size - end
        return before, after

    def _is_hole(self, handle: int, start: int, size: int) -> bool:
        """Return whether the block that begins there was never written, in a file of this size."""
        if start < 0:
            return False
        if start + _BLOCK <= size:
            return self.disk.read(handle, _BLOCK, HEADER_BYTES + start) == _ZERO_BLOCK
        return start >= size or self._is_hole(handle, start - _BLOCK, size)

    def _is_written(self, handle: int, start: int, end: int) -> bool:
        """Return whether there is anything but zeros on the disk."""
        for offset in range(start, end, _SCAN_BYTES):
            data = self.disk.read(handle, min(_SCAN_BYTES, end - offset), HEADER_BYTES + offset)
            if data.count(0) < len(data):
                return True
        return False

    def _crypt(self, header: _Header, data: bytes, offset: int) -> bytes:
        """Encrypt or decrypt what stands at this offset: the same, with a stream cipher."""
        spans = header.spans
        if len(spans) == 1 or offset >= spans[-1][0]:
            return self._apply(header, spans[-1][1], data, offset)
        parts = []
        for (start, nonce), (end, _) in pairwise([*spans, (offset + len(data), b"")]):
            first, last = max(start, offset), min(end, offset + len(data))
            if first < last:
                parts.append(self._apply(header, nonce, data[first - offset : last - offset], first))
        return b"".join(parts)

    def _apply(self, header: _Header, nonce: bytes, data: bytes, offset: int) -> bytes:
        step, skipped = divmod(offset, _STEPS[header.cipher])
        key = header.ciphers.get(nonce)
        if key is None:
            key = header.ciphers[nonce] = blake2b(nonce, key=self._key, digest_size=32, person=b"jetlake file").digest()
        cipher: Any
        if header.cipher == CIPHERS["aes"]:
            cipher = self._cipher_of(self._algorithms.AES(key), self._modes.CTR(step.to_bytes(16, "big")))
        else:
            cipher = self._cipher_of(self._algorithms.ChaCha20(key, step.to_bytes(16, "little")), None)
        if skipped:
            return bytes(cipher.encryptor().update(bytes(skipped) + data)[skipped:])
        return bytes(cipher.encryptor().update(data))


def _with_holes(plain: bytes, data: bytes) -> bytes:
    """Return the plaintext with zeros where whole blocks of the disk are zeros."""
    shown = bytearray(plain)
    at = data.find(_ZERO_BLOCK)
    while at >= 0:
        start = -(-at // _BLOCK) * _BLOCK
        end = start
        while data.startswith(_ZERO_BLOCK, end):
            end += _BLOCK
        shown[start:end] = bytes(end - start)
        at = data.find(_ZERO_BLOCK, max(end, at + 1))
    last = len(data) - len(data) % _BLOCK
    if data[max(last - _BLOCK, 0) : last] == _ZERO_BLOCK:
        shown[last:] = bytes(len(data) - last)
    return bytes(shown)
