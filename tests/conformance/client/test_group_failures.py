"""Members of consumer groups when their server stalls, or their group ends them."""

import asyncio

import pytest

import jetlake
from jetlake.errors import ConsumerGroupError
from tests.support.clients import until
from tests.support.relay import Relay

KEYS = {"orders.*": [1]}


@pytest.fixture
async def relay(server):
    async with Relay(server.port) as relay:
        yield relay


@pytest.fixture
async def group(js, relay):
    await js.create_stream("ORDERS", subjects=["orders.*"])
    await js.consumer_groups("ORDERS").create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    async with jetlake.connect(relay.url, request_timeout=2, on_error=lambda _: None) as client:
        yield await client.jetstream().consumer_groups("ORDERS").get("g")


async def test_a_member_outlives_a_server_that_answers_nothing(js, group, relay):
    seen, errors = [], []
    async with group.consume("a", lambda message: seen.append(message.data), ack_wait=1, on_error=errors.append) as a:
        await js.publish("orders.1", b"1")
        await until(lambda: seen)
        relay.is_open.clear()
        try:
            # The read misses heartbeats, the connection does not answer, and no other one can be opened.
            await until(lambda: not group.api.connection.is_connected, 30)
            await asyncio.sleep(1)
        finally:
            relay.is_open.set()
        await js.publish("orders.1", b"2")
        await until(lambda: b"2" in seen, 30)
        assert "at work" in repr(a)


async def test_what_ends_a_member_is_reported_when_nobody_waits(js, group):
    errors = []
    async with group.consume("a", print, on_error=errors.append):
        bucket = await js.key_value("elastic-consumer-groups")
        await bucket.put("ORDERS.g", b'{"max_members":3,"partitioning_filters":null,"members":["a"]}')
        await until(lambda: errors)
    assert [type(error) for error in errors] == [ConsumerGroupError]
