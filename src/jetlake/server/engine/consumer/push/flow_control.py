"""Flow control of a push consumer: a window of bytes that the subscriber opens again by answering."""

from __future__ import annotations

__all__ = ["WINDOW_MAX", "WINDOW_START", "FlowControl"]

WINDOW_MAX = 32 * 1024 * 1024
WINDOW_START = WINDOW_MAX // 16

REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
"""The header of the message that asks the subscriber to answer."""


class FlowControl:
    """How many bytes are under way, and whether more may follow.

    When half the window is under way the subscriber is asked to answer; when all of it is, delivery stalls until it
    does. Every answer doubles the window, up to a limit.
    """

    def __init__(self) -> None:
        self.window = WINDOW_START
        self.pending = 0
        """Bytes sent that no answer has covered yet."""
        self.outstanding = b""
        """The subject of the request that waits for its answer; empty when none does."""
        self._covered = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the window is full, so that nothing may be sent."""
        return self.pending > self.window

    def sent(self, size: int) -> bool:
        """A message went out; True when the subscriber must now be asked (`ask`)."""
        self.pending += size
        if not self.outstanding:
            return self.pending > self.window // 2
        if self.pending - self._covered >= self.window:
            # More than a window beyond the request: its answer covers the rest, or the pause would never end.
            self._covered += size
        return False

    def ask(self, subject: bytes) -> None:
        """The request with this subject to answer to went out."""
        self.outstanding = subject
        self._covered = self.pending

    def answer(self, subject: bytes) -> bool:
        """The subscriber answered; False when that was not the request that waits."""
        if not self.outstanding or subject != self.outstanding:
            return False
        self.window = min(self.window * 2, WINDOW_MAX)
        self.pending = max(self.pending - self._covered, 0)
        self.outstanding = b""
        self._covered = 0
        return True

    def restart(self) -> None:
        """The subscriber is another one: nothing is under way to it."""
        self.window = WINDOW_START
        self.pending = self._covered = 0
        self.outstanding = b""
