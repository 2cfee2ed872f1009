"""Flow control of a push consumer: a window of bytes that the subscriber reopens by answering requests."""

from __future__ import annotations

WINDOW_MAX = 32 * 1024 * 1024
WINDOW_START = WINDOW_MAX // 16

REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
"""Header of a flow control request."""


class FlowControl:
    """The window of bytes in flight to one subscriber.

    At half a window in flight the subscriber is sent a request; at a full one delivery stalls until the answer. Every
    answer doubles the window, up to a limit.
    """

    def __init__(self) -> None:
        self.window = WINDOW_START
        self.pending = 0
        """Bytes in flight: sent, and not covered by an answer."""
        self.outstanding = b""
        """Reply subject of the unanswered request; empty = none."""
        self._covered = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the window is full, so that nothing may be sent."""
        return self.pending > self.window

    def sent(self, size: int) -> bool:
        """Count a sent message; True when a request is due (`ask`)."""
        self.pending += size
        if not self.outstanding:
            return self.pending > self.window // 2
        if self.pending - self._covered >= self.window:
            # More than a window beyond the request: its answer covers the rest, or the stall would never end.
            self._covered += size
        return False

    def ask(self, subject: bytes) -> None:
        """Count a sent request with this reply subject."""
        self.outstanding = subject
        self._covered = self.pending

    def answer(self, subject: bytes) -> bool:
        """Reopen the window; False when the subject belongs to another request."""
        if not self.outstanding or subject != self.outstanding:
            return False
        self.window = min(self.window * 2, WINDOW_MAX)
        self.pending = max(self.pending - self._covered, 0)
        self.outstanding = b""
        self._covered = 0
        return True

    def restart(self) -> None:
        """Restart with another subscriber."""
        self.window = WINDOW_START
        self.pending = self._covered = 0
        self.outstanding = b""
