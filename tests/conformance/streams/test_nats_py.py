"""Streams through nats-py, an independent client: management, publishing, deduplication, expectations, get, purge."""

import asyncio

import nats
import pytest
from nats.js import api
from nats.js.errors import APIError, BadRequestError, NotFoundError


@pytest.fixture
async def js(server):
    client = await nats.connect(server.url)
    yield client.jetstream()
    await client.close()


async def test_account_and_streams(js):
    info = await js.account_info()
    assert (info.streams, info.consumers, info.limits.max_streams) == (0, 0, -1)
    created = await js.add_stream(name="ORDERS", subjects=["orders.>"], max_msgs=100, description="all of them")
    assert created.did_create and created.config.subjects == ["orders.>"]
    again = await js.add_stream(name="ORDERS", subjects=["orders.>"], max_msgs=100, description="all of them")
    assert again.created == created.created
    with pytest.raises(BadRequestError) as refused:
        await js.add_stream(name="ORDERS", subjects=["orders.>"], max_msgs=99)
    assert refused.value.err_code == 10058
    updated = await js.update_stream(name="ORDERS", subjects=["orders.*"], max_msgs=50)
    assert (updated.config.max_msgs, updated.config.description) == (50, None)
    assert await js.find_stream_name_by_subject("orders.new") == "ORDERS"
    await js.add_stream(name="OTHER")
    assert [info.config.name for info in await js.streams_info()] == ["ORDERS", "OTHER"]
    assert (await js.account_info()).streams == 2
    assert await js.delete_stream("OTHER")
    with pytest.raises(NotFoundError):
        await js.stream_info("OTHER")


async def test_publish_and_get(js):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(5):
        ack = await js.publish(f"orders.{number % 2}", b"%d" % number, headers={"Kind": "test"})
        assert (ack.stream, ack.seq, ack.duplicate) == ("ORDERS", number + 1, None)
    message = await js.get_msg("ORDERS", 3)
    assert (message.subject, message.seq, message.data, message.headers) == ("orders.0", 3, b"2", {"Kind": "test"})
    assert (await js.get_last_msg("ORDERS", "orders.1")).seq == 4
    with pytest.raises(NotFoundError):
        await js.get_msg("ORDERS", 9)
    state = (await js.stream_info("ORDERS", subjects_filter=">")).state
    assert (state.messages, state.first_seq, state.last_seq) == (5, 1, 5)
    assert state.subjects == {"orders.0": 3, "orders.1": 2}


async def test_publish_many_at_once(js):
    await js.add_stream(name="MANY", subjects=["many"])
    acks = await asyncio.gather(*[await js.publish_async("many", b"%d" % number) for number in range(500)])
    assert [ack.seq for ack in acks] == list(range(1, 501))


async def test_duplicates_and_expectations(js):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    first = await js.publish("orders.1", b"one", headers={api.Header.MSG_ID: "1"})
    again = await js.publish("orders.1", b"one", headers={api.Header.MSG_ID: "1"})
    assert (first.seq, again.seq, again.duplicate) == (1, 1, True)
    await js.publish("orders.1", b"two", headers={api.Header.EXPECTED_LAST_SEQUENCE: "1"})
    for headers, code in (
        ({api.Header.EXPECTED_LAST_SEQUENCE: "1"}, 10071),
        ({api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE: "9"}, 10071),
        ({api.Header.EXPECTED_LAST_MSG_ID: "9"}, 10070),
        ({api.Header.EXPECTED_STREAM: "OTHER"}, 10060),
    ):
        with pytest.raises(APIError) as refused:
            await js.publish("orders.1", b"three", headers=headers)
        assert refused.value.err_code == code
    with pytest.raises(APIError) as refused:
        await js.publish("orders.1", b"three", stream="OTHER")
    assert refused.value.err_code == 10060
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("nobody.listens", b"")


async def test_purge_and_delete(js):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(10):
        await js.publish(f"orders.{number % 2}", b"")
    assert await js.delete_msg("ORDERS", 2)
    await js.purge_stream("ORDERS", subject="orders.0", keep=1)
    assert (await js.stream_info("ORDERS")).state.messages == 5
    await js.purge_stream("ORDERS", seq=7)
    assert (await js.stream_info("ORDERS")).state.first_seq == 8
    await js.purge_stream("ORDERS")
    state = (await js.stream_info("ORDERS")).state
    assert (state.messages, state.first_seq, state.last_seq) == (0, 11, 10)


async def test_direct_get(js):
    await js.add_stream(api.StreamConfig(name="ORDERS", subjects=["orders.>"], allow_direct=True))
    await js.publish("orders.a", b"one", headers={"k": "v"})
    await js.publish("orders.a", b"two")
    message = await js.get_msg("ORDERS", 1, direct=True)
    assert (message.subject, message.seq, message.data, message.headers["k"]) == ("orders.a", 1, b"one", "v")
    message = await js.get_last_msg("ORDERS", "orders.a", direct=True)
    assert (message.seq, message.data) == (2, b"two")
    with pytest.raises(NotFoundError):
        await js.get_msg("ORDERS", 9, direct=True)


async def test_what_was_stored_is_there_after_a_restart(start):
    server = await start()
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders"], max_msgs=5)
    for number in range(8):
        await js.publish("orders", b"%d" % number)
    before = await js.stream_info("ORDERS")
    await client.close()
    await server.restart()
    client = await nats.connect(server.url)
    js = client.jetstream()
    after = await js.stream_info("ORDERS")
    assert (after.config, after.state, after.created) == (before.config, before.state, before.created)
    assert (await js.publish("orders", b"next")).seq == 9
    await client.close()


async def test_mirrors_and_sources(js):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(3):
        await js.publish(f"orders.{number}", b"%d" % number)
    origin = api.StreamSource(name="ORDERS")
    await js.add_stream(name="COPY", mirror=origin)
    await js.add_stream(name="SOME", sources=[api.StreamSource(name="ORDERS", filter_subject="orders.1")])
    async with asyncio.timeout(10):
        while (await js.stream_info("COPY")).state.messages < 3 or (await js.stream_info("SOME")).state.messages < 1:
            await asyncio.sleep(0.02)
    assert (await js.get_msg("COPY", 3)).data == b"2"
    copy = await js.get_msg("SOME", 1)
    assert copy.headers["Nats-Stream-Source"].startswith("ORDERS 2 orders.1 > orders.1 ")
    info = await js.stream_info("COPY")
    assert (info.mirror.name, info.mirror.lag) == ("ORDERS", 0)
    assert (await js.stream_info("SOME")).sources[0].name == "ORDERS"
    subscription = await js.pull_subscribe("", stream="COPY", durable="reader")
    assert [message.data for message in await subscription.fetch(3, timeout=5)] == [b"0", b"1", b"2"]
