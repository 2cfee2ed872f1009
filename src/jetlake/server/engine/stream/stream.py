"""A stream: its configuration, its messages, its consumers, and the parts that keep it within its rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Raw

from jetlake.errors import JetlakeError, StoreError
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import Compression, RetentionPolicy
from jetlake.model.rules.pattern_set import PatternSet
from jetlake.model.stream import LostData, StreamConfig, StreamState
from jetlake.server.engine.batch.atomic_batches import AtomicBatches
from jetlake.server.engine.batch.fast_batches import FastBatches
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.sorted_names import SortedNames
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.routing.subscription import Capture
from jetlake.server.engine.schedule.schedules import Schedules
from jetlake.server.engine.storage.storage import StreamHome
from jetlake.server.engine.stream.batch_release import BatchRelease
from jetlake.server.engine.stream.cleanup import Cleanup
from jetlake.server.engine.stream.consumer_contract import StreamConsumer
from jetlake.server.engine.stream.copy_path import CopyPath
from jetlake.server.engine.stream.copying_contract import Copying, NoCopying
from jetlake.server.engine.stream.delete_markers import DeleteMarkers
from jetlake.server.engine.stream.ids.message_ids import MessageIds
from jetlake.server.engine.stream.limits import Limits, are_tighter
from jetlake.server.engine.stream.message_lifetimes import MessageLifetimes
from jetlake.server.engine.stream.message_writer import MessageWriter
from jetlake.server.engine.stream.publish_path import PublishPath
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import MessageStore, RunningCount
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Stream"]

# A sweep that the disk refused is tried again after this.
_SWEEP_RETRY_NS = 5_000_000_000

ConsumerType = TypeVar("ConsumerType", bound=StreamConsumer)


class Stream(Generic[ConsumerType]):
    """One stream of one account.

    Attributes:
        release: acknowledges and shows what is durable.
        consumers, consumers_by_token: the consumers, by name and by name as it stands in subjects.
        caught_up: consumers that have delivered all visible messages and wait for more.
        copying: copies messages of other streams into this one; set once, before the stream is opened.
        is_purging: a purge is under way, and consumers deliver nothing until it is done.

    Args:
        services: the engine's services.
        account: the subject space that the stream captures from and acknowledges to.
        captured: subjects that the account's streams capture; the stream adds its own.
        usage: the stream's share of account and server usage.
        config: the configuration with all defaults filled in.
        created_ns: when the stream was created.
        home: where the stream is stored.
    """

    def __init__(
        self,
        services: Services,
        account: Account,
        captured: PatternSet,
        usage: StreamUsage,
        config: StreamConfig,
        created_ns: int,
        home: StreamHome,
    ) -> None:
        self.services = services
        self.account = account
        self.advisories = Advisories(account, services)
        self.name = config.name
        self.config = config
        self._encoded: Raw | None = None  # the configuration as JSON
        self.created_ns = created_ns
        self.created = format_time(created_ns)
        self.home = home
        self.store: MessageStore = home.store
        self.consumers: dict[str, ConsumerType] = {}
        self.consumers_by_token: dict[bytes, ConsumerType] = {}
        self.consumer_names = SortedNames(
            lambda: [name for name, consumer in self.consumers.items() if not consumer.config.direct]
        )
        self._listed_count = 0  # consumers but those that feed mirrors and sources
        self.caught_up: set[StreamConsumer] = set()
        self._refiltered: set[StreamConsumer] = set()  # may have messages pending that they want no more
        self.copying: Copying = NoCopying()
        self.is_closed = False
        self.is_purging = self._is_recounting = False
        self._counts: list[RunningCount] = []  # under way
        self._captured = captured
        self._captures: dict[str, Capture] = {}
        self._usage = usage
        self.cleanup = Cleanup(self.store, services, usage)
        self.retention = Retention(
            config.retention,
            self.store,
            self.consumers,
            home.missing,
            self.cleanup.after_removal,
            self._begin_sweep,
            self._sweep_later,
        )
        self._sweep_timer: Timer | None = None
        self._is_sweep_refused = False
        self.markers = DeleteMarkers(self.store, services.store_received, self._publish_marker)
        self.lifetimes = MessageLifetimes(home, services, self.markers.mark, self._after_expiry)
        self.limits = Limits(self.store, services, self.lifetimes, self.markers, self.cleanup)
        self.ids = MessageIds(home, services, config.duplicate_window, self.cleanup.schedule)
        self.schedules = Schedules(home, services, self._publish_scheduled)
        writer = MessageWriter(
            self.store,
            consumers=self.consumers,
            ids=self.ids,
            lifetimes=self.lifetimes,
            markers=self.markers,
            schedules=self.schedules,
            retention=self.retention,
            limits=self.limits,
        )
        limits = services.options.limits
        self._fast = FastBatches(services.open_batches, services.timers)
        self.release = BatchRelease(
            self.store,
            services.commit,
            account,
            self.ids,
            wake=self.wake,
            on_undone=self._forget_undone,
        )
        self.publish_path = PublishPath(
            config,
            self.store,
            services,
            account,
            usage,
            consumers=self.consumers,
            ids=self.ids,
            retention=self.retention,
            limits=self.limits,
            schedules=self.schedules,
            writer=writer,
            atomic=AtomicBatches(
                limits.batches_per_stream,
                limits.batch_messages,
                limits.batch_timeout,
                services.open_batches,
                services.timers,
                self._abandon_batch,
            ),
            fast=self._fast,
            release=self.release,
        )
        self.copy_path = CopyPath(
            config, self.store, usage, services.clock, writer, self.publish_path, self.release, self.retention, self.ids
        )
        self._configure(config)
        self.limits.configure(config)
        self.store.hooks.on_purged = self._on_purged
        self.store.hooks.on_undone = self._on_undone

    def _configure(self, config: StreamConfig) -> None:
        self.retention.policy = config.retention
        self.markers.configure(config)
        self.lifetimes.is_enabled = config.allow_msg_ttl
        self.schedules.is_enabled = config.allow_msg_schedules and not config.sealed
        self.store.compresses = config.compression is Compression.S2
        self.store.hooks.on_full = self.cleanup.schedule

    def open(self, now_ns: int) -> None:
        """Recover ids and deadlines, capture the stream's subjects and enforce its limits."""
        with self.services.report_store_errors(f"recovering the message ids of stream {self.name}"):
            self.ids.recover()
        with self.services.report_store_errors(f"recovering the lifetimes of messages of stream {self.name}"):
            self.lifetimes.recover()
        with self.services.report_store_errors(f"recovering the schedules of stream {self.name}"):
            self.schedules.recover()
        self._usage.set_reserved(self.config.max_bytes)
        self._capture(self.config.subjects)
        self.limits.enforce(now_ns)
        self._usage.set_used(self.store.bytes)
        self.copying.configure(self.config)

    def begin_at(self, first_sequence: int) -> None:
        """Let the first message have this sequence."""
        self.store.advance_to(first_sequence)
        self.release.visible_sequence = self.store.last_sequence
        self.cleanup.after_removal()

    def update(self, config: StreamConfig, now_ns: int) -> Steps[None]:
        """Apply a changed configuration, which has been checked, and enforce tighter limits.

        The first step applies all but the limits.

        Raises:
            StoreError: the configuration could not be written, and nothing has changed.
        """
        self.home.save(config, self.created_ns)
        if self.home.place is not None:
            is_other = config.retention is not self.config.retention
            if self.store.messages and (is_other or are_tighter(config, self.config)):
                self._sync_config(self.home.place)
            self.services.commit.mark_now(self.home.place)
        old, self.config, self._encoded = self.config, config, None
        self._usage.set_reserved(config.max_bytes)
        self._configure(config)
        self._capture(config.subjects)
        self.publish_path.configure(config)
        self.copy_path.configure(config)
        with self.services.report_store_errors(f"removing what the limits of stream {self.name} no longer allow"):
            yield from self.limits.remove_far_beyond(config, now_ns, self._carry_out)
        if self.is_closed:
            return
        self.limits.configure(config)
        self.limits.enforce(now_ns)
        if config.retention is not old.retention:
            self.retention.sweep()
        self.cleanup.after_removal()
        self.copying.configure(config)

    def _sync_config(self, place: Syncable) -> None:
        """Sync a saved configuration before it removes messages: the old one, after a crash, must still have them.

        A refused one may be in its place all the same, where a start would find it: the old one replaces it.
        """
        try:
            place.sync()
        except StoreError:
            self.home.save_later(self.config, self.created_ns)
            self.services.commit.mark_now(place)
            raise

    def close(self) -> None:
        """Release everything but the files."""
        self.copying.close(deleted=False)
        self.copying.save()
        self.lifetimes.save()
        self.schedules.save()
        self._detach()
        try:
            self.home.close()
            self.ids.save()
        finally:
            self.ids.close_log()

    def delete(self) -> Syncable | None:
        """Remove the files and release everything; return what is durable once the stream is gone for good.

        Raises:
            StoreError: the files could not be removed, and nothing has changed.
        """
        removal = self.home.delete()
        self.copying.close(deleted=True)
        self._detach()
        self.ids.close_log(is_deleted=True)
        self._usage.release()
        return removal

    def _detach(self) -> None:
        self.is_closed = True
        self.lifetimes.close()
        self.schedules.close()
        self.markers.close()
        self.publish_path.close()
        self.ids.close()
        self.limits.close()
        self.retention.close()
        self.services.timers.cancel(self._sweep_timer)
        self.cleanup.close()
        self._capture(())
        self.services.commit.forget(self.store)
        if self.home.place is not None:
            self.services.commit.forget(self.home.place)

    def _capture(self, subjects: Sequence[str]) -> None:
        """Capture these subjects and no others."""
        captures = self._captures
        for subject in captures.keys() - set(subjects):
            self.account.release(captures.pop(subject))
            self._captured.remove(subject.encode())
        for subject in subjects:
            if subject not in captures:
                captures[subject] = self.account.capture(subject.encode(), self.publish_path)
                self._captured.add(subject.encode())

    def _publish_marker(self, subject: bytes, header: bytes) -> None:
        self.publish_path.receive(subject, b"", header, b"", None)

    def _publish_scheduled(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        self.publish_path.store_own(messages, self.services.clock.now_ns())

    def _abandon_batch(self, batch_id: bytes, reason: str) -> None:
        batch = batch_id.decode("utf-8", "replace")
        self.advisories.batch_abandoned(self.name, batch, reason)

    def _after_expiry(self) -> None:
        self.cleanup.after_removal()
        self.markers.publish_missing()

    # Readers

    @property
    def visible_sequence(self) -> int:
        """The newest durable message; readers see no newer one."""
        return self.release.visible_sequence

    def show_all(self, last_sequence: int, error: JetlakeError | None) -> None:
        """Show messages up to the sequence that became durable after an earlier failure, unless that failed again."""
        if error is None:
            self.release.show(last_sequence)
            self.wake(tuple(self.caught_up))

    def wake(self, consumers: Iterable[StreamConsumer]) -> None:
        """Make those of the consumers ready that wait for new messages."""
        caught_up = self.caught_up
        if not caught_up:
            return
        for consumer in consumers:
            if consumer in caught_up:
                caught_up.discard(consumer)
                self.services.deliveries.make_ready(consumer)

    def encoded_config(self) -> Raw:
        """Return the configuration as JSON, encoded once for all lists that show it."""
        if self._encoded is None:
            self._encoded = Raw(encode(self.config))
        return self._encoded

    def state(self) -> StreamState:
        """Return the state, without the lists of subjects and deleted sequences."""
        store = self.store
        lost = store.lost
        return StreamState(
            messages=store.messages,
            bytes=store.bytes,
            first_seq=store.first_sequence,
            first_ts=format_time(store.first_time_ns) if store.messages else ZERO_TIME,
            last_seq=store.last_sequence,
            last_ts=format_time(store.last_time_ns) if store.last_time_ns else ZERO_TIME,
            num_subjects=store.subject_count,
            num_deleted=store.deleted_count,
            lost=LostData(msgs=tuple(lost), bytes=store.lost_bytes) if lost else None,
            consumer_count=self._listed_count,
        )

    # Consumers

    def add_consumer(self, consumer: ConsumerType) -> None:
        """Register a new consumer."""
        self.consumers[consumer.name] = consumer
        self._listed_count += not consumer.config.direct
        self.consumers_by_token[consumer.name.encode()] = consumer
        if consumer.holds_others:
            self._refiltered.add(consumer)
        self.consumer_names.changed()
        self._listen_for_removals()
        self.retention.on_consumers_changed()

    def remove_consumer(self, consumer: ConsumerType) -> None:
        """Unregister a deleted consumer, and remove the messages that only it needed."""
        if self.consumers.pop(consumer.name, None) is not None:
            self._listed_count -= not consumer.config.direct
        self.consumers_by_token.pop(consumer.name.encode(), None)
        self.consumer_names.changed()
        self.caught_up.discard(consumer)
        self._refiltered.discard(consumer)
        self.services.deliveries.make_unready(consumer)
        self._listen_for_removals()
        self.retention.on_consumers_changed()
        if not self.is_closed and self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    def _begin_sweep(self, sweep: Steps[None]) -> None:
        def work() -> Steps[None]:
            try:
                yield from sweep
            except StoreError as error:
                self._sweep_later(error)
            else:
                self._is_sweep_refused = False

        self.services.long_work.begin(work())

    def _sweep_later(self, error: StoreError) -> None:
        """Try again in a while to remove what no consumer needs, because the disk does not tell what that is."""
        if not self._is_sweep_refused:
            self._is_sweep_refused = True
            self.services.report(f"JetStream - removing what no consumer of stream {self.name} needs: {error}")
        if self._sweep_timer is None and not self.is_closed:
            deadline_ns = self.services.clock.now_ns() + _SWEEP_RETRY_NS
            self._sweep_timer = self.services.timers.schedule(deadline_ns, self._sweep_again)

    def _sweep_again(self, _now_ns: int) -> None:
        self._sweep_timer = None
        self.retention.sweep()

    def interest_changed(self, consumer: ConsumerType) -> None:
        """Apply a consumer's changed filters or position, and remove the messages that no consumer needs any more."""
        self._refiltered.add(consumer)
        self.retention.on_consumers_changed()
        if self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    def consumed(self, consumer: StreamConsumer, sequence: int) -> None:
        """Remove a message that the consumer is done with, if the retention policy says so."""
        self.retention.consumed(consumer, sequence)

    # Removals

    def purge(self, subject_filter: SubjectFilter | None, below: int | None, keep: int | None) -> Steps[int]:
        """Remove messages on request and return their number; consumers wait for the end and continue behind them.

        Raises:
            StoreError: the messages could not be removed.
        """
        return self._carry_out(self.store.in_steps.purge(subject_filter, below=below, keep=keep))

    def _carry_out(self, removals: Steps[int]) -> Steps[int]:
        """Take the steps of removals from the store, which have not begun, while consumers wait."""
        # Consumers that have passed a message must not meet another one under its sequence when its write fails.
        try:
            self.store.flush()
        except StoreError:
            # Messages that were refused are taken back; a purge may make room for others.
            if self.store.failure is not None:
                raise
        self.store.hooks.on_removed = self.store.hooks.on_purged = None
        self.cleanup.pause()
        self.is_purging = True
        is_recounted = False
        try:
            purged = yield from self._remove_in_steps(removals)
            yield from self._recount_in_steps()
            is_recounted = self._is_recounting
            return purged
        finally:
            self.is_purging = self._is_recounting = False
            self.cleanup.resume()
            self.wake(tuple(self.caught_up))
            self.store.hooks.on_purged = self._on_purged
            self._listen_for_removals()
            if not is_recounted:
                self._on_purged()
            self._removed_on_request()

    def _recount_in_steps(self) -> Steps[None]:
        """Let one consumer after the other continue behind a purge, each with its journal behind the log."""
        self._is_recounting = True  # Until messages are undone, after which all is counted anew.
        self._listen_for_removals()
        for consumer in tuple(self.consumers.values()):
            if self.consumers.get(consumer.name) is consumer:
                yield from consumer.recount_in_steps()
                if self.store.durable:
                    consumer.write_after(self.store)
            yield

    def _remove_in_steps(self, steps: Steps[int]) -> Steps[int]:
        """Run a purge, flushing the log after each step rather than all of it at the end."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return int(end.value)
            self.cleanup.after_removal()
            yield

    def remove(self, sequence: int, *, erase: bool) -> bool:
        """Remove one message on request; False when there is none.

        Raises:
            StoreError: the removal could not be written; the message is gone, but may be back after a crash.
        """
        if erase:
            self.ids.keep_at_once(sequence)
            self.copying.save()
        try:
            return self.store.remove(sequence, erase=erase)
        finally:
            self._removed_on_request()

    def _removed_on_request(self) -> None:
        """Order the removal in the log before the consumers' journals that count on it."""
        if self.store.durable:
            for consumer in self.consumers.values():
                consumer.write_after(self.store)
        self.cleanup.after_removal()

    def _on_undone(self, error: StoreError) -> None:
        """Forget messages that the store could not write, whose sequences go to other messages."""
        self.release.visible_sequence = min(self.visible_sequence, self.store.last_sequence)
        self.services.commit.fail(self.store, error)
        self.services.commit.failed(self.store, error)
        self._forget_undone()

    def _forget_undone(self) -> None:
        """Forget ids and deadlines of undone messages, and fast batches that count them, and let consumers recount.

        During a purge the recount waits for its end: consumers would pass messages whose removal the log may not have.
        """
        self._fast.close()
        first_undone = self.store.last_sequence + 1
        self.ids.forget_undone(first_undone)
        self.lifetimes.forget_from(first_undone)
        self.schedules.forget_from(first_undone)
        self._usage.set_used(self.store.bytes)
        self._is_recounting = False
        self._restart_counts()
        if not self.is_purging:
            self._on_purged()

    def count_in_steps(self, first_sequence: int, subject_filter: SubjectFilter) -> Steps[int]:
        """Return how many messages from a sequence on pass a filter when the last step is taken."""
        count = self.store.in_steps.count(first_sequence, subject_filter)
        self._counts.append(count)
        self._listen_for_removals()
        try:
            return (yield from count.run())
        finally:
            self._counts.remove(count)
            self._listen_for_removals()

    def _restart_counts(self) -> None:
        for count in self._counts:
            count.restart()

    def _listen_for_removals(self) -> None:
        # Without consumers the store need not report messages that the limits remove one by one.
        listens = (self.consumers or self._counts) and (not self.is_purging or self._is_recounting)
        self.store.hooks.on_removed = self._on_removed if listens else None

    def _on_removed(self, sequence: int, subject: bytes, size: int) -> None:
        interested = self.retention.interested(subject)
        for consumer in interested:
            consumer.on_removed(sequence, subject)
        if self._refiltered:
            for consumer in self._refiltered.difference(interested):
                consumer.on_removed(sequence, subject)
        for count in self._counts:
            count.on_removed(sequence, subject)

    def _on_purged(self) -> None:
        self._restart_counts()
        for consumer in tuple(self.consumers.values()):
            consumer.on_purged()
