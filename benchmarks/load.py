"""Does the server stay small and quick for a bystander, whatever others do to it, beside nats-server?

    python benchmarks/load.py [--quick] [--json FILE] [--only SHAPE]

Each shape of load runs against a server of its own; both sync before they answer. A bystander publishes to a stream of
his own every 20 ms, from a second before the load on, and times the acknowledgements that he gets beside it, which
wait for the disk. The first row has nobody else: what he waits without any load, and the CPU time of one of his
messages. A row has the median of his waits in milliseconds, the longest, and the highest memory of the server's
process, sampled from outside. `took part` counts the clients, streams, consumers or messages that a shape is made of;
the CPU time is that for one of them. `waits` is how many waits of the bystander there were in a round.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from pathlib import Path

from _harness import Report, Sample, parse_arguments
from _servers import OURS, PEER

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import load_shapes

QUESTION = "Does the server stay small and quick for a bystander, whatever others do to it?"
ROUNDS = 3
# As `tests/faults/killable.py` names them.
KINDS = {PEER: "nats-server always", OURS: "jetlake"}

SHAPES = {
    "nobody else": (load_shapes.nobody_else, 10, 3),
    "connections": (load_shapes.many_connections, 1000, 200),
    "streams": (load_shapes.many_streams, 500, 50),
    "consumers of one stream": (load_shapes.many_consumers, 1000, 100),
    "never-reading subscriber": (load_shapes.never_reading_subscriber, 8000, 2000),
    "byte by byte": (load_shapes.byte_by_byte, 20, 5),
    "seconds faster than the disk": (load_shapes.faster_than_the_disk, 10, 3),
}


def measure_shape(report: Report, name: str, size: int) -> None:
    """Add the row of one shape."""
    shape = SHAPES[name][0]
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, figures in rounds.items():
            figures.append(asyncio.run(shape(size, kind=KINDS[kind])))
    found = {
        kind: [Sample(each["bystander ms"], each["CPU us"]) for each in figures] for kind, figures in rounds.items()
    }
    more = {
        f"{kind} {column}": combine(each[figure] for each in figures)
        for column, figure, combine in (
            ("worst ms", "worst ms", max),
            ("MiB", "peak MiB", max),
            ("took part", "took part", statistics.median),
            ("waits", "answers", statistics.median),
        )
        for kind, figures in rounds.items()
    }
    report.add_samples(f"{name} ({size:,})", name.replace(" ", "-"), found, lower_is_better=True, more=more)


def main() -> None:
    arguments = parse_arguments(QUESTION, ("--only", {"choices": list(SHAPES), "help": "one shape"}))
    report = Report(QUESTION, arguments)
    for name, (_, full, quick) in SHAPES.items():
        if arguments.only in (None, name):
            measure_shape(report, name, quick if arguments.quick else full)
    report.finish()


if __name__ == "__main__":
    main()
