"""A consumer: its parts put together, its life from creation to removal, and what its stream and the API ask of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from jetlake.errors import StoreError
from jetlake.model.ack_subject import account_hash, ack_prefix_v1, ack_prefix_v2
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.consumer_features import STRICT_ACKS, features_of
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.enums import ActionKind, DeliverPolicy, RetentionPolicy
from jetlake.server.engine.consumer.ack_handler import AckHandler
from jetlake.server.engine.consumer.ack_tracker import AckTracker
from jetlake.server.engine.consumer.events import ConsumerEvents
from jetlake.server.engine.consumer.feed import Cursor, Feed, StartPosition
from jetlake.server.engine.consumer.priority import StoredPin
from jetlake.server.engine.consumer.pull_delivery import PullDelivery
from jetlake.server.engine.consumer.push_delivery import PushDelivery
from jetlake.server.engine.consumer.recovery import recover_position
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord, ConsumerStorage
from jetlake.server.engine.stream.stream import Stream
from jetlake.store.journal.consumer_journal import ConsumerJournal
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.steps import Steps, finish, in_groups
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Consumer", "Inactivity", "Schedule", "filter_of"]

# Looked up once: with each acknowledgement, the enum's own lookup would cost more than the comparison.
_LIMITS = RetentionPolicy.LIMITS

# Messages that an acknowledgement removes at once; more are removed in steps.
_REMOVED_AT_ONCE = 128

_DURATION_MAX_NS = 2**63 - 1


class Consumer:
    """One consumer of one stream.

    Args:
        stream: the stream that it reads.
        advisories: publishes its events.
        record: its name, configuration and creation time.
        storage: its files.
        start: where it begins; for a recovered consumer, `restore` follows.
        subject_filter: its filters, as `filter_of` returns them.
        jitter_ns: added to the inactive threshold.
    """

    def __init__(
        self,
        stream: Stream,
        advisories: Advisories,
        record: ConsumerRecord,
        storage: ConsumerStorage,
        start: StartPosition,
        subject_filter: SubjectFilter | None,
        jitter_ns: int = 0,
    ) -> None:
        config, services = record.config, stream.services
        self.stream = stream
        self.services = services
        self.name: str = record.name
        self.config: ConsumerConfig = config
        self.created_ns = record.created_ns
        self.storage = storage
        self.is_closed = False
        self._holds = 0
        self._removals: list[Steps[None]] = []  # under way
        self._start = start.sequence
        self.passed_sequence = record.passed
        self.ack_tracker: AckTracker = AckTracker(config)
        self.ack_tracker.reset(0, start.sequence - 1)
        waits = config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
        self.cursor = Cursor(stream.store, subject_filter, start, waits=waits)
        self.on_stored = self.cursor.on_stored  # A run stored costs each of many consumers no call more.
        self.pin = StoredPin(record, self._save_pin, storage.folder, services.commit)
        self.journal: ConsumerJournal = storage.journal
        self.journal.state_source = self.ack_tracker.state
        # Every entry marks the journal for a flush.
        self.journal.on_entry, self.journal.on_late_entry = services.commit.mark, services.commit.mark_soon
        self.events = ConsumerEvents(self, advisories)
        self.schedule = Schedule(self, Inactivity(jitter_ns, services.clock.now_ns()))
        self.ack_handler = AckHandler(self)
        self.feed = Feed(self)
        self.delivery: PullDelivery | PushDelivery = PushDelivery(self) if config.is_push else PullDelivery(self)
        self._read(config)

    def answer_subjects(self) -> list[bytes]:
        """List the subjects on which clients answer deliveries: acknowledgements, and flow control where it is on."""
        subjects = [self.ack_prefix() + (b"*.*.*.*.>" if self.services.options.ack_subject_v2 else b"*.*.*.*.*")]
        if self.config.flow_control:
            subjects.append(self.flow_control_prefix() + b"*")
        return subjects

    def flow_control_prefix(self) -> bytes:
        """Return the beginning of the subjects of flow control requests."""
        return f"$JS.FC.{self.stream.name}.{self.name}.".encode()

    def ack_prefix(self) -> bytes:
        """Return the constant beginning of the ack subjects."""
        options, stream = self.services.options, self.stream
        if options.ack_subject_v2:
            return ack_prefix_v2(stream.name, self.name, account_hash(stream.account.name), options.domain)
        return ack_prefix_v1(stream.name, self.name)

    def _read(self, config: ConsumerConfig) -> None:
        self.schedule.pause_ns = parse_time(config.pause_until) if config.pause_until is not None else 0
        self.schedule.inactivity.threshold_ns = max(config.inactive_threshold, 0)
        self.ack_handler.is_strict = STRICT_ACKS in features_of(config) and self.ack_tracker.is_explicit

    # Life

    def open(self) -> None:
        """Start to deliver."""
        for subject in self.answer_subjects():
            self.stream.account.announce(subject)
        self.delivery.open()
        self.schedule.arm()

    def hold(self) -> None:
        """Deliver nothing until `release` was called as often."""
        self._holds += 1

    def release(self) -> None:
        """Deliver what waits since `hold`."""
        self._holds -= 1
        if not self.is_closed:
            self.schedule.make_ready()

    def update(self, config: ConsumerConfig) -> Steps[None]:
        """Apply a changed configuration that has been checked, after the messages that pass new filters are counted.

        Raises:
            StoreError: the configuration could not be written, and nothing has changed.
        """
        subject_filter, pending = self.cursor.subject_filter, None
        if self.config.filters != config.filters:
            subject_filter = filter_of(config)
            pending = yield from self._count_under(subject_filter)
        if self.is_closed:
            return
        passed = self.passed_sequence
        if self.config.filters != config.filters:
            passed = max(passed, self.ack_tracker.delivered_stream)
        self._save(replace(self._record(), config=config, passed=passed))
        old, self.config = self.config, config
        if old.filters != config.filters:
            self._pass_up_to(passed)
        self._read(config)
        self.feed.configure(config)
        self.ack_tracker.configure(config)
        self.events.configure(config.sample_freq)
        if old.filters != config.filters:
            self.cursor.filter_by(subject_filter, pending)
            self.stream.interest_changed(self)
        self.delivery.configure(old, config)
        self.schedule.use()
        self.schedule.make_ready()
        self.schedule.arm()

    def _count_under(self, subject_filter: SubjectFilter | None) -> Steps[int | None]:
        """Return how many messages after the cursor pass other filters; None when they are counted at once."""
        yield from self.stream.store.prepare(subject_filter)
        # Messages after the last delivered one may pass the new filters, as they would after a restart.
        self.cursor.return_to(self.ack_tracker.delivered_stream + 1)
        if subject_filter is None or self.cursor.resume:
            return None
        self.hold()
        try:
            while True:
                position = self.cursor.position
                pending = yield from self.stream.count_in_steps(position, subject_filter)
                if self.cursor.position == position:  # What could not be written may have been undone.
                    return pending
        finally:
            self.release()

    def _record(self) -> ConsumerRecord:
        return ConsumerRecord(
            name=self.name,
            config=self.config,
            created_ns=self.created_ns,
            start=self._start,
            resume=self.cursor.resume,
            passed=self.passed_sequence,
            pin=self.pin.id,
            pinned_ns=self.pin.pinned_ns,
        )

    def _save(self, record: ConsumerRecord) -> None:
        """Save the record before it is applied; it is durable when the storage's `folder` is.

        Raises:
            StoreError: the disk refused.
        """
        self.storage.save(record)
        if self.storage.folder is not None:
            self.services.commit.mark_now(self.storage.folder)

    def _save_pin(self) -> None:
        """Have the record written by the next sync of the storage's `folder`, which is tried again when it fails."""
        self.storage.save_later(self._record())
        if self.storage.folder is not None:
            self.services.commit.mark_now(self.storage.folder)

    def pause(self, config: ConsumerConfig) -> None:
        """Deliver nothing before the configuration's `pause_until`; resume when that is past or missing.

        Raises:
            StoreError: the configuration could not be written, and nothing has changed.
        """
        now_ns = self.services.clock.now_ns()
        was_paused = self.is_paused(now_ns)
        self._save(replace(self._record(), config=config))
        self.config = config
        self._read(config)
        paused = self.is_paused(now_ns)
        if paused or was_paused:
            self.events.paused(paused, config.pause_until)
        self.schedule.make_ready()
        self.schedule.arm()

    def is_paused(self, now_ns: int) -> bool:
        """Return whether the consumer must not deliver now."""
        return self.schedule.is_paused(now_ns)

    def pause_remaining_ns(self, now_ns: int) -> int:
        """Return the remaining pause, at most the longest duration that 64 bits hold; 0 = not paused."""
        return min(self.schedule.pause_ns - now_ns, _DURATION_MAX_NS) if self.is_paused(now_ns) else 0

    def reset_in_steps(self, sequence: int) -> Steps[None]:
        """Do as `reset` does, after the messages from the sequence on were counted in steps; not when it was closed."""
        subject_filter, pending = self.cursor.subject_filter, None
        if subject_filter is not None:
            pending = yield from self.stream.count_in_steps(sequence, subject_filter)
        if not self.is_closed:
            self.reset(sequence, pending)

    def reset(self, sequence: int, pending: int | None = None) -> None:
        """Discard all deliveries and acknowledgements, and continue at that sequence as if it were the first.

        Args:
            pending: the number of messages from there on, where it was counted.

        Raises:
            StoreError: the disk refused, and nothing has changed.
        """
        if pending is None:
            pending = self.stream.store.count(sequence, self.cursor.subject_filter)
        start = StartPosition(sequence, pending=pending)
        # Until the journal follows, the record has to fit the old position too.
        passed = max(self.passed_sequence, sequence - 1, self.ack_tracker.delivered_stream)
        self._save(replace(self._record(), start=sequence, resume=0, passed=passed))
        self._start = sequence
        self._pass_up_to(passed)
        self.ack_tracker.reset(0, sequence - 1)
        self.cursor.go_to(start, waits=True)
        if self.storage.folder is not None:
            # A journal that begins at the sequence does not fit a record with the old start.
            self.write_after(self.storage.folder)
        self.feed.last_delivered_ns = self.ack_handler.last_ns = 0
        self.journal.replace(self.ack_tracker.state())
        self.stream.interest_changed(self)
        self.schedule.make_ready()

    def _pass_up_to(self, sequence: int) -> None:
        """Note that not all messages up to the sequence were delivered that pass the filters, or will be.

        Messages acknowledged so far are removed from the log first: after a crash, neither other filters nor another
        position would tell that it is done.
        """
        self.passed_sequence = sequence
        self._finish_removals()
        if (
            self.stream.config.retention is not _LIMITS
            and self.stream.store.durable
            and self.storage.folder is not None
        ):
            self.services.commit.order(self.stream.store, self.storage.folder)
            self.write_after(self.storage.folder)

    def restore(self, resume: int) -> None:
        """Continue from the journal's state.

        Args:
            resume: where the cursor continues after the messages chosen at its start; 0 when none were chosen.

        Raises:
            StoreError: the journal or the stream's messages cannot be read.
        """
        self.continue_from(self.journal.load(), resume)

    def continue_from(self, state: ConsumerState, resume: int) -> None:
        """Continue from a state that the journal holds.

        Raises:
            StoreError: the stream's messages cannot be read.
        """
        tracker, store, now_ns = self.ack_tracker, self.stream.store, self.services.clock.now_ns()
        if recover_position(tracker, self.cursor, store, state, start=self._start, resume=resume, now_ns=now_ns):
            self.journal.replace(self.ack_tracker.state())
        tracker.recognize_naks(now_ns)

    def suspend(self, is_suspended: bool) -> None:
        """Stand still while the account has no JetStream, or go on."""
        self.schedule.is_suspended = is_suspended
        self.schedule.make_ready()
        self.schedule.arm()

    def shut_down(self) -> None:
        """End waiting requests because the server stops."""
        self.delivery.close(deleted=False)

    def close(self, *, deleted: bool) -> Syncable | None:
        """Stop; a deleted consumer's files are removed, its waiting requests end, and an advisory is published.

        Returns:
            What is durable when the removal is; None when there are no files.

        Raises:
            StoreError: the files could not be removed; the consumer stays.
        """
        if self.is_closed:
            return None
        if deleted:
            self._finish_removals()
        removal = self._remove_files() if deleted and not self.stream.is_closed else None
        self.is_closed = True
        self.schedule.close()
        self.delivery.close(deleted=deleted)
        # Parts that know the consumer would keep each other in memory until a full garbage collection.
        for part in (self.ack_handler, self.feed, self.pin):
            part.close()
        self.services.commit.forget(self.journal)
        for syncable in (self.storage.written, self.storage.folder):
            if syncable is not None:
                self.services.commit.forget(syncable)
        if deleted:
            for subject in self.answer_subjects():
                self.stream.account.retract(subject)
            self.stream.remove_consumer(self)
            self.events.action(ActionKind.DELETE)
        if not deleted:
            self.storage.close()
        elif self.stream.is_closed:
            self.storage.discard()
        return removal

    def _remove_files(self) -> Syncable | None:
        """Remove the folder once the store has the removals that, after a crash, only the journal would describe."""
        store = self.stream.store
        settles = store.durable and self.stream.config.retention is not RetentionPolicy.LIMITS
        return self.storage.delete(store if settles else None)

    # Interest in messages

    @property
    def holds_others(self) -> bool:
        """Whether messages may be unacknowledged that were delivered under other filters."""
        return self.passed_sequence > self.ack_tracker.floor_stream

    def wants(self, subject: bytes) -> bool:
        """Return whether messages on this subject pass the filters."""
        return self.cursor.wants(subject)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Return whether a message is yet to be delivered, or delivered and not acknowledged."""
        if not self.cursor.wants(subject):
            return False
        return self.cursor.is_ahead(sequence) or self.ack_tracker.is_open(sequence)

    def on_done(self, sequences: Sequence[int]) -> None:
        """Have the stream remove messages that retention keeps only until they are consumed."""
        if self.stream.config.retention is _LIMITS:
            return
        if len(sequences) <= _REMOVED_AT_ONCE:
            for sequence in sequences:
                self.stream.retention.consumed(self, sequence)
            return
        removals = self._remove_done(sequences)
        if not self.services.long_work.advance(removals):
            self._removals.append(removals)
            self.services.long_work.go_on_with(self._go_on_removing(removals))

    def _remove_done(self, sequences: Sequence[int]) -> Steps[None]:
        for group in in_groups(sequences, _REMOVED_AT_ONCE):
            if self.stream.is_closed:
                return
            for sequence in group:
                self.stream.retention.consumed(self, sequence)
            yield

    def _go_on_removing(self, removals: Steps[None]) -> Steps[None]:
        yield from removals
        if removals in self._removals:
            self._removals.remove(removals)

    def _finish_removals(self) -> None:
        """Remove acknowledged messages before the journal forgets that they were acknowledged."""
        for removals in self._removals:
            finish(removals)
        self._removals.clear()

    # Messages in and out

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        if self.is_closed or self._holds or self.stream.is_closed:
            return False
        if self.stream.is_purging:
            self.schedule.wait_for_messages()
            return False
        more = self.delivery.deliver(now_ns)
        if self.feed.last_delivered_ns == now_ns:
            self.schedule.inactivity.used_ns = now_ns
        self.schedule.arm()
        return more

    def receive_pull(self, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Handle a pull request."""
        self.delivery.receive_pull(reply, header, payload, origin)

    # Changes of the stream

    @property
    def reached_sequence(self) -> int:
        """Highest stream sequence that was delivered or, by the choice of the deliver policy, never will be."""
        return max(self.ack_tracker.delivered_stream, self.cursor.resume - 1)

    def write_after(self, store: Syncable) -> None:
        """Hold back the journal until everything written to the store so far is on disk."""
        if self.journal.durable:
            self.services.commit.order(store, self.journal)

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """Forget a message that was removed: by a limit, a request, or retention."""
        self.cursor.on_removed(sequence, subject)
        if sequence in self.ack_tracker.pending or sequence in self.ack_tracker.exhausted:
            self.ack_handler.lost(sequence)

    def recount_in_steps(self) -> Steps[None]:
        """Do as `on_purged` does, counting the messages to come in steps."""
        pending = yield from self.cursor.count_in_steps(self.stream.count_in_steps)
        if not self.is_closed:
            self.on_purged(pending)

    def on_purged(self, pending: int | None = None) -> None:
        """Forget many messages that were removed at once, or the newest after a write that failed.

        Args:
            pending: the number of messages to come, where it was counted.
        """
        store, tracker = self.stream.store, self.ack_tracker
        self.cursor.on_purged(pending)
        is_missing = (lambda sequence: not store.has(sequence)) if store.messages else None
        extent = tracker.extent()
        tracker.forget_missing(store.first_sequence, is_missing)
        tracker.rewind_to(self.cursor.position - 1)
        if tracker.extent() != extent:
            self.journal.replace(self.ack_tracker.state())
        self.schedule.make_ready()

    # Time

    def next_due_ns(self) -> int:
        """Return the earliest deadline of acknowledgements and delivery; 0 = none."""
        due_ns = self.ack_tracker.next_deadline_ns
        delivery_ns = self.delivery.next_due_ns()
        return delivery_ns if delivery_ns and (not due_ns or delivery_ns < due_ns) else due_ns

    def on_timer(self, now_ns: int) -> None:
        """Expire ack waits, end a pause, and remove an unused consumer."""
        schedule = self.schedule
        self.ack_handler.expire(now_ns)
        if schedule.pause_ns and schedule.pause_ns <= now_ns:
            schedule.pause_ns = 0
            self.events.paused(False, self.config.pause_until)
            schedule.make_ready()
        self.delivery.on_time(now_ns)
        if self._is_unused(now_ns):
            try:
                self.close(deleted=True)
            except StoreError:
                # The files could not be removed: try again when the threshold has passed once more.
                schedule.use()

    def _is_unused(self, now_ns: int) -> bool:
        """Return whether the consumer was unused for its inactive threshold."""
        inactivity = self.schedule.inactivity
        if not inactivity.is_over(now_ns):
            return False
        if self.delivery.is_in_use(now_ns):
            inactivity.used_ns = now_ns
            return False
        # A client that works on a message may not have had the time to come back.
        ack_wait, delivered_ns = self.config.ack_wait, self.feed.last_delivered_ns
        if not self.config.is_push and self.ack_tracker.pending and now_ns - delivered_ns < ack_wait:
            inactivity.used_ns = min(delivered_ns + ack_wait, now_ns)
            return False
        return True

    # Info

    def info(self, *, config: ConsumerConfig | None = None) -> ConsumerInfo:
        """Return the consumer's info; `config` replaces its own where metadata is shown differently."""
        now_ns = self.services.clock.now_ns()
        tracker, delivery = self.ack_tracker, self.delivery
        paused = self.is_paused(now_ns)
        return ConsumerInfo(
            stream_name=self.stream.name,
            name=self.name,
            created=format_time(self.created_ns),
            config=config or self.config,
            delivered=_sequences(tracker.delivered_consumer, tracker.delivered_stream, self.feed.last_delivered_ns),
            ack_floor=_sequences(tracker.floor_consumer, tracker.floor_stream, self.ack_handler.last_ns),
            num_ack_pending=len(tracker.pending),
            num_redelivered=0 if tracker.max_deliver == 1 else len(tracker.deliveries),
            num_waiting=delivery.num_waiting(now_ns),
            num_pending=self.cursor.pending,
            push_bound=delivery.is_bound,
            paused=paused,
            pause_remaining=self.pause_remaining_ns(now_ns),
            ts=format_time(now_ns),
            priority_groups=delivery.group_states(),
        )


