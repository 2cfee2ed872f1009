"""Expiry: per-message TTLs, the deadlines by which a stream removes such messages, and the markers of expired subjects.

A deadline follows from the message's `Nats-TTL` header and its time, so the heap can always be read again from the log;
a clean stop saves it. `max_age` applies to messages with a TTL as well, except for a TTL of `never`
(`ageless`); `Removal` enforces it.

With `subject_delete_marker_ttl`, a subject whose last message expires gets a delete marker, a tombstone by which
watchers of key-value buckets learn of a key's expiry. A marker is an ordinary message with three headers and a TTL of
its own. It is stored before the message that expires is removed, and rolls that up: a crash in between leaves both, and
the next start removes the older one.

    due ── mark ──> marker stored ── remove ──> (a refused marker is published once the removal has made room)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from jetlake.errors import ApiError, StoreError, api_error
from jetlake.model.encoding.durations import FOREVER, NANOSECONDS_PER_SECOND, format_duration, parse_lifetime
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import append_pair, find_value, remove_key
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.storage.storage import SavedLifetimes
from jetlake.server.engine.stream.headers import TTL
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

_REASON = b"Nats-Marker-Reason"
_OPERATION = b"KV-Operation"

# Messages that expire close together are removed together; after a store error the next attempt waits longer.
_PAUSE_NS = 10_000_000
_DISK_PAUSE_NS = NANOSECONDS_PER_SECOND

# Most messages that are removed in one turn, and most whose markers are published in one.
_REMOVE_MAX = 128
_AGED_MAX = 128

# When the list of ageless messages has grown to this length, removed ones are dropped from it.
_AGELESS_MIN = 4096
# With this many more deadlines than messages, deadlines of removed messages are dropped, in steps.
_GONE_MIN = 4096
_LOOKED_AT_PER_STEP = 512

# Expiring messages are read in runs of this size; recovery reads longer ones.
_READ_MESSAGES = 1024
_READ_BYTES = 4 * 1024 * 1024
_RECOVER_MESSAGES = 4096
_RECOVER_BYTES = 8 * 1024 * 1024


def check_lifetime(control: dict[bytes, bytes], config: StreamConfig) -> ApiError | None:
    """Refuse a malformed TTL, and any TTL on a stream without `allow_msg_ttl`."""
    text = control.get(TTL)
    if text is None:
        return None
    lifetime_ns = parse_lifetime(text)
    if lifetime_ns is None:
        return api_error(10165)
    return None if config.allow_msg_ttl else api_error(10166)


class Expiry:
    """The TTL deadlines of one stream's messages, and its delete markers.

    Attributes:
        ageless: sequences of messages that `max_age` spares, ascending; some may have been removed since.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._store = stream.store
        self._services = stream.services
        self.ageless: list[int] = []
        self._ageless_max = _AGELESS_MIN
        self._heap: list[tuple[int, int]] = []  # deadline and sequence
        self._unswept: list[tuple[int, int]] = []  # return to the heap one by one, unless their messages are gone
        self._timer: Timer | None = None
        # Subject -> number and newest sequence of its expired messages, and whether the newest leaves a marker.
        self._expired: dict[bytes, tuple[int, int, bool]] = {}
        self._marked_ns = 0  # messages up to this time have their markers

    def __len__(self) -> int:
        return len(self._heap) + len(self._unswept)

    # Deadlines

    def stored(self, sequence: int, header: bytes, stored_ns: int) -> None:
        """Remember the deadline of a stored message that has a TTL."""
        text = find_value(header, TTL)
        lifetime_ns = parse_lifetime(text) if text else None
        if lifetime_ns == FOREVER:
            self.ageless.append(sequence)
            if len(self.ageless) > self._ageless_max:
                self._forget_removed()
        elif lifetime_ns is not None:
            # Times in a store never go back, though the clock may have been set back since the newest of them.
            heappush(self._heap, (min(stored_ns, self._services.clock.now_ns()) + lifetime_ns, sequence))
            self._arm()
            if len(self._heap) > 2 * self._store.messages + _GONE_MIN and not self._unswept:
                self._services.long_work.begin(self._sweep())

    def _sweep(self) -> Steps[None]:
        """Drop the deadlines of messages that were removed early, such as older values of a key."""
        self._unswept, self._heap = self._heap, []
        self._unswept.reverse()  # The earliest deadlines are taken first.
        while self._unswept:
            some = self._unswept[-_LOOKED_AT_PER_STEP:]
            del self._unswept[-_LOOKED_AT_PER_STEP:]
            for entry in reversed(some):
                if self._store.has(entry[1]):
                    heappush(self._heap, entry)
            if self._heap:
                self._arm()
            yield

    def _forget_removed(self) -> None:
        self.ageless = [sequence for sequence in self.ageless if self._store.has(sequence)]
        self._ageless_max = max(2 * len(self.ageless), _AGELESS_MIN)

    def forget_from(self, sequence: int) -> None:
        """Forget messages that were rolled back, from the sequence on; other messages will get these sequences."""
        del self.ageless[bisect_left(self.ageless, sequence) :]
        self._unswept = [entry for entry in self._unswept if entry[1] < sequence]
        if any(entry[1] >= sequence for entry in self._heap):
            self._heap = [entry for entry in self._heap if entry[1] < sequence]
            heapify(self._heap)

    def _arm(self, not_before_ns: int = 0) -> None:
        deadline_ns = max(self._heap[0][0], not_before_ns)
        if self._timer is None or deadline_ns < self._timer.deadline_ns:
            self._services.timers.cancel(self._timer)
            self._timer = self._services.timers.schedule(deadline_ns, self._remove_expired)

    def _remove_expired(self, now_ns: int) -> None:
        self._timer = None
        pause_ns = _PAUSE_NS
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0][0] <= now_ns and len(due) < _REMOVE_MAX:
            due.append(heappop(self._heap))
        if len(due) == _REMOVE_MAX:
            pause_ns = 0  # The rest follows in the next turn.
        self._mark([sequence for _, sequence in due])
        removed = 0
        try:
            for _, sequence in due:
                self._store.remove(sequence)
                removed += 1
        except StoreError:
            pause_ns = _DISK_PAUSE_NS
            for entry in due[removed:]:
                heappush(self._heap, entry)
        self._stream.removal.after_removal()
        self.publish_missing()
        if self._heap:
            self._arm(now_ns + pause_ns)

    # Across restarts

    def recover(self) -> None:
        """Restore the deadlines saved by the last clean stop, and read the headers of newer messages."""
        if not self._stream.config.allow_msg_ttl:
            return
        store = self._store
        saved = self._stream.storage.load_lifetimes()
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
            run = store.read(sequence, None, _RECOVER_MESSAGES, _RECOVER_BYTES)
            for message in run.messages:
                if message.header:
                    self.stored(message.sequence, message.header, message.time_ns)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence

    def save(self) -> None:
        """Write the deadlines for the next start, which reads the headers when that fails; no sweep is under way."""
        if self._stream.config.allow_msg_ttl:
            with suppress(StoreError):
                saved = SavedLifetimes(self._store.last_sequence, self._heap, self.ageless)
                self._stream.storage.save_lifetimes(saved)

    def close(self) -> None:
        """Remove no more messages."""
        self._services.timers.cancel(self._timer)
        self._timer = None
        self._heap.clear()
        self._unswept.clear()

    # Delete markers, before the removal

    @property
    def _marker_life_ns(self) -> int:
        """The TTL of markers; 0 when there are none: then nothing is read for them."""
        return self._stream.config.subject_delete_marker_ttl

    def prolong(self, header: bytes, lifetime: bytes) -> bytes:
        """Return the header with a TTL no shorter than a marker's.

        Where a subject has several messages, the expiry of the newest would otherwise bring an older one back.
        """
        life_ns, lifetime_ns = self._marker_life_ns, parse_lifetime(lifetime)
        keeps_one = self._stream.config.max_msgs_per_subject == 1
        if keeps_one or lifetime_ns in (None, FOREVER) or (lifetime_ns or 0) >= life_ns:
            return header
        return append_pair(remove_key(header, TTL), TTL, b"%d" % (life_ns // NANOSECONDS_PER_SECOND))

    def _mark(self, sequences: Iterable[int]) -> None:
        """Publish the markers of messages whose TTL is over; unreadable messages leave none."""
        if self._marker_life_ns and not self._stream.is_closed:
            # A marker rolls up its subject: messages that are not stored yet must come before it.
            self._services.store_received()
            self._publish_markers(self._get(sequences))

    def mark_aged(self, now_ns: int) -> None:
        """Publish the markers of some messages that exceed `max_age`; unreadable messages leave none."""
        if not self._marker_life_ns or self._stream.is_closed:
            return
        self._services.store_received()
        if not self._has_aged(now_ns):
            return
        store = self._store
        with suppress(StoreError):
            if self._last_aged(now_ns) - store.aging_sequence > _AGED_MAX:
                now_ns = self._time_of_some(now_ns)
        aged = self._read(store.aging_sequence, self._last_aged(now_ns))
        ageless = self.ageless
        self._publish_markers(message for message in aged if not _holds(ageless, message.sequence))
        self._marked_ns = now_ns - self._stream.config.max_age

    def removable_until(self, now_ns: int) -> int:
        """Return the time for which `max_age` may remove messages: earlier than `now_ns` while markers are missing."""
        return min(self._marked_ns + self._stream.config.max_age, now_ns) if self._has_aged(now_ns) else now_ns

    def _has_aged(self, now_ns: int) -> bool:
        max_age = self._stream.config.max_age
        return bool(self._marker_life_ns and max_age) and 0 < self._store.aging_time_ns <= now_ns - max_age

    def _last_aged(self, now_ns: int) -> int:
        return self._store.first_at_or_after(now_ns - self._stream.config.max_age + 1) - 1

    def _time_of_some(self, now_ns: int) -> int:
        """Return the latest time at which few messages, or only messages of one time, are too old."""
        store = self._store
        following = store.read(store.aging_sequence + _AGED_MAX, None, 1, 1).messages
        if not following:
            return now_ns
        return min(max(following[0].time_ns - 1, store.aging_time_ns) + self._stream.config.max_age, now_ns)

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

    def _publish_markers(self, messages: Iterable[StoredMessage]) -> None:
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
                    self._publish_marker(subject)
        self._services.store_received()

    def _publish_marker(self, subject: bytes) -> None:
        life = format_duration(self._marker_life_ns).encode()
        header = b"NATS/1.0\r\n%b: MaxAge\r\n%b: %b\r\nNats-Rollup: sub\r\n\r\n" % (_REASON, TTL, life)
        self._stream.publish_path.receive(subject, b"", header, b"", None)

    # After the removal

    def publish_missing(self) -> None:
        """Publish the markers that were refused before the removal made room for them."""
        if not self._expired or self._stream.is_closed:
            return
        self._services.store_received()
        for subject, (_, _, is_marked) in self._expired.items():
            if is_marked and not self._store.last_sequence_for(subject):
                self._publish_marker(subject)
        self._expired.clear()
        self._services.store_received()


def _holds(sequences: Sequence[int], sequence: int) -> bool:
    """Return whether ascending sequences have this one."""
    position = bisect_left(sequences, sequence)
    return position < len(sequences) and sequences[position] == sequence
