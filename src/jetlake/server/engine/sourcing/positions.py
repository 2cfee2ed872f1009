"""The positions of a stream's sources: how far each origin is copied, across restarts, crashes and purges.

Every copy names its origin and sequence in a header, so a position is durable with its message. The file of positions
is written before the log deletes such headers (`_may_forget`), and at a clean stop. A start reads the file, and the
headers of all newer messages:

    log:  ── copy of A ── copy of B ── │ ── copy of A ── copy of B ──
                                 `_durable_at`          `_under_way`: stored, perhaps not on disk

What is always true:

- The durable positions are the positions of all sources as of one message of the stream. They advance in the order of
  the log, over the copies of every source alike: no copy before that message is missing in them.
- After a store error it is unknown which copies the log has kept. The durable positions then stay at their message,
  until the headers after it have been read again.
- Behind a copy that a crash has torn, all copies are removed and copied again in their order. The file records that
  (`torn_sequence`) before the first is removed, so that a second crash repeats it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import NamedTuple

from jetlake.errors import StoreError
from jetlake.model.source_names import SOURCE_HEADER, SourceHeader, parse_source_header
from jetlake.protocol.headers import find_value
from jetlake.server.engine.storage.storage import SavedPositions, StreamStorage
from jetlake.store.steps import Steps, finish

# The file is written at least after this many messages, which bounds what a start after a crash has to read.
_UNSAVED_MAX = 100_000


class Position(NamedTuple):
    """How far one origin is copied."""

    sequence: int = 0
    identity: str = ""


class _Run(NamedTuple):
    """Copies that were stored together, and may not be on disk."""

    name: str
    position: Position
    end: tuple[int, int]
    """Sequence and time of the stream's last message after them."""


_NOWHERE = Position()


