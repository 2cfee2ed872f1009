"""Retention by interest: which consumers want which subjects, and which messages no consumer needs any more.

With `limits`, consumers only count new messages. With `interest`, a message is removed when every consumer that
wants its subject is done with it, and a message without interest is never stored. With `workqueue`, a message is
removed when the one consumer of its subject, and every mirror and source, is done with it.

What is always true:

- No message is removed that a consumer may still need: while a consumer could not be opened (`storage.missing`), and
  where the disk does not return a message's subject, messages stay until a later sweep.
- An acknowledged message may leave the log later than the consumer's journal has the acknowledgement: a start finds it
  again and sweeps it. Only below `passed_sequence`, where no consumer's position tells which messages are done, the
  journal waits for the log.
- A sweep runs in steps between which consumers are added and removed: it asks for each message's consumers when it
  reaches the message, and collects subjects again after a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jetlake.errors import StoreError
from jetlake.model.enums import RetentionPolicy
from jetlake.server.engine.core.timers import Timer
from jetlake.server.engine.routing.sublist import Sublist
from jetlake.store.steps import Steps, in_groups
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

# Subjects whose interested consumers are cached; a full cache is emptied.
_SUBJECTS_MAX = 65_536

# Most filters of one consumer that are put into the tree of all; they go in and out at once.
_FILTERS_MAX = 256

# One step of a sweep looks at this many subjects, or reads this much of the stream.
_SWEEP_SUBJECTS = 1024
_SWEEP_MESSAGES = 256
_SWEEP_BYTES = 1024 * 1024

# A sweep that the disk refused is tried again after this.
_RETRY_NS = 5_000_000_000

AnyConsumer = Any
"""A `Consumer`, whose package is built on this one: of a consumer, a stream uses `name` and `config`; `wants`, `needs`,
`reached_sequence` and `passed_sequence` (interest); `on_stored`, `on_removed`, `on_purged`, `recount_in_steps` and
`holds_others` (counting); `write_after` (order on disk)."""


class Retention:
    """The retention policy of one stream, applied to its consumers' interest and acknowledgements."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._store = stream.store
        self._services = stream.services
        self._consumers = stream.consumers
        self._missing = stream.storage.missing
        self._sweep: Steps[None] | None = None  # under way
        self._is_sweep_refused = False
        self._retry_timer: Timer | None = None
        self._consumer_changes = 0
        self._interest = _Interest()
        self._interested: dict[bytes, tuple[AnyConsumer, ...]] = {}

    def interested(self, subject: bytes) -> tuple[AnyConsumer, ...]:
        """Return the consumers whose filters match the subject."""
        interested = self._interested.get(subject)
        if interested is None:
            if len(self._interested) >= _SUBJECTS_MAX:
                self._interested.clear()
            interested = self._interested[subject] = self._interest.of(subject)
        return interested

    def is_wanted(self, subject: bytes) -> bool:
        """Return whether a consumer wants the subject, or a consumer that could not be opened may want it."""
        return bool(self.interested(subject) or self._missing)

    def announce(self, subjects: list[bytes]) -> dict[AnyConsumer, int]:
        """Tell each interested consumer how many messages with these subjects were stored; return those counts."""
        counts: dict[AnyConsumer, int] = {}
        if not self._interest.has_filters:
            counts = dict.fromkeys(self._consumers.values(), len(subjects))
        else:
            for subject, count in Counter(subjects).items():
                for consumer in self.interested(subject):
                    counts[consumer] = counts.get(consumer, 0) + count
        for consumer, count in counts.items():
            consumer.on_stored(count)
        return counts

    def consumed(self, consumer: AnyConsumer, sequence: int) -> None:
        """Remove a message that the consumer is done with, unless another consumer still needs it.

        Where the disk does not tell, the message stays until the next sweep.
        """
        policy = self._stream.config.retention
        if policy is RetentionPolicy.LIMITS:
            return
        try:
            self._remove_unless_needed(policy, consumer, sequence)
        except StoreError as error:
            self._sweep_later(error)

    def _remove_unless_needed(self, policy: RetentionPolicy, consumer: AnyConsumer, sequence: int) -> None:
        is_shared = policy is RetentionPolicy.INTEREST or self._interest.has_copying
        if is_shared and self._is_needed_by_others(consumer, sequence):
            return
        if self._store.remove(sequence):
            # The log may follow later: after a crash the consumer's journal still says that the message is done.
            self._stream.removal.after_removal(soon=True)
            if sequence <= self._interest.passed_sequence and policy is RetentionPolicy.WORKQUEUE:
                consumer.write_after(self._store)

    def _is_needed_by_others(self, consumer: AnyConsumer, sequence: int) -> bool:
        if self._missing:
            return True
        if len(self._consumers) < 2:
            return False
        subject = b""
        others: Iterable[AnyConsumer] = self._consumers.values()
        if self._interest.has_filters:
            message = self._store.get(sequence)
            if message is None:
                return False
            subject = message.subject
            others = self.interested(subject)
        return any(other is not consumer and other.needs(sequence, subject) for other in others)

    def add(self, consumer: AnyConsumer) -> None:
        """Learn of a new consumer, or of one that was given other filters or another position."""
        self._interest.discard(consumer)
        self._interest.add(consumer)
        self._on_changed()

    def discard(self, consumer: AnyConsumer) -> None:
        """Forget a consumer that was removed."""
        self._interest.discard(consumer)
        self._on_changed()

    def _on_changed(self) -> None:
        self._interested.clear()
        self._consumer_changes += 1

    def rivals(self, consumer: AnyConsumer | None, filters: tuple[str, ...]) -> Steps[list[AnyConsumer]]:
        """Return consumers that a work queue's consumer with these filters may share messages with, if there are any.

        Args:
            consumer: the consumer that gets these filters; None for a new one.
        """
        return self._interest.rivals(consumer, filters)

    def sweep(self) -> None:
        """Remove messages that no consumer needs: after a consumer was removed, a change of policy, or a restart.

        A work queue keeps messages that no consumer wants yet, or that its consumer has passed without a delivery; an
        interest stream does not. A long sweep continues in later turns; `finish_sweep` waits for it.
        """
        is_under_way = self._sweep is not None
        if not is_under_way and not self._may_remove():
            return
        self._sweep = self._sweep_in_steps()
        if not is_under_way:
            self._services.long_work.begin(self._sweep_or_retry())

    def _may_remove(self) -> bool:
        is_limits = self._stream.config.retention is RetentionPolicy.LIMITS
        return not is_limits and self._store.messages > 0 and not self._missing

    def _sweep_or_retry(self) -> Steps[None]:
        try:
            yield from self.finish_sweep()
        except StoreError as error:
            self._sweep_later(error)
        else:
            self._is_sweep_refused = False

    def _sweep_later(self, error: StoreError) -> None:
        """Sweep again in some seconds, because the disk does not tell which messages no consumer needs."""
        if not self._is_sweep_refused:
            self._is_sweep_refused = True
            self._services.report(f"JetStream - removing what no consumer of stream {self._stream.name} needs: {error}")
        if self._retry_timer is None and not self._stream.is_closed:
            deadline_ns = self._services.clock.now_ns() + _RETRY_NS
            self._retry_timer = self._services.timers.schedule(deadline_ns, self._sweep_again)

    def _sweep_again(self, _now_ns: int) -> None:
        self._retry_timer = None
        self.sweep()

    def finish_sweep(self) -> Steps[None]:
        """Carry out the sweep that is under way, if there is one; several callers may do so together."""
        while (sweep := self._sweep) is not None:
            try:
                for _ in sweep:
                    yield
                    if self._sweep is not sweep:
                        break
                else:
                    self._sweep = None if self._sweep is sweep else self._sweep
            except StoreError:
                self._sweep = None
                raise

    def close(self) -> None:
        """End a sweep that is under way: the stream is closed."""
        self._sweep = None
        self._services.timers.cancel(self._retry_timer)

    def _sweep_in_steps(self) -> Steps[None]:
        if not self._may_remove():
            return
        if self._stream.config.retention is RetentionPolicy.INTEREST:
            if not self._consumers:
                self._store.purge()
            elif self._interest.has_filters:
                yield from self._remove_unwanted_subjects()
        if self._consumers:
            yield from self._remove_done(self._sweep_limit())
        self._stream.removal.after_removal()

    def _remove_unwanted_subjects(self) -> Steps[None]:
        changes = -1
        while changes != self._consumer_changes:  # A consumer that was added meanwhile may want some of them.
            changes = self._consumer_changes
            unwanted: list[bytes] = []
            for group in in_groups((yield from self._store.subjects_in_steps(b">")), _SWEEP_SUBJECTS):
                unwanted += [subject for subject in group if not self.interested(subject)]
                yield
            if not unwanted or changes != self._consumer_changes:
                continue
            for _ in self._store.purge_in_steps(SubjectFilter(unwanted)):
                self._stream.removal.after_removal()
                yield
                if changes != self._consumer_changes:
                    break

    def _sweep_limit(self) -> int:
        """Return the last sequence that a sweep has to look at.

        A consumer without filters needs every message that it has yet to deliver, and a message that no consumer has
        reached is needed by all that want its subject.
        """
        consumers = self._consumers.values()
        limit: int = max(consumer.reached_sequence for consumer in consumers)
        for consumer in consumers:
            if not consumer.config.filters:
                limit = min(limit, consumer.reached_sequence)
        return limit

    def _remove_done(self, last_sequence: int) -> Steps[None]:
        """Remove messages up to the sequence that have interest, all of it done."""
        store = self._store
        is_workqueue = self._stream.config.retention is RetentionPolicy.WORKQUEUE
        sequence = max(store.first_sequence, self._interest.passed_sequence + 1 if is_workqueue else 1)
        while sequence <= last_sequence:
            run = store.read(sequence, None, _SWEEP_MESSAGES, _SWEEP_BYTES, last_sequence)
            for message in run.messages:
                interested = self.interested(message.subject)
                if interested and not any(consumer.needs(message.sequence, message.subject) for consumer in interested):
                    store.remove(message.sequence)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence
            self._stream.removal.after_removal()
            yield


