"""The inactive threshold: when a consumer was last used, and when an unused one is removed."""

from __future__ import annotations

__all__ = ["Inactivity"]


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
        """Whether the threshold has passed since the last use."""
        return bool(self.threshold_ns) and now_ns - self.used_ns >= self.threshold_ns + self._jitter_ns
