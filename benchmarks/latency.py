"""How long does somebody else's load keep a client waiting, beside nats-server?

    python benchmarks/latency.py [--quick] [--only NAME] [--beside-load] [--json FILE]

A bystander sends PING, waits for PONG and pauses for a millisecond, over and over, while another client puts one shape
of load on the server; each shape runs on a fresh server of each kind, with a file store. Ours always syncs before it
acknowledges; nats-server does so (`sync_interval: always`) in the shapes whose case says so, and elsewhere syncs as it
comes. Both servers have each shape several times, in turns: `max` is the median of the rounds' longest waits, `p99.9`
the 99.9th percentile of all waits. The ratios are nats-server's `max` by ours, and the same of `p99.9`: above 1 is
better. Of ours the table also has the longest turn of the loop in any round, as `/metrics` tells it, and how many turns
were above 50 ms. The CPU time is that of the server for a message, request or entry of the load, the bystander's PINGs
included. `spread %` is that of the rounds' longest waits.

The shape `acks` is another question: how long a publisher waits for its acknowledgement and a requester for an answer,
one by one, alone and beside publishers on other streams, of both servers with `sync_interval: always`, which take
turns of a round each. Its ratios are those of the median, the 99th and the 99.9th percentile; the spread is that of the
rounds' medians. With `--beside-load` one process for each processor computes all the while, in either case.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import NamedTuple
from urllib.request import urlopen

from _acks import OTHERS, PERCENTILES, percentiles_ms, publish_waits, request_waits
from _harness import Report, cpu_s, parse_arguments, spread
from _latency_shapes import SHAPES, Shape, Steps
from _raw_client import RawClient
from _servers import OURS, PEER, Running, server

QUESTION = "How long does somebody else's load keep a client waiting? (PING, milliseconds)"
QUICK_SHARE = 10
PAUSE_S = 0.001
ROUNDS = 3
ACKS = "acks"
ACKS_S = 10.0
TURN_MAX_S = 0.05
TURN, TURNS_ABOVE = "longest turn", "turns > 50"

_BUCKET = re.compile(r'jetlake_turn_seconds_bucket\{le="(.+)"\} (\d+)')


def watch(port: int, channel: Connection) -> None:
    """Be the bystander until the channel has something, then hand over every round trip, in seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    client = RawClient(port)
    waits: list[float] = []
    channel.send(None)
    while not channel.poll():
        started = time.perf_counter()
        client.ping()
        waits.append(time.perf_counter() - started)
        time.sleep(PAUSE_S)
    channel.send(waits)


class Round(NamedTuple):
    """The bystander's waits, in seconds, while a load runs, and other figures of the server."""

    waits: list[float]
    figures: dict[str, float]


