"""How long do publishers wait while a stream moves, and does that grow with the stream?

    python benchmarks/migrate.py [--quick] [--json FILE]

Streams of two sizes move from the embedded server to a nats-server and back, once with the bulk copied before the pause
and once whole, while a publisher goes on. The wait is the time between the last message that the one end took and the
first that the other could take. Both servers run as processes of their own; rows are medians of three moves, with the
CPU time that each message costs either server, and the spread of the whole time.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import NamedTuple

import jetlake
from _harness import Report, cpu_s, parse_arguments, spread
from _servers import OURS, PEER, Running, server
from jetlake.client import JetStream
from jetlake.client.migration.migration import Migration

QUESTION = "How long do publishers wait while a stream moves, and does that grow with the stream?"
PAYLOAD = b"x" * 128
ROUNDS = 3
THERE, BACK = "to nats-server", "back"


async def go_on(js: JetStream) -> None:
    """Publish until cancelled."""
    while True:
        await js.publish("s.later", PAYLOAD, retries=1000)
        await asyncio.sleep(0.001)


async def move(source: JetStream, target: JetStream, whole: bool) -> tuple[float, float]:
    """Move the stream and delete the old one; the wait and the whole time, in seconds."""
    publisher = asyncio.create_task(go_on(source))
    started = time.perf_counter()
    try:
        moved = await Migration(source, target, "S", drain_s=0, whole_max_bytes=10**12 if whole else 0).run()
    finally:
        publisher.cancel()
        await asyncio.gather(publisher, return_exceptions=True)
    seconds = time.perf_counter() - started
    await source.delete_stream("S")
    return moved.pause_s, seconds


class Move(NamedTuple):
    """What one move took."""

    wait_s: float
    whole_s: float
    cpu_us: dict[str, float]
    """CPU time of each server a message, by the server's name."""


async def run(sizes: tuple[int, int], servers: dict[str, Running], report: Report) -> None:
    async with jetlake.connect(servers[OURS].url) as client, jetlake.connect(servers[PEER].url) as peer:
        ours, theirs = client.jetstream(timeout=60), peer.jetstream(timeout=60)

        async def timed_move(source: JetStream, target: JetStream, whole: bool) -> Move:
            before_s = {kind: cpu_s(running.pid) for kind, running in servers.items()}
            wait_s, whole_s = await move(source, target, whole)
            used_us = {kind: (cpu_s(servers[kind].pid) - before) / count * 1e6 for kind, before in before_s.items()}
            return Move(wait_s, whole_s, used_us)

        waits_s: dict[tuple[int, bool], float] = {}
        for count in sizes:
            stream = await ours.create_stream("S", subjects=["s.>"])
            for number in range(count):
                await ours.publish_async(f"s.{number % 100}", PAYLOAD)
            await ours.publish_async_complete()
            await stream.create_consumer("worker", filter_subject="s.1")
            for whole in (False, True):
                moves: dict[str, list[Move]] = {THERE: [], BACK: []}
                for _ in range(ROUNDS):
                    moves[THERE].append(await timed_move(ours, theirs, whole))
                    moves[BACK].append(await timed_move(theirs, ours, whole))
                for direction, taken in moves.items():
                    add_moves(report, f"{count:,} messages, {'whole' if whole else 'bulk first'}, {direction}", taken)
                waits_s[count, whole] = statistics.median(each.wait_s for each in moves[THERE])
            await ours.delete_stream("S")
    large = sizes[1]
    report.compare("bulk_first", waits_s[large, False], waits_s[large, True], lower_is_better=True)


def add_moves(report: Report, case: str, moves: list[Move]) -> None:
    """Add a row with the medians of several moves."""
    costs = {f"{kind} CPU us": statistics.median(each.cpu_us[kind] for each in moves) for kind in moves[0].cpu_us}
    whole_s = [each.whole_s for each in moves]
    figures = {"wait s": statistics.median(each.wait_s for each in moves), "whole time s": statistics.median(whole_s)}
    report.add(case, {**figures, **costs, "spread %": spread(whole_s)})


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    with server(OURS) as ours, server(PEER) as peer:
        sizes = (20_000, 200_000) if arguments.quick else (100_000, 2_000_000)
        asyncio.run(run(sizes, {PEER: peer, OURS: ours}, report))
    report.finish()


if __name__ == "__main__":
    main()
