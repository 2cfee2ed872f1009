"""How much processor time does the server take until its port listens, and until a client has its INFO?

    python benchmarks/start.py [--quick] [--json FILE]

The yardstick is an interpreter that has loaded asyncio and nothing else, which every Python server on asyncio must do.
Each process is started anew, with an empty store; its processor time is read from outside when the port takes a
connection, and again when INFO has come.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import Report, parse_arguments, spread

QUESTION = "How much processor time does the server take until its port listens, and until a client has its INFO?"

BIN = Path(sys.executable).parent
SERVERS = {"jetlake": [str(BIN / "jetlake"), "serve"], "nats-server": [str(BIN / "nats-server"), "-js"]}
ASYNCIO = "import asyncio, sys, time; print('ready', flush=True); time.sleep(60)"


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    rounds = 5 if arguments.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        # Modules are loaded as an installed package has them: compiled.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        _start(SERVERS["jetlake"], environment)
        bare: list[float] = []
        listens: dict[str, list[float]] = {name: [] for name in SERVERS}
        informs: dict[str, list[float]] = {name: [] for name in SERVERS}
        for _ in range(rounds):
            bare.append(_load_asyncio(environment))
            for name, command in SERVERS.items():
                listening_s, informed_s = _start(command, environment)
                listens[name].append(listening_s)
                informs[name].append(informed_s)
    bare_s = statistics.median(bare)
    report.add("python with asyncio", {"cpu ms": round(bare_s * 1000, 1)})
    for name in SERVERS:
        listening_s, informed_s = statistics.median(listens[name]), statistics.median(informs[name])
        report.add(
            name,
            {
                "cpu ms until it listens": round(listening_s * 1000, 1),
                "until INFO": round(informed_s * 1000, 1),
                "spread %": spread(informs[name]),
            },
        )
        if name == "jetlake":
            report.compare("start-listens", listening_s, bare_s, lower_is_better=True)
            report.compare("start-info", informed_s, bare_s, lower_is_better=True)
    report.finish()


def _load_asyncio(environment: dict[str, str]) -> float:
    with subprocess.Popen([sys.executable, "-c", ASYNCIO], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = _cpu_s(process.pid)
        process.kill()
    return used_s


def _start(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Start a server; its processor time when the port listens, and when INFO has come."""
    port = _free_port()
    store = tempfile.mkdtemp()
    arguments = [*command, "-a", "127.0.0.1", "-p", str(port), "-sd", store]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env=environment)
    try:
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=10)
                break
            except ConnectionRefusedError:
                time.sleep(0.0005)
        listening_s = _cpu_s(process.pid)
        with client:
            assert client.recv(4).startswith(b"I")
            return listening_s, _cpu_s(process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(store, ignore_errors=True)


def _free_port() -> int:
    """Find a port that the system gives to no client, which could otherwise meet itself on it."""
    while True:
        port = random.randrange(15_000, 30_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def _cpu_s(pid: int) -> float:
    """Read the processor time that a process has had."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


if __name__ == "__main__":
    main()
