"""The contract between a receiver and what it copies for: a mirror, or one source of a stream."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jetlake.model.stream import StreamSource
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.stream.copy_path import Copies

__all__ = ["CopyTarget", "Start"]


class Start(NamedTuple):
    """Where copying begins: at a sequence, at a time, or with both empty at the origin's first message."""

    sequence: int = 0
    time: str = ""


class CopyTarget(Protocol):
    """A mirror or a source, as its receiver uses it."""

    source: StreamSource
    """The origin, and which of its messages are copied."""
    consumer_name: str
    """Name of the consumer at the origin."""
    is_mirror: bool

    @property
    def last_sequence(self) -> int:
        """The origin's sequence up to which all is copied; 0 when nothing is."""
        ...

    @property
    def identity(self) -> str:
        """The identity of the origin that was copied from; empty when it does not matter or is not known."""
        ...

    def start(self) -> Start:
        """Return where copying continues.

        Raises:
            StoreError: the position cannot be read after an earlier error.
        """
        ...

    def connected(self, delivered_sequence: int, identity: str) -> None:
        """Begin to copy what the origin has after this sequence.

        Raises:
            StoreError: the store takes nothing more.
        """
        ...

    def forget(self) -> None:
        """Forget the position: the origin is another stream of the same name."""
        ...

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies in their order, and return how many; fewer than given when the stream is full.

        Args:
            copies: a run with the origin's sequences and times.
            on_durable: called when the copies are on disk, with None or the error.
        """
        ...

    def recover(self) -> None:
        """Find the position anew after a store error, which may have undone copies."""
        ...
