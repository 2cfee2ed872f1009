"""A stream's messages in memory: gone with the process, and never waited for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress

from jetlake.errors import StoreError
from jetlake.store.index.block import Block
from jetlake.store.index.indexed_store import IndexedStore
from jetlake.store.index.sequence_list import CHUNK
from jetlake.store.message import StoredMessage

__all__ = ["MemoryStore"]

_BLOCK_ROWS = 8192
_RECORD_OVERHEAD = 16


class _MemoryBlock(Block):
    """Rows with the headers and payloads beside them."""

    __slots__ = ("headers", "payloads")

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.headers: list[bytes] = []
        self.payloads: list[bytes] = []

    def add_dead(self, count: int, time_ns: int) -> None:
        super().add_dead(count, time_ns)
        if self.sequences is None:
            self.headers.extend([b""] * count)
            self.payloads.extend([b""] * count)

    def drop_dead_rows(self) -> None:
        self.headers = list(compress(self.headers, self.live))
        self.payloads = list(compress(self.payloads, self.live))
        super().drop_dead_rows()

    def forget(self, start: int, end: int) -> None:
        nothing = [b""] * (end - start)
        self.headers[start:end] = nothing
        self.payloads[start:end] = nothing

    def load(self, row: int, names: list[bytes]) -> StoredMessage:
        return StoredMessage(
            self.sequence_of(row),
            self.times[row],
            names[self.subject_ids[row]],
            self.headers[row],
            self.payloads[row],
        )

    def load_run(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        if sum(self.sizes[start:end]) > max_bytes:
            end = start + len(self.fitting(list(range(start, end)), max_bytes))
        return [
            StoredMessage(sequence, time_ns, names[number], header, payload)
            for sequence, time_ns, number, header, payload in zip(
                self.sequence_slice(start, end),
                self.times[start:end],
                self.subject_ids[start:end],
                self.headers[start:end],
                self.payloads[start:end],
                strict=True,
            )
        ]

    def load_rows(self, rows: list[int], max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        return [self.load(row, names) for row in self.fitting(rows, max_bytes)]


class MemoryStore(IndexedStore[_MemoryBlock]):
    """A store that forgets: nothing to flush, nothing to sync. A message takes 16 bytes and what it consists of."""

    failure: StoreError | None = None

    def __init__(self) -> None:
        super().__init__(_MemoryBlock(1))

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        block = self._active
        if len(block.live) >= _BLOCK_ROWS:
            block = self._start_block()
        if time_ns < self.last_time_ns:
            time_ns = self.last_time_ns
        self.last_sequence = sequence = self.last_sequence + 1
        size = _RECORD_OVERHEAD + len(subject) + len(header) + len(payload)
        index = self._subjects
        number = index.ids.get(subject)
        if number is None:
            number = index.add(subject, sequence)
        else:
            tail = index.tails[number]
            if type(tail) is array and len(tail) < CHUNK:
                tail.append(sequence)
            else:
                index.grow(number, sequence)
        block.sizes.append(size)
        block.subject_ids.append(number)
        block.times.append(time_ns)
        block.live.append(1)
        block.headers.append(header)
        block.payloads.append(payload)
        block.live_count += 1
        block.live_bytes += size
        self.bytes += size
        self.last_time_ns = time_ns
        if not self.messages:
            self.first_sequence = sequence
        self.messages += 1
        return sequence

    def _start_block(self) -> _MemoryBlock:
        full = self._active
        block = _MemoryBlock(self.last_sequence + 1)
        self._blocks.append(block)
        self._starts.append(block.first)
        self._active = block
        if not full.live_count:
            self._emptied(full)
        return block

    def _skip(self, count: int) -> None:
        block = self._active
        if not block.live:
            block.first += count
            self._starts[-1] = block.first
        elif count <= _BLOCK_ROWS:
            block.add_dead(count, self.last_time_ns)
        self.last_sequence += count
        if block.live and block.first + len(block.live) <= self.last_sequence:
            self._start_block()

    def mend(self) -> None:
        pass

    def headers_since(self, time_ns: int) -> Iterator[tuple[int, int, bytes]]:
        # Whoever opens a store in memory finds nothing in it.
        return iter(())

    def _log_removed(self, first: int, last: int, follows_append: bool) -> None:
        pass

    def _emptied(self, block: _MemoryBlock) -> None:
        if block is self._active:
            return
        place = self._blocks.index(block)
        del self._blocks[place], self._starts[place]

    def _kill(self, block: _MemoryBlock, row: int, sequence: int) -> None:
        super()._kill(block, row, sequence)
        if block is not self._active and 0 < block.live_count < len(block.live) // 4:
            block.drop_dead_rows()

    def _erase(self, block: _MemoryBlock, row: int, sequence: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def needs_flush(self) -> bool:
        return False

    def needs_sync(self) -> bool:
        return False

    def compact_step(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def delete(self) -> None:
        self._subjects.clear()
        self._blocks.clear()
        self._starts.clear()
        self._blocks.append(_MemoryBlock(self.last_sequence + 1))
        self._starts.append(self.last_sequence + 1)
        self._active = self._blocks[0]
        self.messages = self.bytes = 0
        self._settle_first()
