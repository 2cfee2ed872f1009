"""A consumer's journal in files: one record per flush, and a new file with the whole state when a file has grown.

A record holds entries, each a letter and its numbers: `JournalEntries` gathers them, `replay` applies them to a state.
`docs/formats.md` draws them.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from array import array
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.columns import column_bytes, read_column
from jetlake.store.files.atomic_file import read_file
from jetlake.store.files.disk import Disk
from jetlake.store.files.folders import FolderOwner
from jetlake.store.journal import journal_format
from jetlake.store.journal.consumer_journal import ConsumerJournal, ignore_entry
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.journal.journal_format import KINDS, SAFE

__all__ = ["FileJournal", "JournalEntries", "encode_state", "replay"]

_SUFFIX = ".journal"
_FILE = re.compile(r"[0-9]{10}\.journal")
_BEGUN = "begun"
"""An empty file: there was a journal."""
_GROWN_BYTES = 256 * 1024


class FileJournal(ConsumerJournal):
    """A journal in a folder of its own; see `ConsumerJournal` for the promises.

    Each flush appends one record. A file that has grown is followed by a new one that begins with the whole state; the
    old one goes when the new one is safe.

    Args:
        folder: where its files are.
        grown_bytes: a new file begins when one is this long, and four times as long as the state it began with.
        random_bytes: makes the key of a new journal.
        tag: names the stream and consumer, so that another's journal is not believed.
        identity: names the account too, for the hashes of a disk that authenticates.
        owner: the owner of the folder; `before_write` is called before a file is made, and `before_sync` by every sync.
        names: what is in the folder; None = `load` looks.
    """

    durable = True
    changes_names = False
    failure: StoreError | None = None

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        grown_bytes: int = _GROWN_BYTES,
        random_bytes: Callable[[int], bytes] = os.urandom,
        tag: str = "",
        identity: str = "",
        owner: FolderOwner | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self._owner = journal_format.owner_tag(tag)
        self._identity = identity
        self.state_source: Callable[[], ConsumerState] | None = None
        self.on_entry: Callable[[ConsumerJournal], None] = ignore_entry
        self.on_late_entry: Callable[[ConsumerJournal], None] = ignore_entry
        self._disk = disk
        self._folder = folder
        self._names = names
        self._grown_bytes = grown_bytes
        self._random_bytes = random_bytes
        self._folder_owner = owner or FolderOwner()
        self._key = 0
        self._checksum = disk.hashing.checksum(b"")
        self._size = 0
        self._began_with = 0
        self._is_closed_safely = True  # whether the file ends with the record that says so
        # The entries recorded since the last flush.
        self._entries = JournalEntries()
        self._replacement: ConsumerState | None = None
        # The lock guards what the thread that syncs touches as well.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._is_begun = False  # whether the file that says so is there
        self._number = 0
        self._taken: set[int] = set()  # the numbers of files that were found
        self._handle: int | None = None
        self._is_new = False
        self._obsolete: list[Path] = []
        self._flushed_generation = 0
        self._synced_generation = 0
        self.is_lost = False
        self._is_rewritten = False
        self._is_discarded = False
        self._adopted = b""  # the content of a file that may not be durable

    # Recording

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        self._entries.delivered_run(first_consumer_seq, stream_seqs, time_ns)
        self.on_entry(self)

    def redelivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        self._entries.delivered(consumer_seq, stream_seq, time_ns, delivery_count)
        self.on_entry(self)

    def rescheduled(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        self._entries.delivered(consumer_seq, stream_seq, time_ns, delivery_count)
        self.on_late_entry(self)

    def exhausted(self, stream_seq: int) -> None:
        self._entries.exhausted(stream_seq)
        self.on_late_entry(self)

    def acked(self, stream_seqs: Iterable[int], floor: tuple[int, int] | None = None) -> None:
        self._entries.acked(stream_seqs)
        if floor is not None:
            self._entries.ack_floor(*floor)
        self.on_late_entry(self)

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        self._entries.position(consumer_seq, stream_seq)
        self.on_entry(self)

    def replace(self, state: ConsumerState) -> None:
        self._forget_recorded()
        self._replacement = state
        self.on_entry(self)

    # Flush

    def needs_flush(self) -> bool:
        return bool(self._entries) or self._replacement is not None

    def flush(self) -> None:
        if not self.needs_flush():
            return
        if self.failure is not None:
            raise self.failure
        try:
            self._write()
        except OSError as error:
            raise StoreError.of("write to the consumer's journal", error) from error
        self._forget_recorded()
        with self._lock:
            self._flushed_generation += 1

    def retry(self) -> None:
        if self.failure is None:
            self.flush()
            return
        # It is unknown what the file holds: the whole state goes to a new one.
        state = self.state_source() if self.state_source is not None else None
        if state is None:
            raise self.failure
        try:
            self._begin(state, b"")
        except OSError as error:
            raise StoreError.of("write to the consumer's journal", error) from error
        self._forget_recorded()
        with self._lock:
            self._flushed_generation += 1
            self._is_rewritten = True

    def _write(self) -> None:
        if self._replacement is not None or not self._number:
            self._begin(self._replacement or ConsumerState(), self._entries.pack())
        elif self._size > max(self._grown_bytes, 4 * self._began_with) and self.state_source is not None:
            self._begin(self.state_source(), b"")
        else:
            data = journal_format.pack_record(self._entries.pack(), self._checksum)
            with self._lock:
                if self._handle is None:
                    self._handle = self._disk.open(self._path(self._number))
                self._disk.write(self._handle, data, self._size)
            self._size += len(data)
        self._is_closed_safely = False

    def _forget_recorded(self) -> None:
        self._entries.clear()
        self._replacement = None

    def _begin(self, state: ConsumerState, entries: bytes) -> None:
        """Begin a new file with the whole state."""
        number = self._number + 1
        while number in self._taken:
            number += 1
        key = self._key or int.from_bytes(self._random_bytes(8), "little") | 1
        checksum = journal_format.checksum_of(self._disk.hashing, key, number, self._identity)
        snapshot = 2 * journal_format.pack_record(encode_state(state), checksum)
        data = journal_format.pack_header(self._disk.hashing, key, number, self._owner) + snapshot
        if entries:
            data += journal_format.pack_record(entries, checksum)
        if self._folder_owner.before_write is not None:
            self._folder_owner.before_write()
        handle = self._create(self._path(number), data)
        with self._lock:
            if self._handle is not None:
                self._disk.close(self._handle)
            if self._number:
                self._obsolete.append(self._path(self._number))
            self._handle = handle
            self._number = number
            self._is_new = True
        self._key, self._checksum = key, checksum
        self._size = len(data)
        self._began_with = len(snapshot)

    def _create(self, path: Path, data: bytes) -> int:
        handle = self._disk.open(path, create=True)
        try:
            self._disk.truncate(handle, 0)
            self._disk.write(handle, data, 0)
        except OSError:
            self._disk.close(handle)
            raise
        return handle

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}{_SUFFIX}"

    # Sync

    def needs_sync(self) -> bool:
        return self._flushed_generation > self._synced_generation

    def sync(self) -> None:
        self._folder_owner.before_sync()
        with self._sync_lock:
            with self._lock:
                if self.failure is not None and not self._is_rewritten:
                    raise self.failure
                self._is_rewritten = False
                generation = self._flushed_generation
                if generation == self._synced_generation:
                    return
                # The handle is given up: most consumers are idle most of the time, and need none then.
                handle, self._handle = self._handle, None
                is_new, self._is_new = self._is_new, False
                obsolete, self._obsolete = self._obsolete, []
                path = self._path(self._number)
            try:
                self._sync_file(path, handle)
                if is_new:
                    self._disk.sync_folder(self._folder)
            except OSError as error:
                if self._is_discarded or self._folder_owner.is_gone():
                    return
                with self._lock:
                    self._obsolete[:0] = obsolete
                self.failure = StoreError.of("make the consumer's journal safe", error)
                raise self.failure from error
            self.failure = None
            self._synced_generation = generation
            if is_new and not self._is_begun:
                self._tell_begun()
            with self._lock:
                if not self._is_discarded:
                    # Files of these names are another consumer's from then on.
                    self._remove(obsolete)

    def _tell_begun(self) -> None:
        """Leave a sign that there is a journal, now that it is safe: a start misses one that is not there."""
        self._is_begun = True
        with self._lock, suppress(OSError):
            if not self._is_discarded:
                self._disk.close(self._disk.open(self._folder / _BEGUN, create=True))

    def _sync_file(self, path: Path, handle: int | None) -> None:
        if handle is None:
            handle = self._disk.open(path)
        try:
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                self._disk.remove(path)
            except OSError:
                # The newer file wins over it.
                pass

    def close(self) -> None:
        try:
            if self.failure is None:
                self.flush()
                if self.needs_sync():
                    self.sync()
                self._tell_safe()
        finally:
            self.discard()

    def _tell_safe(self) -> None:
        """Mark the file as synced, which spares the next start a rewrite."""
        if self._is_closed_safely or not self._number:
            return
        with suppress(OSError):
            handle = self._disk.open(self._path(self._number))
            try:
                self._disk.write(handle, journal_format.pack_record(SAFE, self._checksum), self._size)
            finally:
                self._disk.close(handle)

    def discard(self) -> None:
        """Write nothing more and give the handle back: the folder is being removed."""
        self._forget_recorded()
        with self._lock:
            self._is_discarded = True
            handle, self._handle = self._handle, None
        if handle is not None:
            self._disk.close(handle)

    # Load

    def load(self) -> ConsumerState:
        try:
            names, self._names = self._names, None
            if names is None:
                names = self._disk.names(self._folder)
            numbers = sorted(int(name.removesuffix(_SUFFIX)) for name in names if _FILE.fullmatch(name))
            self._taken = set(numbers)
            self._is_begun = _BEGUN in names
            for number in reversed(numbers):
                state = self._load_file(number)
                if state is not None:
                    self._take_over(number, [other for other in numbers if other != number])
                    return state
        except OSError as error:
            raise StoreError.of("read the consumer's journal", error) from error
        if numbers or self._is_begun:
            self.is_lost = True
            reason = "cannot be read" if numbers else "is gone"
            self._folder_owner.note(
                f"The journal in {self._folder} {reason}: the consumer starts over, and messages are redelivered"
            )
        return ConsumerState()

    def _load_file(self, number: int) -> ConsumerState | None:
        """Load the state of a file; None when the file does not tell one."""
        data = read_file(self._disk, self._path(number))
        key = journal_format.header_key(data, number, self._disk.hashing)
        if key is None:
            return None
        if journal_format.owner_of(data, self._disk.hashing) not in (self._owner, 0):
            raise StoreError("read the consumer's journal", f"{self._path(number)} belongs to another consumer")
        checksum = journal_format.checksum_of(self._disk.hashing, key, number, self._identity)
        records, end = journal_format.read_records(data, checksum)
        state = replay(records)
        if state is None:
            return None
        self._is_closed_safely = records[-1] == SAFE and end == len(data)
        self._key, self._checksum, self._size, self._began_with = key, checksum, end, 2 * len(records[0])
        if not self._is_closed_safely:
            self._adopted = data[:end]
        return state

    def _begins_like_one(self, number: int) -> bool:
        """Return whether a file is a journal, complete or just begun, and not a foreign file with such a name."""
        handle = self._disk.open(self._path(number))
        try:
            data = self._disk.read(handle, len(journal_format.MAGIC), 0)
        finally:
            self._disk.close(handle)
        return journal_format.MAGIC.startswith(data)

    def _take_over(self, number: int, others: list[int]) -> None:
        """Continue in this file, once its content is synced; older files are obsolete."""
        self._number = number
        self._obsolete = [self._path(other) for other in others if self._begins_like_one(other)]
        adopted, self._adopted = self._adopted, b""
        if not adopted and not self._obsolete:
            return
        self._is_new = True
        self._flushed_generation += 1
        try:
            self._write_again(number, adopted)
            self.sync()
        except OSError as error:
            self.failure = StoreError.of("make the consumer's journal safe", error)
        except StoreError:
            # The failure is remembered and raised by the first flush.
            pass

    def _write_again(self, number: int, adopted: bytes) -> None:
        """Rewrite the content found: a failed sync may have dropped it, and the next sync would not report that."""
        if adopted:
            handle = self._disk.open(self._path(number))
            try:
                self._disk.write(handle, adopted, 0)
            finally:
                self._disk.close(handle)


_RUN, _RUN_LIST, _AGAIN, _EXHAUSTED, _POSITION, _ACK_RANGE, _ACK_LIST, _FLOOR, _STATE = KINDS
_RUN_BODY = struct.Struct("<BQQIq")
_AGAIN_BODY = struct.Struct("<BQQqI")
_ONE_BODY = struct.Struct("<BQ")
_PAIR_BODY = struct.Struct("<BQQ")
_COUNT_BODY = struct.Struct("<BI")
_STATE_BODY = struct.Struct("<BQQQQIII")

# Far more messages than are delivered at a time.
_RUN_MAX = 1 << 20


class JournalEntries:
    """The entries recorded since the last flush; see `ConsumerJournal` for the calls."""

    __slots__ = ("_acks", "_deliveries", "_floor", "_position")

    def __init__(self) -> None:
        self._deliveries: list[bytes] = []
        self._acks: list[int] = []
        self._floor: tuple[int, int] | None = None
        self._position: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._deliveries or self._acks or self._floor is not None or self._position is not None)

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        first, count = stream_seqs[0], len(stream_seqs)
        if stream_seqs[-1] - first + 1 == count:
            entry = _RUN_BODY.pack(_RUN, first_consumer_seq, first, count, time_ns)
        else:
            entry = _RUN_BODY.pack(_RUN_LIST, first_consumer_seq, first, count, time_ns)
            entry += column_bytes(array("Q", stream_seqs))
        self._deliveries.append(entry)

    def delivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        self._deliveries.append(_AGAIN_BODY.pack(_AGAIN, consumer_seq, stream_seq, time_ns, delivery_count))

    def exhausted(self, stream_seq: int) -> None:
        self._deliveries.append(_ONE_BODY.pack(_EXHAUSTED, stream_seq))

    def acked(self, stream_seqs: Iterable[int]) -> None:
        self._acks.extend(stream_seqs)

    def ack_floor(self, consumer_seq: int, stream_seq: int) -> None:
        self._floor = (consumer_seq, stream_seq)

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        self._position = (consumer_seq, stream_seq)

    def pack(self) -> bytes:
        """Pack the recorded entries. Deliveries come first: nothing is acknowledged before it is delivered."""
        entries = self._deliveries[:]
        if self._position is not None:
            entries.append(_PAIR_BODY.pack(_POSITION, *self._position))
        if self._acks:
            entries.append(_ack_entry(self._acks))
        if self._floor is not None:
            entries.append(_PAIR_BODY.pack(_FLOOR, *self._floor))
        return b"".join(entries)

    def clear(self) -> None:
        """Forget the recorded entries."""
        self._deliveries.clear()
        self._acks.clear()
        self._floor = self._position = None


def _ack_entry(sequences: list[int]) -> bytes:
    done = sorted(sequences)
    if done[-1] - done[0] + 1 == len(done):
        return _PAIR_BODY.pack(_ACK_RANGE, done[0], done[-1])
    return _COUNT_BODY.pack(_ACK_LIST, len(done)) + column_bytes(array("Q", done))


def _apply_entries(state: ConsumerState, data: bytes) -> None:
    """Bring a state up to date with the entries of a record."""
    at = 0
    while at < len(data):
        kind = data[at]
        if kind in (_RUN, _RUN_LIST):
            _, consumer, first, count, time_ns = _RUN_BODY.unpack_from(data, at)
            at += _RUN_BODY.size
            if count > _RUN_MAX:
                raise ValueError(f"a run of {count} messages")
            sequences: Iterable[int] = range(first, first + count)
            if kind == _RUN_LIST:
                sequences = _numbers(data, at, count)
                at += 8 * count
            state.deliver_run(consumer, sequences, time_ns)
        elif kind == _AGAIN:
            state.deliver_again(*_AGAIN_BODY.unpack_from(data, at)[1:])
            at += _AGAIN_BODY.size
        elif kind == _EXHAUSTED:
            state.exhaust(_ONE_BODY.unpack_from(data, at)[1])
            at += _ONE_BODY.size
        elif kind == _ACK_LIST:
            count = _COUNT_BODY.unpack_from(data, at)[1]
            at += _COUNT_BODY.size
            for sequence in _numbers(data, at, count):
                state.acknowledge(sequence, sequence)
            at += 8 * count
        elif kind in (_ACK_RANGE, _POSITION, _FLOOR):
            _, one, other = _PAIR_BODY.unpack_from(data, at)
            at += _PAIR_BODY.size
            if kind == _ACK_RANGE:
                state.acknowledge(one, other)
            elif kind == _POSITION:
                state.move(one, other)
            else:
                state.raise_floor(one, other)
        else:
            # The record is whole, so this comes from a later version of the software: it tells no more to this one.
            return


def encode_state(state: ConsumerState) -> bytes:
    """Return the whole state as an entry."""
    pending = state.pending
    uncertain = [sequence for pair in state.uncertain for sequence in pair]
    return b"".join(
        (
            _STATE_BODY.pack(
                _STATE,
                state.delivered_consumer,
                state.delivered_stream,
                state.floor_consumer,
                state.floor_stream,
                len(pending),
                len(state.deliveries),
                len(state.uncertain),
            ),
            column_bytes(array("Q", pending)),
            column_bytes(array("Q", [consumer for consumer, _, _ in pending.values()])),
            column_bytes(array("Q", [time_ns for _, time_ns, _ in pending.values()])),
            column_bytes(array("Q", [count for _, _, count in pending.values()])),
            column_bytes(array("Q", state.deliveries)),
            column_bytes(array("Q", state.deliveries.values())),
            column_bytes(array("Q", uncertain)),
        )
    )


def _decode_state(data: bytes) -> ConsumerState | None:
    """Return the state that an entry describes; None when it is another kind of entry."""
    if data[:1] != bytes((_STATE,)):
        return None
    _, delivered_consumer, delivered_stream, floor_consumer, floor_stream, pending, deliveries, uncertain = (
        _STATE_BODY.unpack_from(data)
    )
    numbers = _numbers(data, _STATE_BODY.size, 4 * pending + 2 * deliveries + 2 * uncertain)
    columns = [numbers[index * pending : (index + 1) * pending] for index in range(4)]
    rest = numbers[4 * pending :]
    ends = rest[2 * deliveries :]
    return ConsumerState(
        delivered_consumer=delivered_consumer,
        delivered_stream=delivered_stream,
        floor_consumer=floor_consumer,
        floor_stream=floor_stream,
        pending=dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True)),
        deliveries=dict(zip(rest[:deliveries], rest[deliveries : 2 * deliveries], strict=True)),
        uncertain=list(zip(ends[::2], ends[1::2], strict=True)),
    )


def replay(records: list[bytes]) -> ConsumerState | None:
    """Return the state that records add up to; None when they do not begin with one, or no journal writes such.

    A hash that is right over entries that are too short, or over a run longer than any that is written, comes from no
    crash: such a file is not believed.
    """
    try:
        state = _decode_state(records[0]) if records else None
        if state is None:
            return None
        for entries in records[1:]:
            if _decode_state(entries) is None:
                _apply_entries(state, entries)
    except (struct.error, ValueError):
        return None
    return state


def _numbers(data: bytes, at: int, count: int) -> array[int]:
    if at + 8 * count > len(data):
        raise ValueError(f"{count} numbers in {len(data) - at} bytes")
    return read_column("Q", data[at : at + 8 * count])
