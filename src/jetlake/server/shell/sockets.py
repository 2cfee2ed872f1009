"""Listening sockets: bound so that a new server can follow a killed one on the same port at once."""

from __future__ import annotations

import socket

from jetlake.errors import ConfigError

__all__ = ["listen"]

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
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
        return [socket.create_server(address[:2], family=family, backlog=1024)]
    except OSError as error:
        raise ConfigError(f"listen tcp {host}:{port}: {error.strerror or error}") from None
