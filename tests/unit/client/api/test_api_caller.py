"""Calls of the API while a cluster has no leader."""

import asyncio

import pytest

from jetlake.client.connection.handshake import ServerInfo
from jetlake.errors import ApiError, RequestTimeoutError

NO_LEADER = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"},
}


async def test_a_cluster_without_a_leader_is_asked_again(fake, clock):
    answers = [
        {
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "config": {"name": "S"},
            "created": "2026-11-14T00:00:00Z",
            "state": {"messages": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0, "bytes": 0},
        },
        NO_LEADER,
        NO_LEADER,
    ]
    fake.answers["$JS.API.STREAM.INFO.S"] = lambda _: answers.pop()
    js = (await fake.connect()).jetstream()
    task = asyncio.create_task(js.stream("S"))
    for _ in range(3):
        await clock.advance(0.5)
    assert (await task).name == "S"


async def test_a_cluster_that_stays_without_a_leader(fake, clock):
    fake.answers["$JS.API.STREAM.DELETE.S"] = NO_LEADER
    js = (await fake.connect()).jetstream(timeout=2)
    task = asyncio.create_task(js.delete_stream("S"))
    for _ in range(30):
        await clock.advance(0.1)
    with pytest.raises(ApiError, match=r"temporarily unavailable.*STREAM\.DELETE\.S"):
        await task


@pytest.mark.parametrize(("cluster", "requests"), [("C", 2), ("", 1)])
async def test_a_create_that_a_cluster_leaves_unanswered_is_sent_again(fake, clock, cluster, requests):
    fake.info = ServerInfo(headers=True, max_payload=1024, version="2.15.1", cluster=cluster)
    js = (await fake.connect()).jetstream(timeout=4)
    task = asyncio.create_task(js.create_stream("S"))
    await clock.settle()
    await clock.advance(2.1)
    assert len(fake.published("$JS.API.STREAM.CREATE.S")) == requests
    await clock.advance(4)
    with pytest.raises(RequestTimeoutError):
        await task
