"""Replay with the original timing: messages keep the intervals at which they were stored."""

from __future__ import annotations

__all__ = ["Replay"]

# Intervals up to this are not waited for.
_GAP_MIN_NS = 1_000_000


class Replay:
    """The due times of messages that were stored before the consumer started.

    Args:
        last_sequence: the newest message when the consumer was created or restarted.
    """

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._stored_ns = 0
        self._sent_ns = 0

    def is_over(self, sequence: int) -> bool:
        """Return whether a message was stored after the start; it and all later ones are delivered at once."""
        return sequence > self._last_sequence

    def due_ns(self, stored_ns: int) -> int:
        """Return when a message stored at that time is due; now or earlier means at once."""
        gap_ns = stored_ns - self._stored_ns
        if not self._stored_ns or gap_ns <= _GAP_MIN_NS:
            return 0
        return self._sent_ns + gap_ns

    def sent(self, stored_ns: int, now_ns: int) -> None:
        """Record the message from which the next interval counts: stored at that time, sent now."""
        self._stored_ns = stored_ns
        self._sent_ns = now_ns
