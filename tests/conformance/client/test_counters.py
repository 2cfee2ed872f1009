"""Counters by our client, and its blocking form, on both servers."""

import asyncio

import pytest

import jetlake.blocking
from jetlake.errors import InvalidOptionError, MessageNotFoundError
from tests.support.clients import until, with_stale_mirror


async def test_adding(js):
    counters = await js.create_counters("C", subjects=["c.>"])
    assert [await counters.add("c.a"), await counters.add("c.a", 5), await counters.add("c.a", -2)] == [1, 6, 4]
    assert await counters.add("c.a", 0) == 4
    assert await counters.get("c.a") == 4
    assert await counters.get("c.never") == 0
    huge = 10**40
    assert await counters.add("c.b", huge) == huge
    entry = await counters.entry("c.a")
    assert (entry.subject, entry.value, entry.increment, entry.sources) == ("c.a", 4, 0, {})
    assert {entry.subject: entry.value async for entry in counters.entries()} == {"c.a": 4, "c.b": huge}
    assert [entry.value async for entry in (await js.counters("C")).entries("c.b")] == [huge]
    with pytest.raises(MessageNotFoundError):
        await counters.entry("c.never")


@pytest.mark.parametrize("kind", ["nats-server"], indirect=True)
async def test_values_of_more_digits_than_python_writes(js, kind):
    counters = await js.create_counters("C", subjects=["c.>"])
    huge = 10**5_000
    for increment, value in ((huge, huge), (1 - huge, 1), (-huge, 1 - huge)):
        assert await counters.add("c.a", increment) == value
        entry = await counters.entry("c.a")
        assert (entry.value, entry.increment) == (value, increment)
        assert [entry.value async for entry in counters.entries()] == [value]


async def test_an_increment_with_an_id_counts_once(js):
    counters = await js.create_counters("C", subjects=["c.>"])
    assert await counters.add("c.a", 2, msg_id="once") == 2
    await counters.add("c.a", 1)
    assert await counters.add("c.a", 2, msg_id="once") == 3


async def test_counters_of_other_streams_are_added_up(js):
    for name in ("EAST", "WEST"):
        counters = await js.create_counters(name, subjects=[f"{name.lower()}.>"])
        await counters.add(f"{name.lower()}.hits", len(name))
        await counters.add(f"{name.lower()}.hits", 10)
    total = await js.create_counters(
        "TOTAL",
        sources=[
            {"name": name, "subject_transforms": [{"src": f"{name.lower()}.>", "dest": "total.>"}]}
            for name in ("EAST", "WEST")
        ],
    )

    async def is_complete():
        return await total.get("total.hits") == 28

    await until(is_complete)
    entry = await total.entry("total.hits")
    assert entry.sources == {"EAST": {"east.hits": 14}, "WEST": {"west.hits": 14}}


async def test_what_is_refused(js):
    await js.create_stream("S", subjects=["s"])
    with pytest.raises(InvalidOptionError, match="no counters"):
        await js.counters("S")
    counters = await js.create_counters("C", subjects=["c.>"])
    with pytest.raises(InvalidOptionError, match="215000 bits at most, not 215001"):
        await counters.add("c.a", 1 << 215_000)
    for increment in (1.5, "1", True):
        with pytest.raises(InvalidOptionError, match="whole number"):
            await counters.add("c.a", increment)


async def test_without_await(server):
    def work():
        with jetlake.blocking.connect(server.url) as client:
            counters = client.jetstream().create_counters("C", subjects=["c.>"])
            assert counters.add("c.a", 2) == counters.get("c.a") == 2
            assert [entry.value for entry in counters.entries()] == [2]
            assert counters.stream.name == "C"

    await asyncio.to_thread(work)


async def test_what_was_added_is_counted_whoever_answers(server, clients):
    client = await clients(server)
    counters = await client.jetstream().create_counters("C", subjects=["c.>"])
    await counters.add("c.a", 1)
    await counters.add("c.a", 2)
    await with_stale_mirror(client, "C", 2)
    assert [await counters.get("c.a") for _ in range(10)] == [3] * 10
    assert [[entry.value async for entry in counters.entries()] for _ in range(10)] == [[3]] * 10
