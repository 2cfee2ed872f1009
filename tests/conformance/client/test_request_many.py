"""Requests that many answer, by our client and its blocking form, on both servers."""

import asyncio

import pytest

import jetlake.blocking
from jetlake.errors import InvalidOptionError, NoRespondersError
from tests.support.clients import until


@pytest.fixture
async def services(core, clients):
    """Three that answer each request on `all`, and one that answers `list` four times and says when it is done."""
    responder = await clients(core)
    for number in range(3):
        await responder.subscribe("all", lambda message, number=number: message.respond(b"%d" % number))

    async def answer(message):
        for number in range(4):
            await message.respond(b"%d" % number)
        await message.respond(b"")

    await responder.subscribe("list", answer)
    await responder.subscribe("silent", lambda message: None)
    await responder.flush()


async def taken(answers):
    return [answer.payload async for answer in answers]


async def test_when_there_are_enough(core, clients, services):
    client = await clients(core)

    async def all_answer(**limit):
        # An answer may be late on a busy machine: then the request is repeated.
        return sorted(await taken(client.request_many("all", **limit))) == [b"0", b"1", b"2"]

    await until(lambda: all_answer(stall=0.2))
    assert len(await taken(client.request_many("all", timeout=30, max_messages=2))) == 2
    await until(lambda: all_answer(timeout=0.2))
    assert await taken(client.request_many("list", timeout=30, sentinel=True)) == [b"0", b"1", b"2", b"3"]
    is_two = client.request_many("list", timeout=30, sentinel=lambda answer: answer.payload == b"2")
    assert await taken(is_two) == [b"0", b"1"]
    assert await taken(client.request_many("list", timeout=30, headers={"H": "1"}, max_messages=5)) == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"",
    ]
    assert await taken(client.request_many("silent", timeout=0.05)) == []


async def test_what_ends_badly(core, clients, services):
    client = await clients(core)
    with pytest.raises(NoRespondersError):
        await taken(client.request_many("nobody"))
    for options in ({"max_messages": 0}, {"max_messages": True}, {"stall": 0}, {"stall": -1}, {"sentinel": "end"}):
        with pytest.raises(InvalidOptionError):
            client.request_many("all", **options)


async def test_without_await(core, services):
    def work():
        with jetlake.blocking.connect(core.url) as client:
            answers = client.request_many("list", timeout=30, sentinel=True)
            assert [answer.payload for answer in answers] == [b"0", b"1", b"2", b"3"]

    await asyncio.to_thread(work)
