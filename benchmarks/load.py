"""Does the server stay small and quick for a bystander, whatever others do to it?

    python benchmarks/load.py [--quick] [--json FILE] [--only SHAPE]

Each shape of load runs against a server of its own. A bystander publishes to a stream of his own every 20 ms meanwhile,
with an acknowledgement that waits for the disk, and times it. Memory is that of the server's process, sampled from
outside: at the start, and at its highest.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from _harness import Report, parse_arguments

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

import load_shapes

QUESTION = "Does the server stay small and quick for a bystander, whatever others do to it?"

SHAPES = {
    "connections": (load_shapes.many_connections, 1000, 200),
    "streams": (load_shapes.many_streams, 500, 50),
    "consumers of one stream": (load_shapes.many_consumers, 1000, 100),
    "never-reading subscriber": (load_shapes.never_reading_subscriber, 8000, 2000),
    "byte by byte": (lambda count: load_shapes.byte_by_byte(count, 20), 20, 5),
    "faster than the disk": (load_shapes.faster_than_the_disk, 10, 3),
}


def main() -> None:
    arguments = parse_arguments(QUESTION, ("--only", {"choices": list(SHAPES), "help": "one shape"}))
    report = Report(QUESTION, arguments)
    for name, (shape, full, quick) in SHAPES.items():
        if arguments.only in (None, name):
            size = quick if arguments.quick else full
            report.add(f"{name} ({size:,})", asyncio.run(shape(size)))
    report.finish()


if __name__ == "__main__":
    main()
