"""A consumer's journal: deliveries and acknowledgements, written in batches, so that a restart finds where it stood.

The reasons are in decision 8 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from jetlake.errors import StoreError
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.volatile import Volatile

__all__ = ["ConsumerJournal", "MemoryJournal", "ignore_entry"]


class ConsumerJournal(Protocol):
    """The contract of a consumer's journal: deliveries and acknowledgements in their order.

    Attributes:
        durable: whether answers to acknowledgements have to wait for `sync`.
        changes_names: whether a sync creates, renames or removes files.
        failure: set when a sync fails: nothing more is written before `retry` and another sync.
        state_source: gives the whole present state when the journal wants to start over.
        on_entry: called after each entry that is written with the next flush of all journals.
        on_late_entry: called after each entry that may be written a moment later, since nothing waits for it.
        is_lost: whether `load` found nothing of a journal that was there.
    """

    durable: bool
    changes_names: bool
    is_lost: bool
    state_source: Callable[[], ConsumerState] | None
    on_entry: Callable[[ConsumerJournal], None]
    on_late_entry: Callable[[ConsumerJournal], None]

    @property
    def failure(self) -> StoreError | None: ...

    def load(self) -> ConsumerState:
        """Load the state at the last flush that reached the disk; the state is synced when this returns.

        Raises:
            StoreError: the disk does not give the journal back, or it is another consumer's. Nothing was changed.
        """
        ...

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        """Record first deliveries, in ascending order, with consecutive consumer sequences."""
        ...

    def redelivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        """Record a delivery with the message's number of deliveries so far."""
        ...

    def rescheduled(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        """Record the last delivery with the time from which its ack wait counts now; a late entry."""
        ...

    def exhausted(self, stream_seq: int) -> None:
        """Record that a message reached its maximum of deliveries and is no longer pending; a late entry."""
        ...

    def acked(self, stream_seqs: Iterable[int], floor: tuple[int, int] | None = None) -> None:
        """Record acknowledgements, in any order, and the ack floor after them; a late entry.

        Args:
            floor: the consumer and stream sequence up to which everything is acknowledged; None = as before.
        """
        ...

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        """Record the position of a consumer without acknowledgements: nothing up to here is pending."""
        ...

    def replace(self, state: ConsumerState) -> None:
        """Replace everything recorded so far by this state, after a reset or a purge."""
        ...

    def needs_flush(self) -> bool:
        """Return whether something was recorded since the last flush."""
        ...

    def needs_sync(self) -> bool:
        """Return whether a flush is not synced yet."""
        ...

    def flush(self) -> None:
        """Write the entries recorded since the last flush, with one write.

        Raises:
            StoreError: the disk refused; the entries are kept for the next flush.
        """
        ...

    def sync(self) -> None:
        """Return when everything flushed before the call is on the disk. May run in another thread.

        Raises:
            StoreError: the disk failed; the journal then refuses to flush.
        """
        ...

    def retry(self) -> None:
        """Try again after the disk refused; when this returns, the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...


def ignore_entry(_journal: ConsumerJournal) -> None:
    """Stand in for `on_entry` and `on_late_entry` of a journal that nobody flushes."""


class MemoryJournal(Volatile, ConsumerJournal):
    """The journal of a consumer that need not survive: it remembers nothing."""

    is_lost = False

    def __init__(self) -> None:
        self.state_source: Callable[[], ConsumerState] | None = None
        self.on_entry = self.on_late_entry = ignore_entry

    def load(self) -> ConsumerState:
        return ConsumerState()

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        pass

    def redelivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        pass

    def rescheduled(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        pass

    def exhausted(self, stream_seq: int) -> None:
        pass

    def acked(self, stream_seqs: Iterable[int], floor: tuple[int, int] | None = None) -> None:
        pass

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        pass

    def replace(self, state: ConsumerState) -> None:
        pass
