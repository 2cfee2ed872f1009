"""The message ids of one stream: the window in which they count as seen, kept across restarts."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError
from jetlake.protocol.headers import find_value
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.storage.storage import SavedIds
from jetlake.server.engine.stream.deduplication import Deduplication
from jetlake.server.engine.stream.message_headers import MSG_ID
from jetlake.store.journal.id_log import IdEntry, IdLog

if TYPE_CHECKING:
    from jetlake.server.engine.core.timers import Timer
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["MessageIds"]

# Ids are dropped in groups; the sweeps are at least this far apart.
_SWEEP_PAUSE_NS = 50_000_000


class MessageIds:
    """Which ids a stream has seen.

    A stream that never saw an id is not searched for them when it is opened: the first id leaves a file behind before
    its message is stored. A clean stop writes all ids into that file. After a crash, the records of the log tell the
    ids that came later, those of removed messages as well; before such a record goes, its id is in the id log.

    Attributes:
        last: the id of the newest message; empty when it has none.
        window: the ids that count as seen.
    """

    def __init__(self, stream: Stream) -> None:
        self.last = b""
        self.window = Deduplication(stream.config.duplicate_window)
        self._stream = stream
        self._store = stream.store
        self._engine = stream.engine
        self._log = stream.home.id_log
        self._are_used = self._are_recovered = False
        self._sweep_timer: Timer | None = None
        # Ranges of the log whose records are about to go: which sequences the id log has (None: all that there will
        # ever be), and where that is safe.
        self._appended: dict[tuple[int, int], set[int] | None] = {}
        self._waiting: set[tuple[int, int]] = set()
        self._safe: set[tuple[int, int]] = set()
        self._store.may_forget = self._may_forget

    def expect(self) -> None:
        """An id is about to be stored.

        Raises:
            StoreError: the disk refused to note that there are ids.
        """
        if not self._are_used:
            self._stream.home.save_ids(SavedIds())
            self._are_used = True

    def remember(self, message_id: bytes, sequence: int, now_ns: int) -> None:
        """The id was stored."""
        self.window.remember(message_id, sequence, now_ns)
        if self._sweep_timer is None:
            self._arm_sweep()

    def remember_run(self, sequences: dict[bytes, int], now_ns: int) -> None:
        """These ids were stored."""
        self.window.remember_run(sequences, now_ns)
        if self._sweep_timer is None:
            self._arm_sweep()

    def _arm_sweep(self) -> None:
        expiry_ns = self.window.next_expiry_ns()
        if expiry_ns is not None:
            # A little later than due: a sweep takes several groups of ids, not one at a time.
            pause_ns = max(self.window.window_ns // 8, _SWEEP_PAUSE_NS)
            self._sweep_timer = self._engine.timers.schedule(expiry_ns + pause_ns, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_ns = self._engine.clock.now_ns()
        self.window.forget_expired(now_ns)
        if self._log is not None:
            self._log.forget_before(self._horizon_ns(now_ns))
        for place in [place for place in self._appended if not self.window.between(*place)]:
            del self._appended[place]
            self._safe.discard(place)
        self._arm_sweep()

    def _horizon_ns(self, now_ns: int) -> int:
        """Ids whose times are older have expired; the time that is kept is that of an id's group."""
        window_ns = self.window.window_ns
        return now_ns - window_ns - window_ns // 50

    # Ids of messages whose records are gone

    def keep(self, entries: list[IdEntry]) -> bool:
        """Have these ids in the id log with this cycle; False where nothing survives anyway."""
        if self._log is None or not self.window.window_ns:
            return False
        self._log.append(entries)
        self._engine.commit.mark(self._log)
        return True

    def when_kept(self, action: Action) -> None:
        """Run `action` when the ids that were to be kept, and all that was appended so far, are durable."""
        assert self._log is not None
        self._engine.commit.when_all_durable([self._log, self._store], action)

    def keep_at_once(self, sequence: int) -> None:
        """Have the id of this message on the disk: its record is about to be overwritten.

        Raises:
            StoreError: the disk refused.
        """
        entries = self.window.between(sequence, sequence)
        if entries and self.keep(entries):
            assert self._log is not None
            self._log.flush()
            self._log.sync()

    def _may_forget(self, first: int, last: int) -> bool:
        """Whether the ids of removed messages with these sequences are safe without their records."""
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
        self._engine.commit.mark_now(log)
        self._engine.commit.when_durable(log, partial(self._on_kept, place))
        return False

    def _append_gone(self, log: IdLog, place: tuple[int, int]) -> bool:
        """Append the ids of removed messages in this range to the id log, but for those it has; whether it had all."""
        appended = self._appended.get(place, set())
        if appended is None:
            return True
        self.window.forget_expired(self._engine.clock.now_ns())
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
            self._stream.clean_up_later()

    # Across restarts

    def recover(self) -> None:
        """Know again what was known before the stop."""
        self._are_recovered = True
        store = self._store
        newest = store.get(store.last_sequence) if store.last_sequence else None
        if newest is not None and newest.header:
            self.last = find_value(newest.header, MSG_ID) or b""
        saved = self._stream.home.load_ids()
        if saved is None:
            return
        self._are_used = True
        window = self.window
        if not window.window_ns:
            return
        now_ns = self._engine.clock.now_ns()
        horizon_ns = self._horizon_ns(now_ns)
        kept = self._log.load() if self._log is not None else []
        found = {
            sequence: (message_id, time_ns)
            for message_id, sequence, time_ns in (*saved.entries, *kept)
            # A later sequence is that of a message which was never stored after all.
            if time_ns >= horizon_ns and sequence <= store.last_sequence
        }
        for sequence, time_ns, header in store.headers_since(now_ns - window.window_ns):
            if sequence > saved.last_sequence and (message_id := find_value(header, MSG_ID)):
                found[sequence] = (message_id, time_ns)
        for sequence in sorted(found):
            message_id, time_ns = found[sequence]
            window.remember(message_id, sequence, time_ns)
        self._arm_sweep()

    def save(self) -> None:
        """Keep the ids for the next start; when the disk refuses, that start finds them elsewhere."""
        if self._are_used and self._store.failure is None:
            with suppress(StoreError):
                self._stream.home.save_ids(SavedIds(self._store.last_sequence, self.window.entries()))
                if self._log is not None:
                    self._log.clear()

    def close(self) -> None:
        """The stream is closed."""
        self._engine.timers.cancel(self._sweep_timer)
        self._sweep_timer = None

    def close_log(self) -> None:
        """Give back what the id log holds open; what is not yet in it is tried once more."""
        log = self._log
        if log is not None:
            self._engine.commit.forget(log)
            with suppress(StoreError):
                log.flush()
                log.sync()
            log.close()