def filter_of(config: ConsumerConfig) -> SubjectFilter | None:
    """Return the filters of a configuration as one; None when every subject passes."""
    return SubjectFilter.of(subject.encode() for subject in config.filters)


def _sequences(consumer_sequence: int, stream_sequence: int, time_ns: int) -> SequenceInfo:
    last_active = format_time(time_ns) if time_ns else None
    return SequenceInfo(consumer_seq=consumer_sequence, stream_seq=stream_sequence, last_active=last_active)


class Inactivity:
    """The time since one consumer was last used.

    Attributes:
        used_ns: time of the last use; set by every use.
        threshold_ns: the inactive threshold; 0 = the consumer is never removed.

    Args:
        jitter_ns: added to the threshold, so that consumers created together are not removed together.
        now_ns: time of creation, which counts as a use.
    """

    __slots__ = ("_jitter_ns", "threshold_ns", "used_ns")

    def __init__(self, jitter_ns: int, now_ns: int) -> None:
        self.used_ns = now_ns
        self.threshold_ns = 0
        self._jitter_ns = jitter_ns

    @property
    def due_ns(self) -> int:
        """When the threshold passes unless the consumer is used before; 0 = never."""
        return self.used_ns + self.threshold_ns + self._jitter_ns if self.threshold_ns else 0

    def is_over(self, now_ns: int) -> bool:
        """Return whether the threshold has passed since the last use."""
        return bool(self.threshold_ns) and now_ns - self.used_ns >= self.threshold_ns + self._jitter_ns


