"""How many messages a second does a server take and deliver on one core, and on all of them?

    python benchmarks/cores.py [--quick] [--json FILE] [--load PROCESSES]

nats-server and ours are started on the first core alone, then on all cores but those of the load. The load, processes
that publish to a stream of their own or read it with a consumer of their own, has the other half of the cores where
there are four or more, and one core where there are two or three: with two the servers share it, and with one all. The
same raw clients as in `publish.py` and `deliver.py` are the load, and a rate is that of all of them together.

One event loop serves a server of ours: more cores help it with its syncs, and otherwise one is what it has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from _harness import Report, Sample, cpu_s, parse_arguments
from _servers import KINDS, Running, server
from deliver import Client
from publish import Publisher

QUESTION = "How many messages a second does a server take and deliver on one core, and on all of them?"
SYNC_INTERVAL = "2m"
ROUNDS = 3
MESSAGES = 800_000
"""Messages of each process of the load."""


def share(cores: list[int]) -> tuple[dict[str, list[int]], list[int]]:
    """Return the cores of the servers in each case, and those of the load."""
    load = cores[-1:] if len(cores) < 4 else cores[len(cores) // 2 :]
    most = cores if len(cores) < 3 else [core for core in cores if core not in load]
    return {"1 core": cores[:1], f"{len(most)} cores": most}, load


@contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """Let processes that are started in the block run on these cores, where the system can bind them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Load:
    """Processes that wait until all are ready, and then publish or read."""

    def __init__(self, what: str, port: int, count: int, cores: list[int], processes: int) -> None:
        self._count = count
        with on_cores(cores):
            self._processes = [
                subprocess.Popen(
                    [sys.executable, __file__, "--work", f"{what} {port} {number} {count}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for number in range(processes)
            ]
        self._wait()

    def _wait(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("a process of the load failed")

    def run(self, pid: int) -> Sample:
        """Let all begin, and return their messages a second together."""
        used_s, started = cpu_s(pid), time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        self._wait()
        seconds, total = time.perf_counter() - started, self._count * len(self._processes)
        return Sample(total / seconds, (cpu_s(pid) - used_s) / total * 1e6)

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.communicate()


def work(task: str) -> None:
    """Be one process of the load: prepare, say so, and then do the same as often as it is asked for."""
    what, *numbers = task.split()
    port, number, count = map(int, numbers)
    if what == "publish":
        publisher = Publisher(port, stream=f"P{number}")
        publisher.create_stream()
        run = publisher.publish
    else:
        client, stream = Client(port), f"D{number}"
        client.fill(stream, "file", count)
        turn = iter(range(10**9))

        def run(count: int) -> float:
            name = f"c{next(turn)}"
            client.consumer(stream, name, ack_policy="none")
            return client.consume(stream, name, count)

    print("ready", flush=True)
    for _ in sys.stdin:
        run(count)
        print("done", flush=True)


def measure(case: str, running: Running, count: int, cores: list[int], processes: int) -> list[Sample]:
    """Measure what the load reaches together in each round, after one that warms up."""
    load = Load(case, running.port, count, cores, processes)
    load.run(running.pid)
    samples = [load.run(running.pid) for _ in range(ROUNDS)]
    load.end()
    return samples


def main() -> None:
    arguments = parse_arguments(
        QUESTION,
        ("--load", {"type": int, "help": "how many processes publish or read instead of one on each of their cores"}),
        ("--work", {"help": argparse.SUPPRESS}),
    )
    if arguments.work:
        work(arguments.work)
        return
    report = Report(QUESTION, arguments)
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("this system does not bind processes to cores")
    cases, load = share(sorted(os.sched_getaffinity(0)))
    processes = arguments.load or len(load)
    count = MESSAGES // (5 if arguments.quick else 1)
    for what, verb in (("publish", "take"), ("deliver", "deliver")):
        for name, cores in cases.items():
            found: dict[str, list[Sample]] = {}
            for kind in KINDS:
                with on_cores(cores), server(kind, SYNC_INTERVAL) as running:
                    found[kind] = measure(what, running, count, load, processes)
            title = f"{what}, {name}, load of {processes} on {len(load)}, messages/s"
            report.add_samples(title, f"{verb}-{name.replace(' ', '-')}", found)
    report.finish()


if __name__ == "__main__":
    main()
