"""Messages that the event loop lends to another thread, which hands them out one by one.

Lent messages count as received and not handed out: the read that owns them fetches no more in their place, and no flow
control request behind them is answered, until the thread says that it has handed them out. It says so when the owner
wants to know, not for each message.
"""

from __future__ import annotations

__all__ = ["NEVER", "Loan"]

NEVER = 1 << 62


class Loan:
    """How many messages were lent, and how many of them are left; written by the loop's thread only.

    Attributes:
        total: messages lent so far.
        left: of these, the messages that were not handed out, as far as the loop knows.
        look_at: the owner wants to be told when this number of lent messages was handed out.
    """

    __slots__ = ("left", "look_at", "total")

    def __init__(self) -> None:
        self.total = 0
        self.left = 0
        self.look_at = NEVER

    @property
    def handed_out(self) -> int:
        """Lent messages that were handed out, as far as the loop knows."""
        return self.total - self.left

    def add(self, messages: int) -> None:
        """Count messages that are lent now."""
        self.total += messages
        self.left += messages

    def note(self, handed_out: int) -> int:
        """Note how many of all lent messages were handed out; returns how many of them are new."""
        left = max(0, self.total - handed_out)
        fresh = max(0, self.left - left)
        self.left -= fresh
        return fresh