def run_shape(kind: str, shape: Shape, share: int) -> Round:
    """Put a load on a fresh server of that kind."""
    with server(kind, "always" if shape.durable else "") as running:
        load = shape.run(running.port, lambda full: max(full // share, 1))
        next(load)
        before = turns(running) if kind == OURS else {}
        ours, theirs = multiprocessing.Pipe()
        bystander = multiprocessing.get_context("fork").Process(target=watch, args=(running.port, theirs))
        bystander.start()
        ours.recv()
        used_s = cpu_s(running.pid)
        started = time.perf_counter()
        count = _finish(load)
        taken_s = time.perf_counter() - started
        time.sleep(0.2)  # what the load left behind belongs to it
        ours.send(None)
        waits = ours.recv()
        bystander.join()
        figures = {"seconds": taken_s, "CPU us": (cpu_s(running.pid) - used_s) / count * 1e6}
        return Round(waits, figures | _turn_figures(before, turns(running) if kind == OURS else {}))


def _finish(load: Steps) -> int:
    """Let a load do what it has prepared; how many messages, requests or entries that was."""
    try:
        next(load)
    except StopIteration as end:
        return int(end.value)
    raise AssertionError("a load yields once")


def summary(rounds: list[Round]) -> dict[str, float]:
    """The figures of several rounds of one shape; waits in milliseconds."""
    waits = sorted(wait for each in rounds for wait in each.waits)
    figures = {
        "median": statistics.median(waits) * 1e3,
        "p99.9": waits[min(int(0.999 * len(waits)), len(waits) - 1)] * 1e3,
        "max": statistics.median(max(each.waits) for each in rounds) * 1e3,
    }
    figures["spread %"] = spread([max(each.waits) for each in rounds])
    for name in rounds[0].figures:
        combine = max if name == TURN else sum if name == TURNS_ABOVE else statistics.median
        figures[name] = combine(each.figures[name] for each in rounds)
    return figures


def turns(running: Running) -> dict[float, int]:
    """How many turns of the loop there were so far, by the upper bound of their time."""
    with urlopen(f"http://127.0.0.1:{running.http_port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return {float(bound): int(count) for bound, count in _BUCKET.findall(page)}


def _turn_figures(before: dict[float, int], after: dict[float, int]) -> dict[str, float]:
    new = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    if not new:
        return {}
    total = new[max(new)]
    longest = min(bound for bound, count in new.items() if count == total)
    return {TURN: longest * 1e3, TURNS_ABOVE: total - new[TURN_MAX_S]}


def answer_figures(
    running: Running, measure: Callable[[int, int, float], list[float]], others: int, seconds: float
) -> dict[str, float]:
    """The percentiles of waits and the server's CPU time for each answer: of all publishers, or of a lone requester."""
    used_s, stored = cpu_s(running.pid), stored_messages(running)
    waits = measure(running.port, others, seconds)
    used_s = cpu_s(running.pid) - used_s
    figures = percentiles_ms(waits)
    if answers := stored_messages(running) - stored if measure is publish_waits else 0 if others else len(waits):
        figures["CPU us"] = used_s / answers * 1e6
    return figures


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and how far the medians of the rounds lie apart."""
    medians = {column: statistics.median(each[column] for each in rounds) for column in rounds[0]}
    return medians | {"spread %": spread([each["p50"] for each in rounds])}


def stored_messages(running: Running) -> int:
    """How many messages all streams have, as the server's monitoring tells."""
    with urlopen(f"http://127.0.0.1:{running.http_port}/jsz", timeout=60) as answer:
        return int(json.load(answer)["messages"])


def _side_by_side(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """The columns of both servers, and the wider of their spreads."""
    columns = {
        f"{kind} {column}": value
        for kind, found in figures.items()
        for column, value in found.items()
        if column != "spread %"
    }
    return columns | {"spread %": max(found["spread %"] for found in figures.values())}


@contextmanager
def busy_processors() -> Iterator[None]:
    """Keep every processor busy with a process that computes and does nothing else."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_compute, args=(os.getpid(),)) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(1_000_000))


def measure_answers(report: Report, seconds: float) -> None:
    """One-by-one publishes and requests, alone and beside busy streams; both servers always sync."""
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(server(kind, "always")) for kind in (PEER, OURS)}
        for what, measure, crowds in (
            ("ack", publish_waits, OTHERS),
            ("request", request_waits, (OTHERS[0], OTHERS[-1])),
        ):
            for others in crowds:
                rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in servers}
                for _ in range(ROUNDS):
                    for kind, running in servers.items():
                        rounds[kind].append(answer_figures(running, measure, others, seconds))
                name = f"{what}-beside-{others}" if others else f"{what}-alone"
                _report_answers(report, name, {kind: _medians(found) for kind, found in rounds.items()})


def _report_answers(report: Report, name: str, figures: dict[str, dict[str, float]]) -> None:
    report.add(f"{name} (both always sync)", _side_by_side(figures))
    for column in PERCENTILES:
        ours, peer = figures[OURS][column], figures[PEER][column]
        ratio = report.compare(f"{name}-{column}", ours, peer, lower_is_better=True)
        print(f"{name}-{column}: {ratio:.2f}", file=sys.stderr, flush=True)


def main() -> None:
    arguments = parse_arguments(
        QUESTION,
        ("--only", {"choices": [*SHAPES, ACKS], "help": "one shape", "metavar": "NAME"}),
        ("--beside-load", {"action": "store_true", "help": "keep every processor busy with another process"}),
    )
    report = Report(QUESTION, arguments)
    with busy_processors() if arguments.beside_load else nullcontext():
        _measure(report, arguments.only, QUICK_SHARE if arguments.quick else 1)
    report.finish()


def _measure(report: Report, only: str | None, share: int) -> None:
    if only in (None, ACKS):
        measure_answers(report, ACKS_S / share)
    for name in [only] if only else list(SHAPES):
        if name == ACKS:
            continue
        shape = SHAPES[name]
        rounds: dict[str, list[Round]] = {PEER: [], OURS: []}
        for _ in range(ROUNDS):
            for kind, so_far in rounds.items():
                so_far.append(run_shape(kind, shape, share))
        figures = {kind: summary(so_far) for kind, so_far in rounds.items()}
        report.add(name + (" (both always sync)" if shape.durable else ""), _side_by_side(figures))
        for ending, column in (("", "max"), ("-p99.9", "p99.9")):
            ratio = report.compare(name + ending, figures[OURS][column], figures[PEER][column], lower_is_better=True)
            print(f"{name}{ending}: {ratio:.2f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
