"""The deduplication window: recent message ids and the sequences that they were stored under."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping

__all__ = ["Deduplication"]

# Ids are forgotten in groups; a group spans this share of the window, so an id may live that much longer than it.
_GROUPS_PER_WINDOW = 100


class Deduplication:
    """Message ids of the last `window_ns` nanoseconds with the sequence each was stored under.

    An id costs one dict entry and one slot in the list of its group: no object of its own, no timer.

    Args:
        window_ns: how long an id counts as seen, from the time its message was stored; 0 turns the window off.
    """

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._sequences: dict[bytes, int] = {}
        self._groups: deque[tuple[int, list[bytes]]] = deque()  # (time of the group's first id, its ids), oldest first

    def __len__(self) -> int:
        return len(self._sequences)

    def find(self, message_id: bytes, now_ns: int) -> int:
        """Return the sequence under which the id was stored within the window; 0 = not seen."""
        if not self._sequences:
            return 0
        self.forget_expired(now_ns)
        return self._sequences.get(message_id, 0)

    def remember(self, message_id: bytes, sequence: int, now_ns: int) -> None:
        """Remember the id of a stored message; its window starts."""
        if not self.window_ns:
            return
        groups = self._groups
        if not groups or now_ns - groups[-1][0] > self.window_ns // _GROUPS_PER_WINDOW:
            groups.append((now_ns, []))
        # An id that comes again while it is still known keeps its place in the older group, where it would expire
        # early; recovery is the only caller that does this, and it goes through the messages in their order.
        if message_id in self._sequences:
            self._forget(message_id)
        groups[-1][1].append(message_id)
        self._sequences[message_id] = sequence

    def remember_run(self, sequences: dict[bytes, int], now_ns: int) -> None:
        """Remember the ids of a run of stored messages, none of which was known."""
        if not self.window_ns or not sequences:
            return
        groups = self._groups
        if not groups or now_ns - groups[-1][0] > self.window_ns // _GROUPS_PER_WINDOW:
            groups.append((now_ns, []))
        groups[-1][1].extend(sequences)
        self._sequences.update(sequences)

    def known(self, now_ns: int) -> Mapping[bytes, int]:
        """Return the ids within the window with their sequences, to look up many at once."""
        self.forget_expired(now_ns)
        return self._sequences

    def _forget(self, message_id: bytes) -> None:
        del self._sequences[message_id]
        for _, ids in self._groups:
            if message_id in ids:
                ids.remove(message_id)
                return

    def forget_expired(self, now_ns: int) -> None:
        """Drop the groups of ids whose window has passed."""
        groups = self._groups
        horizon_ns = now_ns - self.window_ns
        while groups and self._end_of_first_group() <= horizon_ns:
            for message_id in groups.popleft()[1]:
                del self._sequences[message_id]

    def next_expiry_ns(self) -> int | None:
        """Return the time at which the oldest group of ids expires; None for an empty window."""
        return self._end_of_first_group() + self.window_ns if self._groups else None

    def _end_of_first_group(self) -> int:
        groups = self._groups
        span_ns = self.window_ns // _GROUPS_PER_WINDOW
        latest_ns = groups[0][0] + span_ns
        return min(latest_ns, groups[1][0]) if len(groups) > 1 else latest_ns

    def forget_from(self, first_sequence: int) -> None:
        """Forget the ids of undone messages, from the sequence on."""
        for _, ids in reversed(self._groups):
            while ids and self._sequences[ids[-1]] >= first_sequence:
                del self._sequences[ids.pop()]
            if ids:
                return

    def between(self, first_sequence: int, last_sequence: int) -> list[tuple[bytes, int, int]]:
        """Return id, sequence and time of the known ids in a range of sequences, in order."""
        sequence_of = self._sequences.__getitem__
        found: list[tuple[bytes, int, int]] = []
        for time_ns, ids in self._groups:
            if not ids or sequence_of(ids[-1]) < first_sequence:
                continue
            if sequence_of(ids[0]) > last_sequence:
                break
            start = bisect_left(ids, first_sequence, key=sequence_of)
            stop = bisect_right(ids, last_sequence, key=sequence_of)
            found += [(message_id, sequence_of(message_id), time_ns) for message_id in ids[start:stop]]
        return found

    def entries(self) -> list[tuple[bytes, int, int]]:
        """Return all ids, oldest first, with their sequences and the times from which their windows count."""
        return [
            (message_id, self._sequences[message_id], time_ns) for time_ns, ids in self._groups for message_id in ids
        ]

    def resize(self, window_ns: int) -> None:
        """Change the length of the window, also for the ids that it holds."""
        self.window_ns = window_ns
        if not window_ns:
            self._sequences.clear()
            self._groups.clear()
