"""The rate limit of a push consumer: a token bucket of bytes."""

from __future__ import annotations

__all__ = ["RateLimit"]

_NS = 1_000_000_000


class RateLimit:
    """A token bucket.

    Args:
        bits_per_second: the rate.
        burst: bytes that may be sent at once after a pause; the size of the largest message.
        now_ns: the time; the bucket begins full.
    """

    def __init__(self, bits_per_second: int, burst: int, now_ns: int) -> None:
        self._bytes_per_second = max(bits_per_second // 8, 1)
        # Counted in byte-nanoseconds so that nothing is lost to rounding.
        self._burst = max(burst, 1) * _NS
        self._level = self._burst
        self._filled_ns = now_ns

    def ready_ns(self, size: int, now_ns: int) -> int:
        """Return when a message of this many bytes may be sent; now or earlier means at once."""
        elapsed_ns = max(now_ns - self._filled_ns, 0)
        self._level = min(self._level + elapsed_ns * self._bytes_per_second, self._burst)
        self._filled_ns += elapsed_ns
        missing = min(size * _NS, self._burst) - self._level
        return self._filled_ns if missing <= 0 else self._filled_ns + -(-missing // self._bytes_per_second)

    def spend(self, size: int) -> None:
        """Take the bytes of a sent message from the bucket."""
        self._level -= size * _NS
