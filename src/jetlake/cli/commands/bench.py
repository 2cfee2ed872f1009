"""`jetlake bench …`: how fast this client and that server are together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import SIZE

if TYPE_CHECKING:
    from jetlake.client import JetStream, Stream


STREAM, SUBJECT = "JETLAKE_BENCH", "jetlake.bench"


@click.group(cls=SharedGroup)
def bench() -> None:
    """Measure publishing and reading, in a temporary stream."""


def _options(function: Any) -> Any:
    for option in (
        click.option(
            "--msgs",
            default=100_000,
            show_default=True,
            type=click.IntRange(1),
            metavar="N",
            help="Number of messages.",
        ),
        click.option("--size", type=SIZE, default="128", show_default=True, help="Payload size."),
        click.option("--storage", type=click.Choice(["file", "memory"]), default="file", show_default=True),
        json_option,
    ):
        function = option(function)
    return function


@asynccontextmanager
async def _bench_stream(js: JetStream, storage: Any) -> AsyncIterator[Stream]:
    """Make a stream for the time of the measurement."""
    if STREAM in await js.stream_names():
        await js.delete_stream(STREAM)
    stream = await js.create_stream(STREAM, subjects=[SUBJECT], storage=storage)
    try:
        yield stream
    finally:
        await stream.delete()


async def _fill(js: JetStream, msgs: int, size: int) -> float:
    """Publish and wait for every acknowledgement; seconds that it took."""
    payload, began = b"x" * size, time.perf_counter()
    with output.Bar("Publishing", msgs) as bar:
        for number in range(msgs):
            await js.publish_async(SUBJECT, payload)
            if number % 1000 == 999:
                bar.advance(1000)
        await js.publish_async_complete()
    return time.perf_counter() - began


def _report(what: str, msgs: int, size: int, seconds: float, as_json: bool) -> None:
    rate = msgs / seconds
    if as_json:
        output.print_json({"test": what, "messages": msgs, "size": size, "seconds": seconds, "rate": round(rate)})
    else:
        click.echo(f"{what}: {rate:,.0f} messages/s, {output.size(int(rate * size))}/s ({msgs:,} in {seconds:.2f} s)")


@bench.command("pub", example="jetlake bench pub --msgs 10000 --size 256")
@_options
@command
async def publish(session: Session, msgs: int, size: int, storage: str, as_json: bool) -> None:
    """Publish to a stream without waiting in between, then wait for every acknowledgement."""
    async with session.jetstream() as js, _bench_stream(js, storage):
        _report("pub", msgs, size, await _fill(js, msgs, size), as_json)


@bench.command("sub", example="jetlake bench sub --msgs 10000 --size 256")
@_options
@command
async def ordered(session: Session, msgs: int, size: int, storage: str, as_json: bool) -> None:
    """Read a stream in order, without acknowledgements."""
    async with session.jetstream() as js, _bench_stream(js, storage) as stream:
        await _fill(js, msgs, size)
        left, began = msgs, time.perf_counter()
        async for batch in stream.ordered().batches():
            left -= len(batch)
            if left <= 0:
                break
        _report("sub", msgs, size, time.perf_counter() - began, as_json)


@bench.command("fetch", example="jetlake bench fetch --msgs 10000 --size 256")
@_options
@click.option(
    "--batch", default=1000, show_default=True, type=click.IntRange(1), metavar="N", help="Messages per fetch."
)
@command
async def fetch(session: Session, msgs: int, size: int, storage: str, as_json: bool, batch: int) -> None:
    """Fetch batches and acknowledge each message."""
    async with session.jetstream() as js, _bench_stream(js, storage) as stream:
        await _fill(js, msgs, size)
        consumer = await stream.create_consumer("bench", max_ack_pending=-1)
        left, began = msgs, time.perf_counter()
        with output.Bar("Fetching", msgs) as bar:
            while left > 0:
                received = await consumer.fetch(min(batch, left))
                for message in received:
                    await message.ack()
                left -= len(received)
                bar.advance(len(received))
        _report("fetch", msgs, size, time.perf_counter() - began, as_json)


@bench.command("consume", example="jetlake bench consume --msgs 10000 --size 256")
@_options
@command
async def consume(session: Session, msgs: int, size: int, storage: str, as_json: bool) -> None:
    """Consume continuously and acknowledge each message."""
    async with session.jetstream() as js, _bench_stream(js, storage) as stream:
        await _fill(js, msgs, size)
        consumer = await stream.create_consumer("bench", max_ack_pending=-1)
        left, began = msgs, time.perf_counter()
        with output.Bar("Consuming", msgs) as bar:
            async with consumer.consume(max_messages=5000) as messages:
                async for batch in messages.batches():
                    for message in batch:
                        await message.ack()
                    left -= len(batch)
                    bar.advance(len(batch))
                    if left <= 0:
                        break
        _report("consume", msgs, size, time.perf_counter() - began, as_json)
