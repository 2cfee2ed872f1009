"""A stream's messages in memory: gone with the process, and never waited for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import compress

from jetlake.errors import StoreError
from jetlake.store.index.block import Block
from jetlake.store.index.index import Index
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.interface import Incoming, StoreHooks, rising_times
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.message_store import MessageStore
from jetlake.store.volatile import Volatile

__all__ = ["MemoryStore"]

_BLOCK_ROWS = 8192
_RECORD_OVERHEAD = 16


class _MemoryBlock(Block):
    """Rows with the headers and payloads beside them."""

    __slots__ = ("headers", "is_full", "payloads")

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.headers: list[bytes] = []
        self.payloads: list[bytes] = []
        self.is_full = False

    def add_dead(self, count: int, time_ns: int) -> None:
        super().add_dead(count, time_ns)
        if self.sequences is None:
            self.headers.extend([b""] * count)
            self.payloads.extend([b""] * count)

    def forget(self, start: int, end: int) -> None:
        nothing = [b""] * (end - start)
        self.headers[start:end] = nothing
        self.payloads[start:end] = nothing
        if self.is_full and 0 < self.live_count < len(self.live) // 4:
            self._drop_dead_rows()

    def _drop_dead_rows(self) -> None:
        """Become sparse: keep the rows that live."""
        live = self.live
        self.headers = list(compress(self.headers, live))
        self.payloads = list(compress(self.payloads, live))
        self.sequences = array("Q", compress(self.sequence_slice(0, len(live)), live))
        self.sizes = array("I", compress(self.sizes, live))
        self.subject_ids = array("I", compress(self.subject_ids, live))
        self.times = array("q", compress(self.times, live))
        self.live = bytearray(b"\x01") * self.live_count

    def load(self, row: int, name_of: Callable[[int], bytes]) -> StoredMessage:
        return StoredMessage(
            self.sequence_of(row),
            self.times[row],
            name_of(self.subject_ids[row]),
            self.headers[row],
            self.payloads[row],
        )

    def load_run_columns(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> MessageColumns:
        if sum(self.sizes[start:end]) > max_bytes:
            end = start + len(self.fitting(list(range(start, end)), max_bytes))
        headers = self.headers[start:end]
        return MessageColumns(
            self.sequence_slice(start, end),
            self.times[start:end],
            [names[number] for number in self.subject_ids[start:end]],
            headers if any(headers) else None,
            self.payloads[start:end],
        )

    def load_rows(self, rows: list[int], max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        return [self.load(row, names.__getitem__) for row in self.fitting(rows, max_bytes)]


class _MemoryLog:
    """The blocks of a store in memory; removals leave no trace."""

    def __init__(self, index: Index[_MemoryBlock]) -> None:
        self._index = index
        index.on_emptied = self._emptied

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        """Append a message under the next sequence, which is returned."""
        index = self._index
        block = index.active
        if len(block.live) >= _BLOCK_ROWS:
            block = self._begin_block()
        if time_ns < index.last_time_ns:
            time_ns = index.last_time_ns
        index.last_sequence = sequence = index.last_sequence + 1
        size = _RECORD_OVERHEAD + len(subject) + len(header) + len(payload)
        block.sizes.append(size)
        block.subject_ids.append(index.subjects.append(subject, sequence))
        block.times.append(time_ns)
        block.live.append(1)
        block.headers.append(header)
        block.payloads.append(payload)
        block.live_count += 1
        block.live_bytes += size
        index.bytes += size
        index.last_time_ns = time_ns
        if not index.messages:
            index.first_sequence = sequence
        index.messages += 1
        return sequence

    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        """Append messages under consecutive sequences and return the first."""
        first = self._index.last_sequence + 1
        last_ns = self._index.last_time_ns
        if isinstance(time_ns, int):
            times = [max(time_ns, last_ns)] * len(messages)
        else:
            times = rising_times(time_ns, last_ns)
        done = 0
        while done < len(messages):
            room = _BLOCK_ROWS - len(self._index.active.live)
            if room <= 0:
                self._begin_block()
                continue
            self._append_fitting(messages[done : done + room], times[done : done + room])
            done += room
        return first

    def _append_fitting(self, messages: Sequence[Incoming], times: list[int]) -> None:
        """Append messages for which the active block has room, with one visit to each column."""
        index = self._index
        block = index.active
        count = len(messages)
        first = index.last_sequence + 1
        subjects, _, headers, payloads = zip(*messages, strict=True)
        sizes = [
            _RECORD_OVERHEAD + len(subject) + len(header) + len(payload) for subject, _, header, payload in messages
        ]
        size = sum(sizes)
        block.sizes.extend(sizes)
        block.subject_ids.extend(index.subjects.append_run(subjects, range(first, first + count)))
        block.times.extend(times)
        block.live.extend(b"\x01" * count)
        block.headers += headers
        block.payloads += payloads
        block.live_count += count
        block.live_bytes += size
        index.bytes += size
        index.last_sequence += count
        index.last_time_ns = times[-1]
        if not index.messages:
            index.first_sequence = first
        index.messages += count

    def _begin_block(self) -> _MemoryBlock:
        full = self._index.active
        full.is_full = True
        block = _MemoryBlock(self._index.last_sequence + 1)
        self._index.begin_block(block)
        if not full.live_count:
            self._emptied(full)
        return block

    def skip(self, count: int) -> None:
        index = self._index
        block = index.active
        if not block.live:
            index.move_active(block.first + count)
        elif count <= _BLOCK_ROWS:
            block.add_dead(count, index.last_time_ns)
        index.last_sequence += count
        if block.live and block.first + len(block.live) <= index.last_sequence:
            self._begin_block()

    def _emptied(self, block: _MemoryBlock) -> None:
        if block is not self._index.active:
            self._index.drop_block(block)

    def flush_appends(self) -> None:
        pass

    def sync_groups(self, last: int) -> None:
        pass

    def removed(self, first: int, last: int, follows_append: bool) -> None:
        pass

    def removed_below(self, sequence: int) -> None:
        pass

    def erase(self, block: _MemoryBlock, row: int, sequence: int) -> None:
        pass


class MemoryStore(Volatile, MessageStore):
    """A store that forgets: nothing to flush, nothing to sync. A message takes 16 bytes and what it consists of."""

    compresses = False
    lost: list[int] = []
    lost_bytes = 0
    torn_sequence = 0

    def __init__(self) -> None:
        index = Index(_MemoryBlock(1), StoreHooks())
        self._log = log = _MemoryLog(index)
        super().__init__(index, MessageRemover(index, log))

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        return self._log.append(subject, header, payload, time_ns)

    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        return self._log.append_run(messages, time_ns)

    def headers_since(self, time_ns: int) -> Iterator[list[tuple[int, int, bytes]]]:
        # A store in memory begins empty.
        return iter(())

    def begin_group(self, count: int) -> None:
        pass

    def roll_back(self, error: StoreError) -> None:
        pass  # Nothing fails in memory.

    def compact_step(self, *, sync_here: bool = True) -> bool:
        return False

    def is_behind(self) -> bool:
        return False

    def delete(self) -> None:
        self._index.kill_below(self.last_sequence + 1)
        self._index.update_first_sequence()
