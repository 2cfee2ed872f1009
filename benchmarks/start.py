"""How much processor time do the server's start and the client's import take?

    python benchmarks/start.py [--quick] [--json FILE]

The yardstick is an interpreter that has loaded asyncio and nothing else, which every Python server on asyncio must do.
Each process is started anew, with an empty store; its processor time is read from outside when the port takes a
connection, and again when INFO has come. The client's import is compared with that of nats-py.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from _harness import Medians, Report, cpu_s, parse_arguments
from _servers import COMMANDS, OURS, PEER, free_port

QUESTION = "How much processor time do the server's start and the client's import take?"

SERVERS = {PEER: [*COMMANDS[PEER], "-js"], OURS: COMMANDS[OURS]}
BARE = "Python with asyncio"
CASES = {"until the port listens": "start-listens", "until INFO has come": "start-info"}
CLIENTS = {"nats-py": "nats", OURS: "jetlake"}


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    rounds = 5 if arguments.quick else 15
    with tempfile.TemporaryDirectory() as folder:
        # Modules are loaded as an installed package has them: compiled.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        _start(SERVERS[OURS], environment)
        found: dict[str, dict[str, list[float]]] = {case: {BARE: [], PEER: [], OURS: []} for case in CASES}
        imports: dict[str, list[float]] = {name: [] for name in CLIENTS}
        for module in CLIENTS.values():
            _load(module, environment)
        for _ in range(rounds):
            for name, module in CLIENTS.items():
                imports[name].append(_load(module, environment) * 1000)
            bare_s = _load("asyncio", environment)
            taken_s = {BARE: (bare_s, bare_s), **{name: _start(SERVERS[name], environment) for name in SERVERS}}
            for name, seconds in taken_s.items():
                for case, used_s in zip(CASES, seconds, strict=True):
                    found[case][name].append(used_s * 1000)
    for case, name in CASES.items():
        medians = Medians(found[case])
        ratio = report.compare(name, medians[OURS], medians[BARE], lower_is_better=True)
        report.add(f"{case}, CPU ms", {**medians, f"{BARE} / {OURS}": ratio, "spread %": medians.spread})
    clients = Medians(imports)
    ratio = report.compare("start-import", clients[OURS], clients["nats-py"], lower_is_better=True)
    report.add("import of the client, CPU ms", {**clients, "ratio": ratio, "spread %": clients.spread})
    report.finish()


def _load(module: str, environment: dict[str, str]) -> float:
    """The processor time of an interpreter that has loaded a module, in seconds."""
    program = f"import sys, time, {module}; print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = cpu_s(process.pid)
        process.kill()
    return used_s


def _start(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Start a server; its processor time when the port listens, and when INFO has come."""
    port = free_port()
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
        listening_s = cpu_s(process.pid)
        with client:
            assert client.recv(4).startswith(b"I")
            return listening_s, cpu_s(process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    main()
