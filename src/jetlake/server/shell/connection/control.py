"""The contract between the parts of a connection and its end."""

from __future__ import annotations

from typing import Protocol

__all__ = ["ConnectionControl"]


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
