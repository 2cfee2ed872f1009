"""The peer of a connection: the client's address, and the connection's number."""

from __future__ import annotations

__all__ = ["Peer"]


class Peer:
    """The remote end of a connection; as text the prefix of the connection's log lines.

    Attributes:
        cid: the connection's number in logs and monitoring; 0 before the connection is admitted.
        host, port: the client's address; empty for a socket without one.
        forwarded_for: the client's address as a proxy reports it; empty without one.
        client_type: how the client connects, as monitoring names it: `nats` or `websocket`.
    """

    __slots__ = ("cid", "client_type", "forwarded_for", "host", "port")

    def __init__(self) -> None:
        self.cid = self.port = 0
        self.host = self.forwarded_for = ""
        self.client_type = "nats"

    def __str__(self) -> str:
        proxied = f"{self.forwarded_for}/" if self.forwarded_for else ""
        return f"{proxied}{self.host}:{self.port} - cid:{self.cid}"
