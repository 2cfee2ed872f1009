"""Delete markers: when the last message of a subject grows too old, a short-lived note of that takes its place.

Watchers of key-value buckets hear of a key's end by it. A marker is an ordinary message with three headers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from jetlake.errors import StoreError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.protocol.headers import append_pair, find_value, remove_key
from jetlake.server.engine.stream.message_lifetimes import FOREVER, TTL, parse_lifetime

if TYPE_CHECKING:
    from jetlake.server.engine.core.timers import Timer
    from jetlake.server.engine.stream.stream import Stream
    from jetlake.store.message import StoredMessage

__all__ = ["DeleteMarkers"]

_REASON = b"Nats-Marker-Reason"
_OPERATION = b"KV-Operation"

# What is about to go is read in pieces of this size.
_READ_MESSAGES = 1024
_READ_BYTES = 4 * 1024 * 1024


class DeleteMarkers:
    """The markers of one stream; without `subject_delete_marker_ttl` there are none, and nothing is read for them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ended: dict[bytes, bool] = {}  # subject -> whether its newest message that went leaves a marker
        self._timer: Timer | None = None

    @property
    def life_ns(self) -> int:
        """How long a marker stays; 0 = there are none."""
        return self._stream.config.subject_delete_marker_ttl

    def prolong(self, header: bytes, lifetime: bytes) -> bytes:
        """The header, with a life no shorter than a marker's.

        Where a subject has several messages, the end of the newest would otherwise bring an older one back.
        """
        lifetime_ns = parse_lifetime(lifetime)
        config = self._stream.config
        if config.max_msgs_per_subject == 1 or lifetime_ns in (None, FOREVER) or (lifetime_ns or 0) >= self.life_ns:
            return header
        return append_pair(remove_key(header, TTL), TTL, b"%d" % (self.life_ns // NANOSECONDS_PER_SECOND))

    # What goes

    def expect_aged(self, now_ns: int) -> None:
        """Look at the messages that the stream's age is about to take; what cannot be read leaves no marker."""
        max_age, store = self._stream.config.max_age, self._stream.store
        if not self.life_ns or not max_age or not 0 < store.aging_time_ns <= now_ns - max_age:
            return
        with suppress(StoreError):
            self._read(store.aging_sequence, store.first_at_or_after(now_ns - max_age + 1) - 1)
        if self._ended and self._timer is None:
            self._timer = self._stream.engine.timers.schedule(now_ns, self._on_time)

    def expect(self, sequence: int) -> None:
        """Look at a message whose own life is over."""
        if self.life_ns:
            with suppress(StoreError):
                message = self._stream.store.get(sequence)
                if message is not None:
                    self._expect(message)

    def _read(self, sequence: int, last: int) -> None:
        while sequence <= last:
            run = self._stream.store.read(sequence, None, _READ_MESSAGES, _READ_BYTES, last)
            for message in run.messages:
                self._expect(message)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence

    def _expect(self, message: StoredMessage) -> None:
        header = message.header
        is_marker = bool(header) and (
            find_value(header, _REASON) is not None or find_value(header, _OPERATION) == b"PURGE"
        )
        self._ended[message.subject] = not is_marker

    # What comes

    def _on_time(self) -> None:
        self._timer = None
        self.leave()

    def leave(self) -> None:
        """Store a marker for every subject that has ended, unless it has a message again."""
        if not self._ended or self._stream.is_closed:
            return
        ended, self._ended = self._ended, {}
        stream = self._stream
        # A marker takes the place of all that its subject has: what waits to be stored comes first.
        stream.engine.store_received()
        life = format_duration(self.life_ns).encode()
        header = b"NATS/1.0\r\n%b: MaxAge\r\n%b: %b\r\nNats-Rollup: sub\r\n\r\n" % (_REASON, TTL, life)
        for subject, is_marked in ended.items():
            if is_marked and not stream.store.last_sequence_for(subject):
                stream.intake.receive(subject, b"", header, b"", None)
        stream.engine.store_received()

    def close(self) -> None:
        """Nothing ends any more."""
        self._stream.engine.timers.cancel(self._timer)
        self._timer = None
