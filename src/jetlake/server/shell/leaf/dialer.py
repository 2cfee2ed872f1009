"""A dialer: keeps one connection to a hub, and dials the next address when it is gone."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from ssl import SSLContext
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError
from jetlake.server.config.leaf_options import LeafRemote, LeafUrl, parse_leaf_url
from jetlake.server.engine.routing.account import Account
from jetlake.server.shell.access.tls import client_context
from jetlake.server.shell.leaf.announcements import Announcements
from jetlake.server.shell.leaf.dialled import DialledConnection
from jetlake.server.shell.leaf.hub_info import HubInfo
from jetlake.server.shell.leaf.link import LeafLink
from jetlake.server.shell.leaf.login import encode_connect

if TYPE_CHECKING:
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes

__all__ = ["Dialer"]

# A hub's addresses that are remembered beside the configured ones.
_DISCOVERED_MAX = 64
# The longest pause between two attempts; it doubles from the configured one on, with each round over the addresses.
_PAUSE_MAX_S = 30.0
_DOUBLINGS_MAX = 16
# How long the TLS handshake may take that only the hub or the URL asks for.
_TLS_TIMEOUT_S = 2.0
# The pause after errors that only people can repair.
_LONG_PAUSE_S = 30.0
_LASTING = ("loop detected", "same cluster name")


class Dialer:
    """The connection of one remote, from the first dial to the server's stop.

    Args:
        nodes: the leaf connections of the server; its randomness spreads the attempts, and shuffles the addresses.
        remote: the hub.
        account: the account that is shared with the hub.
        announcements: the account's interest.

    Attributes:
        connection: the latest connection; None before the first.
    """

    def __init__(self, nodes: LeafNodes, remote: LeafRemote, account: Account, announcements: Announcements) -> None:
        self.remote = remote
        self.account = account
        self.connection: DialledConnection | None = None
        self.nodes = nodes
        self._announcements = announcements
        self.tls_timeout_s = remote.tls.timeout_s if remote.tls is not None else _TLS_TIMEOUT_S
        self._is_tls_first = remote.tls is not None and remote.tls.handshake_first
        self._dial_timeout_s = remote.dial_timeout_s + (self.tls_timeout_s if self._is_tls_first else 0)
        self.first_info_timeout_s = self._dial_timeout_s + remote.first_info_timeout_s
        self._name = nodes.services.settings.options.server_name or nodes.services.info.id
        self._discovered: tuple[LeafUrl, ...] = ()
        self._next = 0
        self._failures = 0
        self._urls = list(remote.urls)
        if not remote.no_randomize:
            nodes.random.shuffle(self._urls)

    async def run(self) -> None:
        """Connect, and connect again whenever the connection has ended, until cancelled."""
        try:
            while True:
                try:
                    reason = await self._connect(self._next_url())
                except Exception as error:
                    self.nodes.services.report_defect("a leaf connection", error)
                    reason = "Internal Error"
                # sometimes: a hub is dialled again
                await self.nodes.services.engine_loop.sleep(self._pause_s(reason))
        finally:
            if self.connection is not None:
                self.connection.end(reason="Server Shutdown")

    def _next_url(self) -> LeafUrl:
        known = [*self._urls, *self._discovered]
        url = known[self._next % len(known)]
        self._next = (self._next + 1) % len(known)
        return url

    async def _connect(self, url: LeafUrl) -> str:
        """Connect to one address, and return why the connection failed or ended."""
        services, remote = self.nodes.services, self.remote
        loop = services.engine_loop.loop
        link = LeafLink(
            is_hub=False,
            domain=self.nodes.domain,
            report=services.log.warn,
            deny_imports=remote.deny_imports,
            deny_exports=remote.deny_exports,
        )
        link.join(self.account, self._announcements)
        tls_first = self._is_tls_first
        connection = DialledConnection(self, url, link)
        self.connection = connection
        try:
            async with asyncio.timeout(self._dial_timeout_s):
                context = await loop.run_in_executor(None, client_context, remote.tls) if tls_first else None
                name = self._certificate_name(url) if tls_first else None
                await loop.create_connection(lambda: connection, url.host, url.port, ssl=context, server_hostname=name)
        except (OSError, ConfigError) as error:
            reason = "timeout" if isinstance(error, TimeoutError) else str(error)
            connection.drop(reason)
            if not self._failures:
                services.log.error(f"Error trying to connect as leafnode to remote server {url}: {reason}")
            self._failures += 1
            return reason
        await connection.ended
        self._failures = 0 if connection.was_open else self._failures + 1
        return connection.reason

    def _pause_s(self, reason: str) -> float:
        """Return how long to wait before the next attempt: longer with each that failed, and never in step."""
        if any(words in reason.lower() for words in _LASTING):
            return _LONG_PAUSE_S
        rounds = min(self._failures // len(self._urls), _DOUBLINGS_MAX)
        pause_s = min(self.nodes.reconnect_s * float(1 << rounds), _PAUSE_MAX_S)
        return pause_s * (1 + self.nodes.random.random()) if self._failures else pause_s

    # What a connection asks

    def wants_tls(self, url: LeafUrl) -> bool:
        """Return whether TLS is used at an address, whether the hub asks for it or not."""
        return url.is_tls or self.remote.tls is not None

    def tls_for(self, url: LeafUrl) -> tuple[SSLContext, str]:
        """Return the context for an address, and the name that the hub's certificate must have; in another thread."""
        return client_context(self.remote.tls), self._certificate_name(url)

    def encode_connect(self, url: LeafUrl, info: HubInfo) -> bytes:
        """Return the CONNECT that answers the hub's first INFO."""
        services = self.nodes.services
        return encode_connect(
            self.remote,
            url,
            info,
            server_id=services.info.id,
            name=self._name,
            domain=self.nodes.domain,
            has_jetstream=services.engine_loop.engine is not None,
            headers=not services.settings.options.no_header_support,
        )

    def _certificate_name(self, url: LeafUrl) -> str:
        """Return the name that the hub's certificate must have; a discovered address may have an IP only."""
        if url in self._discovered and _is_number(url.host):
            return next((known.host for known in self._urls if not _is_number(known.host)), url.host)
        return url.host

    def accepted(self, info: HubInfo) -> None:
        """React to an INFO of a hub that has accepted the connection."""
        if self.nodes.domain and self.nodes.domain == info.domain:
            self.nodes.services.log.warn(
                f'the hub has the same JetStream domain "{info.domain}": streams cannot be reached over the leaf link'
            )
        self._discover(info)

    def _discover(self, info: HubInfo) -> None:
        """Remember the addresses in the hub's INFO, with the credentials of the configured ones."""
        if self.remote.ignore_discovered_servers:
            return
        first = self._urls[0]
        known = {str(url) for url in self._urls}
        found = []
        for text in info.leafnode_urls[:_DISCOVERED_MAX]:
            try:
                url = parse_leaf_url(text)
            except ConfigError:
                continue
            if str(url) not in known:
                found.append(
                    LeafUrl(host=url.host, port=url.port, is_tls=first.is_tls, user=first.user, password=first.password)
                )
        self._discovered = tuple(found)


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
