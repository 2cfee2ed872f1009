"""The leaf connections of a server: a dialer for each hub that the options name, and the listener for leaf nodes."""

from __future__ import annotations

import asyncio
import socket
from random import Random

from jetlake.server.config.leaf_options import LeafOptions
from jetlake.server.shell.access.tls import client_context
from jetlake.server.shell.connection.peer_connection import hang_up_all
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection_table import ConnectionTable
from jetlake.server.shell.leaf.announcements import LeafAccounts
from jetlake.server.shell.leaf.connection import LeafConnection
from jetlake.server.shell.leaf.dialer import Dialer
from jetlake.server.shell.leaf.listener import LeafListener
from jetlake.server.shell.leaf.login import check_secrets

__all__ = ["LeafNodes"]


class LeafNodes:
    """All hubs that a server joins, and all leaf nodes that join it.

    Args:
        domain: this server's JetStream domain; empty = none.
        table: numbers all connections of the server, and knows whether it has room for one more socket.

    Attributes:
        listener: accepts leaf nodes; None = leaf nodes are not accepted.
        sockets: the connections whose sockets are open, ended ones that linger among them.

    Raises:
        ConfigError: credentials or certificates cannot be used.
    """

    def __init__(
        self,
        services: ConnectionServices,
        options: LeafOptions,
        domain: str,
        random: Random,
        table: ConnectionTable,
    ) -> None:
        self.services = services
        self.domain = domain
        self.reconnect_s = options.reconnect_s
        self.random = random
        self.table = table
        self.sockets: set[LeafConnection] = set()
        self._loop = services.engine_loop.loop
        self._tasks: list[asyncio.Task[None]] = []
        self._dialers: list[Dialer] = []
        leaf_accounts = LeafAccounts(services.settings.options.system_account)
        for remote in options.remotes:
            check_secrets(remote)
            if remote.tls is not None:
                client_context(remote.tls)
            account = services.accounts.get_or_create(remote.account)
            self._dialers.append(Dialer(self, remote, account, leaf_accounts.of(account)))
        self.listener: LeafListener | None = None
        if options.listen is not None:
            self.listener = LeafListener(self, options.listen, leaf_accounts)

    async def start(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept leaf nodes, and dial all hubs.

        Args:
            sockets: listen for leaf nodes already; None = there are none yet.

        Raises:
            ConfigError: the address for leaf nodes cannot be listened on.
        """
        if self.listener is not None:
            await self.listener.start(sockets)
        self._tasks = [self._loop.create_task(dialer.run()) for dialer in self._dialers]

    def retire(self) -> None:
        """Accept no more leaf nodes; connections stay."""
        if self.listener is not None:
            self.listener.close()

    def apply_settings(self) -> None:
        """Take over the settings of a reload."""
        if self.listener is not None:
            self.listener.apply_settings()

    async def stop(self) -> None:
        """End all connections, dial no more and accept no more; wait a moment for the last bytes to be taken."""
        if self.listener is not None:
            self.listener.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await hang_up_all(self.sockets)

    def open(self) -> list[LeafConnection]:
        """List the connections that carry a link."""
        found: list[LeafConnection] = [
            dialer.connection for dialer in self._dialers if dialer.connection is not None and dialer.connection.is_open
        ]
        if self.listener is not None:
            found += self.listener.connections.open()
        return found
