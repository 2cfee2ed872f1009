"""A consumer's journal together with the commit that makes it durable."""

from __future__ import annotations

from jetlake.server.engine.core.commit import Action, Commit, Syncable
from jetlake.store.journal.consumer_journal import ConsumerJournal

__all__ = ["CommittedJournal"]


class CommittedJournal:
    """What was told to the journal is flushed by the engine's cycle; one in memory needs nothing of that.

    Attributes:
        journal: the consumer's, to be told what happens.
        is_durable: whether answers have to wait for it.
    """

    __slots__ = ("_commit", "is_durable", "journal")

    def __init__(self, journal: ConsumerJournal, commit: Commit) -> None:
        self.journal = journal
        self.is_durable = journal.durable
        self._commit = commit

    def mark(self) -> None:
        """It was told something that is to be flushed with this cycle."""
        if self.is_durable:
            self._commit.mark(self.journal)

    def mark_soon(self) -> None:
        """It was told something that nobody waits for."""
        if self.is_durable:
            self._commit.mark_soon(self.journal)

    def when_durable(self, action: Action) -> None:
        """Run `action` when everything told so far is durable, which begins with this cycle."""
        self._commit.mark(self.journal)
        self._commit.when_durable(self.journal, action)

    def write_after(self, store: Syncable) -> None:
        """Write nothing more before all that was written to the store so far is on the disk."""
        if self.is_durable:
            self._commit.order(store, self.journal)

    def forget(self) -> None:
        """The consumer is closed: nothing is to be flushed or synced any more."""
        self._commit.forget(self.journal)
