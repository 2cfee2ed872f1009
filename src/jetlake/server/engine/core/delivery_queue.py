"""The delivery queue: consumers and batches that have something to deliver, each a bounded run per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetlake.errors import StoreError
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.timers import Timers

__all__ = ["Deliverer", "DeliveryQueue"]

# How long one turn delivers before the rest of the queue waits for the next turn.
_TURN_NS = 3_000_000
# Pause before a delivery that failed on a store error is tried again.
_RETRY_NS = 1_000_000_000


class Deliverer(Protocol):
    """A member of the queue: a consumer, or a batch of direct gets."""

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        ...


class DeliveryQueue:
    """Ready deliverers in the order in which they became ready, and deliverers that wait for a socket or for the disk.

    Args:
        clock: bounds a turn's time.
        timers: wakes deliverers that failed on a store error.
        report: called with the text of a store error.

    Attributes:
        ready: deliverers of this turn or the next.
    """

    def __init__(self, clock: Clock, timers: Timers, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._timers = timers
        self._report = report
        self.ready: dict[Deliverer, None] = {}
        self._congested: dict[Deliverer, None] = {}
        self._failed: dict[Deliverer, None] = {}

    def make_ready(self, deliverer: Deliverer) -> None:
        """Append a deliverer to the queue, for this turn or, once this turn's deliveries are over, for the next."""
        self.ready[deliverer] = None

    def make_unready(self, deliverer: Deliverer) -> None:
        """Remove a closed deliverer."""
        self.ready.pop(deliverer, None)
        self._congested.pop(deliverer, None)
        self._failed.pop(deliverer, None)

    def wait_for_drain(self, deliverer: Deliverer) -> None:
        """Park a deliverer whose subscriber is congested, until `wake_congested`."""
        self._congested[deliverer] = None

    def wake_congested(self) -> None:
        """Make all deliverers ready that wait for a subscriber's buffer to drain."""
        self.ready.update(self._congested)
        self._congested.clear()

    def run(self) -> None:
        """Let the ready deliverers deliver, the longest waiting first, for a bounded time."""
        ready, self.ready = self.ready, {}
        now_ns = self._clock.now_ns()
        waiting = iter(ready)
        try:
            for deliverer in waiting:
                try:
                    has_more = deliverer.deliver(now_ns)
                except StoreError as error:
                    # One unreadable stream must not stop the deliveries of the others.
                    self._retry_later(deliverer, error)
                    continue
                if has_more:
                    self.ready[deliverer] = None
                if self._clock.now_ns() >= now_ns + _TURN_NS:
                    break
        finally:
            # An internal error ends the turn; the others would never become ready again.
            self.ready = {**dict.fromkeys(waiting), **self.ready}

    def _retry_later(self, deliverer: Deliverer, error: StoreError) -> None:
        if not self._failed:
            self._report(f"JetStream - {error}")
            self._timers.schedule(self._clock.now_ns() + _RETRY_NS, self._retry)
        self._failed[deliverer] = None

    def _retry(self, _now_ns: int) -> None:
        self.ready.update(self._failed)
        self._failed.clear()
