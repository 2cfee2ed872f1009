"""The servers of a benchmark, ours and nats-server: each in a process of its own, with a store of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jetlake.testing.ports import free_port

__all__ = ["COMMANDS", "KINDS", "OURS", "PEER", "Running", "free_port", "server"]

BIN = Path(sys.executable).parent
PEER, OURS = KINDS = ("nats-server", "jetlake")
COMMANDS = {PEER: [str(BIN / "nats-server")], OURS: [str(BIN / "jetlake"), "serve"]}
START_S = 60
STOP_S = 15
"""A stop that takes longer ends in a kill: with 10,000 consumers on a stream nats-server's takes minutes."""


class Running(NamedTuple):
    """A server process: where it listens, and its id."""

    port: int
    http_port: int
    pid: int = 0

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@cache
def _compiled() -> str:
    """The folder with Python's compiled files, which an installed package has: the first server of a run writes it."""
    folder = tempfile.mkdtemp(prefix="jetlake-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def server(
    kind: str, sync_interval: str = "", *, kept: Path | None = None, more: str = "", jetstream: str = ""
) -> Iterator[Running]:
    """Run a server of that kind in a process of its own.

    Args:
        sync_interval: `always`, `2m` …; empty leaves the default, which is `always` for ours and `2m` for nats-server.
        kept: the store's folder, which stays; without it the store goes with the server.
        more: further lines of configuration.
        jetstream: further settings of its section.
    """
    folder = kept or Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    running = Running(free_port(), free_port())
    sync = f'sync_interval: "{sync_interval}"' if sync_interval else ""
    compiled = {"PYTHONPYCACHEPREFIX": _compiled(), "PYTHONDONTWRITEBYTECODE": ""}
    config = folder / "server.conf"
    config.write_text(
        f'listen: "127.0.0.1:{running.port}"\nhttp: "127.0.0.1:{running.http_port}"\n'
        f'jetstream {{ store_dir: "{folder}", max_file: 20GB, max_mem: 2GB, {sync}\n{jetstream} }}\n{more}\n'
    )
    command = [*COMMANDS[kind], "-c", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | compiled)
    try:
        deadline = time.monotonic() + START_S
        silent = [running.http_port, running.port]
        while silent:
            try:
                with socket.create_connection(("127.0.0.1", silent[0]), timeout=START_S) as probe:
                    # Ours listens before it has loaded everything; INFO says that it has.
                    if silent[0] == running.port and not probe.recv(1):
                        raise ConnectionError
                del silent[0]
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{kind} did not start") from None
                time.sleep(0.02)
        yield running._replace(pid=process.pid)
    finally:
        _stop(process)
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)
