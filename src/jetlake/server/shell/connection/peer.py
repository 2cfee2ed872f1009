"""The peer of a connection: the client's address, and the connection's number."""

from __future__ import annotations

__all__ = ["Peer"]


class Peer:
    """The remote end of a connection; as text the prefix of the connection's log lines.

    Attributes:
        cid: the connection's number in logs and monitoring; 0 before the connection is admitted.
        host, port: the client's address; empty for a socket without one.
    """

    __slots__ = ("cid", "host", "port")

    def __init__(self) -> None:
        self.cid = self.port = 0
        self.host = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} - cid:{self.cid}"
