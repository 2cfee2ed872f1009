"""The dashboard on the monitoring port of `jetlake serve`: it samples from the start, and makes pages when asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetlake.cli.watched_accounts import WatchedAccounts
    from jetlake.client import Client
    from jetlake.dashboard.sessions import Credentials
    from jetlake.dashboard.watching.collector import Collector
    from jetlake.dashboard.watching.server_api import ServerApi
    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.server import Server

__all__ = ["pages"]

BEGIN_S = 3.0
"""So long after the start sampling begins: a server that just starts has other work."""
HISTORY, ACCOUNTS_HISTORY = "dashboard.history", "dashboard-accounts.history"
"""The files of the history, in the server's store directory: of what everybody sees, and of servers with users."""


def pages(server: Server) -> Pages:
    """Return an application that becomes the dashboard of this server with the first request."""
    served = _ServedDashboard(server)
    served.begin()
    return served


class _ServedDashboard:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: Any = None
        self._made_for = (False, True)
        self._collector: Collector | None = None
        self._making = asyncio.Lock()
        self._beginning: asyncio.Task[None] | None = None
        self._accounts: WatchedAccounts | None = None
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Sample without waiting for a page to be opened."""
        self._beginning = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        await asyncio.sleep(BEGIN_S)
        if self._server.monitoring is not None and self._server.jetstream_folder:
            async with self._making:
                await self._collect()
                if self._access()[0]:
                    await self._watch_accounts()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._making:
            if self._app is None or self._made_for != self._access():
                self._app = await self._make()
        await self._app(scope, receive, send)

    def _access(self) -> tuple[bool, bool]:
        """Tell whether the server has users, and whether it lets in clients without credentials, as of now."""
        authenticator = self._server.settings.authenticator
        return authenticator.required, authenticator.default is not None

    async def _make(self) -> Any:
        self._made_for = has_users, _ = self._access()
        collector = await self._collect()
        if has_users:
            await self._watch_accounts()
        await asyncio.to_thread(_import_pages)
        from jetlake.dashboard.app import build_app

        # Users log in with the names and passwords of the server. One that has no users is only shown: anyone who
        # reaches its pages need not reach its clients' port.
        return build_app(collector, connect=self._connect if has_users else None, watch=self._collector_of)

    async def _connect(self, credentials: Credentials) -> Client:
        """Return a connection as a user of this server."""
        import jetlake

        return await jetlake.connect(self._server.url, name="jetlake dashboard", **credentials.given())

    async def _collect(self) -> Collector | None:
        """Return a connection and a collector; None when the server asks for credentials."""
        if not self._access()[1]:
            return None
        if self._collector is not None:
            if not self._collector.api.client.is_closed:
                return self._collector
            await self._collector.stop()
            self._collector = None
        await asyncio.to_thread(_import_watching)  # others are served meanwhile
        import jetlake
        from jetlake.dashboard.watching.collector import Collector, HistoryFile
        from jetlake.dashboard.watching.server_api import ServerApi
        from jetlake.errors import JetlakeError

        try:
            # Without credentials: the page shows no more than a client without credentials could read.
            client = await jetlake.connect(self._server.url, name="jetlake dashboard")
        except JetlakeError:
            return None
        folder = self._server.jetstream_folder
        history = HistoryFile(Path(folder).parent / HISTORY) if folder else None
        collector = Collector(
            ServerApi(client),
            connections=self._connections,
            health=self._health,
            variables=self._variables,
            history=history,
        )
        await collector.start()
        self._collector = collector
        return collector

    async def _watch_accounts(self) -> None:
        """Watch the accounts for people who log in later."""
        if self._accounts is not None or not self._server.jetstream_folder:
            return
        await asyncio.to_thread(_import_watching)
        from jetlake.cli.watched_accounts import WatchedAccounts
        from jetlake.dashboard.watching.collector import HistoryFile

        file = HistoryFile(Path(self._server.jetstream_folder).parent / ACCOUNTS_HISTORY)
        self._accounts = WatchedAccounts(self._server, file)
        await self._accounts.sample()
        self._watching = asyncio.get_running_loop().create_task(self._accounts.run())

    def _collector_of(self, api: ServerApi) -> Collector:
        """Return the collector of a user who logs in, which continues the server's history of the account."""
        from jetlake.dashboard.watching.collector import Collector

        connection = self._server.connections.get(api.client.server_info.client_id)
        account = "" if connection is None else connection.session.account.name
        before = None if self._accounts is None else self._accounts.boards.get(account)
        return Collector(
            api, connections=self._connections, health=self._health, variables=self._variables, before=before
        )

    async def _connections(self) -> dict[str, Any] | None:
        from jetlake.server.shell.monitoring.connection_reports import connections_report
        from jetlake.server.shell.monitoring.query import Query

        return await self._server.engine_loop.carry_out(connections_report(self._server, Query("limit=1024")))

    async def _health(self) -> dict[str, Any] | None:
        from jetlake.server.shell.monitoring.jetstream_reports import health_report
        from jetlake.server.shell.monitoring.query import Query

        return (await self._server.engine_loop.carry_out(health_report(self._server, Query(""))))[1]

    async def _variables(self) -> dict[str, Any] | None:
        """Return what the pages show of `/varz`, without counting the messages of every connection."""
        from jetlake.server.shell.monitoring.jetstream_reports import jetstream_settings, jetstream_usage

        known: dict[str, Any] = {"slow_consumers": self._server.statistics.slow_consumers}
        if self._server.engine is not None:
            known["jetstream"] = {"config": jetstream_settings(self._server), "stats": jetstream_usage(self._server)}
        return known


def _import_watching() -> None:
    import jetlake.cli.watched_accounts
    import jetlake.client.connecting
    import jetlake.dashboard.watching.collector
    import jetlake.dashboard.watching.server_api
    import jetlake.server.shell.monitoring.connection_reports
    import jetlake.server.shell.monitoring.jetstream_reports  # noqa: F401


def _import_pages() -> None:
    import jetlake.client.jetstream
    import jetlake.dashboard.app  # noqa: F401
