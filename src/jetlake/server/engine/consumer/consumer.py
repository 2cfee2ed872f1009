"""A consumer: its place in the stream, what it waits for, and how its messages go out and come back acknowledged.

The pieces decide for themselves (`cursor`, `acks`, `delivery`, `acknowledgements`, `idleness`); here they are put
together with the stream, the journal that remembers across restarts, and the one timer that wakes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import StoreError
from jetlake.model.ack_subject import account_hash, ack_prefix_v1, ack_prefix_v2
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.times import parse_time
from jetlake.model.enums import AckPolicy, ActionKind, DeliverPolicy, RetentionPolicy
from jetlake.server.engine.consumer.acks.ack_handler import Acknowledgements
from jetlake.server.engine.consumer.acks.ack_tracker import AckTracker
from jetlake.server.engine.consumer.cursor import Cursor
from jetlake.server.engine.consumer.delivery import Delivery
from jetlake.server.engine.consumer.events import ConsumerEvents
from jetlake.server.engine.consumer.framer import Framer
from jetlake.server.engine.consumer.idleness import Idleness
from jetlake.server.engine.consumer.pull.pull import PullDelivery
from jetlake.server.engine.consumer.push.push import PushDelivery
from jetlake.server.engine.consumer.report import consumer_report
from jetlake.server.engine.consumer.restart import go_on_from, state_of
from jetlake.server.engine.consumer.start_position import StartPosition
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.storage.committed_journal import CommittedJournal
from jetlake.server.engine.storage.consumer_home import ConsumerHome, ConsumerRecord
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.core.timers import Timer
    from jetlake.server.engine.routing.account import Account
    from jetlake.server.engine.routing.subscription import Subscriber
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["Consumer"]

_NO_LIMIT = 2**62


class Consumer:
    """One consumer of one stream.

    Args:
        stream: the stream it reads.
        services: the engine's clock, timers, commit, delivery queue and randomness.
        record: who it is.
        home: where it is kept.
        start: where it begins; for a consumer that had been there before, `restore` follows.
        jitter_ns: added to the time after which it is removed when nobody uses it.
    """

    def __init__(
        self,
        stream: Stream,
        services: Services,
        record: ConsumerRecord,
        home: ConsumerHome,
        start: StartPosition,
        *,
        jitter_ns: int,
    ) -> None:
        config = record.config
        self.stream = stream
        self.engine = stream.engine
        self.services = services
        self.account: Account = stream.account
        self.name: str = record.name
        self.config: ConsumerConfig = config
        self.created_ns = record.created_ns
        self.home = home
        self.is_closed = False
        self.last_delivered_ns = 0
        self.acks: AckTracker = AckTracker(config)
        self.acks.reset(0, start.sequence - 1)
        subject_filter = SubjectFilter.of(subject.encode() for subject in config.filters)
        waits = config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
        self.cursor = Cursor(stream.store, subject_filter, start, waits=waits)
        self.events = ConsumerEvents(self, services.random.random)
        self._start = start.sequence
        self.committed: CommittedJournal = CommittedJournal(home.journal, self.engine.commit)
        self.acknowledgements = Acknowledgements(self)
        self.idleness = Idleness(jitter_ns, self.engine.clock.now_ns())
        self._journal = home.journal
        self._journal.state_source = self.state
        self._timer: Timer | None = None
        self._configure()
        self.delivery: Delivery = PushDelivery(self) if config.is_push else PullDelivery(self)

    def _configure(self) -> None:
        """Read the configuration into what is looked at for each message."""
        config = self.config
        options = self.engine.options
        if options.ack_subject_v2:
            prefix = ack_prefix_v2(self.stream.name, self.name, account_hash(self.account.name), options.domain)
        else:
            prefix = ack_prefix_v1(self.stream.name, self.name)
        self.framer = Framer(prefix, headers_only=config.headers_only)
        self.acknowledgements.configure()
        self._wants_acks = self.acknowledgements.are_wanted
        self._is_explicit = config.ack_policy is AckPolicy.EXPLICIT
        self.max_pending = config.max_ack_pending if self._wants_acks and config.max_ack_pending > 0 else _NO_LIMIT
        self.pause_ns = parse_time(config.pause_until) if config.pause_until is not None else 0
        self.idleness.threshold_ns = config.inactive_threshold
        # Without a wait, as with flow control instead of acknowledgements, nothing is ever delivered again by itself.
        self._expires = self._wants_acks and bool(config.ack_wait or config.backoff)

    # Life

    def open(self) -> None:
        """Begin to deliver."""
        if isinstance(self.delivery, PushDelivery):
            self.delivery.on_interest()
        self.arm()

    def update(self, config: ConsumerConfig) -> None:
        """Take on a changed configuration, which has been checked."""
        old, self.config = self.config, config
        self.save()
        self._configure()
        self.acks.configure(config)
        self.events.configure(config.sample_freq)
        if old.filters != config.filters:
            self.cursor.filter_by(SubjectFilter.of(subject.encode() for subject in config.filters))
            self.stream.interest_changed()
        self.delivery.configure(old, config)
        self.used(self.engine.clock.now_ns())
        self.engine.make_ready(self)
        self.arm()

    def save(self) -> None:
        """Keep the configuration; it is durable when the home's `place` is."""
        self.home.save(
            ConsumerRecord(
                name=self.name,
                config=self.config,
                created_ns=self.created_ns,
                start=self._start,
                resume=self.cursor.resume,
            )
        )
        if self.home.place is not None:
            self.engine.commit.mark_now(self.home.place)

    def pause(self, config: ConsumerConfig) -> None:
        """Deliver nothing before the time that the configuration now has; if that is past or missing, go on."""
        now_ns = self.engine.clock.now_ns()
        was_paused = self.is_paused(now_ns)
        self.config = config
        self.save()
        self._configure()
        paused = self.is_paused(now_ns)
        if paused or was_paused:
            self.events.paused(paused, config.pause_until)
        if not paused:
            self.engine.make_ready(self)
        self.arm()

    def reset(self, sequence: int) -> None:
        """Forget what was delivered and acknowledged, and go on with that sequence as if it were the first."""
        self._start = sequence
        self.acks.reset(0, sequence - 1)
        self.cursor.go_to(StartPosition(sequence), waits=True)
        self.save()
        if self.home.place is not None:
            # A journal that begins there would not fit a record that does not.
            self.committed.write_after(self.home.place)
        self.last_delivered_ns = self.acknowledgements.last_ns = 0
        self.write_state()
        self.stream.interest_changed()
        self.engine.make_ready(self)

    def shut_down(self) -> None:
        """The server stops: tell those who wait."""
        self.delivery.close(deleted=False)

    def close(self, *, deleted: bool) -> Syncable | None:
        """Stop; when deleted, nothing remains of it and everybody is told.

        Returns:
            What is durable when it is gone for good; None when nothing is kept.

        Raises:
            StoreError: its files could not be removed; it stays.
        """
        if self.is_closed:
            return None
        removal = self._remove_files() if deleted and not self.stream.is_closed else None
        self.is_closed = True
        self.engine.timers.cancel(self._timer)
        self.delivery.close(deleted=deleted)
        self.committed.forget()
        if self.home.place is not None:
            self.engine.commit.forget(self.home.place)
        if deleted:
            self.stream.remove_consumer(self)
            self.events.action(ActionKind.DELETE)
        if not deleted:
            self.home.close()
        elif self.stream.is_closed:
            self.home.discard()
        return removal

    def _remove_files(self) -> Syncable | None:
        """Remove its folder, but what it was done with first: after a crash only its journal would tell of that."""
        store = self.stream.store
        settles = store.durable and self.stream.config.retention is not RetentionPolicy.LIMITS
        return self.home.delete(store if settles else None)

    # What it wants

    def wants(self, subject: bytes) -> bool:
        """Whether messages on this subject pass its filters."""
        return self.cursor.wants(subject)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Whether it is not done with a message: yet to be delivered, or delivered and not acknowledged."""
        if not self.cursor.wants(subject):
            return False
        if self.cursor.is_ahead(sequence):
            return True
        acks = self.acks
        if sequence in acks.pending or sequence in acks.exhausted:
            return True
        return self._wants_acks and not self._is_explicit and sequence > acks.floor_stream

    def room(self) -> int:
        """How many more messages may wait for their acknowledgement."""
        return self.max_pending - len(self.acks.pending)

    def is_paused(self, now_ns: int) -> bool:
        """Whether it must not deliver now."""
        return self.pause_ns > now_ns

    def used(self, now_ns: int) -> None:
        """Somebody used it: it is not removed before its threshold has passed again."""
        self.idleness.used_ns = now_ns

    def wake(self) -> None:
        """It can go on where it had to wait: if somebody is there, it delivers."""
        if self.delivery.has_takers:
            self.engine.make_ready(self)

    # Deliveries

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; whether there is more to do right away."""
        if self.is_closed:
            return False
        if self.stream.is_purged:
            self.stream.hungry.add(self)
            return False
        more = self.delivery.deliver(now_ns)
        self.arm()
        return more

    def delivered(self, sequences: list[int], next_sequence: int, now_ns: int) -> None:
        """Messages went out for the first time; the cursor goes on at `next_sequence`."""
        acks = self.acks
        self.last_delivered_ns = self.idleness.used_ns = now_ns
        self.cursor.move_past(len(sequences), next_sequence)
        first = acks.delivered_consumer + 1
        if self._wants_acks:
            acks.deliver_run(sequences, now_ns)
            self._journal.delivered_run(first, sequences, now_ns)
        else:
            acks.pass_run(sequences)
            self._journal.position(acks.delivered_consumer, acks.delivered_stream)
            if self.stream.config.retention is not RetentionPolicy.LIMITS:
                for sequence in sequences:
                    self.stream.consumed(self, sequence)
        self.committed.mark()

    def delivered_again(self, sequence: int, now_ns: int) -> None:
        """The message at the head of the redelivery queue went out."""
        acks = self.acks
        acks.take_redelivery()
        self.last_delivered_ns = self.idleness.used_ns = now_ns
        count = acks.deliver_again(sequence, now_ns)
        self._journal.delivered(acks.delivered_consumer, sequence, now_ns, count)
        self.committed.mark()

    def exhausted(self, sequence: int, deliveries: int) -> None:
        """A message was delivered as often as allowed."""
        if self.acks.exhaust(sequence):
            self._journal.exhausted(sequence)
            self.committed.mark_soon()
            self.events.exceeded(sequence, deliveries)

    # What comes in

    def receive_flow_control(self, subject: bytes, reply: bytes, payload: bytes, origin: Subscriber | None) -> bool:
        """The subscriber answered a flow control request; False when there is none here."""
        if not isinstance(self.delivery, PushDelivery):
            return False
        taken = self.delivery.receive_flow_control(subject)
        self.used(self.engine.clock.now_ns())
        return taken

    def receive_pull(self, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Somebody asks for messages."""
        self.delivery.receive_pull(reply, header, payload, origin)

    # What happens to the stream

    def on_stored(self, count: int) -> None:
        """So many messages that it wants were stored; the stream wakes it when they may be seen."""
        self.cursor.on_stored(count)

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """A message was removed: by a limit, a request, or because nobody needs it."""
        self.cursor.on_removed(sequence, subject)
        if sequence in self.acks.pending or sequence in self.acks.exhausted:
            self.acknowledgements.vanished(sequence)

    def on_purged(self) -> None:
        """Many messages were removed at once, or the newest were taken back."""
        store = self.stream.store
        acks = self.acks
        was_full = len(acks.pending) >= self.max_pending
        self.cursor.on_purged()
        is_missing = (lambda sequence: not store.has(sequence)) if store.messages else None
        acks.forget_missing(store.first_sequence, is_missing)
        acks.come_back_to(self.cursor.position - 1)
        self.write_state()
        if self.delivery.has_takers or was_full:
            self.engine.make_ready(self)

    # Time

    def arm(self) -> None:
        """Have the timer wake it when the first of its deadlines comes; a timer that is early does no harm."""
        due_ns = self._next_due_ns()
        timer = self._timer
        if not due_ns or self.is_closed or (timer is not None and timer.deadline_ns <= due_ns):
            return
        self.engine.timers.cancel(timer)
        self._timer = self.engine.timers.schedule(due_ns, self._on_timer)

    def _next_due_ns(self) -> int:
        due_ns = self.acks.next_deadline_ns if self._expires else 0
        delivery_ns = self.delivery.next_due_ns()
        if delivery_ns and (not due_ns or delivery_ns < due_ns):
            due_ns = delivery_ns
        if self.pause_ns and (not due_ns or self.pause_ns < due_ns):
            due_ns = self.pause_ns
        unused_ns = self.idleness.due_ns
        if unused_ns and (not due_ns or unused_ns < due_ns):
            due_ns = unused_ns
        return due_ns

    def _on_timer(self) -> None:
        self._timer = None
        now_ns = self.engine.clock.now_ns()
        acks = self.acks
        if self._expires:
            was_full = len(acks.pending) >= self.max_pending
            for sequence in acks.expire(now_ns):
                self.exhausted(sequence, acks.delivery_count(sequence))
            if acks.queue_length or was_full:
                self.wake()
        if self.pause_ns and self.pause_ns <= now_ns:
            self.pause_ns = 0
            self.events.paused(False, self.config.pause_until)
            self.engine.make_ready(self)
        self.delivery.on_time(now_ns)
        if self._is_forgotten(now_ns):
            try:
                self.close(deleted=True)
            except StoreError:
                # The disk refused: it stays for another while, and is then tried again.
                self.used(now_ns)
        self.arm()

    def _is_forgotten(self, now_ns: int) -> bool:
        """Whether nobody has used it for so long that it goes."""
        if not self.idleness.is_over(now_ns):
            return False
        if self.delivery.is_in_use(now_ns):
            self.used(now_ns)
            return False
        # Whoever works on a message may not have had the time to come back.
        if not self.config.is_push and self.acks.pending and now_ns - self.last_delivered_ns < self.config.ack_wait:
            self.used(min(self.last_delivered_ns + self.config.ack_wait, now_ns))
            return False
        return True

    # State

    def state(self) -> ConsumerState:
        """Where it stands, as it is written down."""
        return state_of(self.acks)

    def write_state(self) -> None:
        """Write down the whole state: it is not what the journal could follow step by step."""
        self._journal.replace(self.state())
        self.committed.mark()

    def restore(self, state: ConsumerState, resume: int) -> None:
        """Go on where it stood; `resume` is where it was to go on after the messages chosen at its start.

        Raises:
            StoreError: the stream's messages cannot be read.
        """
        if go_on_from(self, state, self._start, resume):
            self.write_state()

    def info(self, *, config: ConsumerConfig | None = None) -> ConsumerInfo:
        """What the API says about it; `config` stands in for its own where that is shown differently."""
        return consumer_report(self, config or self.config)
