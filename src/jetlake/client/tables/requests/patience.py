"""Actions on connections that may break: tried again on another one, for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.options.read_options import Link
from jetlake.errors import AuthorizationError, ClientConnectionError, RequestTimeoutError

__all__ = ["BROKEN", "Patience", "retrying"]

T = TypeVar("T")

BROKEN = (ClientConnectionError, RequestTimeoutError, OSError)
"""What a connection raises when it breaks; another attempt may succeed."""

_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0


class Patience:
    """Pauses between attempts, longer and longer, until the time since the last success is over."""

    def __init__(self, link: Link) -> None:
        self._limit_s = link.retry_for_s
        self.succeeded()

    def succeeded(self) -> None:
        """Begin anew."""
        self._deadline_s = time.monotonic() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def pause(self, error: Exception) -> None:
        """Wait before the next attempt, or raise the error when there is none left."""
        if isinstance(error, AuthorizationError) or time.monotonic() + self._pause_s > self._deadline_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def retrying(link: Link, action: Callable[[SocketConnection], T]) -> T:
    """Run the action on a connection; on another one when it breaks, as long as the link allows.

    Raises:
        AuthorizationError: at once, for trying again does not help.
        ClientConnectionError, RequestTimeoutError: the server was away for too long.
    """
    patience = Patience(link)
    while True:
        try:
            with link.lease() as connection:
                return action(connection)
        except BROKEN as error:
            patience.pause(error)
