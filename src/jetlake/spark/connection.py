"""Connections of one process: opened when needed, kept for the next task, given up when they do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jetlake.spark.options import ConnectionOptions
from jetlake.spark.socket_shim import SocketConnection

__all__ = ["leased", "retrying"]

T = TypeVar("T")

IDLE_MAX = 4
_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0

_idle: dict[ConnectionOptions, list[SocketConnection]] = {}


def open_connection(options: ConnectionOptions) -> SocketConnection:
    host, _, port = options.servers[0].split("://")[-1].partition(":")
    auth = {}
    if options.user:
        auth = {"user": options.user, "pass": options.password}
    if options.token:
        auth = {"auth_token": options.token}
    return SocketConnection.connect(host, int(port or 4222), auth, options.connect_timeout_s)


@contextmanager
def leased(options: ConnectionOptions) -> Iterator[SocketConnection]:
    """A connection for as long as the block runs; it goes back to the pool unless the block failed."""
    idle = _idle.setdefault(options, [])
    connection = idle.pop() if idle else open_connection(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    if not connection.closed and len(idle) < IDLE_MAX:
        idle.append(connection)
    else:
        connection.close()


def retrying(options: ConnectionOptions, action: Callable[[SocketConnection], T]) -> T:
    """Run the action on a connection, again on a new one when the connection breaks, as long as the options allow."""
    deadline = time.monotonic() + options.retry_for_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            with leased(options) as connection:
                return action(connection)
        except (ConnectionError, TimeoutError):
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
