"""Free ports for servers that tests and benchmarks start in processes of their own."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom

# Below the ephemeral range: the system does not assign such a port to another process before the server binds it.
_PORTS = range(10_000, 32_768)
_CHOICE = SystemRandom()


def free_port() -> int:
    """Return a port of the loopback interface that no process uses."""
    while True:
        port = _CHOICE.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
