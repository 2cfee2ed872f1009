"""Our client's batches and schedules, asyncio and blocking, against both servers."""

import asyncio
from datetime import UTC, datetime, timedelta

import nats
import pytest

import jetlake.blocking
from jetlake.errors import ApiError, BatchError, InvalidOptionError, NoRespondersError, WrongLastSequenceError


@pytest.fixture
async def stream(js):
    return await js.create_stream(
        "B", subjects=["b.>"], allow_atomic=True, allow_batched=True, allow_msg_schedules=True, allow_msg_ttl=True
    )


async def payloads(stream):
    info = await stream.info()
    return [
        (await stream.get(sequence)).payload
        for sequence in range(max(info.state.first_seq, 1), info.state.last_seq + 1)
    ]


async def test_a_batch_is_committed_at_the_end_of_its_block(js, stream):
    async with js.batch() as batch:
        for number in range(5):
            batch.publish(f"b.{number}", b"%d" % number, headers={"Own": "yes"})
        assert len(batch) == 5
        assert await payloads(stream) == []
    assert (batch.ack.seq, batch.ack.count) == (5, 5)
    assert await payloads(stream) == [b"0", b"1", b"2", b"3", b"4"]
    assert (await stream.get(1)).headers["Own"] == "yes"
    async with js.batch() as batch:
        batch.publish("b.one", b"one")
    assert (batch.ack.seq, batch.ack.count) == (6, 1)
    with pytest.raises(BatchError):
        batch.publish("b.one")


