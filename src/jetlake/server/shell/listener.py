"""The listener: accepts connections on one address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ssl import SSLContext

from jetlake.server.shell.sockets import listen

__all__ = ["TcpListener"]


class TcpListener:
    """Accepts connections on one address.

    Attributes:
        port: the port that is listened on; 0 before the start.
    """

    def __init__(self) -> None:
        self.port = 0
        self._servers: list[asyncio.Server] = []

    async def start(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.Protocol],
        ssl: SSLContext | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Listen on the address, with a protocol of its own for each connection; port 0 takes any free one.

        Args:
            sockets: listen on the address already; None = there are none yet.

        Raises:
            ConfigError: the host name is unknown, or the address is taken or belongs to another machine.
        """
        loop = asyncio.get_running_loop()
        sockets = sockets or listen(host, port)
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            self._servers.append(await loop.create_server(make_protocol, sock=each, ssl=ssl, backlog=1024))

    def close(self) -> None:
        """Accept no more connections; those that were accepted stay open."""
        for server in self._servers:
            server.close()
        self._servers.clear()
