"""The deduplication window: recent message ids and the sequences that they were stored under."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress

from jetlake.server.engine.stream.ids.id_table import IdTable

__all__ = ["Deduplication"]

# Ids are forgotten in groups; a group spans this share of the window, so an id may live that much longer than it.
_GROUPS_PER_WINDOW = 100
# Most ids in a group, and most groups that are dropped from memory at a time.
_GROUP_IDS = 512
_DROPPED_GROUPS = 4


class _Group:
    """Ids that expire together, with their sequences, in the order in which they were stored.

    Attributes:
        time_ns: that of the first id.
        ids: not a list, whose elements every garbage collection would visit.
    """

    __slots__ = ("ids", "sequences", "time_ns")

    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns
        self.ids: tuple[bytes, ...] = ()
        self.sequences: array[int] = array("Q")

    def between(self, first_sequence: int, last_sequence: int) -> Iterator[tuple[bytes, int]]:
        """Return the ids in a range of sequences."""
        start = bisect_left(self.sequences, first_sequence)
        stop = bisect_right(self.sequences, last_sequence)
        return zip(self.ids[start:stop], self.sequences[start:stop], strict=True)


class Deduplication:
    """Message ids of the last `window_ns` nanoseconds with the sequence each was stored under.

    An id costs an entry in the table and one in its group: no object of its own, no timer. Many ids that expire at once
    stop to count at once, and leave memory a few at a time.

    Args:
        window_ns: how long an id counts as seen, from the time its message was stored; 0 turns the window off.
    """

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._table = IdTable()
        self._groups: deque[_Group] = deque()  # oldest first
        self._expired: deque[_Group] = deque()  # still in the table
        self._expired_sequence = 0  # Ids up to here have expired.

    def __len__(self) -> int:
        return len(self._table)

    @property
    def has_expired(self) -> bool:
        """Whether `forget_expired` has left expired ids in memory."""
        return bool(self._expired)

    def find(self, message_id: bytes, now_ns: int) -> int:
        """Return the sequence under which the id was stored within the window; 0 = not seen."""
        self.forget_expired(now_ns)
        sequence = self._table.get(message_id)
        return sequence if sequence > self._expired_sequence else 0

    def finder(self, now_ns: int) -> Callable[[bytes], int]:
        """Return a quicker `find` for many ids, valid until the next change."""
        self.forget_expired(now_ns)
        get = self._table.getter()
        if not self._expired:
            return get
        expired_sequence = self._expired_sequence
        return lambda message_id: sequence if (sequence := get(message_id)) > expired_sequence else 0

    def claim_run(self, message_ids: list[bytes], first_sequence: int, now_ns: int) -> bool:
        """Remember the ids of a run under consecutive sequences, unless one occurs twice or may have been seen.

        Args:
            message_ids: of each message; empty for a message without one.

        Returns:
            Whether they are remembered; otherwise none of them is, and `find` knows which were seen.
        """
        self.forget_expired(now_ns)
        sequences = list(range(first_sequence, first_sequence + len(message_ids)))
        if not all(message_ids):
            sequences = list(compress(sequences, message_ids))
            message_ids = list(filter(None, message_ids))
        if not self._table.add_new(message_ids, sequences):
            return False
        self._add_to_groups(message_ids, sequences, now_ns)
        return True

    def remember(self, message_id: bytes, sequence: int, now_ns: int) -> None:
        """Remember the id of a stored message; its window starts, also that of an id which is known."""
        self.remember_run({message_id: sequence}, now_ns)

    def remember_run(self, sequences: dict[bytes, int], now_ns: int) -> None:
        """Remember the ids of a run of stored messages, in the order of their sequences."""
        if not self.window_ns:
            return
        self._table.update(sequences)
        self._add_to_groups(list(sequences), list(sequences.values()), now_ns)

    def _add_to_groups(self, message_ids: list[bytes], sequences: list[int], now_ns: int) -> None:
        done = 0
        while done < len(message_ids):
            group = self._group(now_ns)
            room = _GROUP_IDS - len(group.ids)
            group.ids += tuple(message_ids[done : done + room])
            group.sequences.extend(sequences[done : done + room])
            done += room

    def _group(self, now_ns: int) -> _Group:
        """Return the newest group if it has room for an id, or a new one."""
        groups = self._groups
        if (
            not groups
            or len(groups[-1].ids) >= _GROUP_IDS
            or now_ns - groups[-1].time_ns > self.window_ns // _GROUPS_PER_WINDOW
        ):
            groups.append(_Group(now_ns))
        return groups[-1]

    def forget_expired(self, now_ns: int) -> None:
        """Let ids count no more whose window has passed, and drop some of them from memory."""
        groups, expired = self._groups, self._expired
        horizon_ns = now_ns - self.window_ns
        while groups and self._end_of_first_group() <= horizon_ns:
            expired.append(groups.popleft())
            self._expired_sequence = max((self._expired_sequence, *expired[-1].sequences[-1:]))
        if expired:
            for _ in range(min(len(expired), _DROPPED_GROUPS)):
                self._drop(expired.popleft(), 0)
            if not expired and not groups:
                self._table.clear()

    def _drop(self, group: _Group, start: int) -> None:
        """Remove the ids of a group, from that place on."""
        for message_id, sequence in zip(group.ids[start:], group.sequences[start:], strict=True):
            self._table.discard(message_id, sequence)

    def next_expiry_ns(self) -> int | None:
        """Return the time at which the oldest group of ids expires; None for an empty window."""
        return self._end_of_first_group() + self.window_ns if self._groups else None

    def _end_of_first_group(self) -> int:
        groups = self._groups
        span_ns = self.window_ns // _GROUPS_PER_WINDOW
        latest_ns = groups[0].time_ns + span_ns
        return min(latest_ns, groups[1].time_ns) if len(groups) > 1 else latest_ns

    def forget_from(self, first_sequence: int) -> None:
        """Forget the ids of undone messages, from the sequence on."""
        self._expired_sequence = min(self._expired_sequence, first_sequence - 1)
        for group in reversed(self._groups):
            start = bisect_left(group.sequences, first_sequence)
            self._drop(group, start)
            group.ids, group.sequences = group.ids[:start], group.sequences[:start]
            if start:
                return

    def has_between(self, first_sequence: int, last_sequence: int) -> bool:
        """Return whether ids of a range of sequences are known."""
        return any(
            bisect_left(group.sequences, first_sequence) < bisect_right(group.sequences, last_sequence)
            for group in self._groups
        )

    def between(self, first_sequence: int, last_sequence: int) -> list[tuple[bytes, int, int]]:
        """Return id, sequence and time of the known ids in a range of sequences, in order."""
        get = self._table.getter()
        return [
            (message_id, sequence, group.time_ns)
            for group in self._groups
            for message_id, sequence in group.between(first_sequence, last_sequence)
            if get(message_id) == sequence
        ]

    def entries(self) -> list[tuple[bytes, int, int]]:
        """Return all ids, oldest first, with their sequences and the times from which their windows count."""
        return self.between(0, (1 << 64) - 1)

    def resize(self, window_ns: int) -> None:
        """Change the length of the window, also for the ids that it holds."""
        self.window_ns = window_ns
        if not window_ns:
            self._table.clear()
            self._groups.clear()
            self._expired.clear()
