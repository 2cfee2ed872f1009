"""The receive queue: streams with published messages that the end of the cycle stores."""

from __future__ import annotations

from typing import Protocol

from jetlake.server.engine.core.clock import Clock

__all__ = ["ReceiveQueue", "Receiver"]


class Receiver(Protocol):
    """A stream's publish path: collects messages and stores them as one batch."""

    def store_received(self, now_ns: int) -> None:
        """Store all messages received so far as one batch."""
        ...


class ReceiveQueue:
    """Receivers that hold messages which are not stored yet, in the order of their first message."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._receivers: list[Receiver] = []

    def __bool__(self) -> bool:
        return bool(self._receivers)

    def add(self, receiver: Receiver) -> None:
        """Append a receiver that got its first message of this cycle."""
        self._receivers.append(receiver)

    def store_all(self) -> None:
        """Store all received messages, so that a request that follows sees them in their streams."""
        if self._receivers:
            receivers, self._receivers = self._receivers, []
            now_ns = self._clock.now_ns()
            for receiver in receivers:
                receiver.store_received(now_ns)
