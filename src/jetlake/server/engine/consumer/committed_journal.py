"""A consumer's journal together with the group commit that makes it durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.server.engine.core.commit import Action, Commit, Syncable
from jetlake.store.journal.consumer_journal import ConsumerJournal
from jetlake.store.journal.consumer_state import ConsumerState

__all__ = ["CommittedJournal"]


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
