"""The listener: accepts connections on one address, over TLS where it has a certificate."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jetlake.server.shell.sockets import listen

if TYPE_CHECKING:
    from jetlake.server.shell.tls_socket import TlsListening, TlsSocket

__all__ = ["TcpListener"]


class TcpListener:
    """Accepts connections on one address.

    Attributes:
        port: the port that is listened on; 0 before the start.
        handshakes: the sockets whose TLS handshake is not complete.
    """

    def __init__(self) -> None:
        self.port = 0
        self.handshakes: set[TlsSocket] = set()
        self._servers: list[asyncio.Server] = []

    async def start(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: TlsListening | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Listen on the address, with a protocol of its own for each connection; port 0 takes any free one.

        Args:
            tls: the protocols get what is decrypted; None = the connections are not encrypted.
            sockets: listen on the address already; None = there are none yet.

        Raises:
            ConfigError: the host name is unknown, or the address is taken or belongs to another machine.
        """
        loop = asyncio.get_running_loop()
        sockets = sockets or listen(host, port)
        self.port = sockets[0].getsockname()[1]
        make = make_protocol
        if tls is not None:
            from jetlake.server.shell.tls_socket import TlsSocket

            make = partial(TlsSocket, make_protocol, tls, self.handshakes)
        for each in sockets:
            self._servers.append(await loop.create_server(make, sock=each, backlog=1024))

    def close(self) -> None:
        """Accept no more connections, and drop those in their TLS handshake; the others stay open."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for handshake in list(self.handshakes):
            handshake.abort()
