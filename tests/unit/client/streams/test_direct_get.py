"""Direct gets from a stream that nobody answers for."""

import asyncio

import pytest

from jetlake.errors import NoRespondersError

NOBODY = b"NATS/1.0 503\r\n\r\n"
FOUND = (
    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s.1\r\nNats-Sequence: 7\r\n"
    b"Nats-Time-Stamp: 2026-11-15T00:00:00Z\r\n\r\n"
)
GET = "$JS.API.DIRECT.GET.S.s.1"


def serve_stream(fake, cluster):
    fake.answers["$JS.API.STREAM.INFO.S"] = {
        "type": "io.nats.jetstream.api.v1.stream_info_response",
        "config": {"name": "S", "allow_direct": True},
        "created": "2026-11-14T00:00:00Z",
        "state": {"messages": 1, "first_seq": 1, "last_seq": 7, "consumer_count": 0, "bytes": 0},
        "cluster": {"name": cluster, "leader": "n1"},
    }


async def begin(fake, clock):
    stream = await (await fake.connect()).jetstream().stream("S")
    task = asyncio.create_task(stream.get(last_by_subject="s.1"))
    await clock.settle()
    return task


async def nobody_answers(fake, clock):
    fake.reply(fake.wire, fake.published(GET)[-1].reply, b"", header=NOBODY)
    await clock.settle()
    await clock.advance(0.1)


async def test_a_cluster_is_asked_again(fake, clock):
    serve_stream(fake, "C")
    task = await begin(fake, clock)
    for _ in range(3):
        await nobody_answers(fake, clock)
    fake.reply(fake.wire, fake.published(GET)[-1].reply, b"x", header=FOUND)
    assert (await task).sequence == 7
    assert len(fake.published(GET)) == 4


async def test_a_single_server_is_not(fake, clock):
    serve_stream(fake, "")
    task = await begin(fake, clock)
    await nobody_answers(fake, clock)
    with pytest.raises(NoRespondersError, match="allow_direct"):
        await task
