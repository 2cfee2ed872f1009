"""When a consumer was last used, and when it has been left alone for so long that it goes."""

from __future__ import annotations

__all__ = ["Idleness"]


class Idleness:
    """The time since somebody used one consumer.

    Attributes:
        used_ns: when it was last used; whoever uses it sets it.
        threshold_ns: after so long without use it goes; 0 for never.

    Args:
        jitter_ns: added to the threshold, so that consumers made together are not removed together.
    """

    __slots__ = ("_jitter_ns", "threshold_ns", "used_ns")

    def __init__(self, jitter_ns: int, now_ns: int) -> None:
        self.used_ns = now_ns
        self.threshold_ns = 0
        self._jitter_ns = jitter_ns

    @property
    def due_ns(self) -> int:
        """When to look at it again; 0 for never."""
        return self.used_ns + self.threshold_ns + self._jitter_ns if self.threshold_ns else 0

    def is_over(self, now_ns: int) -> bool:
        """Whether it was left alone for long enough, as far as is known here."""
        return bool(self.threshold_ns) and now_ns - self.used_ns >= self.threshold_ns + self._jitter_ns
