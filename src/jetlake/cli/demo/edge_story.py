"""The demonstration with a cluster: a shop at the edge, three nats-servers in the middle, and what arrives there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from jetlake.cli.demo.cluster import Cluster
from jetlake.cli.demo.orders import Fate, Order, with_duplicates
from jetlake.cli.demo.processes import ServerProcess
from jetlake.cli.demo.proof import Check
from jetlake.cli.demo.shop import STREAM, Shop
from jetlake.client import Client, JetStream, connect
from jetlake.errors import JetlakeError
from jetlake.model.stream import StreamInfo

__all__ = ["EdgeStory"]

_EDGE = "edge"
_COPY = "ALL_ORDERS"
_REPLICAS = 3
_ARRIVE_S = 120.0


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
