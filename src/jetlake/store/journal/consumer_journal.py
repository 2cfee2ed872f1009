"""A consumer's journal: deliveries and acknowledgements, written in batches, so that a restart finds where it stood.

The reasons are in decision 8 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetlake.errors import StoreError
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.volatile import Volatile

__all__ = ["ConsumerJournal", "MemoryJournal"]


class ConsumerJournal(Protocol):
    """What a consumer tells, in the order in which it happens.

    Attributes:
        durable: whether answers to acknowledgements have to wait for `sync`.
        failure: set when a sync fails: nothing more is written before `mend` and another sync.
        state_source: gives the whole present state when the journal wants to begin anew.
    """

    durable: bool
    state_source: Callable[[], ConsumerState] | None

    @property
    def failure(self) -> StoreError | None: ...

    def load(self) -> ConsumerState:
        """Where the consumer stood at the last flush that came through; it is on disk when this returns.

        Raises:
            StoreError: the disk does not give the journal back, or it is another consumer's. Nothing was changed.
        """
        ...

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        """Messages were delivered for the first time, in ascending order, with consecutive consumer sequences."""
        ...

    def delivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        """One message was delivered, and this is how often by now."""
        ...

    def exhausted(self, stream_seq: int) -> None:
        """A message was delivered as often as allowed and is no longer pending."""
        ...

    def acked(self, stream_seq: int) -> None:
        """A message is done."""
        ...

    def ack_floor(self, consumer_seq: int, stream_seq: int) -> None:
        """Everything up to here is acknowledged."""
        ...

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        """Deliveries have come to here, and what they passed is not pending (no acknowledgements are wanted)."""
        ...

    def replace(self, state: ConsumerState) -> None:
        """Everything told so far is void: this is where the consumer stands (reset, purge)."""
        ...

    def needs_flush(self) -> bool:
        """Whether something was told since the last flush."""
        ...

    def needs_sync(self) -> bool:
        """Whether something was flushed that is not known to be on the disk."""
        ...

    def flush(self) -> None:
        """Write what was told, with one write.

        Raises:
            StoreError: the disk refused; what was told is kept and tried again with the next flush.
        """
        ...

    def sync(self) -> None:
        """Return when everything flushed before the call is on the disk. May run in another thread.

        Raises:
            StoreError: the disk failed; the journal then refuses to flush.
        """
        ...

    def mend(self) -> None:
        """Try again after the disk refused; when this returns, the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...


class MemoryJournal(Volatile):
    """The journal of a consumer that need not survive: it remembers nothing."""

    def __init__(self) -> None:
        self.state_source: Callable[[], ConsumerState] | None = None

    def load(self) -> ConsumerState:
        return ConsumerState()

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        pass

    def delivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        pass

    def exhausted(self, stream_seq: int) -> None:
        pass

    def acked(self, stream_seq: int) -> None:
        pass

    def ack_floor(self, consumer_seq: int, stream_seq: int) -> None:
        pass

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        pass

    def replace(self, state: ConsumerState) -> None:
        pass
