"""The WebSocket listener: its address, and the settings that its connections are served with."""

from __future__ import annotations

import socket
from collections.abc import Callable

from msgspec import structs

from jetlake.server.config.options import Options, WebSocketOptions
from jetlake.server.shell.connection.peer_connection import PeerConnection
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection_table import ConnectionTable
from jetlake.server.shell.listener import TcpListener
from jetlake.server.shell.sockets import websocket_host
from jetlake.server.shell.tls_socket import TlsListening
from jetlake.server.shell.websocket.protocol import WebSocketProtocol

__all__ = ["WebSocketListener"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Sockets that may be in their upgrade, or in TLS before it, at the same time; more are dropped.
_BEGINNING_MAX = 1000


class WebSocketListener:
    """Accepts clients over WebSocket; above the frames they are clients like all others.

    Attributes:
        services: what these connections are given.
        upgrading: the sockets whose upgrade is not over.
        settings: what these clients are served with: the server's settings, with the listener's own where it has some.
        make_leaf_connection: makes the connection of a leaf node; None = none is accepted.

    Args:
        services: what the server gives its connections.
        make_connection: makes a connection with the services given to it.
        table: knows whether the server has room for one more socket.

    Raises:
        ConfigError: a certificate that the options name cannot be used.
    """

    def __init__(
        self,
        services: ConnectionServices,
        make_connection: Callable[[ConnectionServices], PeerConnection],
        table: ConnectionTable,
    ) -> None:
        self._server_settings = services.settings
        options = services.settings.options
        self.settings = services.settings.for_listener(_served(options), "WEBSOCKET")
        self.services = structs.replace(services, settings=self.settings)
        self._make_connection = make_connection
        self._table = table
        self._listener = TcpListener()
        self.upgrading: set[WebSocketProtocol] = set()
        self.make_leaf_connection: Callable[[], PeerConnection] | None = None

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        options = self.settings.options
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(options.host, options.host)
        return f"{_scheme(options.websocket)}://{host}:{self.settings.port}"

    async def start(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen.

        Args:
            sockets: listen on the address already; None = there are none yet.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        options = self.settings.options
        websocket = options.websocket
        assert websocket is not None
        context = self.settings.tls_context
        tls = None
        if context is not None and websocket.tls is not None:
            tls = TlsListening(context, websocket.tls.timeout_s, self.has_room)
        await self._listener.start(options.host, max(websocket.port, 0), self._make_protocol, tls, sockets)
        self.settings.port = self._listener.port
        host = f"[{options.host}]" if ":" in options.host else options.host
        log = self.services.log
        log.info(f"Listening for websocket clients on {_scheme(websocket)}://{host}:{self.settings.port}")
        if websocket.tls is None and options.host not in _LOOPBACK:
            log.warn("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def _make_protocol(self) -> WebSocketProtocol:
        return WebSocketProtocol(self)

    def make_connection(self) -> PeerConnection:
        """Make the connection of an upgraded socket."""
        return self._make_connection(self.services)

    def has_room(self) -> bool:
        """Return whether one more socket may begin its upgrade, or TLS before it."""
        beginning = len(self.upgrading) + len(self._listener.handshakes)
        return beginning < _BEGINNING_MAX and self._table.has_room_beside(beginning)

    def apply_settings(self) -> None:
        """Take over the settings of a reload."""
        self.settings.apply(_served(self._server_settings.options), self._server_settings.loaded_ns)

    def close(self) -> None:
        """Accept no more clients, and drop those whose upgrade is not over."""
        self._listener.close()
        for protocol in list(self.upgrading):
            protocol.hang_up()


def _scheme(options: WebSocketOptions | None) -> str:
    return "wss" if options is not None and options.tls is not None else "ws"


def _served(options: Options) -> Options:
    """Return the options as these clients see them: TLS and credentials may be the listener's own."""
    websocket = options.websocket
    assert websocket is not None
    changes: dict[str, object] = {
        "host": websocket_host(options),
        "client_advertise": websocket.advertise,
        "tls": websocket.tls,
        "allow_non_tls": False,
        "no_auth_user": websocket.no_auth_user or options.no_auth_user,
        "auth_timeout_s": websocket.auth_timeout_s or options.auth_timeout_s,
        "ping_interval_s": websocket.ping_interval_s or options.ping_interval_s,
    }
    if websocket.user is not None or websocket.token is not None:
        changes["users"] = (websocket.user,) if websocket.user is not None else ()
        changes["token"] = websocket.token
        changes["websocket"] = structs.replace(websocket, user=None, token=None)
    return options.replace(**changes)
