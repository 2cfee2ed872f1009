"""How long do publishers wait while a stream moves, and does that grow with the stream?

    python benchmarks/migrate.py [--quick] [--json FILE]

Streams of two sizes move from the embedded server to a nats-server and back, once with the bulk copied before the pause
and once whole, while a publisher goes on. The wait is the time between the last message that the one end took and the
first that the other could take.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import jetlake
from _harness import Report, parse_arguments
from jetlake.client.moving.migration import Migration
from jetlake.testing.real_server import RealServer

QUESTION = "How long do publishers wait while a stream moves, and does that grow with the stream?"
PAYLOAD = b"x" * 128


async def go_on(js: jetlake.client.JetStream) -> None:
    """Publish until cancelled."""
    while True:
        await js.publish("s.later", PAYLOAD, retries=1000)
        await asyncio.sleep(0.001)


async def move(source: jetlake.client.JetStream, target: jetlake.client.JetStream, whole: bool) -> tuple[float, float]:
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


async def run(sizes: tuple[int, int], peer_url: str, report: Report) -> None:
    async with (
        jetlake.Server() as server,
        jetlake.connect(server.url) as client,
        jetlake.connect(peer_url) as peer,
    ):
        ours, theirs = client.jetstream(timeout=60), peer.jetstream(timeout=60)
        waits: dict[tuple[int, bool], float] = {}
        for count in sizes:
            stream = await ours.create_stream("S", subjects=["s.>"])
            for number in range(count):
                await ours.publish_async(f"s.{number % 100}", PAYLOAD)
            await ours.publish_async_complete()
            await stream.create_consumer("worker", filter_subject="s.1")
            for whole in (False, True):
                there, there_s = await move(ours, theirs, whole)
                back, back_s = await move(theirs, ours, whole)
                waits[count, whole] = there
                figures = {"wait": there, "whole time": there_s, "wait back": back, "whole time back": back_s}
                report.add(f"{count:,} messages, {'whole' if whole else 'bulk first'}", figures)
            await ours.delete_stream("S")
    large = sizes[1]
    report.compare("bulk_first", waits[large, False], waits[large, True], lower_is_better=True)


def main() -> None:
    arguments = parse_arguments(QUESTION)
    report = Report(QUESTION, arguments)
    with tempfile.TemporaryDirectory() as folder, RealServer("nats-server", Path(folder)) as peer:
        asyncio.run(run((20_000, 200_000) if arguments.quick else (100_000, 2_000_000), peer.url, report))
    report.finish()


if __name__ == "__main__":
    main()
