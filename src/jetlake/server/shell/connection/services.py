"""What a server gives each of its connections."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from jetlake.server.engine.core.clock import Clock
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.account_table import AccountTable
from jetlake.server.shell.connection.server_info import ServerInfo
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.shell.log import Log
from jetlake.server.shell.statistics import ServerStatistics

__all__ = ["ConnectionServices"]


class ConnectionServices(Struct, frozen=True, kw_only=True):
    """The services that all connections of a server share; a connection gives each of its parts those it uses."""

    settings: Settings
    clock: Clock
    log: Log
    engine_loop: EngineLoop
    accounts: AccountTable
    info: ServerInfo
    statistics: ServerStatistics
    report_defect: Callable[[str, Exception], None]
    """Takes an internal error, with the place where it was raised."""
