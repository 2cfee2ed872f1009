"""The services that the engine gives to streams, consumers and the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Protocol

from msgspec import Struct

from jetlake.errors import StoreError
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.commit import Commit
from jetlake.server.engine.core.delivery_queue import DeliveryQueue
from jetlake.server.engine.core.long_work import LongWork
from jetlake.server.engine.core.open_batches import OpenBatches
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.core.timers import Timers

__all__ = ["MessageCollector", "Services"]


class MessageCollector(Protocol):
    """A stream's publish path: collects messages and stores them as one batch.

    Attributes:
        replaces: a message may take the place of older ones of its subject.
    """

    replaces: bool

    def store_received(self, now_ns: int) -> None:
        """Store all messages received so far as one batch."""
        ...


class Services(Struct, frozen=True):
    """Time, randomness, queues, group commit and error log of one engine."""

    options: EngineOptions
    clock: Clock
    timers: Timers
    commit: Commit
    deliveries: DeliveryQueue
    long_work: LongWork
    """Runs work in steps over several cycles."""
    received: list[MessageCollector]
    """Collectors with messages that are not stored yet; one appends itself with its first message."""
    store_received: Callable[[], None]
    """Stores the messages of all collectors, as the end of the cycle does."""
    random: Random
    """Source of consumer names, jitter and samples."""
    next_nuid: Callable[[], str]
    """Source of ids for events, pins and flow control subjects."""
    open_batches: OpenBatches
    """The open batches of all streams."""
    report: Callable[[str], None]
    """Logs an error that no client gets as an answer."""

    @contextmanager
    def report_store_errors(self, doing: str) -> Iterator[None]:
        """Log a `StoreError` raised in the block instead of raising it.

        Args:
            doing: what the block does, for the log.
        """
        try:
            yield
        except StoreError as error:
            self.report(f"JetStream - {doing}: {error}")
