"""The fixtures that users of jetlake get for their own tests."""

from __future__ import annotations

import asyncio

from jetlake.testing import fill, make_stream

pytest_plugins = ["pytester"]


async def test_a_server_and_a_client(jetlake_js):
    await jetlake_js.create_stream("ORDERS", subjects=["orders.>"])
    ack = await jetlake_js.publish("orders.new", b"1")
    assert (ack.stream, ack.seq) == ("ORDERS", 1)


async def test_each_test_begins_with_an_empty_store(jetlake_js):
    assert await jetlake_js.stream_names() == []


async def test_time_moves_only_by_hand(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "ORDERS", messages=1)
    consumer = await stream.create_consumer("worker", ack_wait=30)
    (first,) = await consumer.fetch(1)
    assert first.metadata.delivered == 1
    assert await consumer.fetch(1, no_wait=True) == []
    jetlake_clock.advance(31)
    (again,) = await consumer.fetch(1)
    assert again.metadata.delivered == 2


async def test_messages_expire_when_the_clock_is_moved(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "SHORT", messages=3, max_age=3600)
    jetlake_clock.advance(3601)
    await asyncio.sleep(0)
    assert (await stream.info()).state.messages == 0


async def test_a_pull_request_expires_when_the_clock_is_moved(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "EMPTY")
    consumer = await stream.create_consumer("worker")
    waiting = asyncio.ensure_future(consumer.next(600))
    while (await consumer.info()).num_waiting == 0:
        await asyncio.sleep(0)
    jetlake_clock.advance(601)
    assert await waiting is None


async def test_fill_makes_each_payload(jetlake_js):
    stream = await make_stream(jetlake_js, "S", ["a.*.b"], messages=2, payload=lambda number: b"%d" % number)
    await fill(jetlake_js, "a.x.b", 1)
    assert [(await stream.get(sequence)).data for sequence in (1, 2, 3)] == [b"0", b"1", b"message"]
    assert (await stream.get(1)).subject == "a.test.b"


def test_the_plugin_is_there_for_users(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.asyncio
        async def test_mine(jetlake_js):
            await jetlake_js.create_stream("MINE")
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
