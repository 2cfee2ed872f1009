"""A program with every annotation that a strict type checker asks for: `make check` reads it, and nobody runs it."""

from __future__ import annotations

import asyncio

import jetlake
from jetlake.client import MessageBatch


def acknowledge(batch: MessageBatch) -> None:
    """Take a batch by its bare name."""
    for message in batch:
        assert message.subject
    batch.ack()


async def on_error(error: Exception) -> None:
    """Take an error in a coroutine function."""
    assert str(error)


def on_discovered(addresses: list[str]) -> None:
    """Take addresses."""
    assert addresses


def on_wrong(number: int) -> None:
    """Take what no event has."""


async def main() -> None:
    """Use callbacks, and make tasks of calls that need not be awaited."""
    await jetlake.connect(on_error=on_wrong)  # type: ignore[arg-type]
    await jetlake.connect(on_reconnected=on_error)  # type: ignore[arg-type]
    errors: list[Exception] = []
    async with jetlake.connect(
        on_error=on_error,
        on_disconnected=errors.append,
        on_discovered=on_discovered,
        on_closed=errors.clear,
    ) as client:
        consumer = await client.jetstream().consumer("S", "c")
        batch = await asyncio.create_task(consumer.fetch(10))
        acknowledge(batch)
        await asyncio.create_task(batch[0].ack())
        await asyncio.create_task(client.publish("s"))
        bucket = await client.jetstream().key_value("B")
        assert (await bucket.get("a")).value
        found = await bucket.get("a", default=None)
        assert found is None or found.value
