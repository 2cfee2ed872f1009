"""The connection table: the open connections of a server, the latest that have ended, and their totals."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Protocol

from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.account_table import AccountTable
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.peer_connection import hang_up_all
from jetlake.server.shell.engine_loop import EngineLoop
from jetlake.server.shell.log import Log
from jetlake.server.shell.statistics import MessageTotals, ServerStatistics

__all__ = ["ConnectionObserver", "ConnectionTable"]

# Connections that have ended and are still shown on request.
_CLOSED_KEPT = 1000
# Sockets of refused clients that may linger.
_LINGERING_MAX = 32
# In lame duck mode connections end at least this often, however long the whole may take.
_PAUSE_MAX_S = 1.0
_CONNECTIONS_FULL = "maximum connections exceeded"


class ConnectionObserver(Protocol):
    """An observer of the clients that connect to and disconnect from a server."""

    def connected(self, connection: Connection) -> None:
        """Note a client that was authenticated."""
        ...

    def closed(self, connection: Connection) -> None:
        """Note a connection that has ended."""
        ...


class ConnectionTable:
    """The connections of a server, each numbered when it comes.

    Attributes:
        open: the connections by number.
        recent: the latest that have ended.
        observer: notified of clients that connect and disconnect; None without one.
    """

    def __init__(self, settings: Settings, log: Log, statistics: ServerStatistics, engine_loop: EngineLoop) -> None:
        self.open: dict[int, Connection] = {}
        self.recent: deque[Connection] = deque(maxlen=_CLOSED_KEPT)
        self.observer: ConnectionObserver | None = None
        self._settings = settings
        self._log = log
        self._statistics = statistics
        self._engine_loop = engine_loop
        self._sockets: set[Connection] = set()
        self._last_cid = 4  # as nats-server, whose own clients take the first numbers
        self._fitting: int | None = None

    # What connections call

    def admit(self, connection: Connection) -> str | None:
        """Number a new connection; the text of the error when there is no room for it."""
        self._statistics.total_connections += 1
        connection.peer.cid = self.take_number()
        self._sockets.add(connection)
        if 0 <= self._limit() <= len(self.open):
            self._log.error(f"{connection} - {_CONNECTIONS_FULL}")
            return _CONNECTIONS_FULL
        self.open[connection.peer.cid] = connection
        self._log.debug(f"{connection} - Client connection created")
        return None

    def take_number(self) -> int:
        """Return the number of the next connection, of whatever kind."""
        self._last_cid += 1
        return self._last_cid

    def limit_to(self, connections_max: int | None) -> None:
        """Admit at most this many connections, to leave the store the open files that it needs; None = any number."""
        self._fitting = connections_max
        if self._limit() != self._settings.options.max_connections:
            self._log.info(
                f"Limited to {self._limit():,} connections, to reserve open files for the store: "
                "raise the limit of open files (ulimit -n) to allow more"
            )

    def _limit(self) -> int:
        """Return the largest number of connections; negative = no limit."""
        limit, fitting = self._settings.options.max_connections, self._fitting
        return limit if fitting is None or 0 <= limit <= fitting else fitting

    @property
    def is_crowded(self) -> bool:
        """Whether too many sockets of refused clients are still open."""
        return len(self._sockets) > self._sockets_max()

    def has_room_beside(self, sockets: int) -> bool:
        """Return whether one more socket may become a client's, beside this many that are none yet."""
        return self._limit() < 0 or len(self._sockets) + sockets < self._sockets_max()

    def _sockets_max(self) -> int:
        """Return how many sockets there may be, sockets of refused clients included."""
        limit = self._limit()
        return limit + min(_LINGERING_MAX, max(limit // 4, 1))

    def closed(self, connection: Connection) -> None:
        """Move an ended connection to the recent ones; its counters continue in the totals."""
        if self.open.pop(connection.peer.cid, None) is None:
            return
        statistics, name = self._statistics, connection.session.account.name
        statistics.closed.add(connection)
        statistics.closed_by_account.setdefault(name, MessageTotals()).add(connection)
        self.recent.append(connection)
        if self.observer is not None:
            self.observer.closed(connection)
        self._engine_loop.schedule()

    def connected(self, connection: Connection) -> None:
        """Tell the observer of a client that was authenticated."""
        if self.observer is not None:
            self.observer.connected(connection)

    def disconnected(self, connection: Connection) -> None:
        """Forget the socket of a connection."""
        self._sockets.discard(connection)

    # What the server calls

    def apply_settings(self, accounts: AccountTable) -> None:
        """Let every connection take over the settings of a reload, and end the newest ones above the limit.

        Args:
            accounts: say how many connections each may have.
        """
        for connection in list(self.open.values()):
            connection.apply_settings()
        limit = self._limit()
        for connection in list(self.open.values())[limit:] if limit >= 0 else ():
            self._log.error(f"{connection} - {_CONNECTIONS_FULL}")
            connection.end(_CONNECTIONS_FULL, reason=_CONNECTIONS_FULL)
        numbers: Counter[str] = Counter()
        for connection in list(self.open.values()):
            if connection.session.identity is not None:
                name = connection.session.account.name
                numbers[name] += 1
                if 0 <= accounts.limits_of(name).max_connections < numbers[name]:
                    connection.handshake.refuse_surplus()

    async def close(self) -> None:
        """End all connections, and wait a moment for their last bytes to be taken."""
        for connection in list(self.open.values()):
            connection.end(reason="Server Shutdown")
        await hang_up_all(self._sockets)

    async def close_gradually(self, random: Random) -> None:
        """Tell clients that the server enters lame duck mode, and after the grace period end them one by one."""
        for connection in self.open.values():
            connection.handshake.send_info()
        if not self.open:
            return
        options = self._settings.options
        grace_s = options.lame_duck_grace_period_s
        await self._engine_loop.sleep(grace_s)
        leaving = list(self.open.values())
        pause_s = min((options.lame_duck_duration_s - grace_s) / max(len(leaving), 1), _PAUSE_MAX_S)
        for connection in leaving:
            connection.end(reason="Server Shutdown")
            # Not all at once and not in step: these clients reconnect to other servers.
            await self._engine_loop.sleep(pause_s * (0.5 + random.random() / 2))
