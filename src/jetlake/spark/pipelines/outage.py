"""Notices that the server is away while a pipeline waits for it, so that the pipeline can say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.errors import JetlakeError
from jetlake.spark.options.connection_options import ConnectionOptions, open_connection

__all__ = ["OutageWatch"]

_LOOK_EVERY_S = 2.0
_PATIENCE_S = 1.0


class OutageWatch:
    """Asks the server now and then whether it is there, over a connection of its own."""

    def __init__(
        self,
        options: ConnectionOptions,
        now_s: Callable[[], float] = time.monotonic,
        connect: Callable[[ConnectionOptions], SocketConnection] = open_connection,
    ) -> None:
        self._options = replace(options, connect_timeout_s=_PATIENCE_S, request_timeout_s=_PATIENCE_S)
        self._now_s = now_s
        self._connect = connect
        self._connection: SocketConnection | None = None
        self._next_look_s = now_s()
        self._answered_s = now_s()
        self._is_away = False

    def away_s(self) -> float | None:
        """For how long the server has not answered; None while it does."""
        now_s = self._now_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._is_away = not self._answers()
        if not self._is_away:
            self._answered_s = now_s
            return None
        return now_s - self._answered_s

    def _answers(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._connect(self._options)
            self._connection.flush()
        except (JetlakeError, OSError):
            self.close()
            return False
        return True

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
