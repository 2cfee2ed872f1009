"""The contract between the parts of a connection and its end, and what the parts know of a connection that is gone."""

from __future__ import annotations

from typing import Protocol

from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["GONE", "ConnectionControl"]


class ConnectionControl(Protocol):
    """The connection as its parts know it.

    Attributes:
        closed: the connection has ended; nothing more is handled or sent.
    """

    closed: bool

    def end(self, error: str | None = None, *, reason: str) -> None:
        """Close the connection, after an -ERR with this text if there is one."""
        ...

    def drop(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection without an -ERR; at once = without waiting for bytes that are unwritten."""
        ...

    def fail(self, error: Exception) -> None:
        """Report an internal error and close this connection; other connections are not affected."""
        ...


class _Gone(Subscriber):
    """A connection that is gone, for its parts: they must not keep it alive.

    A connection that has ended is freed as soon as monitoring forgets it, and not by the next full garbage collection:
    between two of those, clients may come and go by the hundred thousand.
    """

    closed = True

    def send(self, data: bytes) -> None:
        pass

    def end(self, error: str | None = None, *, reason: str) -> None:
        pass

    def drop(self, reason: str, *, at_once: bool = False) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass


GONE = _Gone()
