"""What do three copies cost, and how long is a stream without a leader?

    python benchmarks/cluster.py [--quick] [--json FILE]

Three nats-servers on this machine form a cluster. The same messages are published, with a window, to a stream with one
copy and to one with three; then the leader of the latter is killed some times, and a publisher times the wait until the
next message is acknowledged.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import jetlake
from _harness import Report, parse_arguments

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster" / "support"))

from nats_cluster import Cluster

QUESTION = "What do three copies cost, and how long is a stream without a leader?"
PAYLOAD = b"x" * 128


async def publish(js: jetlake.client.JetStream, subject: str, count: int) -> float:
    """Publish so many messages; the acknowledged ones a second."""
    started = time.perf_counter()
    for _ in range(count):
        await js.publish_async(subject, PAYLOAD)
    await js.publish_async_complete()
    return count / (time.perf_counter() - started)


async def run(count: int, repeats: int, kills: int, report: Report) -> None:
    cluster = Cluster()
    try:
        await cluster.start()
        async with await jetlake.connect(cluster.urls) as client:
            js = client.jetstream()
            for copies in (1, 3):
                await js.create_stream(f"R{copies}", subjects=[f"r{copies}"], num_replicas=copies)
            rates: dict[int, list[float]] = {1: [], 3: []}
            for _ in range(repeats):
                for copies, found in rates.items():
                    found.append(await publish(js, f"r{copies}", count))
            for copies, found in rates.items():
                report.add(f"{copies} copies, messages a second", {"median": statistics.median(found)})
            report.compare("three_copies", statistics.median(rates[3]), statistics.median(rates[1]))
            waits = []
            for number in range(kills):
                node = await cluster.leader_of(js, "R3")
                await node.kill()
                started = time.perf_counter()
                await js.publish("r3", PAYLOAD, msg_id=str(number))
                waits.append(time.perf_counter() - started)
                node.start()
                await cluster.ready()
            report.add("seconds without a leader", {"median": statistics.median(waits), "longest": max(waits)})
    finally:
        await cluster.discard()


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    sizes = (5_000, 3, 3) if arguments.quick else (20_000, 5, 10)
    asyncio.run(run(*sizes, report))
    report.finish()


if __name__ == "__main__":
    main()
