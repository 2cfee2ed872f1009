"""The dashboard on the monitoring port of `jetlake serve`, made when somebody first opens it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.server import Server

__all__ = ["pages"]


def pages(server: Server) -> Pages:
    """An application that becomes the dashboard of this server with the first request."""
    return _ServedDashboard(server)


class _ServedDashboard:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: Any = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._making:
            if self._app is None:
                self._app = await self._make()
        await self._app(scope, receive, send)

    async def _make(self) -> Any:
        """Starlette, a connection and a collector: none of it is paid for before it is needed."""
        import jetlake
        from jetlake.dashboard.app import build_app
        from jetlake.dashboard.collector import Collector
        from jetlake.errors import JetlakeError

        try:
            # As nobody in particular: the page shows no more than a client without credentials could read.
            client = await jetlake.connect(self._server.url, name="jetlake dashboard")
        except JetlakeError:
            return _explain
        collector = Collector(client, connections=self._connections, health=self._health)
        await collector.start()
        return build_app(collector)

    async def _connections(self) -> dict[str, Any] | None:
        from jetlake.server.shell.monitoring.query import Query
        from jetlake.server.shell.monitoring.reports import connections_report

        return connections_report(self._server, Query("limit=1024"))

    async def _health(self) -> dict[str, Any] | None:
        from jetlake.server.shell.monitoring.jetstream_reports import health_report
        from jetlake.server.shell.monitoring.query import Query

        return health_report(self._server, Query(""))[1]


async def _explain(_scope: Any, _receive: Any, send: Any) -> None:
    """The page for a server whose users the dashboard does not know."""
    text = b"This server asks for credentials. Start the dashboard as: jetlake --user NAME --password TEXT dashboard\n"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text})
