"""Deduplication: a stream acknowledges a message whose `Nats-Msg-Id` it has stored within the window as a duplicate.

What is always true:

- An id in the window belongs to a message that was appended, or to one that was skipped for lack of interest. Ids that
  are claimed for a run are forgotten again when the run cannot be appended, and when the store rolls messages back.
- An id is found after a crash as long as its window lasts. There are three places on disk, of which every id is in one:

      the log's records ── removed ──> id log (append-only) ── clean stop ──> id file (all ids, and the last sequence)

  The id file exists before the first message with an id is durable (`expect`): without it, a start reads no headers
  but those of messages that may not have been synced before it.
  Before the log deletes the record of a removed message, the store asks `_may_forget`, which says no until the id is
  durable in the id log. A crash before that leaves the record, a crash after it the entry in the id log.
- Sequences in the window ascend, group by group: forgetting by age and forgetting rolled back messages both cut at an
  end.

Everything here runs on the engine's thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, compress
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError
from jetlake.protocol.headers import find_value
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.storage.storage import SavedIds
from jetlake.server.engine.stream.headers import MSG_ID
from jetlake.store.journal.id_log import IdEntry, IdLog

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

# Expired ids are dropped in groups; sweeps are at least this far apart.
_SWEEP_PAUSE_NS = 50_000_000
# After a sweep that left expired ids in memory the next one follows.
_DROP_PAUSE_NS = 1_000_000
# Ids are forgotten in groups; a group spans this share of the window, so an id may live that much longer than it.
_GROUPS_PER_WINDOW = 100
# Most ids in a group, and most groups that are dropped from memory at a time.
_GROUP_IDS = 512
_DROPPED_GROUPS = 4
# Dicts of a divided table. A table with fewer ids is one dict; dividing that takes about a millisecond.
_PARTS = 256
_SMALL_TABLE_IDS = 4096


class MessageIds:
    """The ids of one stream's messages: the deduplication window, kept across restarts.

    Attributes:
        last: the id of the newest message; empty when it has none.
        window: the ids that count as seen.
    """

    def __init__(self, stream: Stream) -> None:
        self.last = b""
        self.window = DeduplicationWindow(stream.config.duplicate_window)
        self._stream = stream
        self._storage = stream.storage
        self._store = stream.store
        self._clock = stream.services.clock
        self._timers = stream.services.timers
        self._commit = stream.services.commit
        self._log = stream.storage.id_log
        self._are_used = self._are_recovered = False
        self._sweep_timer: Timer | None = None
        # Ranges of sequences whose records the log wants to delete: the sequences with ids in the id log (None: all
        # ids of the range), the ranges that wait for the id log's sync, and the ranges with ids durable there.
        self._appended: dict[tuple[int, int], set[int] | None] = {}
        self._waiting: set[tuple[int, int]] = set()
        self._safe: set[tuple[int, int]] = set()
        self._store.hooks.may_forget = self._may_forget

    def expect(self) -> None:
        """Create the id file, which is durable before the stream's first message with an id is.

        Raises:
            StoreError: the file could not be written.
        """
        if not self._are_used:
            self._storage.expect_ids()
            self._are_used = True

    def remember(self, message_id: bytes, sequence: int, now_ns: int) -> None:
        """Remember the id of a stored message."""
        self.window.remember(message_id, sequence, now_ns)
        if self._sweep_timer is None:
            self._arm_sweep()

    def claim_run(self, message_ids: list[bytes], first_sequence: int, now_ns: int) -> bool:
        """Remember the ids of a run that is about to be stored under consecutive sequences, unless one may be known.

        Args:
            message_ids: of each message; empty for a message without one.

        Returns:
            False when nothing was remembered: an id occurs twice, or `window.find` has to tell whether it is known.
        """
        if not self.window.claim_run(message_ids, first_sequence, now_ns):
            return False
        if self._sweep_timer is None:
            self._arm_sweep()
        return True

    def remember_run(self, sequences: dict[bytes, int], now_ns: int) -> None:
        """Remember the ids of a run of stored messages."""
        self.window.remember_run(sequences, now_ns)
        if self._sweep_timer is None:
            self._arm_sweep()

    def _arm_sweep(self) -> None:
        expiry_ns = self.window.next_expiry_ns()
        if self.window.has_expired:
            self._sweep_timer = self._timers.schedule(self._clock.now_ns() + _DROP_PAUSE_NS, self._sweep)
        elif expiry_ns is not None:
            # Later than due, so that a sweep drops several groups of ids at once.
            pause_ns = max(self.window.window_ns // 8, _SWEEP_PAUSE_NS)
            self._sweep_timer = self._timers.schedule(expiry_ns + pause_ns, self._sweep)

    def _sweep(self, now_ns: int) -> None:
        self._sweep_timer = None
        self.window.forget_expired(now_ns)
        if self._log is not None:
            self._log.forget_before(self._horizon_ns(now_ns))
        for span in [span for span in self._appended if not self.window.has_between(*span)]:
            del self._appended[span]
            self._safe.discard(span)
        self._arm_sweep()

    def _horizon_ns(self, now_ns: int) -> int:
        """Return the time before which saved ids have expired; a saved id has the time of its group."""
        window_ns = self.window.window_ns
        return now_ns - window_ns - window_ns // 50

    # Ids of messages whose records are deleted

    def keep(self, entries: list[IdEntry]) -> bool:
        """Append ids to the id log, flushed with this cycle; False for a stream in memory."""
        if self._log is None or not self.window.window_ns:
            return False
        self._log.append(entries)
        self._commit.mark(self._log)
        return True

    def when_kept(self, action: Action) -> None:
        """Run `action` when the id log and the store are durable."""
        assert self._log is not None
        self._commit.when_all_durable([self._log, self._store], action)

    def keep_at_once(self, sequence: int) -> None:
        """Write and sync the id of a message whose record is about to be overwritten.

        Raises:
            StoreError: the id log could not be written.
        """
        entries = self.window.between(sequence, sequence)
        if entries and self.keep(entries):
            assert self._log is not None
            self._log.flush()
            self._log.sync()

    def _may_forget(self, first: int, last: int) -> bool:
        """Return whether the ids of removed messages in this range are durable without their records."""
        log = self._log
        if not self._are_recovered:
            return False
        if not self._are_used or log is None:
            return True
        span = (first, last)
        if span in self._waiting:
            return False
        if self._append_removed(log, span) and (span in self._safe or span not in self._appended):
            return True
        self._waiting.add(span)
        self._commit.mark_now(log)
        self._commit.when_durable(log, partial(self._on_kept, span))
        return False

    def _append_removed(self, log: IdLog, span: tuple[int, int]) -> bool:
        """Append the ids of removed messages in this range to the id log; True when it had them all."""
        appended = self._appended.get(span, set())
        if appended is None:
            return True
        self.window.forget_expired(self._clock.now_ns())
        entries = self.window.between(*span)
        removed = [entry for entry in entries if not self._store.has(entry[1])]
        fresh = [entry for entry in removed if entry[1] not in appended]
        if not fresh:
            return True
        self._safe.discard(span)
        appended.update(sequence for _, sequence, _ in fresh)
        self._appended[span] = appended if len(removed) < len(entries) else None
        log.append(fresh)
        return False

    def _on_kept(self, span: tuple[int, int], error: JetlakeError | None) -> None:
        self._waiting.discard(span)
        if error is None:
            self._safe.add(span)
            self._stream.removal.schedule_compaction()

    # Across restarts

    def recover(self) -> None:
        """Restore the window from the id file, the id log and the headers of newer messages."""
        self._are_recovered = True
        saved = self._storage.load_ids()
        if saved is None:
            self._recover_unsure()
            return
        self._are_used = True
        store = self._store
        newest = store.get(store.last_sequence) if store.last_sequence else None
        if newest is not None and newest.header:
            self.last = find_value(newest.header, MSG_ID) or b""
        window = self.window
        if not window.window_ns:
            return
        now_ns = self._clock.now_ns()
        horizon_ns = self._horizon_ns(now_ns)
        kept = self._log.load() if self._log is not None else []
        found: dict[int, tuple[bytes, int]] = {}
        for entries in (saved.entries, kept):
            # A higher sequence belongs to a message that was lost in a crash.
            entries[:] = [entry for entry in entries if entry[2] >= horizon_ns and entry[1] <= store.last_sequence]
            found |= {sequence: (message_id, time_ns) for message_id, sequence, time_ns in entries}
        if self._log is not None:
            self._log.adopt(kept)
        if saved.last_sequence < store.last_sequence:
            for sequence, time_ns, header in chain.from_iterable(store.headers_since(now_ns - window.window_ns)):
                if sequence > saved.last_sequence and (message_id := find_value(header, MSG_ID)):
                    found[sequence] = (message_id, time_ns)
        for sequence in sorted(found):
            message_id, time_ns = found[sequence]
            window.remember(message_id, sequence, time_ns)
        self._arm_sweep()

    def _recover_unsure(self) -> None:
        """Restore the ids of messages that a power cut left without the id file, which their sync was to make safe.

        No message with an id was ever durable, so that no others are read.
        """
        store, window, now_ns = self._store, self.window, self._clock.now_ns()
        horizon_ns = now_ns - window.window_ns
        if not window.window_ns or not store.unsure_since_ns or store.last_time_ns < horizon_ns:
            return
        for sequence, time_ns, header in chain.from_iterable(
            store.headers_since(max(horizon_ns, store.unsure_since_ns))
        ):
            if message_id := find_value(header, MSG_ID):
                self.last = message_id if sequence == store.last_sequence else b""
                window.remember(message_id, sequence, time_ns)
        if len(window):
            # The start has made these messages safe.
            self._storage.save_ids(SavedIds())
            self._are_used = True
            self._arm_sweep()

    def save(self) -> None:
        """Write the id file; when that fails, the next start reads the headers and the id log instead."""
        if self._are_used and self._store.failure is None:
            with suppress(StoreError):
                self._storage.save_ids(SavedIds(self._store.last_sequence, self.window.entries()))
                if self._log is not None:
                    self._log.clear()

    def close(self) -> None:
        """Cancel the sweep timer."""
        self._timers.cancel(self._sweep_timer)
        self._sweep_timer = None

    def close_log(self, *, is_deleted: bool = False) -> None:
        """Flush and close the id log; with `is_deleted` only close it."""
        log = self._log
        if log is not None:
            self._commit.forget(log)
            if not is_deleted:
                with suppress(StoreError):
                    log.flush()
                    log.sync()
            log.close()

    def forget_from(self, first_sequence: int) -> None:
        """Forget the ids of messages that were rolled back, from the sequence on."""
        self.window.forget_from(first_sequence)
        if self._log is not None:
            self._log.forget_from(first_sequence)


class DeduplicationWindow:
    """Message ids of the last `window_ns` nanoseconds with the sequence each was stored under.

    An id costs an entry in the table and one in its group: no object of its own, no timer. Ids that expire together
    are no duplicates from then on, and leave memory a few at a time.

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
        """Remember the id of a stored message; the window of a known id starts again."""
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
        """Expire the ids whose window has passed, and drop some of them from memory."""
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
        """Remove the ids of a group from an offset on."""
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
        """Forget the ids of messages that were rolled back, from the sequence on."""
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


