"""Three nats-server processes that form a JetStream cluster on loopback, and what can be done to them."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from jetlake.errors import JetlakeError
from jetlake.testing.ports import free_port
from tests.support.route_proxy import RouteProxy

BIN = Path(sys.executable).parent
READY_S = 90


def free_ports(count):
    """So many different ports that nobody uses."""
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


class Node:
    """One server of the cluster.

    Attributes:
        name: its name in the cluster.
        url: where clients connect.
        monitor_url: where monitoring answers.
        leaf_port: where leaf nodes connect, if the cluster has a domain.
    """

    def __init__(self, name, folder, ports, routes, domain):
        port, self._monitor_port, route_port, advertised_port, self.leaf_port = ports
        self.name = name
        self.url = f"nats://127.0.0.1:{port}"
        self.monitor_url = f"http://127.0.0.1:{self._monitor_port}"
        self.proxy = RouteProxy(name, advertised_port, route_port)
        self._folder = folder
        self._process = None
        folder.mkdir()
        self._config = folder / "server.conf"
        self._config.write_text(
            f"""
            server_name: {name}
            listen: "127.0.0.1:{port}"
            http: "127.0.0.1:{self._monitor_port}"
            jetstream {{ store_dir: "{folder}/data", max_mem: 1GB, max_file: 8GB{domain and f", domain: {domain}"} }}
            cluster {{
                name: C
                listen: "127.0.0.1:{route_port}"
                cluster_advertise: "127.0.0.1:{advertised_port}"
                pool_size: -1
                routes: [{", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)}]
            }}
            accounts {{ $SYS {{ users: [ {{ user: sys, password: sys }} ] }} }}
            {domain and f'leafnodes {{ listen: "127.0.0.1:{self.leaf_port}" }}'}
            """
        )

    @property
    def is_running(self):
        return self._process is not None

    @property
    def pid(self):
        """The process; only of a server that runs."""
        return self._process.pid

    @property
    def log(self):
        """What the server has logged so far."""
        path = self._folder / "log"
        return path.read_text() if path.exists() else ""

    def start(self):
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(BIN / "nats-server"), "-c", str(self._config)], stdout=log, stderr=log
            )

    async def kill(self):
        """End the process without a flush or a goodbye."""
        await self._end(signal.SIGKILL)

    async def stop(self):
        """Shut the server down cleanly."""
        await self._end(signal.SIGTERM)

    def pause(self):
        """Freeze the process: its sockets stay open and say nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    async def _end(self, number):
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(process.wait, 20)

    async def is_healthy(self):
        """Whether the server knows the meta leader, and its replicas are current."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._monitor_port)
        except OSError:
            return False
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 5)
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return b" 200 " in head.split(b"\r\n")[0] and json.loads(body or b"{}").get("status") == "ok"


class Cluster:
    """A JetStream cluster of three nats-servers in one temporary folder.

    Args:
        size: how many servers.
        has_proxies: routes go through proxies of this process, so that servers can be cut off.
        domain: the JetStream domain of a cluster that leaf nodes join; empty = none do.
    """

    def __init__(self, size=3, has_proxies=True, domain=""):
        self._folder = Path(tempfile.mkdtemp(prefix="jetlake-cluster-"))
        ports = free_ports(5 * size)
        if not has_proxies:
            ports[3 * size : 4 * size] = ports[2 * size : 3 * size]
        routes = ports[3 * size : 4 * size]
        self.nodes = [
            Node(f"n{number + 1}", self._folder / f"n{number + 1}", ports[number::size], routes, domain)
            for number in range(size)
        ]

    @property
    def urls(self):
        return [node.url for node in self.nodes]

    async def start(self):
        for node in self.nodes:
            await node.proxy.start()
            node.start()
        await self.ready()

    async def discard(self):
        """End all servers and remove their files."""
        for node in self.nodes:
            await node.kill()
            await node.proxy.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)

    async def ready(self):
        """Wait until every running server is healthy."""
        async with asyncio.timeout(READY_S):
            for node in self.nodes:
                while node.is_running and not await node.is_healthy():
                    await asyncio.sleep(0.05)

    async def leader_of(self, js, stream):
        """The node that leads the stream, as soon as there is one."""
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    info = await (await js.stream(stream)).info()
                except JetlakeError:
                    info = None
                if info is not None and info.cluster is not None and info.cluster.leader:
                    return self.node(info.cluster.leader)
                await asyncio.sleep(0.05)

    async def kill_leader(self, js, stream, down_s=0.0):
        """Kill the leader of a stream and start it again; the others go on meanwhile."""
        node = await self.leader_of(js, stream)
        await node.kill()
        await asyncio.sleep(down_s)
        node.start()
        await self.ready()
        return node

    async def step_down(self, js, stream):
        """Let the leader of a stream hand over."""
        node = await self.leader_of(js, stream)
        await js.api.connection.request_raw(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}".encode(), b"", b"", 10.0)
        return node

    def cut_off(self, node):
        """Cut all routes of a server; its clients stay connected to it."""
        for other in self.nodes:
            other.proxy.cut_off(node.name)

    def restore(self, node):
        for other in self.nodes:
            other.proxy.restore(node.name)

    async def restart_one_by_one(self):
        """Restart all servers, the next one as soon as the cluster is healthy again."""
        for node in self.nodes:
            await node.stop()
            node.start()
            await self.ready()
