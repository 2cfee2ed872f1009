"""A consumer's schedule: ready to deliver, waiting, paused, or woken by its one timer at the earliest deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.server.engine.core.timers import Timer

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

__all__ = ["Inactivity", "Schedule"]


class Inactivity:
    """The time since one consumer was last used.

    Attributes:
        used_ns: time of the last use; set by every use.
        threshold_ns: the inactive threshold; 0 = the consumer is never removed.

    Args:
        jitter_ns: added to the threshold, so that consumers created together are not removed together.
        now_ns: time of creation, which counts as a use.
    """

    __slots__ = ("_jitter_ns", "threshold_ns", "used_ns")

    def __init__(self, jitter_ns: int, now_ns: int) -> None:
        self.used_ns = now_ns
        self.threshold_ns = 0
        self._jitter_ns = jitter_ns

    @property
    def due_ns(self) -> int:
        """When the threshold passes unless the consumer is used before; 0 = never."""
        return self.used_ns + self.threshold_ns + self._jitter_ns if self.threshold_ns else 0

    def is_over(self, now_ns: int) -> bool:
        """Return whether the threshold has passed since the last use."""
        return bool(self.threshold_ns) and now_ns - self.used_ns >= self.threshold_ns + self._jitter_ns


class Schedule:
    """When one consumer delivers and when its timer fires.

    Attributes:
        clock: the engine's.
        pause_ns: nothing is delivered before this time; 0 = not paused.
        inactivity: when the consumer was last used.

    Args:
        consumer: delivered when it is ready, and notified when a deadline has passed.
        inactivity: when the consumer was last used.
    """

    def __init__(self, consumer: Consumer, inactivity: Inactivity) -> None:
        services = consumer.services
        self.pause_ns = 0
        self.inactivity = inactivity
        self._deliveries = services.deliveries
        self._timers = services.timers
        self.clock = services.clock
        self._consumer: Consumer | None = consumer  # None once it is closed
        self._timer: Timer | None = None

    def make_ready(self) -> None:
        """Put the consumer into the delivery queue."""
        if self._consumer is not None:
            self._deliveries.make_ready(self._consumer)

    def wait_for_messages(self) -> None:
        """Register with the stream, which makes the consumer ready when a new message is visible."""
        if self._consumer is not None:
            self._consumer.stream.caught_up[self._consumer] = None

    def wait_for_drain(self) -> None:
        """Wait until a congested subscriber's buffer has drained."""
        if self._consumer is not None:
            self._deliveries.wait_for_drain(self._consumer)

    def use(self) -> int:
        """Mark the consumer as used, which postpones its removal, and return the time."""
        now_ns = self.inactivity.used_ns = self.clock.now_ns()
        return now_ns

    def is_paused(self, now_ns: int) -> bool:
        """Return whether the consumer must not deliver now."""
        return self.pause_ns > now_ns

    def arm(self) -> None:
        """Set the timer to the earliest deadline; one that is set too early stays, since firing early does no harm."""
        if self._consumer is None:
            return
        due_ns = self._consumer.next_due_ns()
        for other_ns in (self.pause_ns, self.inactivity.due_ns):
            if other_ns and (not due_ns or other_ns < due_ns):
                due_ns = other_ns
        timer = self._timer
        if not due_ns or (timer is not None and timer.deadline_ns <= due_ns):
            return
        self._timers.cancel(timer)
        self._timer = self._timers.schedule(due_ns, self._fire)

    def close(self) -> None:
        """Cancel the timer for good, and forget the consumer: its parts and it must not keep each other in memory."""
        self._timers.cancel(self._timer)
        self._consumer = None

    def _fire(self, now_ns: int) -> None:
        self._timer = None
        if self._consumer is not None:
            self._consumer.on_timer(now_ns)
        self.arm()
