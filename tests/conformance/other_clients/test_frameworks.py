"""Applications of FastStream and taskiq, unchanged, on both servers."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError
from faststream.nats import JStream, KvWatch, NatsBroker, PullSub
from nats.js.errors import BadRequestError
from taskiq import AsyncBroker, ScheduledTask
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError
from taskiq_nats import NatsBroker as TaskNatsBroker
from taskiq_nats import (
    NATSKeyValueScheduleSource,
    NATSObjectStoreResultBackend,
    PullBasedJetStreamBroker,
    PushBasedJetStreamBroker,
)

from tests.support.clients import TIMEOUT_S, until


async def taken(queue, count=1):
    """So many things that an application has done."""
    async with asyncio.timeout(TIMEOUT_S):
        return [await queue.get() for _ in range(count)]


async def test_faststream_consumers(server):
    done = asyncio.Queue()
    broker = NatsBroker(server.url)
    orders = JStream("ORDERS", subjects=["orders.>"])

    @broker.subscriber("orders.pushed", stream=orders, queue="pushed")
    async def pushed(order: dict):
        await done.put(("pushed", order["id"]))

    @broker.subscriber("orders.pulled", stream=orders, durable="pulled", pull_sub=PullSub(batch_size=5, batch=True))
    async def pulled(batch: list[dict]):
        for order in batch:
            await done.put(("pulled", order["id"]))

    tries = []

    @broker.subscriber(
        "orders.tried", stream=orders, durable="tried", pull_sub=PullSub(), ack_policy=AckPolicy.NACK_ON_ERROR
    )
    async def tried(order: dict):
        tries.append(order["id"])
        if len(tries) < 3:
            raise ValueError("once more")
        await done.put(("tried", order["id"]))

    async with broker:
        await broker.start()
        for kind in ("pushed", "pulled", "tried"):
            await broker.publish({"id": kind}, f"orders.{kind}", stream="ORDERS", timeout=TIMEOUT_S)
        assert sorted(await taken(done, 3)) == [("pulled", "pulled"), ("pushed", "pushed"), ("tried", "tried")]
        assert tries == ["tried"] * 3


async def test_faststream_requests_buckets_and_objects(server):
    seen = asyncio.Queue()
    broker = NatsBroker(server.url)

    @broker.subscriber("double", queue="workers")
    async def double(number: int) -> int:
        return 2 * number

    @broker.subscriber("color", kv_watch=KvWatch("SETTINGS"))
    async def setting(value: str):
        await seen.put(("setting", value))

    @broker.subscriber("FILES", obj_watch=True)
    async def file(name: str):
        await seen.put(("file", name))

    async with broker:
        await broker.start()
        answer = await broker.request(21, "double", timeout=TIMEOUT_S)
        assert await answer.decode() == 42
        bucket = await broker.key_value("SETTINGS")
        await bucket.put("color", b"blue")
        files = await broker.object_storage("FILES")
        await files.put("a.txt", b"content")
        assert sorted(await taken(seen, 2)) == [("file", "a.txt"), ("setting", "blue")]


@asynccontextmanager
async def working(broker: AsyncBroker):
    """A broker of taskiq and a worker beside it."""
    broker.is_worker_process = True
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await broker.shutdown()


@pytest.mark.parametrize("broker_type", [PullBasedJetStreamBroker, PushBasedJetStreamBroker, TaskNatsBroker])
async def test_taskiq_tasks(server, broker_type):
    options = {"pull_consume_timeout": 0.5} if broker_type is PullBasedJetStreamBroker else {}
    broker = broker_type(server.url, **options).with_result_backend(NATSObjectStoreResultBackend(server.url))

    @broker.task
    async def add(first: int, second: int) -> int:
        return first + second

    @broker.task
    async def fail() -> None:
        raise ValueError("no")

    async with working(broker):
        if broker_type is TaskNatsBroker:
            # Core NATS keeps nothing: the worker has to be there first.
            await until(lambda: len(broker.client._subs) > 0)
            await broker.client.flush()
        task = await add.kiq(1, 2)
        assert (await task.wait_result(timeout=TIMEOUT_S, check_interval=0.02)).return_value == 3
        failed = await (await fail.kiq()).wait_result(timeout=TIMEOUT_S, check_interval=0.02)
        assert failed.is_err


async def test_what_faststream_refuses(server):
    broker = NatsBroker(server.url)
    orders = JStream("ORDERS")
    for refused, options in (
        ("only be used with the `stream`", {"pull_sub": PullSub()}),
        ("`stream` and `kv_watch`", {"stream": orders, "kv_watch": KvWatch("SETTINGS")}),
        ("`stream` and `obj_watch`", {"stream": orders, "obj_watch": True}),
    ):
        with pytest.raises(SetupError, match=refused):
            broker.subscriber("orders.new", **options)
    with pytest.warns(RuntimeWarning, match="ignored with `max_workers`"):
        broker.subscriber("orders.new", stream=orders, pull_sub=PullSub(batch=True), max_workers=2)


async def test_what_taskiq_refuses(server):
    first, second = PushBasedJetStreamBroker(server.url), PushBasedJetStreamBroker(server.url)

    @first.task
    async def add(first: int, second: int) -> int:
        return first + second

    await first.startup()
    with pytest.raises(BadRequestError, match=r"consumer name already in use|consumer already exists"):
        await second.startup()
    with pytest.raises(SendTaskError):
        await add.kicker().with_labels(**{"a label": "x"}).kiq(1, 2)
    await first.shutdown()
    await second.shutdown()


async def test_taskiq_schedules(server):
    source = NATSKeyValueScheduleSource(server.url)
    await source.startup()
    try:
        schedule = ScheduledTask(
            task_name="add", labels={}, args=[1], kwargs={}, schedule_id="one", time=datetime(2030, 1, 1, tzinfo=UTC)
        )
        assert await source.get_schedules() == []
        await source.add_schedule(schedule)
        assert [one.schedule_id for one in await source.get_schedules()] == ["one"]
        await source.post_send(schedule)
        assert await source.get_schedules() == []
    finally:
        await source.shutdown()
