"""Retention by interest: which consumers want which subjects, and which messages nobody needs any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jetlake.model.enums import RetentionPolicy
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["Retention"]

# Subjects whose interested consumers are kept ready; a full table is emptied.
_SUBJECTS_MAX = 65_536

# A sweep over a stream reads this much at once.
_SWEEP_MESSAGES = 4096
_SWEEP_BYTES = 8 * 1024 * 1024


class Retention:
    """What one stream's consumers mean for its messages.

    With retention `limits` it only tells consumers about new messages. With `interest` a message goes when every
    consumer that wants its subject is done with it, and one that nobody wants is never stored. With `workqueue` it goes
    when the one consumer of its subject is done with it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._interested: dict[bytes, tuple[Consumer, ...]] = {}
        self._has_filters = False

    def interested(self, subject: bytes) -> tuple[Consumer, ...]:
        """The consumers whose filters match the subject."""
        interested = self._interested.get(subject)
        if interested is None:
            if len(self._interested) >= _SUBJECTS_MAX:
                self._interested.clear()
            consumers = self._stream.consumers.values()
            interested = tuple([consumer for consumer in consumers if consumer.wants(subject)])
            self._interested[subject] = interested
        return interested

    def is_wanted(self, subject: bytes) -> bool:
        """Whether some consumer wants the subject, or one that could not be opened may."""
        return bool(self.interested(subject) or self._stream.home.missing)

    def announce(self, subjects: list[bytes]) -> dict[Consumer, None]:
        """Messages with these subjects were stored: tell those who count them, once each, and say who they are."""
        counts: dict[Consumer, int] = {}
        if not self._stream.consumers:
            return {}
        for subject, count in Counter(subjects).items():
            for consumer in self.interested(subject):
                counts[consumer] = counts.get(consumer, 0) + count
        for consumer, count in counts.items():
            consumer.on_stored(count)
        return dict.fromkeys(counts)

    def consumed(self, consumer: Consumer, sequence: int) -> None:
        """The consumer is done with the message: remove it unless another one still needs it."""
        stream = self._stream
        policy = stream.config.retention
        if policy is RetentionPolicy.LIMITS:
            return
        if policy is RetentionPolicy.INTEREST and self._is_needed_by_others(consumer, sequence):
            return
        if stream.store.remove(sequence):
            # Soon is soon enough: after a crash the consumer's journal tells that the message is done.
            stream.touched(soon=True)

    def _is_needed_by_others(self, consumer: Consumer, sequence: int) -> bool:
        consumers = self._stream.consumers
        if self._stream.home.missing:
            return True
        if len(consumers) < 2:
            return False
        subject = b""
        if self._has_filters:
            message = self._stream.store.get(sequence)
            if message is None:
                return False
            subject = message.subject
        return any(other is not consumer and other.needs(sequence, subject) for other in consumers.values())

    def changed(self) -> None:
        """A consumer came, went or changed its filters."""
        self._interested.clear()
        self._has_filters = any(consumer.config.filters for consumer in self._stream.consumers.values())

    def sweep(self) -> None:
        """Remove what no consumer needs: after one went, after a change of policy, after a restart.

        A work queue keeps what no consumer has asked for yet; an interest stream does not. While a consumer is missing
        nobody knows what it needs, and nothing goes.
        """
        stream = self._stream
        policy = stream.config.retention
        if policy is RetentionPolicy.LIMITS or not stream.store.messages or stream.home.missing:
            return
        if policy is RetentionPolicy.INTEREST:
            if not stream.consumers:
                stream.store.purge()
            elif self._has_filters:
                self._remove_unwanted_subjects()
        if stream.consumers:
            self._remove_done(self._sweep_limit())
        stream.touched()

    def _remove_unwanted_subjects(self) -> None:
        store = self._stream.store
        unwanted = [subject for subject in store.subjects() if not self.interested(subject)]
        if unwanted:
            store.purge(SubjectFilter(unwanted))

    def _sweep_limit(self) -> int:
        """Behind this sequence every message is needed: by a consumer without filters that has yet to deliver it, or,
        because nobody has delivered it, by whoever wants its subject."""
        consumers = self._stream.consumers.values()
        furthest = max(consumer.ack_tracker.delivered_stream for consumer in consumers)
        slowest = min(
            (consumer.ack_tracker.delivered_stream for consumer in consumers if not consumer.config.filters),
            default=furthest,
        )
        return min(furthest, slowest)

    def _remove_done(self, last_sequence: int) -> None:
        """Remove messages up to there that nobody needs; a work queue keeps those that nobody wants yet."""
        store = self._stream.store
        sequence = store.first_sequence
        while sequence <= last_sequence:
            run = store.read(sequence, None, _SWEEP_MESSAGES, _SWEEP_BYTES, last_sequence)
            for message in run.messages:
                interested = self.interested(message.subject)
                if interested and not any(consumer.needs(message.sequence, message.subject) for consumer in interested):
                    store.remove(message.sequence)
            if run.next_sequence <= sequence:
                break
            sequence = run.next_sequence
