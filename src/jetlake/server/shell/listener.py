"""Listening sockets: bound so that a new server can follow a killed one on the same port at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ssl import SSLContext

from jetlake.errors import ConfigError

__all__ = ["TcpListener"]

_EVERYWHERE = ("0.0.0.0", "::", "")


class TcpListener:
    """Accepts connections on one address.

    Attributes:
        port: the port that is listened on; 0 before the start.
    """

    def __init__(self) -> None:
        self.port = 0
        self._servers: list[asyncio.Server] = []

    async def start(
        self, host: str, port: int, make_protocol: Callable[[], asyncio.Protocol], ssl: SSLContext | None = None
    ) -> None:
        """Listen on the address, with a protocol of its own for each connection; port 0 takes any free one.

        Raises:
            ConfigError: the host name is unknown, or the address is taken or belongs to another machine.
        """
        loop = asyncio.get_running_loop()
        sockets = _listen(host, port)
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            self._servers.append(await loop.create_server(make_protocol, sock=each, ssl=ssl, backlog=1024))

    def close(self) -> None:
        """Accept no more connections; those that were accepted stay open."""
        for server in self._servers:
            server.close()
        self._servers.clear()


def _listen(host: str, port: int) -> list[socket.socket]:
    """Bind and listen; `0.0.0.0` and `::` mean every interface, IPv4 and IPv6 alike."""
    try:
        if host in _EVERYWHERE:
            if socket.has_dualstack_ipv6():
                return [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)]
            return [socket.create_server(("0.0.0.0", port), backlog=1024)]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
        return [socket.create_server(address[:2], family=family, backlog=1024)]
    except OSError as error:
        raise ConfigError(f"listen tcp {host}:{port}: {error.strerror or error}") from None
