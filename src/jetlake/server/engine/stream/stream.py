"""A stream: its configuration, its messages, its consumers, and what they see of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError, StoreError
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import LostData, StreamConfig, StreamState
from jetlake.server.engine.stream.delete_markers import DeleteMarkers
from jetlake.server.engine.stream.message_lifetimes import MessageLifetimes
from jetlake.server.engine.stream.publish_path import Intake
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import MessageStore, StoreLimits
from jetlake.store.steps import Steps

if TYPE_CHECKING:
    from jetlake.server.engine.api.jetstream import JetStream
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.core.commit import Syncable
    from jetlake.server.engine.core.services import Services
    from jetlake.server.engine.core.timers import Timer
    from jetlake.server.engine.routing.account import Account
    from jetlake.server.engine.routing.subscription import Capture
    from jetlake.server.engine.storage.storage import StreamHome
    from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Stream"]

# Expired messages are removed in groups at least this far apart.
_MAX_AGE_PAUSE_NS = 10_000_000
# When the disk refused, the next try comes after this.
_DISK_PAUSE_NS = 1_000_000_000

# The store cleans up this long after a removal, and goes on in small steps while there is more.
_CLEAN_UP_PAUSE_NS = 1_000_000_000
_CLEAN_UP_STEP_NS = 20_000_000


class Stream:
    """One stream of one account.

    Attributes:
        visible_sequence: the newest message that is durable; nobody is shown a newer one, so that a sequence that
            anyone has seen is never given to another message.
        hungry: consumers that have delivered all they may see and wait for more.
        is_purged: a purge is under way, and its consumers deliver nothing until it is done.

    Args:
        jetstream: the JetStream of its account.
        config: with all defaults filled in.
        created_ns: when it was created.
        home: where it is kept.
    """

    def __init__(self, jetstream: JetStream, config: StreamConfig, created_ns: int, home: StreamHome) -> None:
        self.jetstream = jetstream
        self.engine = jetstream.engine
        self.services: Services = jetstream.services
        self.account: Account = jetstream.account
        self.name: str = config.name
        self.config: StreamConfig = config
        self.created_ns = created_ns
        self.home: StreamHome = home
        self.store: MessageStore = home.store
        self.visible_sequence = self.store.last_sequence
        self.consumers: dict[str, Consumer] = {}
        self.consumers_by_token: dict[bytes, Consumer] = {}
        self.hungry: set[Consumer] = set()
        self.is_closed = False
        self.is_purged = False
        self.retention = Retention(self)
        self.lifetimes = MessageLifetimes(self)
        self.markers = DeleteMarkers(self)
        self.intake = Intake(self)
        self._captures: dict[str, Capture] = {}
        self._limits = _store_limits(config)
        self._accounted_bytes = 0
        self._age_timer: Timer | None = None
        self._clean_up_timer: Timer | None = None
        self.store.on_purged = self._on_purged
        self.store.on_undone = self._on_undone

    # Life

    def open(self) -> None:
        """Begin to capture its subjects and to let go of what is too old."""
        with self.services.report_store_errors(f"recovering the message ids of stream {self.name}"):
            self.intake.ids.recover()
        with self.services.report_store_errors(f"recovering the lifetimes of messages of stream {self.name}"):
            self.lifetimes.recover()
        self._reserve(max(self.config.max_bytes, 0))
        self._capture(self.config.subjects)
        with self.services.report_store_errors(f"applying the limits of stream {self.name}"):
            self.enforce_limits(self.services.clock.now_ns())
        self.account_for_bytes()

    def begin_at(self, first_sequence: int) -> None:
        """Let its first message have this sequence."""
        self.store.advance_to(first_sequence)
        self.visible_sequence = self.store.last_sequence
        self.touched()

    def update(self, config: StreamConfig) -> None:
        """Take on a changed configuration, which has been checked; tighter limits apply at once.

        Raises:
            StoreError: the disk refused, and nothing has changed.
        """
        self.home.save(config, self.created_ns)
        if self.home.place is not None:
            self.services.commit.mark_now(self.home.place)
        old, self.config = self.config, config
        self._reserve(max(config.max_bytes, 0) - max(old.max_bytes, 0))
        self._limits = _store_limits(config)
        self._capture(config.subjects)
        self.intake.configure()
        self.services.timers.cancel(self._age_timer)
        self._age_timer = None  # A shorter age comes due sooner.
        self.enforce_limits(self.services.clock.now_ns())
        if config.retention is not old.retention:
            self.retention.sweep()
        self.touched()

    def close(self) -> None:
        """Let go of everything but the files."""
        self.lifetimes.save()
        self._detach()
        self._forget_files()
        try:
            self.home.close()
            self.intake.ids.save()
        finally:
            self.intake.ids.close_log()

    def delete(self) -> Syncable | None:
        """Remove the files, then let go of everything; returns what is durable when the stream is gone for good.

        Raises:
            StoreError: the disk refused, and nothing has changed.
        """
        removal = self.home.delete()
        self._detach()
        self._forget_files()
        self.intake.ids.close_log()
        self._reserve(-max(self.config.max_bytes, 0))
        self._account_bytes(-self._accounted_bytes)
        return removal

    def _forget_files(self) -> None:
        self.services.commit.forget(self.store)
        if self.home.place is not None:
            self.services.commit.forget(self.home.place)

    def _detach(self) -> None:
        self.is_closed = True
        self.lifetimes.close()
        self.markers.close()
        self.intake.close()
        self.services.timers.cancel(self._age_timer)
        self.services.timers.cancel(self._clean_up_timer)
        self._capture(())

    def _capture(self, subjects: Sequence[str]) -> None:
        """Let these subjects, and no others, come in."""
        captures = self._captures
        for subject in captures.keys() - set(subjects):
            self.account.release(captures.pop(subject))
            self.jetstream.captured.remove(subject.encode())
        for subject in subjects:
            if subject not in captures:
                captures[subject] = self.account.capture(subject.encode(), self.intake)
                self.jetstream.captured.add(subject.encode())

    # Limits

    @property
    def has_limits(self) -> bool:
        """Whether something can grow too many, too large or too old."""
        return self._limits is not None

    def enforce_limits(self, now_ns: int) -> None:
        """Remove what is over the limits, oldest first, and wait for the next message to grow too old."""
        limits = self._limits
        if limits is None:
            return
        self.markers.expect_aged(now_ns)
        if self.store.enforce(limits, now_ns, self.lifetimes.ageless):
            self.clean_up_later()
        if self.config.max_age and self._age_timer is None and (oldest_ns := self.store.aging_time_ns):
            deadline_ns = max(oldest_ns + self.config.max_age, now_ns + _MAX_AGE_PAUSE_NS)
            self._age_timer = self.services.timers.schedule(deadline_ns, self._remove_expired)

    def _remove_expired(self) -> None:
        self._age_timer = None
        now_ns = self.services.clock.now_ns()
        try:
            self.enforce_limits(now_ns)
        except StoreError as error:
            # Old messages stay a little longer.
            self.services.report(f"JetStream - {error}")
            self._age_timer = self.services.timers.schedule(now_ns + _DISK_PAUSE_NS, self._remove_expired)
        self.touched()
        self.markers.leave()

    def touched(self, *, soon: bool = False) -> None:
        """Messages were removed: the store's log and the account's numbers follow.

        Args:
            soon: nobody waits for the log.
        """
        if self.store.durable:
            if soon:
                self.services.commit.mark_soon(self.store)
            else:
                self.services.commit.mark(self.store)
        self.account_for_bytes()
        self.clean_up_later()

    def clean_up_later(self, pause_ns: int = _CLEAN_UP_PAUSE_NS) -> None:
        """Have the store clean up when the pause is over."""
        if self._clean_up_timer is None and not self.is_closed:
            deadline_ns = self.services.clock.now_ns() + pause_ns
            self._clean_up_timer = self.services.timers.schedule(deadline_ns, self._clean_up)

    def _clean_up(self) -> None:
        """One bounded piece of the store's house-keeping, and the next one soon when there is more."""
        self._clean_up_timer = None
        try:
            more = self.store.compact_step()
        except StoreError:
            # Nothing is lost but space, and the next removal tries again; unless it was a sync that failed.
            self.services.commit.failed(self.store, self.store.failure)
            return
        if self.store.durable and self.store.needs_flush():
            self.services.commit.mark(self.store)
        if more:
            self.clean_up_later(_CLEAN_UP_STEP_NS)

    def account_for_bytes(self) -> None:
        """Bring the numbers of account and server up to date with what the store holds."""
        change = self.store.bytes - self._accounted_bytes
        if change:
            self._account_bytes(change)

    def _account_bytes(self, change: int) -> None:
        self._accounted_bytes += change
        self.jetstream.usage.add(self.config.storage, change)
        self.engine.usage.add(self.config.storage, change)

    def _reserve(self, count: int) -> None:
        if count:
            self.jetstream.usage.reserve(self.config.storage, count)
            self.engine.usage.reserve(self.config.storage, count)

    # What readers see

    def show(self, sequence: int) -> None:
        """Everything up to that sequence is durable."""
        self.visible_sequence = max(self.visible_sequence, sequence)

    def show_all(self, last_sequence: int, error: JetlakeError | None) -> None:
        """What was written before trouble with the disk is durable, though nobody was told then; or it is not."""
        if error is None:
            self.show(last_sequence)
            self.wake(tuple(self.hungry))

    def wake(self, consumers: Iterable[Consumer]) -> None:
        """These consumers have something new to see."""
        hungry = self.hungry
        for consumer in consumers:
            if consumer in hungry:
                hungry.discard(consumer)
                self.services.deliveries.make_ready(consumer)

    def when_visible(self, action: Callable[[], None]) -> None:
        """Run `action` once everything stored so far can be seen; at once when it can."""
        if self.visible_sequence >= self.store.last_sequence:
            action()
        else:
            self.services.commit.when_durable(self.store, lambda _error: action())

    def state(self) -> StreamState:
        """What it holds, without the lists of subjects and deleted sequences."""
        store = self.store
        return StreamState(
            messages=store.messages,
            bytes=store.bytes,
            first_seq=store.first_sequence,
            first_ts=format_time(store.first_time_ns) if store.messages else ZERO_TIME,
            last_seq=store.last_sequence,
            last_ts=format_time(store.last_time_ns) if store.last_time_ns else ZERO_TIME,
            num_subjects=store.subject_count,
            num_deleted=store.deleted_count,
            lost=LostData(msgs=tuple(store.lost) or None, bytes=store.lost_bytes)
            if store.lost or store.lost_bytes
            else None,
            consumer_count=len(self.consumers),
        )

    # Consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer came."""
        self.consumers[consumer.name] = consumer
        self.consumers_by_token[consumer.name.encode()] = consumer
        self._listen_for_removals()
        self.retention.changed()

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer went; what only it needed goes with it."""
        self.consumers.pop(consumer.name, None)
        self.consumers_by_token.pop(consumer.name.encode(), None)
        self.hungry.discard(consumer)
        self.services.deliveries.make_unready(consumer)
        self._listen_for_removals()
        self.retention.changed()
        if not self.is_closed and self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    def interest_changed(self) -> None:
        """A consumer changed its filters; what nobody needs any more goes."""
        self.retention.changed()
        if self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    def consumed(self, consumer: Consumer, sequence: int) -> None:
        """The consumer is done with a message; it goes when retention says so and nobody else needs it."""
        self.retention.consumed(consumer, sequence)

    def purge(self, subject_filter: SubjectFilter | None, below: int | None, keep: int | None) -> Steps[int]:
        """Remove messages on request, and say how many there were; consumers wait, and go on behind them.

        Raises:
            StoreError: the disk refused.
        """
        # Consumers that have passed a message must not meet another one under its sequence when its write fails.
        self.store.flush()
        self.store.on_removed = self.store.on_purged = None
        self.is_purged = True
        try:
            return (yield from self._remove_in_steps(self.store.purge_in_steps(subject_filter, below=below, keep=keep)))
        finally:
            self.is_purged = False
            self.wake(tuple(self.hungry))
            self.store.on_purged = self._on_purged
            self._listen_for_removals()
            self._on_purged()
            self._removed_on_request()

    def _remove_in_steps(self, steps: Steps[int]) -> Steps[int]:
        """Take the steps of a purge, and have the log written with each, which would take long at the end."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return int(end.value)
            self.touched()
            yield

    def remove(self, sequence: int, *, erase: bool) -> bool:
        """Remove one message on request; False when there is none.

        Raises:
            StoreError: the disk refused; the message is gone, but may be back after a crash.
        """
        if erase:
            self.intake.ids.keep_at_once(sequence)
        try:
            return self.store.remove(sequence, erase=erase)
        finally:
            self._removed_on_request()

    def _removed_on_request(self) -> None:
        """Have the removal in the log before consumers' journals tell that they have passed it."""
        if self.store.durable:
            for consumer in self.consumers.values():
                consumer.journal.write_after(self.store)
        self.touched()

    def recount(self) -> None:
        """The store is not what consumers were told: they count anew.

        During a purge that waits for its end: they would pass messages whose removal the log may not have.
        """
        self.account_for_bytes()
        if not self.is_purged:
            self._on_purged()

    def _on_undone(self, error: StoreError) -> None:
        """Take back what the disk refused, whoever flushed: its sequences go to other messages."""
        last_sequence = self.store.last_sequence
        self.visible_sequence = min(self.visible_sequence, last_sequence)
        self.intake.ids.window.forget_from(last_sequence + 1)
        self.lifetimes.forget_from(last_sequence + 1)
        self.services.commit.fail(self.store, error)
        self.recount()

    def _listen_for_removals(self) -> None:
        # Without consumers the store need not report what the limits remove, message by message.
        self.store.on_removed = self._on_removed if self.consumers and not self.is_purged else None

    def _on_removed(self, sequence: int, subject: bytes, size: int) -> None:
        for consumer in self.retention.interested(subject):
            consumer.on_removed(sequence, subject)

    def _on_purged(self) -> None:
        for consumer in tuple(self.consumers.values()):
            consumer.on_purged()


def _store_limits(config: StreamConfig) -> StoreLimits | None:
    """What the store has to watch; None when there is nothing."""
    limits = StoreLimits(
        max_messages=config.max_msgs,
        max_bytes=config.max_bytes,
        max_per_subject=config.max_msgs_per_subject,
        max_age_ns=config.max_age,
    )
    watches = max(config.max_msgs, config.max_bytes, config.max_msgs_per_subject, config.max_age) > 0
    return limits if watches else None
