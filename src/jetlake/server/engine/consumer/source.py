"""The contract of a stream as its consumers read it."""

from __future__ import annotations

from typing import Protocol

from jetlake.store.interface import MessageStore

__all__ = ["Source"]


class Source(Protocol):
    """The messages of a stream, and how many of them may be shown."""

    @property
    def store(self) -> MessageStore:
        """The stored messages."""
        ...

    @property
    def visible_sequence(self) -> int:
        """The newest durable message; no consumer delivers a newer one."""
        ...
