"""Leaf connections over transports that only remember, to a hub that the test plays."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from jetlake.server.config.leaf_options import LeafRemote, parse_leaf_url
from jetlake.server.shell.access.tls import client_context
from jetlake.server.shell.leaf.announcements import Announcements
from jetlake.server.shell.leaf.dialled import DialledConnection
from jetlake.server.shell.leaf.link import LeafLink
from tests.support.shell import Transport

INFO = {"server_id": "N", "server_name": "hub", "client_id": 7, "headers": True, "leafnode_urls": ["h:1"]}


class Hub:
    """The hub's end of a leaf connection."""

    def __init__(self, server, *, domain="edge", **remote):
        services = server._services
        self.account = server.accounts["$G"]
        self.infos = []
        self.announcements = Announcements(self.account, b"$SYS.")
        options = LeafRemote(urls=(parse_leaf_url("hub"),), **remote)
        self.reports = []
        self.link = LeafLink(
            is_hub=False,
            domain=domain,
            report=self.reports.append,
            deny_imports=options.deny_imports,
            deny_exports=options.deny_exports,
        )
        self.link.join(self.account, self.announcements)
        table = SimpleNamespace(take_number=lambda: 9)
        dialer = SimpleNamespace(
            nodes=SimpleNamespace(services=services, table=table, sockets=set()),
            first_info_timeout_s=1.0,
            tls_timeout_s=2.0,
            tls_for=lambda _url: (client_context(options.tls), "hub"),
            wants_tls=lambda _url: False,
            encode_connect=lambda _url, info: b'{"to":"%b"}' % info.server_name.encode(),
            accepted=self.infos.append,
        )
        self.sockets = dialer.nodes.sockets
        self.connection = DialledConnection(dialer, options.urls[0], self.link)
        self.transport = Transport(("10.0.0.1", 7422))
        self.connection.connection_made(self.transport)

    def send(self, data):
        self.connection.data_received(data)

    def send_info(self, **fields):
        self.send(b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n")

    async def take(self):
        """What was written since the last call, after the loop has had its turn."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data

    async def join(self, **fields):
        """Play the handshake."""
        self.send_info(info_on_connect=True, **fields)
        assert await self.take() == b'CONNECT {"to":"hub"}\r\n'
        self.send_info(connect_info=True, **fields)
        await self.take()
        return self


@pytest.fixture
def hub(make_server):
    """A function that connects a server to a hub: `hub(deny_exports=…)`."""

    def connect(domain="edge", server=None, **remote):
        server = server or make_server()
        return Hub(server, domain=domain, **remote)

    return connect
