"""Messages with a life of their own: `Nats-TTL` in a header says how long, and the stream lets go of them in time."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from jetlake.errors import ApiError, ConfigError, StoreError, api_error
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, parse_duration
from jetlake.protocol.headers import find_value
from jetlake.server.engine.storage.storage import SavedLifetimes

if TYPE_CHECKING:
    from jetlake.model.stream import StreamConfig
    from jetlake.server.engine.core.timers import Timer
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["FOREVER", "TTL", "MessageLifetimes", "check_lifetime", "parse_lifetime"]

TTL = b"Nats-TTL"
FOREVER = -1
"""What `never` means: no life of its own ends the message."""

# Messages that end close together are removed together, and a disk that refused is tried again after this.
_PAUSE_NS = 10_000_000
_DISK_PAUSE_NS = NANOSECONDS_PER_SECOND

# When so many messages are ageless, those that have gone meanwhile are forgotten.
_AGELESS_MIN = 4096

# Recovery reads this much at once.
_READ_MESSAGES = 4096
_READ_BYTES = 8 * 1024 * 1024


def parse_lifetime(text: bytes) -> int | None:
    """The nanoseconds that `90`, `2m` or `never` (`FOREVER`) stand for; None for what is no time or under a second."""
    if text == b"never":
        return FOREVER
    if text.isdigit():
        seconds = int(text) if len(text) <= 9 else 0
        return seconds * NANOSECONDS_PER_SECOND if seconds else None
    try:
        lifetime_ns = parse_duration(text.decode("utf-8", "replace"))
    except ConfigError:
        return None
    return lifetime_ns if lifetime_ns >= NANOSECONDS_PER_SECOND else None


def check_lifetime(wishes: dict[bytes, bytes], config: StreamConfig) -> ApiError | None:
    """Refuse a life of its own where the stream allows none, or where it makes no sense."""
    text = wishes.get(TTL)
    if text is None:
        return None
    lifetime_ns = parse_lifetime(text)
    if lifetime_ns is None:
        return api_error(10165)
    return None if config.allow_msg_ttl else api_error(10166)


class MessageLifetimes:
    """The deadlines of one stream's messages that have one; `max_age` applies to them as to all others.

    Attributes:
        ageless: the messages that are to stay whatever their age, ascending; some may have gone for other reasons.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.ageless: list[int] = []
        self._ageless_max = _AGELESS_MIN
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def recover(self) -> None:
        """Know the deadlines of what is stored: those of the last clean stop, and by its headers what came since."""
        if not self._stream.config.allow_msg_ttl:
            return
        store = self._stream.store
        saved = self._stream.home.load_lifetimes()
        if saved is None or saved.last_sequence > store.last_sequence:
            # Also when the log has lost its end since: who knows what those sequences are now.
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
        store = self._stream.store
        while sequence <= store.last_sequence:
            run = store.read(sequence, None, _READ_MESSAGES, _READ_BYTES)
            for message in run.messages:
                if message.header:
                    self.stored(message.sequence, message.header, message.time_ns)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence

    def stored(self, sequence: int, header: bytes, stored_ns: int) -> None:
        """A message was stored; remember its deadline if it has one."""
        text = find_value(header, TTL)
        lifetime_ns = parse_lifetime(text) if text else None
        if lifetime_ns == FOREVER:
            self.ageless.append(sequence)
            if len(self.ageless) > self._ageless_max:
                self._forget_gone()
        elif lifetime_ns is not None:
            heappush(self._heap, (stored_ns + lifetime_ns, sequence))
            self._arm()

    def _forget_gone(self) -> None:
        self.ageless = [sequence for sequence in self.ageless if self._stream.store.has(sequence)]
        self._ageless_max = max(2 * len(self.ageless), _AGELESS_MIN)

    def forget_from(self, sequence: int) -> None:
        """What was stored from here on is undone; other messages will have these sequences."""
        del self.ageless[bisect_left(self.ageless, sequence) :]
        if any(entry[1] >= sequence for entry in self._heap):
            self._heap = [entry for entry in self._heap if entry[1] < sequence]
            heapify(self._heap)

    def save(self) -> None:
        """Keep the deadlines for the next start; when the disk refuses, that start finds them in the headers."""
        if self._stream.config.allow_msg_ttl:
            with suppress(StoreError):
                self._stream.home.save_lifetimes(
                    SavedLifetimes(self._stream.store.last_sequence, self._heap, self.ageless)
                )

    def close(self) -> None:
        """Nothing is removed any more."""
        self._stream.engine.timers.cancel(self._timer)
        self._timer = None
        self._heap.clear()

    def _arm(self, not_before_ns: int = 0) -> None:
        timers = self._stream.engine.timers
        deadline_ns = max(self._heap[0][0], not_before_ns)
        if self._timer is None or deadline_ns < self._timer.deadline_ns:
            timers.cancel(self._timer)
            self._timer = timers.schedule(deadline_ns, self._remove_ended)

    def _remove_ended(self) -> None:
        self._timer = None
        stream = self._stream
        now_ns = stream.engine.clock.now_ns()
        pause_ns = _PAUSE_NS
        try:
            while self._heap and self._heap[0][0] <= now_ns:
                stream.markers.expect(self._heap[0][1])
                stream.store.remove(self._heap[0][1])
                heappop(self._heap)
        except StoreError:
            pause_ns = _DISK_PAUSE_NS
        stream.touched()
        stream.markers.leave()
        if self._heap:
            self._arm(now_ns + pause_ns)
