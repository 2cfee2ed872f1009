"""A consumer's journal with the group commit that makes it durable, and the recovery from it after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.consumer.ack_tracker import AckTracker, Pending
from jetlake.server.engine.consumer.feed import Cursor, StartPosition, last_of_subjects
from jetlake.server.engine.core.commit import Action, Commit, Syncable
from jetlake.store.journal.consumer_journal import ConsumerJournal
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.message_store import MessageStore
from jetlake.store.subject_filter import SubjectFilter


class CommittedJournal:
    """The only way to write to one consumer's journal: every write is marked for a flush.

    Attributes:
        file: the journal as the group commit flushes and syncs it.
        is_durable: whether answers have to wait for a sync; False for a journal in memory.

    Args:
        journal: the consumer's journal.
        commit: the engine's group commit.
        state: returns the consumer's whole state, for a journal that is rewritten.
    """

    __slots__ = ("_commit", "_state", "file", "is_durable")

    def __init__(self, journal: ConsumerJournal, commit: Commit, state: Callable[[], ConsumerState]) -> None:
        self.file = journal
        self.is_durable = journal.durable
        self._commit = commit
        self._state = journal.state_source = state

    def load(self) -> ConsumerState:
        """Read the state at the last flush that came through.

        Raises:
            StoreError: the disk does not return the journal.
        """
        return self.file.load()

    # Written with this cycle's flush

    def delivered_run(self, first_consumer_seq: int, sequences: list[int], now_ns: int) -> None:
        """Write first deliveries, which wait for their acknowledgement."""
        self.file.delivered_run(first_consumer_seq, sequences, now_ns)
        if self.is_durable:
            self._commit.mark(self.file)

    def position(self, consumer_seq: int, sequence: int) -> None:
        """Write the last delivery of a consumer that takes no acknowledgements."""
        self.file.position(consumer_seq, sequence)
        if self.is_durable:
            self._commit.mark(self.file)

    def redelivered(self, consumer_seq: int, sequence: int, now_ns: int, count: int) -> None:
        """Write the `count`-th delivery of a message."""
        self.file.delivered(consumer_seq, sequence, now_ns, count)
        if self.is_durable:
            self._commit.mark(self.file)

    def rewrite(self) -> None:
        """Replace everything written so far by the whole state."""
        self.file.replace(self._state())
        if self.is_durable:
            self._commit.mark(self.file)

    # Written a moment later: no answer waits for it

    def acked(self, sequences: Iterable[int], floor_consumer: int, floor_stream: int) -> None:
        """Write acknowledged messages and the ack floor after them."""
        journal = self.file
        journal.acked(sequences)
        journal.ack_floor(floor_consumer, floor_stream)
        if self.is_durable:
            self._commit.mark_soon(journal)

    def rescheduled(self, consumer_seq: int, sequence: int, time_ns: int, count: int) -> None:
        """Write the new time from which a pending message's ack wait counts."""
        self.file.delivered(consumer_seq, sequence, time_ns, count)
        if self.is_durable:
            self._commit.mark_soon(self.file)

    def exhausted(self, sequence: int) -> None:
        """Write a message that reached max_deliver."""
        self.file.exhausted(sequence)
        if self.is_durable:
            self._commit.mark_soon(self.file)

    # The group commit

    def when_durable(self, action: Action) -> None:
        """Run `action` when everything written so far is durable; flushed with this cycle."""
        self._commit.mark(self.file)
        self._commit.when_durable(self.file, action)

    def write_after(self, store: Syncable) -> None:
        """Hold the journal back until everything written to the store so far is on disk."""
        if self.is_durable:
            self._commit.order(store, self.file)

    def forget(self) -> None:
        """Cancel pending flushes and syncs of a closed consumer."""
        self._commit.forget(self.file)


# Messages whose acknowledgement is unknown are looked up in pieces of this size.
_READ_MESSAGES = 512
_READ_BYTES = 1024 * 1024


def recover_position(
    tracker: AckTracker,
    cursor: Cursor,
    store: MessageStore,
    state: ConsumerState,
    *,
    start: int,
    resume: int,
    now_ns: int,
) -> bool:
    """Move a new consumer's tracker and cursor to the recovered state.

    Args:
        tracker: the consumer's ack tracker.
        cursor: the consumer's cursor.
        store: the stream's messages.
        state: what the journal returned.
        start: the first sequence that the consumer ever looked at.
        resume: where the cursor continues after the messages chosen at its start; 0 when none were chosen.

    Returns:
        Whether the state differs from the journal's, because the stream has changed since.

    Raises:
        StoreError: the stream's messages cannot be read.
    """
    stream = max(state.delivered_stream, start - 1)
    floor = (state.floor_consumer, max(state.floor_stream, start - 1))
    if not tracker.wants_acks:
        floor = (state.delivered_consumer, stream)
    pending = _by_this_clock(state.pending, max(state.latest_ns, store.last_time_ns), now_ns)
    tracker.restore((state.delivered_consumer, stream), floor, pending, state.deliveries)
    if resume > stream + 1:
        chosen = last_of_subjects(store, cursor.subject_filter, stream + 1, resume - 1)
        cursor.go_to(chosen if chosen.chosen else StartPosition(resume))
    else:
        cursor.go_to(StartPosition(stream + 1), waits=stream > store.last_sequence)
    cursor.on_purged()
    if state.uncertain:
        tracker.queue_uncertain(_stored_among(state.uncertain, store, cursor.subject_filter))
    gone = [sequence for sequence in (*tracker.pending, *tracker.exhausted) if not store.has(sequence)]
    for sequence in gone:
        tracker.ack(sequence, tracker.pending.get(sequence, 0))
    return bool(gone or state.uncertain)


def _by_this_clock(pending: dict[int, Pending], latest_ns: int, now_ns: int) -> dict[int, Pending]:
    """Return pending messages with the times in the future moved back by as much as the clock was set back.

    Otherwise their ack waits would last that much longer.

    Args:
        latest_ns: the latest time known to have passed.
    """
    set_back_ns = latest_ns - now_ns
    if set_back_ns <= 0:
        return pending
    return {
        sequence: (first, min(time_ns, max(now_ns, time_ns - set_back_ns)), count)
        for sequence, (first, time_ns, count) in pending.items()
    }


def _stored_among(
    ranges: list[tuple[int, int]], store: MessageStore, subject_filter: SubjectFilter | None
) -> list[int]:
    """Return the sequences in these ranges that are still stored and pass the filter."""
    stored: list[int] = []
    for first, last in ranges:
        while first <= last:
            run = store.read(first, subject_filter, _READ_MESSAGES, _READ_BYTES, last)
            if not run.messages:
                break
            stored += [message.sequence for message in run.messages]
            first = run.messages[-1].sequence + 1
    return stored
