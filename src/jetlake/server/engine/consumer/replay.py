"""Replay with the original timing: messages keep the distances in time at which they were stored."""

from __future__ import annotations

__all__ = ["Replay"]

# Distances up to this are not waited for.
_GAP_MIN_NS = 1_000_000


class Replay:
    """Says when the next stored message is due, until the consumer has caught up with the end it found at its start.

    Args:
        last_sequence: the newest message when the consumer was made or restarted.
    """

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._stored_ns = 0
        self._sent_ns = 0

    def is_over(self, sequence: int) -> bool:
        """Whether this sequence came after the start, so that it and all later ones are delivered at once."""
        return sequence > self._last_sequence

    def due_ns(self, stored_ns: int) -> int:
        """When a message stored at that time may be sent; a time in the past for at once."""
        gap_ns = stored_ns - self._stored_ns
        if not self._stored_ns or gap_ns <= _GAP_MIN_NS:
            return 0
        return self._sent_ns + gap_ns

    def sent(self, stored_ns: int, now_ns: int) -> None:
        """A message stored at that time was sent now."""
        self._stored_ns = stored_ns
        self._sent_ns = now_ns
