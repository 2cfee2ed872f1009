"""The writer of a stream: appends checked messages to the store, with all that follows from each of them."""

from __future__ import annotations

from collections.abc import Mapping

from jetlake.model.stream import StreamConfig
from jetlake.server.engine.schedule.schedules import Schedules
from jetlake.server.engine.stream.batch_release import Batch
from jetlake.server.engine.stream.consumer_contract import StreamConsumer
from jetlake.server.engine.stream.delete_markers import DeleteMarkers
from jetlake.server.engine.stream.ids.message_ids import MessageIds
from jetlake.server.engine.stream.limits import Limits
from jetlake.server.engine.stream.message_headers import MSG_ID, ROLLUP
from jetlake.server.engine.stream.message_lifetimes import TTL, MessageLifetimes
from jetlake.server.engine.stream.republish import Republisher
from jetlake.server.engine.stream.retention import Retention
from jetlake.store.interface import MessageStore
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["Checked", "MessageWriter"]

Checked = tuple[bytes, bytes, bytes, dict[bytes, bytes], bool]
"""A message that passed all checks: subject, header, payload, control headers, and whether a consumer wants it."""


class MessageWriter:
    """Appends the messages of one stream.

    Args:
        store: the stream's messages.
        consumers: the stream's consumers by name.
        ids: the stream's message ids.
        lifetimes: the stream's TTL deadlines.
        markers: the stream's delete markers.
        schedules: the stream's schedules.
        retention: knows which subjects consumers want.
        limits: removes what the new messages displace.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        consumers: Mapping[str, StreamConsumer],
        ids: MessageIds,
        lifetimes: MessageLifetimes,
        markers: DeleteMarkers,
        schedules: Schedules,
        retention: Retention,
        limits: Limits,
    ) -> None:
        self._store = store
        self._consumers = consumers
        self._ids = ids
        self._lifetimes = lifetimes
        self._markers = markers
        self._schedules = schedules
        self._retention = retention
        self._limits = limits
        self._republisher: Republisher | None = None

    def configure(self, config: StreamConfig) -> None:
        """Apply the stream's configuration, new or changed."""
        self._republisher = Republisher.of(config)

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest message."""
        return self._store.last_sequence

    def write(self, message: Checked, now_ns: int, batch: Batch) -> int:
        """Store one message with its id, or skip its sequence for lack of interest; return the sequence."""
        sequence = self._append(message, now_ns, batch)
        self._follow(message, sequence, now_ns, batch)
        return sequence

    def write_group(self, messages: list[Checked], now_ns: int, batch: Batch) -> int:
        """Store messages of which a crash keeps all or none; return the last sequence.

        What follows from them waits until all are appended: it may flush the store.
        """
        self._store.begin_group(len(messages))
        sequences = [self._append(message, now_ns, batch) for message in messages]
        for message, sequence in zip(messages, sequences, strict=True):
            self._follow(message, sequence, now_ns, batch)
        return sequences[-1]

    def _append(self, message: Checked, now_ns: int, batch: Batch) -> int:
        subject, header, payload, control, is_wanted = message
        store = self._store
        message_id = control.get(MSG_ID, b"")
        if message_id:
            self._ids.expect()
        if is_wanted:
            if TTL in control and self._markers.life_ns:
                header = self._markers.prolong(header, control[TTL])
            republisher = self._republisher
            previous = store.last_sequence_for(subject) if republisher is not None else 0
            sequence = store.append(subject, header, payload, now_ns)
            batch.subjects.append(subject)
            if header and self._lifetimes.is_enabled:
                self._lifetimes.stored(sequence, header, now_ns)
            if republisher is not None:
                again = republisher.apply(subject, header, payload, sequence, now_ns, previous)
                if again is not None:
                    batch.republished.append(again)
        else:
            store.skip(1, now_ns)
            sequence = store.last_sequence
            if message_id:
                batch.keeps_ids |= self._ids.keep([(message_id, sequence, now_ns)])
        self._ids.last = message_id
        if message_id:
            self._ids.remember(message_id, sequence, now_ns)
        return sequence

    def _follow(self, message: Checked, sequence: int, now_ns: int, batch: Batch) -> None:
        """Remove what a message rolls up, stored or skipped for lack of interest, and index a stored schedule."""
        subject, header, _, control, is_wanted = message
        rollup = control.get(ROLLUP, b"").lower()
        if rollup:
            batch.rolls_up = True
            self.announce(batch)
            subject_filter = SubjectFilter([subject]) if rollup == b"sub" else None
            self._store.flush()
            self._limits.roll_up(subject_filter, sequence, now_ns)
        if is_wanted and self._schedules.is_enabled:
            self.announce(batch)
            self._schedules.stored(sequence, subject, header, now_ns)

    def announce(self, batch: Batch) -> None:
        """Let consumers count the stored messages, before any of these can be removed and counted as removed."""
        if self._consumers and len(batch.subjects) > batch.announced:
            news = batch.subjects[batch.announced :] if batch.announced else batch.subjects
            batch.interested.update(self._retention.announce(news))
        batch.announced = len(batch.subjects)

    def settle(self, batch: Batch, now_ns: int) -> None:
        """Enforce the stream's limits after the messages stored so far.

        Raises:
            StoreError: the messages could not be written.
        """
        self.announce(batch)
        if self._limits.store_limits is not None:
            self._store.flush()
            self._limits.enforce(now_ns)
