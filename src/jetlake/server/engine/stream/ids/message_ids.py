"""The message ids of one stream: the deduplication window, kept across restarts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain

from jetlake.errors import JetlakeError, StoreError
from jetlake.protocol.headers import find_value
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.storage.storage import SavedIds, StreamHome
from jetlake.server.engine.stream.ids.deduplication import Deduplication
from jetlake.server.engine.stream.message_headers import MSG_ID
from jetlake.store.journal.id_log import IdEntry, IdLog

__all__ = ["MessageIds"]

# Expired ids are dropped in groups; sweeps are at least this far apart.
_SWEEP_PAUSE_NS = 50_000_000
# After a sweep that left expired ids in memory the next one follows.
_DROP_PAUSE_NS = 1_000_000


class MessageIds:
    """The ids of one stream's messages.

    The first id creates the id file before its message is stored; without that file, opening a stream searches for no
    ids. A clean stop writes all ids into the file. After a crash, the ids of later messages are read from the log's
    records, those of removed messages included; before such a record is deleted, its id is in the id log.

    Args:
        home: loads and saves ids, and has the store and the id log.
        services: the engine's clock, timers and commit.
        window_ns: the stream's deduplication window.
        clean_up_later: schedules a clean-up of the store, once ids are safe without their records.

    Attributes:
        last: the id of the newest message; empty when it has none.
        window: the ids that count as seen.
    """

    def __init__(
        self, home: StreamHome, services: Services, window_ns: int, clean_up_later: Callable[[], None]
    ) -> None:
        self.last = b""
        self.window = Deduplication(window_ns)
        self._home = home
        self._store = home.store
        self._clock = services.clock
        self._timers = services.timers
        self._commit = services.commit
        self._clean_up_later = clean_up_later
        self._log = home.id_log
        self._are_used = self._are_recovered = False
        self._sweep_timer: Timer | None = None
        # Ranges of the log whose records are to be deleted: the sequences whose ids the id log has (None: all that
        # there will ever be), and the ranges whose ids are durable there.
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
            self._home.expect_ids()
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
        for place in [place for place in self._appended if not self.window.has_between(*place)]:
            del self._appended[place]
            self._safe.discard(place)
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
        place = (first, last)
        if place in self._waiting:
            return False
        if self._append_gone(log, place) and (place in self._safe or place not in self._appended):
            return True
        self._waiting.add(place)
        self._commit.mark_now(log)
        self._commit.when_durable(log, partial(self._on_kept, place))
        return False

    def _append_gone(self, log: IdLog, place: tuple[int, int]) -> bool:
        """Append the ids of removed messages in this range to the id log; True when it had them all."""
        appended = self._appended.get(place, set())
        if appended is None:
            return True
        self.window.forget_expired(self._clock.now_ns())
        entries = self.window.between(*place)
        gone = [entry for entry in entries if not self._store.has(entry[1])]
        fresh = [entry for entry in gone if entry[1] not in appended]
        if not fresh:
            return True
        self._safe.discard(place)
        appended.update(sequence for _, sequence, _ in fresh)
        self._appended[place] = appended if len(gone) < len(entries) else None
        log.append(fresh)
        return False

    def _on_kept(self, place: tuple[int, int], error: JetlakeError | None) -> None:
        self._waiting.discard(place)
        if error is None:
            self._safe.add(place)
            self._clean_up_later()

    # Across restarts

    def recover(self) -> None:
        """Restore the window from the id file, the id log and the headers of newer messages."""
        self._are_recovered = True
        saved = self._home.load_ids()
        if saved is None:
            return  # No message was ever stored with an id, so that none is read.
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

    def save(self) -> None:
        """Write the id file; when that fails, the next start reads the headers and the id log instead."""
        if self._are_used and self._store.failure is None:
            with suppress(StoreError):
                self._home.save_ids(SavedIds(self._store.last_sequence, self.window.entries()))
                if self._log is not None:
                    self._log.clear()

    def close(self) -> None:
        """Cancel the sweep timer."""
        self._timers.cancel(self._sweep_timer)
        self._sweep_timer = None

    def close_log(self, *, is_deleted: bool = False) -> None:
        """Flush and close the id log; that of a deleted stream is only closed."""
        log = self._log
        if log is not None:
            self._commit.forget(log)
            if not is_deleted:
                with suppress(StoreError):
                    log.flush()
                    log.sync()
            log.close()

    def forget_undone(self, first_sequence: int) -> None:
        """Forget the ids of undone messages, from the sequence on."""
        self.window.forget_from(first_sequence)
        if self._log is not None:
            self._log.forget_from(first_sequence)
