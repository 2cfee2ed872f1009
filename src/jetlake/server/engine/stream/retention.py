"""Retention by interest: which consumers want which subjects, and which messages no consumer needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from jetlake.errors import StoreError
from jetlake.model.enums import RetentionPolicy
from jetlake.server.engine.stream.consumer_contract import StreamConsumer
from jetlake.store.interface import MessageStore
from jetlake.store.steps import Steps, in_groups
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Retention"]

# Subjects whose interested consumers are cached; a full cache is emptied.
_SUBJECTS_MAX = 65_536

# One step of a sweep looks at so many subjects, or reads this much of the stream.
_SWEEP_SUBJECTS = 1024
_SWEEP_MESSAGES = 256
_SWEEP_BYTES = 1024 * 1024


class _Kinds(NamedTuple):
    """The kinds of consumers that a stream has."""

    has_filters: bool
    has_copying: bool
    """A mirror or source reads the stream beside its other consumers."""
    passed_sequence: int
    """Up to here the log alone tells which messages of a work queue are done, and no consumer's position does."""


class Retention:
    """The retention policy of one stream, applied to its consumers' interest and acknowledgements.

    With `limits`, consumers are only told of new messages. With `interest`, a message is removed when every consumer
    that wants its subject is done with it, and a message without interest is never stored. With `workqueue`, a message
    is removed when the one consumer of its subject, and every mirror and source, is done with it.

    Args:
        policy: the stream's retention policy.
        store: the stream's messages.
        consumers: the stream's consumers by name.
        missing: consumers that could not be opened; while there are any, nothing is removed for lack of interest.
        after_removal: called after messages were removed; `soon` when no one waits for the log.
        begin: runs a first slice of long work at once, and the rest in later turns.
        sweep_later: has `sweep` called in some seconds, because of an error of the disk.
    """

    def __init__(
        self,
        policy: RetentionPolicy,
        store: MessageStore,
        consumers: Mapping[str, StreamConsumer],
        missing: Set[str],
        after_removal: Callable[[bool], None],
        begin: Callable[[Steps[None]], None],
        sweep_later: Callable[[StoreError], None],
    ) -> None:
        self.policy = policy
        self._store = store
        self._consumers = consumers
        self._missing = missing
        self._after_removal = after_removal
        self._begin = begin
        self._sweep_later = sweep_later
        self._sweep: Steps[None] | None = None  # under way
        self._consumer_changes = 0
        self._interested: dict[bytes, tuple[StreamConsumer, ...]] = {}
        self._kinds: _Kinds | None = None

    def interested(self, subject: bytes) -> tuple[StreamConsumer, ...]:
        """Return the consumers whose filters match the subject."""
        interested = self._interested.get(subject)
        if interested is None:
            if len(self._interested) >= _SUBJECTS_MAX:
                self._interested.clear()
            interested = tuple([consumer for consumer in self._consumers.values() if consumer.wants(subject)])
            self._interested[subject] = interested
        return interested

    def is_wanted(self, subject: bytes) -> bool:
        """Return whether a consumer wants the subject, or a consumer that could not be opened may want it."""
        return bool(self.interested(subject) or self._missing)

    def announce(self, subjects: list[bytes]) -> dict[StreamConsumer, int]:
        """Tell each interested consumer how many messages with these subjects were stored; return those counts."""
        counts: dict[StreamConsumer, int] = {}
        if not self._consumer_kinds().has_filters:
            counts = dict.fromkeys(self._consumers.values(), len(subjects))
        else:
            for subject, count in Counter(subjects).items():
                for consumer in self.interested(subject):
                    counts[consumer] = counts.get(consumer, 0) + count
        for consumer, count in counts.items():
            consumer.on_stored(count)
        return counts

    def consumed(self, consumer: StreamConsumer, sequence: int) -> None:
        """Remove a message that the consumer is done with, unless another consumer still needs it.

        Where the disk does not tell, the message stays until the next sweep.
        """
        if self.policy is RetentionPolicy.LIMITS:
            return
        try:
            self._remove_unless_needed(consumer, sequence)
        except StoreError as error:
            self._sweep_later(error)

    def _remove_unless_needed(self, consumer: StreamConsumer, sequence: int) -> None:
        kinds = self._consumer_kinds()
        is_shared = self.policy is RetentionPolicy.INTEREST or kinds.has_copying
        if is_shared and self._is_needed_by_others(consumer, sequence):
            return
        if self._store.remove(sequence):
            # The log may follow later: after a crash the consumer's journal still says that the message is done.
            self._after_removal(True)
            if sequence <= kinds.passed_sequence:
                consumer.write_after(self._store)

    def _is_needed_by_others(self, consumer: StreamConsumer, sequence: int) -> bool:
        if self._missing:
            return True
        if len(self._consumers) < 2:
            return False
        subject = b""
        if self._consumer_kinds().has_filters:
            message = self._store.get(sequence)
            if message is None:
                return False
            subject = message.subject
        return any(other is not consumer and other.needs(sequence, subject) for other in self._consumers.values())

    def on_consumers_changed(self) -> None:
        """Forget the cached interest: a consumer was added, removed or given other filters."""
        self._interested.clear()
        self._kinds = None
        self._consumer_changes += 1

    def _consumer_kinds(self) -> _Kinds:
        if self._kinds is None:
            consumers = self._consumers.values()
            configs = [consumer.config for consumer in consumers]
            is_queue = self.policy is RetentionPolicy.WORKQUEUE
            self._kinds = _Kinds(
                any(known.filters for known in configs),
                any(known.is_copying for known in configs),
                max((consumer.passed_sequence for consumer in consumers), default=0) if is_queue else 0,
            )
        return self._kinds

    def sweep(self) -> None:
        """Remove what no consumer needs: after a consumer was removed, a change of policy, or a restart.

        A work queue keeps messages that no consumer wants yet, or that its consumer has passed without a delivery; an
        interest stream does not. A long sweep goes on in later turns; `finish_sweep` waits for it.
        """
        is_under_way = self._sweep is not None
        if not is_under_way and not self._may_remove():
            return
        self._sweep = self._sweep_in_steps()
        if not is_under_way:
            self._begin(self.finish_sweep())

    def _may_remove(self) -> bool:
        return self.policy is not RetentionPolicy.LIMITS and self._store.messages > 0 and not self._missing

    def finish_sweep(self) -> Steps[None]:
        """Carry out the sweep that is under way, if there is one, with whoever does so already."""
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

    def _sweep_in_steps(self) -> Steps[None]:
        if not self._may_remove():
            return
        if self.policy is RetentionPolicy.INTEREST:
            if not self._consumers:
                self._store.purge()
            elif self._consumer_kinds().has_filters:
                yield from self._remove_unwanted_subjects()
        if self._consumers:
            yield from self._remove_done(self._sweep_limit())
        self._after_removal(False)

    def _remove_unwanted_subjects(self) -> Steps[None]:
        changes = -1
        while changes != self._consumer_changes:  # A consumer that was added meanwhile may want some of them.
            changes = self._consumer_changes
            unwanted: list[bytes] = []
            for group in in_groups((yield from self._store.in_steps.subjects(b">")), _SWEEP_SUBJECTS):
                unwanted += [subject for subject in group if not self.interested(subject)]
                yield
            if not unwanted or changes != self._consumer_changes:
                continue
            for _ in self._store.in_steps.purge(SubjectFilter(unwanted)):
                self._after_removal(False)
                yield
                if changes != self._consumer_changes:
                    break

    def _sweep_limit(self) -> int:
        """Return the last sequence that a sweep has to look at.

        Every later message is needed: by a consumer without filters that has yet to deliver it or, because no consumer
        has reached it, by whichever wants its subject.
        """
        consumers = self._consumers.values()
        furthest = max(consumer.reached_sequence for consumer in consumers)
        slowest = min(
            (consumer.reached_sequence for consumer in consumers if not consumer.config.filters), default=furthest
        )
        return min(furthest, slowest)

    def _remove_done(self, last_sequence: int) -> Steps[None]:
        """Remove messages up to the sequence that have interest, all of it done."""
        store = self._store
        sequence = max(store.first_sequence, self._consumer_kinds().passed_sequence + 1)
        while sequence <= last_sequence:
            run = store.read(sequence, None, _SWEEP_MESSAGES, _SWEEP_BYTES, last_sequence)
            for message in run.messages:
                interested = self.interested(message.subject)
                if interested and not any(consumer.needs(message.sequence, message.subject) for consumer in interested):
                    store.remove(message.sequence)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence
            self._after_removal(False)
            yield
