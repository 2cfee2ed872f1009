"""The listener for leaf nodes: its address, its users, and the connections that it has accepted."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from msgspec import structs

from jetlake.server.config.leaf_options import LeafListen
from jetlake.server.config.options import Options
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.leaf.accepted import AcceptedConnection, AcceptedConnections
from jetlake.server.shell.leaf.announcements import LeafAccounts
from jetlake.server.shell.listener import TcpListener
from jetlake.server.shell.tls_socket import TlsListening

if TYPE_CHECKING:
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes

__all__ = ["LeafListener"]


class LeafListener:
    """Accepts leaf nodes.

    Attributes:
        settings: what they are served with: the server's settings, with the listener's own where it has some.
        websocket_settings: the same for leaf nodes that come through the port for WebSocket, with its TLS.

    Args:
        nodes: the leaf connections of the server.
        listen: the options of the listener.
        leaf_accounts: the interest of each account.

    Raises:
        ConfigError: a certificate that the options name cannot be used.
    """

    def __init__(self, nodes: LeafNodes, listen: LeafListen, leaf_accounts: LeafAccounts) -> None:
        services = nodes.services
        self._server_settings = services.settings
        self._listen = listen
        settings = services.settings
        self.settings = settings.for_listener(_served(settings.options, listen), "LEAFNODE")
        self.websocket_settings = settings.for_listener(_served_over_websocket(settings.options, listen), "LEAFNODE_WS")
        self._log = services.log
        self._table = nodes.table
        self._listener = TcpListener()
        self._services = structs.replace(services, settings=self.settings)
        self._websocket_services = structs.replace(services, settings=self.websocket_settings)
        self.connections = AcceptedConnections(nodes, listen, leaf_accounts)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before the start."""
        return self._listener.port

    async def start(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen.

        Args:
            sockets: listen on the address already; None = there are none yet.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        listen, tls, context = self._listen, None, self.settings.tls_context
        if context is not None and listen.tls is not None and listen.tls.handshake_first:
            tls = TlsListening(context, listen.tls.timeout_s, self._has_room)
        await self._listener.start(listen.host, max(listen.port, 0), self._make_connection, tls, sockets)
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        self._log.info(f"Listening for leafnode connections on {host}:{self.port}")

    def _make_connection(self) -> AcceptedConnection:
        return self._make(self._services)

    def make_websocket_connection(self) -> AcceptedConnection:
        """Make the connection of a leaf node whose WebSocket is upgraded."""
        return self._make(self._websocket_services)

    def _make(self, services: ConnectionServices) -> AcceptedConnection:
        has_room = self._has_room()
        connection = AcceptedConnection(self.connections, services, self._table.take_number())
        if not has_room:
            self._log.error("a leaf node was refused: maximum connections exceeded")
            connection.drop("maximum connections exceeded")
        return connection

    def _has_room(self) -> bool:
        return self._table.has_room_beside(len(self.connections.all) + len(self._listener.handshakes))

    def apply_settings(self) -> None:
        """Take over the settings of a reload."""
        options, loaded_ns = self._server_settings.options, self._server_settings.loaded_ns
        self.settings.apply(_served(options, self._listen), loaded_ns)
        self.websocket_settings.apply(_served_over_websocket(options, self._listen), loaded_ns)
        self.connections.apply_settings()

    def close(self) -> None:
        """Accept no more leaf nodes."""
        self._listener.close()

    def stop(self) -> None:
        """End all connections."""
        self.close()
        self.connections.end_all()


def _served(options: Options, listen: LeafListen) -> Options:
    """Return the options as leaf nodes see them: TLS and users may be the listener's own."""
    changes: dict[str, object] = {
        "host": listen.host,
        "tls": listen.tls,
        "allow_non_tls": False,
        "auth_timeout_s": listen.auth_timeout_s or options.auth_timeout_s,
        "websocket": None,
    }
    if listen.users:
        changes |= {"users": listen.users, "token": None, "no_auth_user": ""}
    return options.replace(**changes)


def _served_over_websocket(options: Options, listen: LeafListen) -> Options:
    """Return the options as leaf nodes see them that come over WebSocket, which has TLS of its own."""
    tls = options.websocket.tls if options.websocket is not None else None
    return _served(
        options, structs.replace(listen, tls=structs.replace(tls, handshake_first_fallback_s=0) if tls else None)
    )
