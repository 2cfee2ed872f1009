"""Connections of one process: opened when needed, kept for the next task, given up when they do not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.errors import JetlakeError

__all__ = ["leased"]

OptionsT = TypeVar("OptionsT", bound=Hashable)

_IDLE_MAX = 4
_FRESH_S = 1.0

# Idle connections by their options, each with the time since which it is idle; forked workers have their own.
_idle: dict[Hashable, list[tuple[float, SocketConnection]]] = {}
_idle_of_process = os.getpid()


@contextmanager
def leased(options: OptionsT, open_connection: Callable[[OptionsT], SocketConnection]) -> Iterator[SocketConnection]:
    """Lease a connection for as long as the block runs; it is kept for the next one unless the block failed.

    Args:
        options: what the connection is made by; equal ones share connections.
        open_connection: opens one.
    """
    connection = _take_idle(options) or open_connection(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    idle = _idle.setdefault(options, [])
    if not connection.closed and len(idle) < _IDLE_MAX:
        idle.append((time.monotonic(), connection))
    else:
        connection.close()


def _take_idle(options: Hashable) -> SocketConnection | None:
    """Return a kept connection that still answers, or None."""
    global _idle_of_process
    if _idle_of_process != os.getpid():
        # The parent of a forked worker goes on using these.
        _idle.clear()
        _idle_of_process = os.getpid()
    idle = _idle.get(options, [])
    while idle:
        since_s, connection = idle.pop()
        if time.monotonic() - since_s < _FRESH_S:
            return connection
        try:
            connection.flush()
            return connection
        except (JetlakeError, OSError):
            connection.close()
    return None
