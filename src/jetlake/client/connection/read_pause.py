"""Back-pressure on the whole connection: the socket is not read while a receiver has no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.client.connection.wire_protocol import WireProtocol
    from jetlake.client.messages.receiver import Receiver

__all__ = ["ReadPause"]


class ReadPause:
    """The receivers that have no room.

    Args:
        on_change: called with whether the socket is paused, when that changes.
    """

    __slots__ = ("_on_change", "_receivers")

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._on_change = on_change
        self._receivers: set[Receiver] = set()

    def add(self, receiver: Receiver, wire: WireProtocol | None) -> None:
        """Stop reading the socket until this receiver, and every other that asked for it, has room."""
        self._receivers.add(receiver)
        transport = wire.transport if wire is not None else None
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self._on_change(True)

    def remove(self, receiver: Receiver, wire: WireProtocol | None) -> None:
        """Go on reading, if no other receiver is without room."""
        if receiver not in self._receivers:
            return
        self._receivers.discard(receiver)
        transport = wire.transport if wire is not None else None
        if not self._receivers and transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._on_change(False)
