"""A stream: its configuration, its messages, its consumers, and the parts that keep it within its rules.

    PublishPath ──> store ──> Release ──> readers (consumers that were caught up become ready)
        │             ▲
        │             ├── Removal (limits, roll-ups, compaction), Expiry (TTLs, delete markers)
        │             └── Retention (interest and acknowledgements of consumers)
        └── Admission, MessageIds, Schedules

The parts are given the stream, and read `config` and `rules`, which are replaced whole by `update`. All run on the
engine's thread. What is always true:

- A consumer learns of every message that is stored and removed, in this order, or recounts: after a purge, and after a
  rollback, whose sequences go to other messages.
- Consumers deliver nothing while a purge is under way, and a consumer's journal is written after the log has the
  removals that its position counts on.
- A configuration that removes messages is durable before it removes the first: after a crash, the old configuration
  still has all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Raw

from jetlake.errors import JetlakeError, StoreError
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import Compression, RetentionPolicy
from jetlake.model.stream import LostData, StreamConfig, StreamSourceInfo, StreamState
from jetlake.protocol.pattern_set import PatternSet
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.core.sorted_names import SortedNames
from jetlake.server.engine.core.usage import StreamUsage
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.advisories import Advisories
from jetlake.server.engine.routing.subscription import Capture
from jetlake.server.engine.schedule.schedules import Schedules
from jetlake.server.engine.storage.storage import StreamStorage
from jetlake.server.engine.stream.deduplication import MessageIds
from jetlake.server.engine.stream.expiry import Expiry
from jetlake.server.engine.stream.publish import PublishPath, Release
from jetlake.server.engine.stream.removal import Removal
from jetlake.server.engine.stream.retention import AnyConsumer, Retention
from jetlake.server.engine.stream.rules import StreamRules, are_tighter
from jetlake.store.index.running_count import RunningCount
from jetlake.store.steps import Steps, finish, in_groups
from jetlake.store.subject_filter import SubjectFilter

# Subjects that are captured or released in one step.
_CAPTURED_AT_ONCE = 128


class Stream:
    """One stream of one account.

    Attributes:
        config: the configuration with all defaults filled in.
        rules: what follows from it.
        created_ns: when the stream was created.
        consumers, consumers_by_token: the consumers, by name and by name as it stands in subjects.
        caught_up: consumers that have delivered all visible messages and wait for more.
        copying: copies messages of other streams into this one; set once, before the stream is opened.
        is_purging: a purge is under way, and consumers deliver nothing until it is done.

    Args:
        services: the engine's services.
        account: the subject space that the stream captures from and acknowledges to.
        captured: subjects that the account's streams capture; the stream adds its own.
        usage: the stream's share of account and server usage.
        storage: where the stream is stored.
    """

    def __init__(
        self,
        services: Services,
        account: Account,
        captured: PatternSet,
        usage: StreamUsage,
        config: StreamConfig,
        created_ns: int,
        storage: StreamStorage,
    ) -> None:
        self.services = services
        self.account = account
        self.advisories = Advisories(account, services)
        self.usage = usage
        self.name = config.name
        self.config = config
        self.rules = StreamRules.of(config, services.options.domain)
        self._encoded: Raw | None = None  # the configuration as JSON
        self.created_ns = created_ns
        self.created = format_time(created_ns)
        self.storage = storage
        self.store = storage.store
        self.is_closed = False
        self._captured = captured
        self._captures: dict[str, Capture] = {}
        self.consumers: dict[str, AnyConsumer] = {}
        self.consumers_by_token: dict[bytes, AnyConsumer] = {}
        self.consumer_names = SortedNames(
            lambda: [name for name, consumer in self.consumers.items() if not consumer.config.direct]
        )
        self._listed_count = 0  # without the consumers of mirrors and sources
        self.caught_up: dict[AnyConsumer, None] = {}  # in the order in which they caught up
        self._refiltered: set[AnyConsumer] = set()  # may have messages pending that their filters exclude
        self.is_purging = self._is_recounting = False
        self._counts: list[RunningCount] = []  # under way
        self.copying = Copying()
        self.removal = Removal(self)
        self.retention = Retention(self)
        self.expiry = Expiry(self)
        self.ids = MessageIds(self)
        self.schedules = Schedules(storage, services, self._publish_scheduled, self.is_captured)
        self.release = Release(self)
        self.publish_path = PublishPath(self)
        self._apply_rules()
        self.removal.limit_to(config)
        self.store.hooks.on_purged = self._on_purged
        self.store.hooks.on_rolled_back = self._on_rollback

    def _apply_rules(self) -> None:
        """Apply the configuration to the parts that do not know the stream."""
        config = self.config
        self.ids.window.resize(config.duplicate_window)
        self.schedules.is_enabled = config.allow_msg_schedules and not config.sealed
        self.store.compresses = config.compression is Compression.S2

    def open(self, now_ns: int) -> None:
        """Recover ids and deadlines, and enforce the stream's limits; `capture` follows."""
        with self.services.report_store_errors(f"recovering the message ids of stream {self.name}"):
            self.ids.recover()
        with self.services.report_store_errors(f"recovering the lifetimes of messages of stream {self.name}"):
            self.expiry.recover()
        with self.services.report_store_errors(f"recovering the schedules of stream {self.name}"):
            self.schedules.recover()
        self.usage.set_reserved(self.config.max_bytes)
        self.removal.enforce(now_ns)
        self.usage.set_used(self.store.bytes)
        self.copying.configure(self.config)

    def begin_at(self, first_sequence: int) -> None:
        """Let the first message have this sequence."""
        self.store.advance_to(first_sequence)
        self.release.visible_sequence = self.store.last_sequence
        self.removal.after_removal()

    def update(self, config: StreamConfig, now_ns: int) -> Steps[None]:
        """Apply a changed configuration, which has been checked, and enforce tighter limits.

        The first step applies all but the limits, and some of the subjects if there are many.

        Raises:
            StoreError: the configuration could not be written, and nothing has changed.
        """
        self.storage.save(config, self.created_ns)
        if self.storage.folder is not None:
            is_other = config.retention is not self.config.retention
            if self.store.messages and (is_other or are_tighter(config, self.config)):
                self._sync_config(self.storage.folder)
            self.services.commit.mark_now(self.storage.folder)
        old, self.config, self._encoded = self.config, config, None
        self.rules = StreamRules.of(config, self.services.options.domain)
        self.publish_path.apply(self.rules)
        self._apply_rules()
        self.usage.set_reserved(config.max_bytes)
        yield from self.capture()
        if not self.is_closed:
            with self.services.report_store_errors(f"removing what the limits of stream {self.name} no longer allow"):
                yield from self.removal.remove_excess(config, now_ns)
        if self.is_closed:
            return
        self.removal.limit_to(config)
        self.removal.enforce(now_ns)
        if config.retention is not old.retention:
            self.retention.sweep()
        self.removal.after_removal()
        yield from self.copying.configure_in_steps(config)

    def _sync_config(self, folder: Syncable) -> None:
        """Sync a saved configuration before it removes messages: after a crash, the old one must still have them.

        A refused configuration may be on disk all the same, where a start would find it: the old one replaces it.
        """
        try:
            folder.sync()
        except StoreError:
            self.storage.save_later(self.config, self.created_ns)
            self.services.commit.mark_now(folder)
            raise

    def suspend(self) -> None:
        """Stand still while the account has no JetStream: take, copy and deliver nothing, but stay open."""
        self.copying.close(deleted=False)
        finish(self.release_subjects())
        for consumer in self.consumers.values():
            consumer.suspend(True)

    def resume(self) -> None:
        """Go on after `suspend`."""
        finish(self.capture())
        self.copying.configure(self.config)
        for consumer in self.consumers.values():
            consumer.suspend(False)

    def close(self) -> None:
        """Release everything but the files."""
        self.copying.close(deleted=False)
        self.copying.save()
        self.expiry.save()
        self.schedules.save()
        self._stop()
        finish(self.release_subjects())
        try:
            self.storage.close()
            self.ids.save()
        finally:
            self.ids.close_log()

    def delete(self) -> Syncable | None:
        """Remove the files and release all but the subjects; return what is durable once the stream is gone for good.

        Nothing is captured any more; `release_subjects` follows.

        Raises:
            StoreError: the files could not be removed, and nothing has changed.
        """
        removal = self.storage.delete()
        self.copying.close(deleted=True)
        self._stop()
        self.ids.close_log(is_deleted=True)
        self.usage.release()
        return removal

    def _stop(self) -> None:
        self.is_closed = True
        self.expiry.close()
        self.schedules.close()
        self.publish_path.close()
        self.release.close()
        self.ids.close()
        self.removal.close()
        self.retention.close()
        self.account.close_captures(self._captures.values())
        self.services.commit.forget(self.store)
        if self.storage.folder is not None:
            self.services.commit.forget(self.storage.folder)

    def capture(self) -> Steps[None]:
        """Capture the configuration's subjects and no others, until the stream is closed."""
        captures, subjects = self._captures, self.config.subjects
        yield from self._release(captures.keys() - set(subjects))
        for group in in_groups(subjects, _CAPTURED_AT_ONCE):
            if self.is_closed:
                return
            for subject in group:
                if subject not in captures:
                    captures[subject] = self.account.capture(subject.encode(), self.publish_path)
                    self._captured.add(subject.encode())
            if len(subjects) > _CAPTURED_AT_ONCE:
                yield

    def is_captured(self, subject: bytes) -> bool:
        """Return whether the stream captures a subject; its subjects, which may be many, are not compared with it."""
        return self.publish_path.receive in self.account.route(subject).sinks

    def release_subjects(self) -> Steps[None]:
        """Let other streams capture the subjects of a closed stream."""
        return self._release(list(self._captures))

    def _release(self, subjects: Collection[str]) -> Steps[None]:
        for group in in_groups(subjects, _CAPTURED_AT_ONCE):
            for subject in group:
                if (capture := self._captures.pop(subject, None)) is not None:
                    self.account.release(capture)
                    self._captured.remove(subject.encode())
            if len(subjects) > _CAPTURED_AT_ONCE:
                yield

    def _publish_scheduled(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        self.publish_path.store_own(messages, self.services.clock.now_ns())

    def on_batch_abandoned(self, batch_id: bytes, reason: str) -> None:
        """Publish the advisory of an atomic batch that was dropped."""
        self.advisories.batch_abandoned(self.name, batch_id.decode("utf-8", "replace"), reason)

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

    def wake(self, consumers: Iterable[AnyConsumer]) -> None:
        """Make the consumers ready that wait for new messages."""
        caught_up = self.caught_up
        if not caught_up:
            return
        for consumer in consumers:
            if consumer in caught_up:
                caught_up.pop(consumer, None)
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

    def add_consumer(self, consumer: AnyConsumer) -> None:
        """Register a new consumer."""
        self.consumers[consumer.name] = consumer
        self._listed_count += not consumer.config.direct
        self.consumers_by_token[consumer.name.encode()] = consumer
        if consumer.holds_others:
            self._refiltered.add(consumer)
        self.consumer_names.changed()
        self._listen_for_removals()
        self.retention.add(consumer)

    def remove_consumer(self, consumer: AnyConsumer) -> None:
        """Unregister a deleted consumer, and remove the messages that only it needed."""
        if self.consumers.pop(consumer.name, None) is not None:
            self._listed_count -= not consumer.config.direct
        self.consumers_by_token.pop(consumer.name.encode(), None)
        self.consumer_names.changed()
        self.caught_up.pop(consumer, None)
        self._refiltered.discard(consumer)
        self.services.deliveries.make_unready(consumer)
        self._listen_for_removals()
        self.retention.discard(consumer)
        if not self.is_closed and self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    def interest_changed(self, consumer: AnyConsumer) -> None:
        """Apply a consumer's changed filters or position, and remove the messages that no consumer needs any more."""
        self._refiltered.add(consumer)
        self.retention.add(consumer)
        if self.config.retention is RetentionPolicy.INTEREST:
            self.retention.sweep()

    # Removals

    def purge(self, subject_filter: SubjectFilter | None, below: int | None, keep: int | None) -> Steps[int]:
        """Remove messages on request and return their number; consumers wait for the end and continue behind them.

        Raises:
            StoreError: the messages could not be removed.
        """
        return self.carry_out(self.store.purge_in_steps(subject_filter, below=below, keep=keep))

    def carry_out(self, removals: Steps[int]) -> Steps[int]:
        """Carry out removals from the store, which have not begun, while consumers wait for the end."""
        # Consumers that have passed a message must not meet another one under its sequence when its write fails.
        try:
            self.store.flush()
        except StoreError:
            # The refused messages are rolled back; a purge may make room for others.
            if self.store.failure is not None:
                raise
        self.store.hooks.on_removed = self.store.hooks.on_purged = None
        self.removal.pause_compaction()
        self.is_purging = True
        is_recounted = False
        try:
            purged = yield from self._remove_in_steps(removals)
            yield from self._recount_in_steps()
            is_recounted = self._is_recounting
            return purged
        finally:
            self.is_purging = self._is_recounting = False
            self.removal.resume_compaction()
            self.wake(tuple(self.caught_up))
            self.store.hooks.on_purged = self._on_purged
            self._listen_for_removals()
            if not is_recounted:
                self._on_purged()
            self._removed_on_request()

    def _recount_in_steps(self) -> Steps[None]:
        """Let one consumer after the other continue behind a purge, each with its journal behind the log."""
        self._is_recounting = True  # Until messages are rolled back, after which all consumers recount.
        self._listen_for_removals()
        for name, consumer in tuple(self.consumers.items()):
            if name in self.consumers and self.consumers[name] is consumer:
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
            self.removal.after_removal()
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
        self.removal.after_removal()

    def _on_rollback(self, error: StoreError) -> None:
        """Handle a rollback by the store, which could not write messages; their sequences go to other messages."""
        self.release.visible_sequence = min(self.visible_sequence, self.store.last_sequence)
        self.services.commit.fail(self.store, error)
        self.services.commit.failed(self.store, error)
        self.after_rollback()

    def after_rollback(self) -> None:
        """Forget ids and deadlines of messages that were rolled back, and fast batches with them; consumers recount.

        During a purge the recount waits for its end: consumers would pass messages whose removal the log may not have.
        """
        self.publish_path.fast.close()
        first_lost = self.store.last_sequence + 1
        self.ids.forget_from(first_lost)
        self.expiry.forget_from(first_lost)
        self.schedules.forget_from(first_lost)
        self.usage.set_used(self.store.bytes)
        self._is_recounting = False
        self._restart_counts()
        if not self.is_purging:
            self._on_purged()

    def count_in_steps(self, first_sequence: int, subject_filter: SubjectFilter) -> Steps[int]:
        """Return the number of messages from a sequence on that pass a filter, as of the last step."""
        count = self.store.running_count(first_sequence, subject_filter)
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
        # Without consumers the store does not report messages that the limits remove one by one.
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


class Copying:
    """The copying of messages of other streams into a stream: none; `Sourcing` copies for mirrors and sources."""

    @property
    def is_caught_up(self) -> bool:
        """Whether a mirror has all messages of its origin but a few."""
        return False

    def prepare(self, config: StreamConfig) -> Steps[None]:
        """Do in steps what `configure` would otherwise do at once."""
        yield from ()

    def configure(self, config: StreamConfig) -> None:
        """Begin, change or end copying as the stream's configuration says; many sources begin in later turns."""

    def configure_in_steps(self, config: StreamConfig) -> Steps[None]:
        """Do as `configure` does, in steps."""
        yield from ()

    def end_in_steps(self) -> Steps[None]:
        """Stop copying and delete the consumers at the origins, because the stream is about to be deleted."""
        yield from ()

    def info(self, now_ns: int) -> tuple[StreamSourceInfo | None, tuple[StreamSourceInfo, ...]]:
        """Return the state of the mirror and of the sources."""
        return None, ()

    def save(self) -> None:
        """Save the positions of all durable copies, whose headers may be overwritten then."""

    def close(self, *, deleted: bool) -> None:
        """Stop copying; with `deleted`, the stream is deleted, and its consumers at the origins as well."""
