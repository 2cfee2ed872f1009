"""The server as monitoring reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.server_info import ServerInfo
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.shell.statistics import ServerStatistics

if TYPE_CHECKING:  # Loaded by servers that join a hub.
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes

__all__ = ["MonitoringView", "ServerView", "WebSocketView"]


class MonitoringView(Protocol):
    """Monitoring's own address, and how often each path was requested."""

    host: str
    port: int
    requests: Counter[str]


class WebSocketView(Protocol):
    """The settings of the WebSocket listener."""

    settings: Settings


class ServerView(Protocol):
    """What reports are made of; reports only read it."""

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
    def websocket(self) -> WebSocketView | None:
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
    def monitoring(self) -> MonitoringView | None:
        """The HTTP server of monitoring; None where there is none."""
        ...