class Positions:
    """The positions of one stream's sources by index name.

    Args:
        storage: loads and saves positions, and has the store.
    """

    def __init__(self, storage: StreamStorage) -> None:
        self._storage = storage
        self._store = storage.store
        self._known: dict[str, Position] = {}
        self._durable: dict[str, Position] = {}
        self._durable_at = (0, 0)  # Sequence and time of the stream's message as of which these count.
        self._under_way: deque[_Run] = deque()  # Behind that message, in the order of the log.
        self._saved_sequence = 0
        self._torn_sequence = 0  # Copies behind it were removed, and the disk may not have that yet.
        self._is_recovered = False
        self._uncertain: set[str] = set()
        self._may_forget_ids = storage.store.hooks.may_forget
        storage.store.hooks.may_forget = self._may_forget

    def get(self, name: str) -> Position:
        """Return a source's position; zero when nothing of it was copied."""
        return self._known.get(name, _NOWHERE)

    def refresh(self) -> None:
        """Read the positions again that are uncertain after a store error.

        Raises:
            StoreError: the headers cannot be read.
        """
        if not self._is_recovered:
            finish(self.recover())
        elif self._uncertain:
            # What waits in memory would be written later, behind what is read here.
            self._store.flush()
            self._read_again()

    def _read_again(self) -> None:
        found = finish(self._read_headers(*self._durable_at))
        for name in self._uncertain:
            self._known[name] = found.get(name) or self._durable.get(name, _NOWHERE)
        end = self._now()
        self._under_way = deque(_Run(name, position, end) for name, position in found.items())
        self._uncertain.clear()

    def forget(self, name: str) -> None:
        """Forget the position of a source whose origin was recreated."""
        self._known.pop(name, None)
        self._durable.pop(name, None)
        self._under_way = deque(run for run in self._under_way if run.name != name)

    def stored(self, name: str, position: Position) -> int:
        """Set a source's position after copies were stored; return the stream's sequence after them."""
        self._known[name] = position
        end = self._now()
        if not self._uncertain:
            self._under_way.append(_Run(name, position, end))
        return end[0]

    def _now(self) -> tuple[int, int]:
        return self._store.last_sequence, self._store.last_time_ns

    def on_durable(self, sequence: int) -> None:
        """Advance the durable positions: the log is on disk up to this sequence."""
        self._torn_sequence = 0
        self._advance(sequence)
        if self._durable_at[0] - self._saved_sequence > _UNSAVED_MAX:
            self.save()

    def _advance(self, sequence: int) -> None:
        while self._under_way and self._under_way[0].end[0] <= sequence:
            run = self._under_way.popleft()
            self._durable[run.name] = run.position
            self._durable_at = max(self._durable_at, run.end)

    def failed(self, name: str) -> None:
        """Have a position read again: a store error may have rolled copies back."""
        self._uncertain.add(name)
        self._under_way.clear()

    # Across restarts

    def recover(self) -> Steps[None]:
        """Restore the positions from the file and the headers of newer messages, removed ones as well.

        Behind a copy that a crash has torn, all copies are removed and copied again, in their order.

        Raises:
            StoreError: the headers cannot be read.
        """
        store = self._store
        saved = self._storage.load_positions() or SavedPositions()
        if saved.last_sequence > store.last_sequence:
            # The log has lost its tail, whose sequences may belong to other messages now.
            saved = SavedPositions()
        entries = {name: Position(*entry) for name, entry in saved.entries.items()}
        found = yield from self._read_headers(saved.last_sequence, saved.time_ns, store.torn_sequence or None)
        self._known = entries | found
        self._durable = dict(self._known)
        self._durable_at = self._now()
        self._saved_sequence = saved.last_sequence
        self._is_recovered = True
        if saved.torn_sequence:
            # The crash may have come before the disk had the removals.
            yield from self._remove_copies(range(saved.torn_sequence, saved.last_sequence + 1), entries)
        if store.torn_sequence:
            self._torn_sequence = store.torn_sequence
            self.save()
            yield from self._remove_copies(range(store.torn_sequence, store.last_sequence + 1), self._known)

    def _remove_copies(self, sequences: range, positions: dict[str, Position]) -> Steps[None]:
        """Remove those copies among these messages that are beyond the positions."""
        behind: list[int] = []
        for run in self._store.headers_since(0):
            behind += [
                sequence
                for sequence, _, header in run
                if sequence in sequences
                and (copy := _read_header(header)) is not None
                and copy.sequence > positions.get(copy.index_name, _NOWHERE).sequence
            ]
            yield
        for sequence in behind:
            self._store.remove(sequence)

    def _read_headers(self, after_sequence: int, time_ns: int, below: int | None = None) -> Steps[dict[str, Position]]:
        """Return the positions in the headers of messages after one sequence, and below another."""
        found: dict[str, Position] = {}
        for run in self._store.headers_since(time_ns):
            for sequence, _, header in run:
                if sequence > after_sequence and (below is None or sequence < below):
                    copy = _read_header(header)
                    if copy is not None:
                        found[copy.index_name] = Position(copy.sequence, copy.identity)
            yield
        return found

    def save(self) -> None:
        """Write the durable positions; when that fails, the next start reads the headers instead."""
        if not self._is_recovered:
            return
        sequence, time_ns = self._durable_at
        entries = {name: (position.sequence, position.identity) for name, position in self._durable.items()}
        with suppress(StoreError):
            self._storage.save_positions(SavedPositions(sequence, time_ns, entries, self._torn_sequence))
            self._saved_sequence = sequence

    def _may_forget(self, first: int, last: int) -> bool:
        """Return whether the positions in removed records of this range are durable without them."""
        if self._may_forget_ids is not None and not self._may_forget_ids(first, last):
            return False
        if not self._is_recovered:
            return False
        # The store asks right after a flush, for files that are synced, as are all files before them.
        if self._uncertain:
            try:
                self._read_again()
            except StoreError:
                return False
        self._advance(last)
        if not self._under_way and last > self._durable_at[0]:
            # No copy lies behind the positions.
            self._durable_at = (last, self._durable_at[1])
        if last > self._saved_sequence:
            self.save()
        return last <= self._saved_sequence


def _read_header(header: bytes) -> SourceHeader | None:
    """Return what a message's header says about its origin; None when it is no copy."""
    value = find_value(header, SOURCE_HEADER)
    return parse_source_header(value) if value else None
