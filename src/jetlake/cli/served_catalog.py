"""The catalog of a lake for its readers: who may log in, and the catalog on the monitoring port of `jetlake serve`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetlake.errors import ConfigError, JetlakeError

if TYPE_CHECKING:
    from jetlake.client import Client
    from jetlake.dashboard.sessions import Credentials
    from jetlake.lake.rest import Check
    from jetlake.server.shell.server import Server

__all__ = ["PATH", "ServedCatalog", "login_check"]

PATH = "/iceberg"
"""Where the monitoring port has the catalog."""


def login_check(connect: Callable[[Credentials], Awaitable[Client]]) -> Check:
    """Return the check of a name and a password by a connection as that user, with the limits of the dashboard.

    Args:
        connect: opens a connection as a user.
    """
    from jetlake.dashboard.sessions import Credentials, LoginLimit

    limit = LoginLimit(time.monotonic)

    async def check(user: str, password: str, peer: str) -> str:
        wait_s = limit.wait_s(peer)
        if wait_s > 0:
            return f"too many failed logins; try again in {wait_s:.0f} s"
        # Counted before it is known, so that many at once are no way around the limit.
        take_back = limit.attempt(peer)
        if not user or not password:
            return "a name and a password are needed"
        try:
            client = await connect(Credentials(user=user, password=password))
        except JetlakeError:
            return "no such user, or another password"
        take_back()
        await client.close()
        return ""

    return check


class ServedCatalog:
    """An application that answers below `PATH` by the catalog of a folder, and leaves other paths to another one.

    Args:
        folder: the folder above the archives; its catalog may be created later.

    Raises:
        ConfigError: pyiceberg is not installed.
    """

    def __init__(self, server: Server, folder: Path, others: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        if importlib.util.find_spec("pyiceberg") is None:
            raise ConfigError("--lake needs the package pyiceberg; install it with: pip install 'jetlake[iceberg]'")
        from jetlake.lake.catalogs import CATALOG_FILE

        self._server = server
        self._file = (folder / CATALOG_FILE).absolute()
        self._others = others
        self._app: Any = None
        self._has_users = False
        self._making = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        path: str = scope.get("path", "")
        if path != PATH and not path.startswith(f"{PATH}/"):
            await self._others(scope, receive, send)
            return
        has_users = self._server.settings.authenticator.required
        async with self._making:
            # A server that is reloaded may have got users.
            if self._app is None or self._has_users != has_users:
                self._app, self._has_users = await self._make(has_users=has_users), has_users
        await self._app({**scope, "path": path.removeprefix(PATH) or "/"}, receive, send)

    async def _make(self, *, has_users: bool) -> Any:
        # Others are served meanwhile: these imports take a second.
        await asyncio.to_thread(importlib.import_module, "jetlake.lake.rest")
        from jetlake.lake.catalogs import open_catalog
        from jetlake.lake.rest import build_catalog_app

        return build_catalog_app(
            lambda: open_catalog(self._file) if self._file.is_file() else None,
            login_check(self._connect) if has_users else None,
        )

    async def _connect(self, credentials: Credentials) -> Client:
        import jetlake

        return await jetlake.connect(self._server.url, name="jetlake catalog", **credentials.given())
