"""How fast is the client, and what does a message cost it, against nats-py and a bare socket on the same nats-server?

Every case is run by jetlake and by nats-py in its best way, each on asyncio and on uvloop, on one server. Rates are
messages a second of wall time, CPU is microseconds of this process a message; the publisher of the subscribe case and
the responder of the request case are processes of their own. Objects are counted in units of 8 KiB, whatever their
chunks are.

The share of a bare socket is the median of many rounds: ours on its faster loop and the socket run one after the other,
first the one and then the other in turns, so that whatever else the machine does hits both; the rounds before, which
choose the loop, warm up. Rounds go on, within limits, until the middle half of the shares tells the median to 2 %. A
consumer is made before the stopwatch runs in both, or while it runs in both. Quick and full rounds are equally long.
Fetched messages are acknowledged one by one, as by a worker that does one job after the other; in `fetch_100_batch` by
one call, as by one that stores the whole batch in a database. The socket sends the acknowledgements of a read together.
The server's CPU a message is told for both, which says whether it had the same work. `of_socket_cpu` compares the CPU
of client and server together: the share on a machine whose processors all are busy, which hardly depends on its load.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import uvloop

import _client_jetlake as ours
import _client_nats_py as theirs
import _client_socket as bare
from _client_setup import (
    OBJECT_UNIT,
    BareRun,
    Run,
    Seconds,
    delete_consumers,
    empty,
    fill,
)
from _harness import Report, cpu_s, parse_arguments, spread
from _servers import PEER, Running, server

QUESTION = "client: rates and CPU against nats-py and a bare socket on one nats-server"

PAYLOADS = (16, 128, 1024)
THEIR_SHARE = 10
"""nats-py gets a tenth of the messages, which takes it about as long."""
SETTLED = 0.02
LOOP_ROUNDS_MIN = 3
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Case(NamedTuple):
    """One row of the table: what is done, how often, and who does it.

    The counts take a bare socket about 0.3 s or more on an idle machine.
    """

    name: str
    count: int
    ours: Run
    theirs: Run | None
    bare: BareRun | None
    payloads: tuple[int, ...] = PAYLOADS
    reads: bool = False
    """Whether it reads a stream, which is filled before."""
    is_pushed: bool = False
    """Whether nats-py gets all of the stream, however much of it is counted: then all of it is counted."""


CASES = (
    Case("publish_core", 500_000, ours.publish, theirs.publish, bare.publish),
    Case("subscribe_callback", 200_000, ours.subscribe, theirs.subscribe, bare.subscribe),
    Case(
        "subscribe_iterator",
        200_000,
        ours.subscribe_iterator,
        theirs.subscribe_iterator,
        bare.subscribe,
        payloads=(128,),
    ),
    Case("publish_ack", 3_000, ours.publish_ack, theirs.publish_ack, bare.publish_ack),
    Case("publish_pipelined", 60_000, ours.publish_pipelined, theirs.publish_pipelined, bare.publish_pipelined),
    Case("publish_many", 60_000, ours.publish_many, None, bare.publish_pipelined),
    Case("fetch_100", 50_000, ours.fetch(100), theirs.fetch(100), bare.pull(bare.FETCH_100), reads=True),
    Case("fetch_1000", 60_000, ours.fetch(1000), theirs.fetch(1000), bare.pull(bare.FETCH_1000), reads=True),
    Case(
        "fetch_100_batch", 50_000, ours.fetch(100, is_acked_together=True), None, bare.pull(bare.FETCH_100), reads=True
    ),
    Case("consume_ack", 80_000, ours.consume, theirs.consume, bare.pull(bare.CONSUME), reads=True, is_pushed=True),
    Case("ordered_read", 200_000, ours.ordered, theirs.ordered, bare.pull(bare.ORDERED), reads=True, is_pushed=True),
    Case("table", 200_000, ours.table, theirs.table, bare.pull(bare.TABLE), reads=True),
    Case("request", 3_000, ours.request, theirs.request, bare.request),
    Case("object_put", 8_000, ours.object_put, theirs.object_put, None, payloads=(OBJECT_UNIT,)),
    Case("object_get", 8_000, ours.object_get, theirs.object_get, None, payloads=(OBJECT_UNIT,)),
)


class Limits(NamedTuple):
    """How long a row is measured beside the socket."""

    rounds_min: int
    seconds_max: float
    """After so many seconds no more rounds follow than `rounds_min`."""


QUICK = Limits(4, 6.0)
FULL = Limits(12, 30.0)


class Bench:
    """One case at one payload size.

    Args:
        running: the server.
        size: bytes of a payload.
    """

    def __init__(self, running: Running, case: Case, size: int) -> None:
        self._running = running
        self._case = case
        self._size = size
        if case.reads:
            fill(running.url, case.count, size)

    def _after(self, seconds: Seconds, count: int, server_cpu_s: float) -> Figures:
        if self._case.reads:
            delete_consumers(self._running.url)
        return Figures(count / seconds.wall, seconds.cpu / count * 1e6, server_cpu_s / count * 1e6)

    def run(self, run: Run, loop: str, count: int) -> Figures:
        """Run a client once."""
        before_s = cpu_s(self._running.pid)
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            seconds = runner.run(run(self._running.url, count, self._size))
        return self._after(seconds, count, cpu_s(self._running.pid) - before_s)

    def run_bare(self, run: BareRun) -> Figures:
        """Run the bare socket once."""
        before_s = cpu_s(self._running.pid)
        seconds = run(self._running.url, self._case.count, self._size)
        return self._after(seconds, self._case.count, cpu_s(self._running.pid) - before_s)


class Figures(NamedTuple):
    """The rate and the cost of a run, or the medians of several."""

    rate: float
    cpu_us: float
    server_us: float

    @property
    def all_us(self) -> float:
        """The CPU time of client and server together."""
        return self.cpu_us + self.server_us


def median(rounds: list[Figures]) -> Figures:
    """Take the median of each figure."""
    return Figures(*map(statistics.median, zip(*rounds, strict=True)))


def measure_clients(bench: Bench, case: Case, repeats: int) -> dict[str, Figures]:
    """Measure jetlake and nats-py on both loops, in turns; jetlake so often that chance does not choose its loop."""
    rounds: dict[str, list[Figures]] = {}
    for number in range(max(repeats, LOOP_ROUNDS_MIN)):
        for loop in LOOPS:
            rounds.setdefault(f"jetlake {loop}", []).append(bench.run(case.ours, loop, case.count))
            if case.theirs is not None and number < repeats:
                count = case.count if case.is_pushed else max(500, case.count // THEIR_SHARE // 500 * 500)
                rounds.setdefault(f"nats-py {loop}", []).append(bench.run(case.theirs, loop, count))
    return {name: median(figures) for name, figures in rounds.items()}


def is_settled(shares: list[float]) -> bool:
    """Tell whether more rounds would hardly move the median."""
    low, middle, high = statistics.quantiles(shares, n=4)
    return (high - low) / math.sqrt(len(shares)) <= SETTLED * middle


def measure_beside_socket(bench: Bench, case: Case, run: BareRun, loop: str, limits: Limits) -> dict[str, float]:
    """Measure ours and the bare socket in rounds of two, each first in every other round."""
    bench.run_bare(run)
    mine, sockets, shares = [], [], []
    end_at = time.monotonic() + limits.seconds_max
    while len(shares) < limits.rounds_min or (time.monotonic() < end_at and not is_settled(shares)):
        if len(shares) % 2:
            sockets.append(bench.run_bare(run))
            mine.append(bench.run(case.ours, loop, case.count))
        else:
            mine.append(bench.run(case.ours, loop, case.count))
            sockets.append(bench.run_bare(run))
        shares.append(mine[-1].rate / sockets[-1].rate)
    ours_of_all, socket_of_all = median(mine), median(sockets)
    return {
        "socket /s": socket_of_all.rate,
        "socket µs": socket_of_all.cpu_us,
        "server µs": ours_of_all.server_us,
        "server µs, socket": socket_of_all.server_us,
        "of socket": statistics.median(shares),
        "of socket, CPU": socket_of_all.all_us / ours_of_all.all_us,
        "spread %": spread(shares),
        "rounds": len(shares),
    }


def main() -> None:
    """Measure all cases and print table and ratios."""
    arguments = parse_arguments(
        QUESTION, ("--only", {"help": "run only cases whose name begins with this", "default": ""})
    )
    report = Report(QUESTION, arguments)
    with server(PEER, more='max_pending: 2GB\nwrite_deadline: "60s"') as running:
        for case in CASES:
            if not case.name.startswith(arguments.only):
                continue
            for size in (128,) if arguments.quick and 128 in case.payloads else case.payloads:
                measure_case(report, running, case, size, quick=arguments.quick)
        empty(running.url)
    report.finish()


def measure_case(report: Report, running: Running, case: Case, size: int, *, quick: bool) -> None:
    """Add the row and the ratios of one case."""
    bench = Bench(running, case, size)
    figures = measure_clients(bench, case, 1 if quick else 3)
    row: dict[str, float] = {}
    for name, figure in figures.items():
        row[f"{name} /s"] = figure.rate
        row[f"{name} µs"] = figure.cpu_us
    loop = max(LOOPS, key=lambda one: figures[f"jetlake {one}"].rate)
    mine = figures[f"jetlake {loop}"]
    if case.theirs is not None:
        best = max((figures["nats-py asyncio"], figures["nats-py uvloop"]), key=lambda one: one.rate)
        report.compare(f"{case.name}_{size}", mine.rate, best.rate)
        report.compare(f"{case.name}_{size}_cpu", mine.cpu_us, best.cpu_us, lower_is_better=True)
    if case.bare is not None:
        row |= measure_beside_socket(bench, case, case.bare, loop, QUICK if quick else FULL)
        report.compare(f"{case.name}_{size}_of_socket", row["of socket"], 1.0)
        report.compare(f"{case.name}_{size}_of_socket_cpu", row["of socket, CPU"], 1.0)
    report.add(f"{case.name} {size} B", row)


if __name__ == "__main__":
    main()
