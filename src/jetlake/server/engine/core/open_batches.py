"""The open batches of all streams, counted against the limits of the server."""

from __future__ import annotations

__all__ = ["OpenBatches"]

# Atomic batches wait in memory for their commit; more bytes than these are refused as too many batches.
STAGED_BYTES_MAX = 256 * 1024 * 1024

# Fast batches that may be open at once.
FAST_MAX = 50_000


class OpenBatches:
    """Counters of one server.

    Args:
        atomic_max: atomic batches that may be open at once.

    Attributes:
        atomic: open atomic batches.
        staged_bytes: bytes that their messages take in memory.
        fast: open fast batches.
    """

    def __init__(self, atomic_max: int) -> None:
        self.atomic = 0
        self.staged_bytes = 0
        self.fast = 0
        self._atomic_max = atomic_max

    def may_open_atomic(self) -> bool:
        """Return whether the server can take another atomic batch."""
        return self.atomic < self._atomic_max and self.staged_bytes < STAGED_BYTES_MAX

    def may_stage(self, size: int) -> bool:
        """Return whether the server can hold this many bytes more."""
        return self.staged_bytes + size <= STAGED_BYTES_MAX

    def may_open_fast(self) -> bool:
        """Return whether the server can take another fast batch."""
        return self.fast < FAST_MAX
