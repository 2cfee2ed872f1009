"""The server as monitoring reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.server_info import ServerInfo
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.shell.statistics import ServerStatistics

if TYPE_CHECKING:  # Loaded by servers that need them.
    from jetlake.server.jwt.operators import Operators
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes
    from jetlake.server.shell.monitoring.http import Monitoring
    from jetlake.server.shell.websocket.listener import WebSocketListener

__all__ = ["ServerView"]


class ServerView(Protocol):
    """The server as reports and the requests of the system account see it."""

    clock: Clock
    info: ServerInfo
    settings: Settings
    statistics: ServerStatistics
    engine_loop: EngineLoop
    wants_jetstream: bool
    jetstream_folder: str
    running: bool

    @property
    def accounts(self) -> Mapping[str, Account]:
        """The accounts by name."""
        ...

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The open connections by number."""
        ...

    @property
    def closed_connections(self) -> Iterable[Connection]:
        """The latest connections that have ended."""
        ...

    @property
    def defects(self) -> int:
        """The number of internal errors."""
        ...

    @property
    def websocket(self) -> WebSocketListener | None:
        """The WebSocket listener; None where there is none."""
        ...

    @property
    def leafnodes(self) -> LeafNodes | None:
        """The leaf connections; None where no hub is joined, and no leaf node accepted."""
        ...

    @property
    def leafnodes_port(self) -> int | None:
        """The port for leaf nodes; None without a listener."""
        ...

    @property
    def operators(self) -> Operators | None:
        """The trusted operators with their accounts; None where the configuration has the accounts."""
        ...

    @property
    def monitoring(self) -> Monitoring | None:
        """The HTTP server of monitoring; None where there is none."""
        ...

    def reload_configuration(self) -> list[str]:
        """Read the configuration again and take over what has changed; return the names.

        Raises:
            JetlakeError: there is no file to read, or its changes cannot be taken over.
        """
        ...
