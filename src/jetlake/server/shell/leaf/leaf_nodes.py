"""The leaf connections of a server: one dialer for each hub that the options name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from jetlake.server.config.leaf_options import LeafOptions
from jetlake.server.shell.access.tls import client_context
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.leaf.announcements import Announcements
from jetlake.server.shell.leaf.connection import LeafConnection
from jetlake.server.shell.leaf.dialer import Dialer
from jetlake.server.shell.leaf.login import check_secrets

__all__ = ["LeafNodes"]


class LeafNodes:
    """All hubs that a server joins.

    Args:
        take_number: returns the number of a new connection.

    Raises:
        ConfigError: credentials or certificates of a remote cannot be used.
    """

    def __init__(
        self,
        services: ConnectionServices,
        options: LeafOptions,
        domain: str,
        random: Random,
        take_number: Callable[[], int],
    ) -> None:
        self._loop = services.engine_loop.loop
        self._tasks: list[asyncio.Task[None]] = []
        self._dialers: list[Dialer] = []
        system_account = services.settings.options.system_account
        announcements: dict[str, Announcements] = {}
        for remote in options.remotes:
            check_secrets(remote)
            if remote.tls is not None:
                client_context(remote.tls)
            account = services.accounts.get_or_create(remote.account)
            if account.name not in announcements:
                # Every server answers for itself on these; only the system account of a hub asks all.
                skipped = b"" if account.name == system_account else b"$SYS."
                announcements[account.name] = Announcements(account, skipped)
            self._dialers.append(
                Dialer(
                    services,
                    remote,
                    account,
                    announcements[account.name],
                    domain=domain,
                    reconnect_s=options.reconnect_s,
                    random=random,
                    take_number=take_number,
                )
            )

    def start(self) -> None:
        """Dial all hubs."""
        self._tasks = [self._loop.create_task(dialer.run()) for dialer in self._dialers]

    async def stop(self) -> None:
        """End all connections, and dial no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self) -> list[LeafConnection]:
        """List the connections that hubs have accepted."""
        found = [dialer.connection for dialer in self._dialers]
        return [connection for connection in found if connection is not None and connection.is_open]
