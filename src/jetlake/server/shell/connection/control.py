"""Contracts: how the parts of a connection end it, and how a connection enters and leaves the connection table."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["ConnectionControl", "ConnectionRegistry"]

ConnectionT = TypeVar("ConnectionT", contravariant=True)


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
        """Close the connection without another word; at once = without waiting for bytes that are unwritten."""
        ...

    def fail(self, error: Exception) -> None:
        """Report an internal error and close this connection; other connections are not affected."""
        ...


class ConnectionRegistry(Protocol[ConnectionT]):
    """The connection table as connections know it."""

    @property
    def is_crowded(self) -> bool:
        """Whether too many sockets of refused clients are still open."""
        ...

    def admit(self, connection: ConnectionT) -> str | None:
        """Number a new connection; the text of the error when there is no room for it."""
        ...

    def closed(self, connection: ConnectionT) -> None:
        """Move an ended connection to the closed ones."""
        ...

    def disconnected(self, connection: ConnectionT) -> None:
        """Forget the socket of a connection."""
        ...