class _Interest:
    """Which of a stream's consumers want a subject: a tree of their filters, so that none is asked in vain.

    Attributes:
        has_filters: a consumer has filters.
        has_copying: a mirror or source reads the stream beside its other consumers.
        passed_sequence: up to here the log alone tells which messages of a work queue are done, and no consumer's
            position does.
    """

    def __init__(self) -> None:
        # Attributes that are kept, because each acknowledgement asks for them.
        self.has_filters = self.has_copying = False
        self.passed_sequence = 0
        self._filters: dict[AnyConsumer, tuple[str, ...]] = {}
        self._tree: Sublist[AnyConsumer] = Sublist()
        self._unfiltered: dict[AnyConsumer, None] = {}
        self._wide: dict[AnyConsumer, None] = {}  # with too many filters for the tree; each is asked by itself
        self._copying: set[AnyConsumer] = set()
        self._passed: dict[AnyConsumer, int] = {}

    def _on_changed(self) -> None:
        self.has_filters = len(self._unfiltered) < len(self._filters)
        self.has_copying = bool(self._copying)
        self.passed_sequence = max(self._passed.values(), default=0)

    def add(self, consumer: AnyConsumer) -> None:
        filters = self._filters[consumer] = consumer.config.filters
        if not filters:
            self._unfiltered[consumer] = None
        elif len(filters) > _FILTERS_MAX:
            self._wide[consumer] = None
        else:
            for subject in filters:
                self._tree.insert(subject.encode(), consumer)
        if consumer.config.is_copying:
            self._copying.add(consumer)
        if consumer.passed_sequence:
            self._passed[consumer] = consumer.passed_sequence
        self._on_changed()

    def discard(self, consumer: AnyConsumer) -> None:
        filters = self._filters.pop(consumer, ())
        if len(filters) <= _FILTERS_MAX:
            for subject in filters:
                self._tree.remove(subject.encode(), consumer)
        self._unfiltered.pop(consumer, None)
        self._wide.pop(consumer, None)
        self._copying.discard(consumer)
        self._passed.pop(consumer, None)
        self._on_changed()

    def of(self, subject: bytes) -> tuple[AnyConsumer, ...]:
        """Return the consumers that want a subject."""
        found = dict.fromkeys(self._tree.match(subject)) if self._tree else {}
        wide = [consumer for consumer in self._wide if consumer.wants(subject)] if self._wide else ()
        return *self._unfiltered, *found, *wide

    def rivals(self, consumer: AnyConsumer | None, filters: tuple[str, ...]) -> Steps[list[AnyConsumer]]:
        """Return other consumers that want subjects of the filters, or may do so; of those in the tree only one."""
        known = [*self._unfiltered, *self._wide]
        rivals = [other for other in known if other is not consumer and other not in self._copying]
        for subject in filters or (">",):
            for other in self._tree.overlapping(subject.encode()):
                if other is not consumer and other not in self._copying:
                    return [*rivals, other]
            yield
        return rivals
