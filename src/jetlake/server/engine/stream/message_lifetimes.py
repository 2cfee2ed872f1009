"""Per-message TTL: the `Nats-TTL` header, and the deadlines by which a stream removes such messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush

from jetlake.errors import ApiError, StoreError, api_error
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.encoding.lifetimes import FOREVER, parse_lifetime
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import find_value
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.storage.storage import SavedLifetimes, StreamHome
from jetlake.store.steps import Steps

__all__ = ["TTL", "MessageLifetimes", "check_lifetime"]

TTL = b"Nats-TTL"

# Messages that expire close together are removed together; after a store error the next try waits longer.
_PAUSE_NS = 10_000_000
_DISK_PAUSE_NS = NANOSECONDS_PER_SECOND

# So many are removed in one turn.
_REMOVE_MAX = 128

# When the list of ageless messages has grown to this length, removed ones are dropped from it.
_AGELESS_MIN = 4096
# With so many more deadlines than messages, those of removed messages are dropped, in steps.
_GONE_MIN = 4096
_LOOKED_AT_PER_STEP = 512

# Recovery reads this much at once.
_READ_MESSAGES = 4096
_READ_BYTES = 8 * 1024 * 1024


def check_lifetime(control: dict[bytes, bytes], config: StreamConfig) -> ApiError | None:
    """Refuse a malformed TTL, and any TTL on a stream without `allow_msg_ttl`."""
    text = control.get(TTL)
    if text is None:
        return None
    lifetime_ns = parse_lifetime(text)
    if lifetime_ns is None:
        return api_error(10165)
    return None if config.allow_msg_ttl else api_error(10166)


class MessageLifetimes:
    """The TTL deadlines of one stream's messages; `max_age` applies to these messages as well.

    Args:
        home: loads and saves deadlines, and has the store.
        services: the engine's clock, timers and long work.
        before_removal: called with the sequences of messages that expire.
        after_removal: called after expired messages were removed.

    Attributes:
        is_enabled: the stream allows per-message TTLs.
        ageless: sequences of messages that `max_age` spares, ascending; some may have been removed since.
    """

    def __init__(
        self,
        home: StreamHome,
        services: Services,
        before_removal: Callable[[list[int]], None],
        after_removal: Callable[[], None],
    ) -> None:
        self.is_enabled = False
        self._home = home
        self._store = home.store
        self._clock = services.clock
        self._timers = services.timers
        self._long_work = services.long_work
        self._before_removal = before_removal
        self._after_removal = after_removal
        self.ageless: list[int] = []
        self._ageless_max = _AGELESS_MIN
        self._heap: list[tuple[int, int]] = []
        self._unswept: list[tuple[int, int]] = []  # go back into the heap one by one, unless their messages are gone
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._heap) + len(self._unswept)

    def recover(self) -> None:
        """Restore the deadlines saved by the last clean stop, and read those of newer messages from their headers."""
        if not self.is_enabled:
            return
        store = self._store
        saved = self._home.load_lifetimes()
        if saved is None or saved.last_sequence > store.last_sequence:
            # Also when the log has lost its tail: those sequences may belong to other messages now.
            self._read_headers(store.first_sequence)
            self.save()
            return
        self._heap = [entry for entry in saved.entries if store.has(entry[1])]
        heapify(self._heap)
        if self._heap:
            self._arm()
        self.ageless = [sequence for sequence in saved.ageless if store.has(sequence)]
        self._read_headers(max(saved.last_sequence + 1, store.first_sequence))

    def _read_headers(self, sequence: int) -> None:
        store = self._store
        while sequence <= store.last_sequence:
            run = store.read(sequence, None, _READ_MESSAGES, _READ_BYTES)
            for message in run.messages:
                if message.header:
                    self.stored(message.sequence, message.header, message.time_ns)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence

    def stored(self, sequence: int, header: bytes, stored_ns: int) -> None:
        """Remember the deadline of a stored message that has a TTL."""
        text = find_value(header, TTL)
        lifetime_ns = parse_lifetime(text) if text else None
        if lifetime_ns == FOREVER:
            self.ageless.append(sequence)
            if len(self.ageless) > self._ageless_max:
                self._forget_gone()
        elif lifetime_ns is not None:
            # Times in a store never go back, though the clock may have been set back since the newest of them.
            heappush(self._heap, (min(stored_ns, self._clock.now_ns()) + lifetime_ns, sequence))
            self._arm()
            if len(self._heap) > 2 * self._store.messages + _GONE_MIN and not self._unswept:
                self._long_work.begin(self._sweep())

    def _sweep(self) -> Steps[None]:
        """Drop the deadlines of messages that were removed early, such as older values of a key."""
        self._unswept, self._heap = self._heap, []
        self._unswept.reverse()  # Those that are due soon are taken first.
        while self._unswept:
            some = self._unswept[-_LOOKED_AT_PER_STEP:]
            del self._unswept[-_LOOKED_AT_PER_STEP:]
            for entry in reversed(some):
                if self._store.has(entry[1]):
                    heappush(self._heap, entry)
            if self._heap:
                self._arm()
            yield

    def _forget_gone(self) -> None:
        self.ageless = [sequence for sequence in self.ageless if self._store.has(sequence)]
        self._ageless_max = max(2 * len(self.ageless), _AGELESS_MIN)

    def forget_from(self, sequence: int) -> None:
        """Forget undone messages from the sequence on; other messages will get these sequences."""
        del self.ageless[bisect_left(self.ageless, sequence) :]
        self._unswept = [entry for entry in self._unswept if entry[1] < sequence]
        if any(entry[1] >= sequence for entry in self._heap):
            self._heap = [entry for entry in self._heap if entry[1] < sequence]
            heapify(self._heap)

    def save(self) -> None:
        """Write the deadlines for the next start, which reads the headers when that fails; no sweep is under way."""
        if self.is_enabled:
            with suppress(StoreError):
                self._home.save_lifetimes(SavedLifetimes(self._store.last_sequence, self._heap, self.ageless))

    def close(self) -> None:
        """Remove no more messages."""
        self._timers.cancel(self._timer)
        self._timer = None
        self._heap.clear()
        self._unswept.clear()

    def _arm(self, not_before_ns: int = 0) -> None:
        deadline_ns = max(self._heap[0][0], not_before_ns)
        if self._timer is None or deadline_ns < self._timer.deadline_ns:
            self._timers.cancel(self._timer)
            self._timer = self._timers.schedule(deadline_ns, self._remove_expired)

    def _remove_expired(self, now_ns: int) -> None:
        self._timer = None
        pause_ns = _PAUSE_NS
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ns and len(due) < _REMOVE_MAX:
            due.append(heappop(self._heap))
        if len(due) == _REMOVE_MAX:
            pause_ns = 0  # The rest follows in the next turn.
        self._before_removal([sequence for _, sequence in due])
        removed = 0
        try:
            for _, sequence in due:
                self._store.remove(sequence)
                removed += 1
        except StoreError:
            pause_ns = _DISK_PAUSE_NS
            for entry in due[removed:]:
                heappush(self._heap, entry)
        self._after_removal()
        if self._heap:
            self._arm(now_ns + pause_ns)
