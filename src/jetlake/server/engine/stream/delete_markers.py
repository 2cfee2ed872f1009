"""Delete markers: tombstones for subjects whose last message expired.

Watchers of key-value buckets learn of a key's expiry by them. A marker is an ordinary message with three headers and a
TTL of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from jetlake.errors import StoreError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.model.encoding.lifetimes import FOREVER, parse_lifetime
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import append_pair, find_value, remove_key
from jetlake.server.engine.core.timers import Timer, Timers
from jetlake.server.engine.stream.message_lifetimes import TTL
from jetlake.store.interface import MessageStore
from jetlake.store.message import StoredMessage

__all__ = ["DeleteMarkers"]

_REASON = b"Nats-Marker-Reason"
_OPERATION = b"KV-Operation"

# The markers of so many messages are published at once; older messages are kept for the next time.
_AGED_MAX = 128
# Expiring messages are read in pieces of this size.
_READ_MESSAGES = 1024
_READ_BYTES = 4 * 1024 * 1024


class DeleteMarkers:
    """The markers of one stream; without `subject_delete_marker_ttl` none are left, and nothing is read for them.

    Args:
        store: the stream's messages.
        timers: schedules the markers of messages that exceed the stream's `max_age`.
        store_received: stores the messages that streams have received.
        publish: publishes a marker into the stream, by subject and header.

    Attributes:
        life_ns: the markers' TTL; 0 = no markers.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        store_received: Callable[[], None],
        publish: Callable[[bytes, bytes], None],
    ) -> None:
        self.life_ns = 0
        self._store = store
        self._timers = timers
        self._store_received = store_received
        self._publish = publish
        self._max_age = 0
        self._keeps_one = False
        self._expired: dict[bytes, bool] = {}  # subject -> whether its newest expired message leaves a marker
        self._timer: Timer | None = None
        self._is_publishing = False
        self._is_closed = False

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self.life_ns = config.subject_delete_marker_ttl
        self._max_age = config.max_age
        self._keeps_one = config.max_msgs_per_subject == 1

    def prolong(self, header: bytes, lifetime: bytes) -> bytes:
        """Return the header with a TTL no shorter than a marker's.

        Where a subject has several messages, the expiry of the newest would otherwise bring an older one back.
        """
        lifetime_ns = parse_lifetime(lifetime)
        if self._keeps_one or lifetime_ns in (None, FOREVER) or (lifetime_ns or 0) >= self.life_ns:
            return header
        return append_pair(remove_key(header, TTL), TTL, b"%d" % (self.life_ns // NANOSECONDS_PER_SECOND))

    def expect_aged(self, now_ns: int) -> int:
        """Note the subjects of messages that `max_age` is about to remove; unreadable messages leave no marker.

        Returns:
            The time for which messages may be removed now: earlier than `now_ns` where too many would need markers.
        """
        store = self._store
        if not self.life_ns or not self._max_age or not 0 < store.aging_time_ns <= now_ns - self._max_age:
            return now_ns
        if self._is_publishing or len(self._expired) >= _AGED_MAX:
            return store.aging_time_ns + self._max_age - 1
        last = store.first_at_or_after(now_ns - self._max_age + 1) - 1
        with suppress(StoreError):
            if last - store.aging_sequence > _AGED_MAX:
                now_ns = self._time_of_some(now_ns)
                last = store.first_at_or_after(now_ns - self._max_age + 1) - 1
            self._read(store.aging_sequence, last)
        if self._expired and self._timer is None:
            self._timer = self._timers.schedule(now_ns, self._on_timer)
        return now_ns

    def _time_of_some(self, now_ns: int) -> int:
        """Return the latest time for which only some of the oldest messages, and those of one time, are too old."""
        store = self._store
        following = store.read(store.aging_sequence + _AGED_MAX, None, 1, 1).messages
        if not following:
            return now_ns
        return min(max(following[0].time_ns - 1, store.aging_time_ns) + self._max_age, now_ns)

    def expect(self, sequence: int) -> None:
        """Note the subject of a message whose TTL is over."""
        if self.life_ns:
            with suppress(StoreError):
                message = self._store.get(sequence)
                if message is not None:
                    self._expect(message)

    def _read(self, sequence: int, last: int) -> None:
        while sequence <= last:
            run = self._store.read(sequence, None, _READ_MESSAGES, _READ_BYTES, last)
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
        self._expired[message.subject] = not is_marker

    def _on_timer(self, _now_ns: int) -> None:
        self._timer = None
        self.publish_expected()

    def publish_expected(self) -> None:
        """Publish a marker for every noted subject that has no message left."""
        if not self._expired or self._is_closed:
            return
        # A marker rolls up its subject: messages that are not stored yet must come before it.
        self._store_received()
        expired, self._expired = self._expired, {}
        self._is_publishing = True
        try:
            self._publish_of(expired)
        finally:
            self._is_publishing = False

    def _publish_of(self, expired: dict[bytes, bool]) -> None:
        life = format_duration(self.life_ns).encode()
        header = b"NATS/1.0\r\n%b: MaxAge\r\n%b: %b\r\nNats-Rollup: sub\r\n\r\n" % (_REASON, TTL, life)
        for subject, is_marked in expired.items():
            if is_marked and not self._store.last_sequence_for(subject):
                self._publish(subject, header)
        self._store_received()

    def close(self) -> None:
        """Publish no more markers."""
        self._is_closed = True
        self._timers.cancel(self._timer)
        self._timer = None