class Schedule:
    """When one consumer delivers and when its timer fires.

    Attributes:
        clock: the engine's.
        pause_ns: nothing is delivered before this time; 0 = not paused.
        is_suspended: nothing is delivered and no timer fires: the account has lost JetStream.
        inactivity: when the consumer was last used.

    Args:
        consumer: delivered when it is ready, and notified when a deadline has passed.
        inactivity: when the consumer was last used.
    """

    def __init__(self, consumer: Consumer, inactivity: Inactivity) -> None:
        services = consumer.services
        self.pause_ns = 0
        self.is_suspended = False
        self.inactivity = inactivity
        self._deliveries = services.deliveries
        self._timers = services.timers
        self.clock = services.clock
        self._consumer: Consumer | None = consumer  # None once it is closed
        self._timer: Timer | None = None

    def make_ready(self) -> None:
        """Put the consumer into the delivery queue."""
        if self._consumer is not None:
            self._deliveries.make_ready(self._consumer)

    def wait_for_messages(self) -> None:
        """Register with the stream, which makes the consumer ready when a new message is visible."""
        if self._consumer is not None:
            self._consumer.stream.caught_up[self._consumer] = None

    def wait_for_drain(self) -> None:
        """Wait until a congested subscriber's buffer has drained."""
        if self._consumer is not None:
            self._deliveries.wait_for_drain(self._consumer)

    def use(self) -> int:
        """Mark the consumer as used, which postpones its removal, and return the time."""
        now_ns = self.inactivity.used_ns = self.clock.now_ns()
        return now_ns

    def is_paused(self, now_ns: int) -> bool:
        """Return whether the consumer must not deliver now."""
        return self.pause_ns > now_ns or self.is_suspended

    def arm(self) -> None:
        """Set the timer to the earliest deadline; one that is set too early stays, since firing early does no harm."""
        if self._consumer is None or self.is_suspended:
            return
        due_ns = self._consumer.next_due_ns()
        for other_ns in (self.pause_ns, self.inactivity.due_ns):
            if other_ns and (not due_ns or other_ns < due_ns):
                due_ns = other_ns
        timer = self._timer
        if not due_ns or (timer is not None and timer.deadline_ns <= due_ns):
            return
        self._timers.cancel(timer)
        self._timer = self._timers.schedule(due_ns, self._fire)

    def close(self) -> None:
        """Cancel the timer for good, and forget the consumer: its parts and it must not keep each other in memory."""
        self._timers.cancel(self._timer)
        self._consumer = None

    def _fire(self, now_ns: int) -> None:
        self._timer = None
        if self._consumer is not None and not self.is_suspended:
            self._consumer.on_timer(now_ns)
        self.arm()
