"""The schedules of one stream: which are due when, their publication, and the rules of their headers.

A schedule is the message that defines it; the index here can always be read again from the log. A published message
names its schedule and the next time in its headers, so that after a crash no time is published twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush

from jetlake.errors import ApiError, ConfigError, JetlakeError, StoreError, api_error
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, parse_lifetime
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import find_value
from jetlake.protocol.subjects import is_valid_publish
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.schedule.pattern import Pattern, find_zone, parse_pattern
from jetlake.server.engine.storage.storage import SavedSchedules, StreamStorage
from jetlake.store.message import StoredMessage
from jetlake.store.subject_filter import SubjectFilter

SCHEDULE = b"Nats-Schedule"
_SCHEDULER = b"Nats-Scheduler"
_NEXT = b"Nats-Schedule-Next"
_TARGET = b"Nats-Schedule-Target"
_SOURCE = b"Nats-Schedule-Source"
_TIME_ZONE = b"Nats-Schedule-Time-Zone"
_TTL = b"Nats-Schedule-TTL"
_SCHEDULE_ROLLUP = b"Nats-Schedule-Rollup"
_ROLLUP = b"Nats-Rollup"
_PURGE = b"purge"
"""The value of `Nats-Schedule-Next` when there is no next time: the schedule is purged."""

# Headers that a published message does not take over from its schedule, by the beginning of their lines.
_DROPPED = (b"Nats-Schedule", b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")

Fired = tuple[bytes, bytes, bytes]
"""Subject, header and payload of a message that a schedule publishes."""

# Due schedules that are published at once; the rest follows in the next turn. The next time of each has to be found.
_FIRE_MAX = 32
# After an error of the store, or while account or server have no room, the next try waits this long.
_RETRY_NS = NANOSECONDS_PER_SECOND
# The index is saved after this many messages, which bounds what a start after a crash reads.
_SAVE_MESSAGES = 100_000
# With each new schedule, this many others are checked for removal: more than one, to catch up.
_LOOKED_AT = 2
# Recovery reads this much at once.
_READ_MESSAGES = 4096
_READ_BYTES = 8 * 1024 * 1024


class Schedules:
    """The schedules of one stream, by subject: a subject has one at most.

    Args:
        storage: loads and saves the index, and has the store.
        services: the engine's clock, timers, commit and error log.
        publish: stores messages that schedules publish.
        is_captured: tells whether the stream captures a subject.

    Attributes:
        is_enabled: the stream allows schedules.
    """

    def __init__(
        self,
        storage: StreamStorage,
        services: Services,
        publish: Callable[[list[Fired]], None],
        is_captured: Callable[[bytes], bool],
    ) -> None:
        self.is_enabled = False
        self._storage = storage
        self._store = storage.store
        self._services = services
        self._publish = publish
        self._is_captured = is_captured
        # Time and sequence of each schedule, by subject; `_forget_removed` begins with the first.
        self._due: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._heap: list[tuple[int, int, bytes]] = []  # time, sequence, subject; older ones are left behind
        self._timer: Timer | None = None
        self._saved_sequence = 0
        self._not_before_ns = 0

    def __len__(self) -> int:
        return len(self._due)

    # Checks

    def check(
        self, control: dict[bytes, bytes], header: bytes, subject: bytes, config: StreamConfig, now_ns: int
    ) -> ApiError | None:
        """Check the headers of a schedule, or of a message that claims to end one, in nats-server's order.

        Args:
            control: the values of the `Nats-` headers.
            subject: the message's subject in the stream.
        """
        zone = find_value(header, _TIME_ZONE)
        if zone is not None and find_zone(zone.decode("utf-8", "replace")) is None:
            return api_error(10223 if config.allow_msg_schedules else 10188)
        if SCHEDULE in control:
            if not config.allow_msg_schedules:
                return api_error(10188)
            pattern = _read_pattern(header)
            if pattern is None or pattern.first_ns(now_ns) is None:
                return api_error(10189)
            error = self._check_publication(control, subject, config)
            if error is not None:
                return error
        return self._check_end(control, subject, config)

    def _check_publication(self, control: dict[bytes, bytes], subject: bytes, config: StreamConfig) -> ApiError | None:
        """Check what a schedule says of the messages that it publishes."""
        lifetime = control.get(_TTL)
        if lifetime is not None and parse_lifetime(lifetime) is None:
            return api_error(10191)
        if control.get(_SCHEDULE_ROLLUP, b"sub") != b"sub":
            return api_error(10192)
        if lifetime is not None and not config.allow_msg_ttl:
            return api_error(10166)
        target = control.get(_TARGET, b"")
        if target == subject or not is_valid_publish(target):
            return api_error(10190)
        source = control.get(_SOURCE)
        if source is not None and (source in (target, subject) or not is_valid_publish(source)):
            return api_error(10203)
        if not self._is_captured(target):
            return api_error(10190)
        if source is not None and not self._is_captured(source):
            return api_error(10203)
        return api_error(10192) if control.get(_ROLLUP, b"sub").lower() != b"sub" else None

    def _check_end(self, control: dict[bytes, bytes], subject: bytes, config: StreamConfig) -> ApiError | None:
        """Check a message that ends the schedule of another subject."""
        scheduler, following = control.get(_SCHEDULER), control.get(_NEXT)
        if scheduler is None and following is None:
            return None
        if following != _PURGE or scheduler is None or scheduler == subject or not is_valid_publish(scheduler):
            return api_error(10212)
        if not config.allow_msg_schedules:
            return api_error(10188)
        newest = self._store.last_for(scheduler)
        is_schedule = newest is None or bool(find_value(newest.header, SCHEDULE))
        return None if is_schedule else api_error(10212)

    # Stored messages

    def stored(self, sequence: int, subject: bytes, header: bytes, stored_ns: int) -> None:
        """Index a stored message: a schedule, the end of one, or a message that replaces one."""
        if header and b"\r\nNats-Schedule" in header:
            pattern = _read_pattern(header)
            if pattern is not None:
                # Times in a store never go back, though the clock may have been set back since the newest of them.
                due_ns = pattern.first_ns(min(stored_ns, self._services.clock.now_ns()))
                if due_ns is not None:
                    self._plan(subject, due_ns, sequence)
                return
            if self._continue(sequence, header):
                return
        self._due.pop(subject, None)

    def stored_plain(self, subjects: list[bytes]) -> None:
        """Forget the schedules of subjects that got other messages."""
        if self._due:
            for subject in subjects:
                self._due.pop(subject, None)

    def _continue(self, sequence: int, header: bytes) -> bool:
        """Note that a schedule has published, and when it is due again; True for a message of a schedule."""
        scheduler = find_value(header, _SCHEDULER)
        if not scheduler or not is_valid_publish(scheduler):
            return False
        following = find_value(header, _NEXT) or b""
        if following == _PURGE:
            self._due.pop(scheduler, None)
            if self._store.last_sequence_for(scheduler):
                self._store.purge(SubjectFilter([scheduler]), below=sequence, follows_append=True)
        elif scheduler in self._due:
            with suppress(ConfigError):
                self._plan(scheduler, parse_time(following.decode("utf-8", "replace")), self._due[scheduler][1])
        return True

    def _plan(self, subject: bytes, due_ns: int, sequence: int) -> None:
        self._due[subject] = (due_ns, sequence)
        self._forget_removed()
        heappush(self._heap, (due_ns, sequence, subject))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due_ns, sequence, subject) for subject, (due_ns, sequence) in self._due.items()]
            heapify(self._heap)
        self._arm()

    def _forget_removed(self) -> None:
        """Drop the removed ones among a few others: with every new schedule, so that purged ones do not pile up."""
        for _ in range(min(_LOOKED_AT, len(self._due))):
            subject, entry = self._due.popitem(last=False)
            if self._store.has(entry[1]):
                self._due[subject] = entry  # behind all others

    def forget_from(self, sequence: int) -> None:
        """Read the index again after a rollback of messages from the sequence on: they may have ended schedules."""
        if self.is_enabled:
            self._saved_sequence = min(self._saved_sequence, sequence - 1)
            self.recover()

    # Publication

    def _arm(self) -> None:
        if self._heap:
            due_ns = max(self._heap[0][0], self._not_before_ns)
            if self._timer is None or due_ns < self._timer.deadline_ns:
                self._services.timers.cancel(self._timer)
                self._timer = self._services.timers.schedule(due_ns, self._fire)

    def _fire(self, now_ns: int) -> None:
        """Publish the messages of all schedules that are due, in the order in which these were stored."""
        self._timer = None
        if not self.is_enabled:
            return
        # Messages received by now may end or replace a schedule.
        self._services.store_received()
        due: set[tuple[int, bytes, int]] = set()  # After a failure the heap has some twice.
        while self._heap and self._heap[0][0] <= now_ns and len(due) < _FIRE_MAX:
            due_ns, sequence, subject = heappop(self._heap)
            if self._due.get(subject) == (due_ns, sequence):
                due.add((sequence, subject, due_ns))
        self._not_before_ns = now_ns + _RETRY_NS
        try:
            self._publish_due(sorted(due), now_ns)
            self._not_before_ns = 0
        except (StoreError, ApiError) as error:
            self._services.report(f"JetStream - publishing scheduled messages failed; retrying: {error}")
            for sequence, subject, due_ns in due:
                heappush(self._heap, (due_ns, sequence, subject))
        self._arm()
        self._save_now_and_then()

    def _publish_due(self, due: list[tuple[int, bytes, int]], now_ns: int) -> None:
        fired: list[Fired] = []
        for sequence, subject, due_ns in due:
            schedule = self._store.get(sequence)
            pattern = _read_pattern(schedule.header) if schedule is not None else None
            if schedule is None or pattern is None:
                del self._due[subject]  # The schedule was removed.
                continue
            next_ns = pattern.next_ns(due_ns, now_ns)
            fired.append(self._message_of(schedule, pattern.text_of(next_ns) if next_ns is not None else None))
        if fired:
            self._publish(fired)

    def _message_of(self, schedule: StoredMessage, following: str | None) -> Fired:
        source = schedule
        name = find_value(schedule.header, _SOURCE)
        if name:
            source = self._store.last_for(name) or schedule
        header = _fired_header(schedule.header, source.header, schedule.subject, following)
        return find_value(schedule.header, _TARGET) or b"", header, source.payload

    # Across restarts

    def recover(self) -> None:
        """Restore the index saved last, and read newer messages; overdue schedules are published once."""
        self._due.clear()
        self._heap.clear()
        self._services.timers.cancel(self._timer)
        self._timer = None
        if not self.is_enabled:
            return
        store = self._store
        saved = self._storage.load_schedules()
        if saved is None or saved.last_sequence > store.last_sequence:
            # Also when the log has lost its tail: those messages may have ended or moved schedules.
            saved = SavedSchedules()
        for subject, due_ns, sequence in saved.entries:
            if store.has(sequence):
                self._plan(subject, due_ns, sequence)
        self._saved_sequence = saved.last_sequence
        sequence = max(saved.last_sequence + 1, store.first_sequence)
        while sequence <= store.last_sequence:
            run = store.read(sequence, None, _READ_MESSAGES, _READ_BYTES)
            for message in run.messages:
                self.stored(message.sequence, message.subject, message.header, message.time_ns)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence

    def _save_now_and_then(self) -> None:
        if self._store.last_sequence - self._saved_sequence >= _SAVE_MESSAGES:
            self._saved_sequence = self._store.last_sequence
            # Only what is durable may be skipped by the next start.
            self._services.commit.when_durable(self._store, partial(self._save, self._image()))

    def _image(self) -> SavedSchedules:
        entries = [(subject, due_ns, sequence) for subject, (due_ns, sequence) in self._due.items()]
        return SavedSchedules(self._store.last_sequence, entries)

    def _save(self, image: SavedSchedules, error: JetlakeError | None) -> None:
        if error is None:
            with suppress(StoreError):  # The next start reads more of the log instead.
                self._storage.save_schedules(image)

    def save(self) -> None:
        """Write the index for the next start."""
        if self.is_enabled and self._store.failure is None:
            self._save(self._image(), None)

    def close(self) -> None:
        """Publish nothing more."""
        self._services.timers.cancel(self._timer)
        self._timer = None
        self._due.clear()
        self._heap.clear()


def _read_pattern(header: bytes) -> Pattern | None:
    """Return the pattern of a stored message; None when it is no schedule."""
    text = find_value(header, SCHEDULE)
    if not text:
        return None
    zone = find_value(header, _TIME_ZONE)
    return parse_pattern(text.decode("utf-8", "replace"), zone.decode("utf-8", "replace") if zone else None)


def _fired_header(schedule: bytes, source: bytes, scheduler: bytes, following: str | None) -> bytes:
    """Return the header of a published message.

    Args:
        schedule: the header of the schedule.
        source: the header of the message whose copy is published, which may be the schedule.
        scheduler: the subject of the schedule.
        following: when the schedule is due again; None when it is done.
    """
    lines = [line for line in source.split(b"\r\n")[1:] if line and not line.startswith(_DROPPED)]
    lines.append(b"%b: %b" % (_SCHEDULER, scheduler))
    lines.append(b"%b: %b" % (_NEXT, _PURGE if following is None else following.encode()))
    lifetime = find_value(schedule, _TTL)
    if lifetime:
        lines.append(b"Nats-TTL: " + lifetime)
    if find_value(schedule, _SCHEDULE_ROLLUP):
        lines.append(b"Nats-Rollup: sub")
    return b"NATS/1.0\r\n%b\r\n\r\n" % b"\r\n".join(lines)
