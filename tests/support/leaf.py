"""A hub and a leaf node that joins it, with a line between them that can be cut."""

import asyncio
import json
import urllib.request
from collections import Counter

from tests.support.clients import until
from tests.support.servers import make_server

HUB = """
server_name: hub
jetstream { store_dir: "STORE_DIR", domain: hub }
"""
# After failed attempts a leaf node pauses longer; a busy machine may make several of them fail.
JOIN_S = 60
LEAF = """
server_name: edge
jetstream { store_dir: "STORE_DIR", domain: edge }
"""


class Line:
    """A TCP proxy before the hub's port for leaf nodes.

    Args:
        target_port: where the hub listens.
    """

    def __init__(self, target_port):
        self._target_port = target_port
        self._server = None
        self._pairs = set()
        self._is_cut = False

    async def start(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    def cut(self):
        """Break what is connected, and let nothing be connected."""
        self._is_cut = True
        for task in tuple(self._pairs):
            task.cancel()

    def restore(self):
        self._is_cut = False

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._pairs.add(task)
        back = None
        try:
            if not self._is_cut:
                there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.discard(task)
            writer.transport.abort()
            if back is not None:
                back.transport.abort()

    @staticmethod
    async def _copy(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


async def report(server, path):
    """A report of a server's monitoring."""
    url = f"http://127.0.0.1:{server.monitor_port}/{path}"

    def get():
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())

    return await asyncio.to_thread(get)


async def leaf_port(server):
    return (await report(server, "varz"))["leaf"]["port"]


class RawLeaf:
    """A leaf node that the test plays, byte by byte."""

    async def connect(self, server, **fields):
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", await leaf_port(server))
        self.greeting = await self.read_info()
        self.send_connect(**fields)
        return self

    def send_connect(self, **fields):
        first = {"name": "raw", "cluster": "raw", "server_id": "NX", "version": "2.15.1", "headers": True}
        self.send(b"CONNECT " + json.dumps({**first, "user": "leaf", "pass": "leaf", **fields}).encode() + b"\r\n")

    async def read_info(self):
        line = await self.read_line(b"INFO ")
        return json.loads(line.removeprefix(b"INFO "))

    def send(self, data):
        self._writer.write(data)

    async def read_line(self, start):
        """The next line that begins so; those before it are remembered in `lines`."""
        self.lines = []
        async with asyncio.timeout(30):
            while line := await self._reader.readline():
                if line.startswith(start):
                    return line.strip()
                self.lines.append(line.strip())
        raise AssertionError(f"the server closed the connection: {self.lines}")

    async def joined(self):
        """Wait until the hub has told all that it wants, and has heard what was sent."""
        self.told = await self.read_info()
        self.send(b"PING\r\n")
        await self.read_line(b"PONG")
        return self

    async def read_to_end(self):
        async with asyncio.timeout(30):
            return await self._reader.read()

    def stop_reading(self):
        """Take nothing more from the socket."""
        self._writer.transport.pause_reading()

    def close(self):
        self._writer.close()


class Edge:
    """A hub and a leaf node, each of either kind, with a line between them.

    Args:
        kind: the leaf node's.
        hub_kind: the hub's.
        hub_config: more of the hub's configuration; `authorization` and the like of its port for leaf nodes as
            `hub_leaf`.
        leaf_config: more of the leaf node's, in place of its own JetStream if it has one.
        remote: more of the remote's, with its credentials as `user`.
    """

    def __init__(
        self,
        kind,
        *,
        hub_kind="nats-server",
        hub_config=HUB,
        hub_leaf="",
        leaf_config=LEAF,
        remote="",
        user="",
        process=False,
    ):
        self.hub_kind = hub_kind
        self._hub_config = hub_config
        self._hub_leaf = hub_leaf
        self._leaf_config = leaf_config
        self._remote = remote
        self._user = user
        self._process = process
        self.kind = kind
        self.hub = self.leaf = self.line = None

    async def start(self):
        self.hub = make_server(self.hub_kind, self._hub_of(-1))
        await self.hub.start()
        port = (await report(self.hub, "varz"))["leaf"]["port"]
        # After a restart it listens where it did.
        (self.hub.folder / "server.conf").write_text(
            self._hub_of(port).replace("STORE_DIR", str(self.hub.folder / "data"))
        )
        self.line = Line(port)
        await self.line.start()
        user = f"{self._user}@" if self._user else ""
        remote = f'url: "nats://{user}localhost:{self.line.port}", ignore_discovered_servers: true'
        leafnodes = f"leafnodes {{ reconnect: 0.1, remotes [ {{ {remote}, {self._remote} }} ] }}"
        if self.kind == "nats-server":
            leafnodes = leafnodes.replace("reconnect: 0.1", 'reconnect: "0.1s"')
        self.leaf = make_server(self.kind, self._leaf_config + leafnodes, process=self._process)
        await self.leaf.start()

    def _hub_of(self, port):
        return self._hub_config + f'leafnodes {{ listen: "127.0.0.1:{port}", {self._hub_leaf} }}'

    async def joined(self):
        """Wait until both know of each other."""
        for server in (self.hub, self.leaf):
            await until(lambda server=server: self._is_joined(server), JOIN_S)
        return self

    async def _is_joined(self, server):
        return (await report(server, "leafz"))["leafnodes"] == 1

    async def parted(self):
        """Wait until both know that the line is down."""

        for server in (self.hub, self.leaf):

            async def is_parted(server=server):
                return (await report(server, "leafz"))["leafnodes"] == 0

            await until(is_parted, JOIN_S)

    async def knows(self, server, *subjects):
        """Wait until the server knows of the other one's interest in the subjects, each as often as it stands here."""

        async def does():
            rows = (await report(server, "leafz?subs=1"))["leafs"]
            return Counter(rows[0].get("subscriptions_list", ()) if rows else ()) >= Counter(subjects)

        await until(does, JOIN_S)

    async def discard(self):
        for part in (self.leaf, self.hub):
            if part is not None:
                await part.discard()
        if self.line is not None:
            await self.line.stop()
