"""The message ids of one stream: the window in which they count as seen, kept across restarts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from jetlake.errors import StoreError
from jetlake.protocol.headers import find_value
from jetlake.server.engine.deduplication import Deduplication
from jetlake.server.engine.message_headers import MSG_ID
from jetlake.server.engine.storage import SavedIds

if TYPE_CHECKING:
    from jetlake.server.engine.stream import Stream
    from jetlake.server.engine.timers import Timer

__all__ = ["MessageIds"]

# How much recovery reads at once.
_RECOVERY_MESSAGES = 4096
_RECOVERY_BYTES = 8 * 1024 * 1024

# Ids are dropped in groups; the sweeps are at least this far apart.
_SWEEP_PAUSE_NS = 50_000_000


class MessageIds:
    """Which ids a stream has seen.

    A stream that never saw an id is not searched for them when it is opened: the first id leaves a file behind before
    its message is stored. A clean stop writes all ids into that file; what came after the last one is read from the
    messages' headers.

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
        self._are_used = False
        self._sweep_timer: Timer | None = None

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
        self.window.forget_expired(self._engine.clock.now_ns())
        self._arm_sweep()

    # Across restarts

    def recover(self) -> None:
        """Know again what was known before the stop."""
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
        horizon_ns = self._engine.clock.now_ns() - window.window_ns
        for message_id, sequence, time_ns in saved.entries:
            if time_ns > horizon_ns:
                window.remember(message_id, sequence, time_ns)
        self._read_headers(max(saved.last_sequence + 1, store.first_at_or_after(horizon_ns)))
        self._arm_sweep()

    def _read_headers(self, sequence: int) -> None:
        store = self._store
        while sequence <= store.last_sequence:
            run = store.read(sequence, None, _RECOVERY_MESSAGES, _RECOVERY_BYTES)
            for message in run.messages:
                message_id = find_value(message.header, MSG_ID) if message.header else None
                if message_id:
                    self.window.remember(message_id, message.sequence, message.time_ns)
            sequence = max(run.next_sequence, sequence + 1)

    def save(self) -> None:
        """Keep the ids for the next start; when the disk refuses, that start finds them in the headers."""
        if self._are_used:
            saved = SavedIds(self._store.last_sequence, self.window.entries())
            with suppress(StoreError):
                self._stream.home.save_ids(saved)

    def close(self) -> None:
        """The stream is closed."""
        self._engine.timers.cancel(self._sweep_timer)
        self._sweep_timer = None
