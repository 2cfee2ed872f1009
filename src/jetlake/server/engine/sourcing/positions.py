"""The positions of a stream's sources: how far each origin is copied, across restarts, crashes and purges.

Every copy names its origin and sequence in a header, so a position is durable with its message. The file of positions
is written before the log forgets such headers, and at a clean stop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from jetlake.errors import StoreError
from jetlake.model.source_names import SOURCE_HEADER, SourceHeader, parse_source_header
from jetlake.protocol.headers import find_value
from jetlake.server.engine.storage.storage import SavedPositions, StreamHome
from jetlake.store.steps import Steps, finish

__all__ = ["Position", "Positions"]

# The file is written at least after this many messages, which bounds what a start after a crash has to read.
_UNSAVED_MAX = 100_000


Durable = Callable[[], None]
"""Called when copies are on disk."""


class Position(NamedTuple):
    """How far one origin is copied."""

    sequence: int = 0
    identity: str = ""


_NOWHERE = Position()


class Positions:
    """The positions of one stream's sources by index name.

    Args:
        home: loads and saves positions, and has the store.
    """

    def __init__(self, home: StreamHome) -> None:
        self._home = home
        self._store = home.store
        self._known: dict[str, Position] = {}
        self._durable: dict[str, Position] = {}
        self._durable_at = (0, 0)  # Sequence and time of the stream's message up to which these count.
        self._saved_sequence = 0
        self._torn_sequence = 0  # Copies behind it were removed, and the disk may not have that yet.
        self._is_recovered = False
        self._uncertain: set[str] = set()
        self._may_forget_ids = home.store.hooks.may_forget
        home.store.hooks.may_forget = self._may_forget

    def get(self, name: str) -> Position:
        """Return a source's position; zero when nothing of it was copied."""
        return self._known.get(name, _NOWHERE)

    def refresh(self, name: str) -> None:
        """Read a position again that is uncertain after a store error.

        Raises:
            StoreError: the headers cannot be read.
        """
        if not self._is_recovered:
            finish(self.recover())
        elif name in self._uncertain:
            found = finish(self._read_headers(*self._durable_at))
            self._known[name] = found.get(name) or self._durable.get(name, _NOWHERE)
        self._uncertain.discard(name)

    def forget(self, name: str) -> None:
        """Forget the position of a source whose origin was recreated."""
        self._known.pop(name, None)
        self._durable.pop(name, None)

    def stored(self, name: str, position: Position) -> Durable:
        """Set a source's position after copies were stored; return what to call when these are durable."""
        self._known[name] = position
        return partial(self._on_durable, name, position, self._now())

    def _now(self) -> tuple[int, int]:
        return self._store.last_sequence, self._store.last_time_ns

    def _on_durable(self, name: str, position: Position, at: tuple[int, int]) -> None:
        """Record a position whose message, and all before it, are on disk."""
        self._durable[name] = position
        self._durable_at = max(self._durable_at, at)
        self._torn_sequence = 0
        if self._durable_at[0] - self._saved_sequence > _UNSAVED_MAX:
            self.save()

    def failed(self, name: str) -> None:
        """Have a position read again: a store error may have undone copies."""
        self._uncertain.add(name)

    # Across restarts

    def recover(self) -> Steps[None]:
        """Restore the positions from the file and the headers of newer messages, removed ones as well.

        Behind a copy that a crash has torn, all copies are removed and copied again, in their order.

        Raises:
            StoreError: the headers cannot be read.
        """
        store = self._store
        saved = self._home.load_positions() or SavedPositions()
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
            self._home.save_positions(SavedPositions(sequence, time_ns, entries, self._torn_sequence))
            self._saved_sequence = sequence

    def _may_forget(self, first: int, last: int) -> bool:
        """Return whether the positions in removed records of this range are durable without them."""
        if self._may_forget_ids is not None and not self._may_forget_ids(first, last):
            return False
        if last > self._saved_sequence:
            self.save()
        return last <= self._saved_sequence


def _read_header(header: bytes) -> SourceHeader | None:
    """Return what a message's header says about its origin; None when it is no copy."""
    value = find_value(header, SOURCE_HEADER)
    return parse_source_header(value) if value else None