async def test_an_exception_discards_a_batch(js, stream):
    with pytest.raises(ZeroDivisionError):
        async with js.batch() as batch:
            batch.publish("b.a")
            batch.publish("b.b", b"%d" % (1 // 0))
    with pytest.raises(BatchError):
        _ = batch.ack
    async with js.batch():
        pass
    assert await payloads(stream) == []


async def test_a_message_is_as_large_as_the_server_takes_with_the_headers_of_its_batch(server, clients):
    client = await clients(server)
    js = client.jetstream()
    await js.create_stream("S", subjects=["s.>"], allow_atomic=True)
    batch = js.batch()
    with pytest.raises(InvalidOptionError, match="accepts at most"):
        batch.publish("s.1", bytes(client.max_payload - 50))
    room = client.max_payload - len(b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: 1\r\n\r\n" % (b"x" * 22))
    batch.publish("s.1", bytes(room))
    with pytest.raises(InvalidOptionError, match="accepts at most"):
        await batch.commit()
    batch.publish("s.2", b"")
    assert (await batch.commit()).count == 2
    assert client.statistics.reconnects == 0


async def test_a_refused_batch_stores_nothing(js, stream):
    await js.publish("b.x", msg_id="known")
    with pytest.raises(WrongLastSequenceError):
        async with js.batch() as batch:
            batch.publish("b.a")
            batch.publish("b.b", expected_last_subject_sequence=7)
    with pytest.raises(ApiError) as caught:
        async with js.batch() as batch:
            batch.publish("b.a")
            batch.publish("b.b", msg_id="known")
    assert caught.value.err_code == 10201
    await js.create_stream("PLAIN", subjects=["plain"])
    with pytest.raises(ApiError) as caught:
        async with js.batch() as batch:
            batch.publish("plain")
            batch.publish("plain")
    assert caught.value.err_code == 10174
    with pytest.raises(InvalidOptionError):
        js.batch().publish("b.a", expected_last_msg_id="x")
    assert len(await payloads(stream)) == 1


async def test_fast_publishing(js, stream):
    async with js.fast_publisher(flow=50) as fast:
        for number in range(1000):
            assert await fast.publish("b.a", b"%d" % number) == number + 1
    assert (fast.ack.seq, fast.ack.count) == (1000, 1000)
    assert (await payloads(stream))[::111] == [b"%d" % number for number in range(0, 1000, 111)]
    with pytest.raises(BatchError):
        await fast.publish("b.a")


async def test_several_tasks_publish_to_one_fast_batch(js, stream):
    async with js.fast_publisher(flow=10) as fast:
        numbers = await asyncio.gather(*(fast.publish("b.a", b"%d" % number) for number in range(200)))
    assert sorted(numbers) == list(range(1, 201))
    assert fast.ack.count == 200


async def test_a_fast_batch_that_fails_leaves_no_subscription(server, clients):
    client = await clients(server)
    js = client.jetstream()
    await js.create_stream("PLAIN", subjects=["plain"])
    before = client.statistics.subscriptions
    fast = js.fast_publisher()
    await fast.publish("plain")
    for _ in range(2):
        with pytest.raises(ApiError):
            await fast.commit()
    assert client.statistics.subscriptions == before


@pytest.mark.parametrize("gaps", ["fail", "ok"])
async def test_a_refused_message_of_a_fast_batch(js, stream, gaps):
    fast = js.fast_publisher(flow=1, outstanding=1, gaps=gaps)
    await fast.publish("b.a")
    await fast.publish("b.a", expected_last_sequence=77)
    if gaps == "ok":
        await fast.publish("b.a")
        assert (await fast.commit()).seq == 2
    else:
        with pytest.raises(BatchError):
            while True:
                await fast.publish("b.a")
    assert [(number, error.err_code) for number, error in fast.refused] == [(2, 10071)]


async def test_fast_publishing_where_there_is_no_stream(js):
    fast = js.fast_publisher()
    await fast.publish("nowhere.1")
    with pytest.raises(NoRespondersError, match=r"nowhere\.1"):
        await fast.commit()


async def test_fast_publishing_where_it_is_not_allowed(js):
    await js.create_stream("PLAIN", subjects=["plain"])
    fast = js.fast_publisher()
    await fast.publish("plain")
    with pytest.raises(ApiError) as caught:
        await fast.publish("plain")
    assert caught.value.err_code == 10205
    with pytest.raises(InvalidOptionError):
        js.fast_publisher(flow=0)
    with pytest.raises(BatchError):
        await js.fast_publisher().commit()


async def test_schedules(js, stream):
    past = datetime.now(UTC) - timedelta(hours=1)
    ack = await js.schedule("b.plan", b"now", target="b.due", at=past, publish={"headers": {"Own": "yes"}})
    assert ack.seq == 1
    while (await stream.info()).state.last_seq < 2:
        await asyncio.sleep(0.02)
    message = await stream.get(2)
    assert (message.subject, message.payload, message.headers["Own"]) == ("b.due", b"now", "yes")
    await js.schedule("b.plan", target="b.due", every=timedelta(hours=1), message_ttl=60, rollup=True)
    await js.schedule("b.plan", target="b.due", cron="0 0 7 * * mon-fri", time_zone="Europe/Berlin", source="b.x")
    stored = await stream.get(last_by_subject="b.plan")
    assert stored.headers["Nats-Schedule-Time-Zone"] == "Europe/Berlin"
    with pytest.raises(ApiError) as caught:
        await js.schedule("b.plan", target="b.plan", every=5)
    assert caught.value.err_code == 10190
    for wrong in ({}, {"at": past, "every": 5}, {"every": 0.5}, {"every": 5, "time_zone": "UTC"}, {"cron": " "}):
        with pytest.raises(InvalidOptionError):
            await js.schedule("b.plan", target="b.due", **wrong)


async def test_the_blocking_client(js, stream, server):
    def work():
        with jetlake.blocking.connect(server.url) as nc:
            js = nc.jetstream()
            with js.batch() as batch:
                batch.publish("b.a", b"1")
                batch.publish("b.a", b"2")
            with js.fast_publisher(flow=10) as fast:
                for _ in range(100):
                    fast.publish("b.a", b"x")
            js.schedule("b.plan", target="b.due", every=3600)
            return batch.ack, fast.ack, fast.published

    batch, fast, published = await asyncio.to_thread(work)
    assert (batch.count, fast.count, fast.seq, published) == (2, 100, 102, 100)


async def test_batches_and_schedules_of_nats_py(server, stream):
    """nats-py has no calls for them: the headers are enough."""
    client = await nats.connect(server.url)
    try:
        js = client.jetstream()
        for number in (1, 2):
            await client.publish("b.a", b"x", headers={"Nats-Batch-Id": "n", "Nats-Batch-Sequence": str(number)})
        last = {"Nats-Batch-Id": "n", "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"}
        assert (await js.publish("b.a", b"x", headers=last)).seq == 3
        past = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "b.due"}
        await js.publish("b.plan", b"tick", headers=past)
        subscription = await js.pull_subscribe("b.due", "due")
        (message,) = await subscription.fetch(1)
        assert (message.data, message.headers["Nats-Schedule-Next"]) == (b"tick", "purge")
    finally:
        await client.close()
