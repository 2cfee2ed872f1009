"""Delete markers: tombstones for subjects whose last message expired.

Watchers of key-value buckets learn of a key's expiry by them. A marker is an ordinary message with three headers and a
TTL of its own. It is stored before the message that expires is removed, and rolls that up: a crash in between leaves
both, and the next start removes the older one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from jetlake.errors import StoreError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.model.encoding.lifetimes import FOREVER, parse_lifetime
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import append_pair, find_value, remove_key
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
        store_received: stores the messages that streams have received.
        publish: publishes a marker into the stream, by subject and header.

    Attributes:
        life_ns: the markers' TTL; 0 = no markers.
    """

    def __init__(
        self,
        store: MessageStore,
        store_received: Callable[[], None],
        publish: Callable[[bytes, bytes], None],
    ) -> None:
        self.life_ns = 0
        self._store = store
        self._store_received = store_received
        self._publish = publish
        self._max_age = 0
        self._keeps_one = False
        # Subject -> number and newest sequence of its expired messages, and whether the newest leaves a marker.
        self._expired: dict[bytes, tuple[int, int, bool]] = {}
        self._marked_ns = 0  # messages up to this time have their markers
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

    # Before the removal

    def mark(self, sequences: Iterable[int]) -> None:
        """Publish the markers of messages whose TTL is over; unreadable messages leave none."""
        if self.life_ns and not self._is_closed:
            # A marker rolls up its subject: messages that are not stored yet must come before it.
            self._store_received()
            self._publish_of(self._get(sequences))

    def mark_aged(self, now_ns: int, ageless: Sequence[int]) -> None:
        """Publish the markers of some messages that exceed `max_age`; unreadable messages leave none.

        Args:
            ageless: sequences, ascending, of messages that `max_age` spares.
        """
        if not self.life_ns or self._is_closed:
            return
        self._store_received()
        if not self._has_aged(now_ns):
            return
        store = self._store
        with suppress(StoreError):
            if self._last_aged(now_ns) - store.aging_sequence > _AGED_MAX:
                now_ns = self._time_of_some(now_ns)
        aged = self._read(store.aging_sequence, self._last_aged(now_ns))
        self._publish_of(message for message in aged if not _holds(ageless, message.sequence))
        self._marked_ns = now_ns - self._max_age

    def removable_until(self, now_ns: int) -> int:
        """Return the time for which `max_age` may remove messages: earlier than `now_ns` while markers are missing."""
        return min(self._marked_ns + self._max_age, now_ns) if self._has_aged(now_ns) else now_ns

    def _has_aged(self, now_ns: int) -> bool:
        is_marked = self.life_ns and self._max_age
        return bool(is_marked) and 0 < self._store.aging_time_ns <= now_ns - self._max_age

    def _last_aged(self, now_ns: int) -> int:
        return self._store.first_at_or_after(now_ns - self._max_age + 1) - 1

    def _time_of_some(self, now_ns: int) -> int:
        """Return the latest time for which only some of the oldest messages, and those of one time, are too old."""
        store = self._store
        following = store.read(store.aging_sequence + _AGED_MAX, None, 1, 1).messages
        if not following:
            return now_ns
        return min(max(following[0].time_ns - 1, store.aging_time_ns) + self._max_age, now_ns)

    def _get(self, sequences: Iterable[int]) -> Iterator[StoredMessage]:
        for sequence in sequences:
            with suppress(StoreError):
                message = self._store.get(sequence)
                if message is not None:
                    yield message

    def _read(self, sequence: int, last: int) -> Iterator[StoredMessage]:
        with suppress(StoreError):
            while sequence <= last:
                run = self._store.read(sequence, None, _READ_MESSAGES, _READ_BYTES, last)
                yield from run.messages
                if run.next_sequence <= sequence:
                    break
                sequence = run.next_sequence

    def _publish_of(self, messages: Iterable[StoredMessage]) -> None:
        """Publish the markers of subjects that have no other messages than these expired ones."""
        self._expired.clear()
        for message in messages:
            header = message.header
            is_marker = bool(header) and (
                find_value(header, _REASON) is not None or find_value(header, _OPERATION) == b"PURGE"
            )
            count = self._expired.get(message.subject, (0,))[0]
            self._expired[message.subject] = (count + 1, message.sequence, not is_marker)
        for subject, (count, newest, is_marked) in self._expired.items():
            with suppress(StoreError):
                is_last = is_marked and self._store.last_sequence_for(subject) == newest
                if is_last and self._store.count_on(subject) == count:
                    self._publish(subject, self._header)
        self._store_received()

    # After the removal

    def publish_missing(self) -> None:
        """Publish the markers that were refused before the removal made room for them."""
        if not self._expired or self._is_closed:
            return
        self._store_received()
        for subject, (_, _, is_marked) in self._expired.items():
            if is_marked and not self._store.last_sequence_for(subject):
                self._publish(subject, self._header)
        self._expired.clear()
        self._store_received()

    @property
    def _header(self) -> bytes:
        life = format_duration(self.life_ns).encode()
        return b"NATS/1.0\r\n%b: MaxAge\r\n%b: %b\r\nNats-Rollup: sub\r\n\r\n" % (_REASON, TTL, life)

    def close(self) -> None:
        """Publish no more markers."""
        self._is_closed = True


def _holds(sequences: Sequence[int], sequence: int) -> bool:
    """Return whether ascending sequences have this one."""
    position = bisect_left(sequences, sequence)
    return position < len(sequences) and sequences[position] == sequence
