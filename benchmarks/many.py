"""How long do many streams, and many consumers on one stream, take to create, list and open, beside nats-server?

    python benchmarks/many.py [--quick] [--rounds N] [--json FILE]

One client creates 10,000 streams (quick: 1,000) and as many durable consumers on one more stream, a hundred requests
at a time, and lists names and infos page by page; then the server is stopped and started again on the same folder. Both
servers sync before they answer (`sync_interval: always`), so that nothing is lost where a stop takes too long and ends
in a kill. A round lists nine times and starts three times (with 10,000: once), of which the median counts; rows are
medians of three rounds of both servers in turns. The CPU time is that of the server for one stream or consumer. The
ratios are nats-server's seconds by ours: above 1 is better.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _harness import Report, Sample, cpu_s, parse_arguments, take_sample, wall_s
from _raw_client import RawClient
from _servers import KINDS, OURS, server

QUESTION = "How long do many streams and consumers take to create, list and open? (seconds)"
COUNT = 10_000
COUNT_QUICK = 1_000
AT_ONCE = 100
ROUNDS = 3
LISTINGS = 9
STARTS, STARTS_QUICK = 1, 3
API = "$JS.API."
NAMES_PER_PAGE, INFOS_PER_PAGE = 1024, 256


def create_streams(client: RawClient, count: int) -> None:
    """Create the streams, and one for the consumers."""
    for start in range(0, count, AT_ONCE):
        names = [f"S{number}" for number in range(start, start + AT_ONCE)]
        client.requests([(f"{API}STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]}) for name in names])
    crowd = {"name": "CROWD", "subjects": ["crowd"], "max_consumers": count}
    client.request(f"{API}STREAM.CREATE.CROWD", crowd)


def create_consumers(client: RawClient, count: int) -> None:
    """Create the consumers."""
    for start in range(0, count, AT_ONCE):
        names = [f"c{number}" for number in range(start, start + AT_ONCE)]
        client.requests([(f"{API}CONSUMER.DURABLE.CREATE.CROWD.{name}", _consumer(name)) for name in names])


def _consumer(name: str) -> dict[str, object]:
    return {"stream_name": "CROWD", "config": {"durable_name": name, "ack_policy": "explicit"}}


def list_all(client: RawClient, names: str, infos: str, count: int) -> None:
    """Request every page of names, then every page of infos."""
    for subject, limit in ((names, NAMES_PER_PAGE), (infos, INFOS_PER_PAGE)):
        for offset in range(0, count, limit):
            client.request(API + subject, {"offset": offset})


def list_streams(client: RawClient, count: int) -> None:
    """List the streams."""
    list_all(client, "STREAM.NAMES", "STREAM.LIST", count)


def list_consumers(client: RawClient, count: int) -> None:
    """List the consumers."""
    list_all(client, "CONSUMER.NAMES.CROWD", "CONSUMER.LIST.CROWD", count)


STEPS: dict[str, tuple[Callable[[RawClient, int], None], int]] = {
    "create-streams": (create_streams, 1),
    "create-consumers": (create_consumers, 1),
    "list-streams": (list_streams, LISTINGS),
    "list-consumers": (list_consumers, LISTINGS),
}
"""What a client does, and how many times."""


def run(kind: str, count: int, starts: int) -> dict[str, Sample]:
    """Each step, and the next start up to the first answer: its seconds, and the server's CPU us for each entry."""
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    found: dict[str, Sample] = {}
    try:
        with server(kind, "always", kept=folder) as running:
            client = RawClient(running.port)
            for name, (step, times) in STEPS.items():
                once = partial(take_sample, running.pid, count, partial(wall_s, partial(step, client, count)))
                found[name] = _median([once() for _ in range(times)])
            client.close()
        found["start"] = _median([start(kind, folder, count) for _ in range(starts)])
    finally:
        shutil.rmtree(folder)
    return found


def start(kind: str, folder: Path, count: int) -> Sample:
    """Start the server and stop it again: the seconds up to the first answer, and the CPU us for each entry."""
    started = time.perf_counter()
    with server(kind, "always", kept=folder) as running:
        client = RawClient(running.port)
        info = client.request(f"{API}STREAM.INFO.CROWD")
        sample = Sample(time.perf_counter() - started, cpu_s(running.pid) / count * 1e6)
        if info["state"]["consumer_count"] != count:  # type: ignore[index]
            raise SystemExit(f"{kind} lost consumers: {info}")
        client.close()
    return sample


def _median(samples: list[Sample]) -> Sample:
    values, costs = zip(*samples, strict=True)
    return Sample(statistics.median(values), statistics.median(costs))


def main() -> None:
    rounds_option = ("--rounds", {"type": int, "default": ROUNDS, "help": "how many rounds"})
    arguments = parse_arguments(QUESTION, rounds_option)
    count, starts = (COUNT_QUICK, STARTS_QUICK) if arguments.quick else (COUNT, STARTS)
    report = Report(QUESTION, arguments)
    rounds = [{kind: run(kind, count, starts) for kind in KINDS} for _ in range(arguments.rounds)]
    for name in rounds[0][OURS]:
        found = {kind: [each[kind][name] for each in rounds] for kind in KINDS}
        report.add_samples(f"{name}, s ({count:,})", name, found, lower_is_better=True)
    report.finish()


if __name__ == "__main__":
    main()
