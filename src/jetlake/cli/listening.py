"""The socket of a command that serves web pages."""

from __future__ import annotations

import socket

from jetlake.cli.session import EXIT_USAGE, fail


def listen_on(address: str, example: str) -> socket.socket:
    """Return a socket that listens there; connections wait in it until they are served.

    Args:
        address: `HOST:PORT`, as it was typed.
        example: a good one.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        fail(f"--listen {address} is not HOST:PORT, such as {example}", EXIT_USAGE)
    host = host.strip("[]") or "127.0.0.1"
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        fail(f"can't listen on {address}: {reason}. Use another address: --listen HOST:PORT")