class _Group:
    """Ids that expire together, with their sequences, in the order in which they were stored.

    Attributes:
        time_ns: when the message of the first id was stored.
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


class IdTable:
    """Message ids with their sequences, in many small dicts, so that no insertion waits for a large one to grow.

    The hash of an id selects its dict.
    """

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{}]
        self._mask = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, message_id: bytes) -> int:
        """Return the sequence of an id; 0 = unknown."""
        return self._parts[hash(message_id) & self._mask].get(message_id, 0)

    def getter(self) -> Callable[[bytes], int]:
        """Return a quicker `get`, valid until the next change."""
        parts, mask = self._parts, self._mask
        return lambda message_id: parts[hash(message_id) & mask].get(message_id, 0)

    def add_new(self, message_ids: list[bytes], sequences: list[int]) -> bool:
        """Add ids with sequences that no known id has; False, with none added, when an id is known or occurs twice."""
        found = list(map(dict.setdefault, self._parts_of(message_ids), message_ids, sequences))
        if found != sequences:
            for message_id, sequence in zip(message_ids, sequences, strict=True):
                self.discard(message_id, sequence)
            return False
        self._divide()
        return True

    def update(self, sequences: Mapping[bytes, int]) -> None:
        """Set the sequences of ids."""
        for part, message_id, sequence in zip(self._parts_of(sequences), sequences, sequences.values(), strict=True):
            part[message_id] = sequence
        self._divide()

    def _divide(self) -> None:
        """Divide a table that has become too large for one dict."""
        small = self._parts[0]
        if not self._mask and len(small) > _SMALL_TABLE_IDS:
            self._parts, self._mask = [{} for _ in range(_PARTS)], _PARTS - 1
            self.update(small)

    def _parts_of(self, message_ids: Iterable[bytes]) -> Iterator[dict[bytes, int]]:
        """Return the dict of each id."""
        return map(self._parts.__getitem__, map(self._mask.__and__, map(hash, message_ids)))

    def discard(self, message_id: bytes, sequence: int) -> None:
        """Remove an id, unless its sequence is another one by now."""
        part = self._parts[hash(message_id) & self._mask]
        if part.get(message_id) == sequence:
            del part[message_id]

    def clear(self) -> None:
        """Remove all ids in new dicts: an emptied dict keeps its memory."""
        self._parts, self._mask = [{}], 0
