"""Listening sockets: bound so that a new server can follow a killed one on the same port at once."""

from __future__ import annotations

import socket
from typing import NamedTuple

from jetlake.errors import ConfigError
from jetlake.server.config.options import Options

__all__ = ["ServerSockets", "listen", "listen_all", "monitoring_host", "websocket_host"]

_EVERYWHERE = ("0.0.0.0", "::", "")


def listen(host: str, port: int) -> list[socket.socket]:
    """Bind and listen; `0.0.0.0` and `::` mean every interface, IPv4 and IPv6 alike, port 0 any free one.

    Raises:
        ConfigError: the host name is unknown, or the address is taken or belongs to another machine.
    """
    try:
        if host in _EVERYWHERE:
            if socket.has_dualstack_ipv6():
                return [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)]
            return [socket.create_server(("0.0.0.0", port), backlog=1024)]
        # As bytes, where it is ASCII: Python would load its tables of international names for a string.
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
        return [socket.create_server(address[:2], family=family, backlog=1024)]
    except OSError as error:
        raise ConfigError(f"listen tcp {host}:{port}: {error.strerror or error}") from None


class ServerSockets(NamedTuple):
    """The listening sockets of a server; None = not listening yet, or not at all."""

    monitoring: list[socket.socket] | None = None
    websocket: list[socket.socket] | None = None
    leafnodes: list[socket.socket] | None = None
    clients: list[socket.socket] | None = None


def listen_all(options: Options) -> ServerSockets:
    """Listen on every address of the options; the port for clients is the last, so that all are open once it is.

    Raises:
        ConfigError: a host name is unknown, or an address is taken or belongs to another machine.
    """
    monitoring = websocket = leafnodes = None
    if options.http_port is not None:
        monitoring = listen(monitoring_host(options), max(options.http_port, 0))
    if options.websocket is not None:
        websocket = listen(websocket_host(options), max(options.websocket.port, 0))
    if options.leafnodes.listen is not None:
        leafnodes = listen(options.leafnodes.listen.host, max(options.leafnodes.listen.port, 0))
    return ServerSockets(monitoring, websocket, leafnodes, listen(options.host, max(options.port, 0)))


def monitoring_host(options: Options) -> str:
    """Return the host that monitoring listens on."""
    return options.http_host or "127.0.0.1"


def websocket_host(options: Options) -> str:
    """Return the host that the WebSocket listener listens on."""
    return (options.websocket.host if options.websocket is not None else "") or options.host
