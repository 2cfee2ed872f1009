"""One short example for each class of the client, as the Python reference shows them."""

from __future__ import annotations

import asyncio
import inspect
import os
from datetime import UTC, datetime
from typing import Any

import jetlake
from jetlake.client import Client, JetStream, Message, ServiceRequest


async def connect(client: Client, js: JetStream) -> None:
    async with jetlake.connect(client.server, name="billing", on_error=print) as other:
        print(await other.rtt())


async def client(client: Client, js: JetStream) -> None:
    await client.subscribe("greet", lambda message: message.respond(b"hello " + message.payload))
    answer = await client.request("greet", b"Ann", timeout=2)
    print(answer.payload)


async def subscription(client: Client, js: JetStream) -> None:
    async with await client.subscribe("news.>") as news:
        await client.publish("news.sport", b"1:0")
        message = await news.next(timeout=2)
        print(message.subject, message.payload)


async def message(client: Client, js: JetStream) -> None:
    worker = await js.create_consumer("ORDERS", "worker")
    for message in await worker.fetch(1):
        print(message.subject, message.headers, message.json(), message.metadata.stream_seq)
        await message.ack_sync()


async def jet_stream(client: Client, js: JetStream) -> None:
    await js.create_stream("LOGS", subjects=["logs.>"], max_age=86400)
    ack = await js.publish("logs.app", b"started", msg_id="boot-17")
    print(ack.stream, ack.seq, ack.duplicate)


async def pending_ack(client: Client, js: JetStream) -> None:
    pending = [await js.publish_async("orders.new", b'{"id": %d}' % number) for number in range(100)]
    print((await pending[-1]).seq)  # one of them
    await js.publish_async_complete()  # all of them


async def atomic_batch(client: Client, js: JetStream) -> None:
    await js.create_stream("LEDGER", subjects=["ledger.*"], allow_atomic=True)
    async with js.batch() as batch:  # both are stored, or neither
        await batch.publish("ledger.ann", b"-5")
        await batch.publish("ledger.bob", b"+5")
    print(batch.ack.count)


async def fast_publisher(client: Client, js: JetStream) -> None:
    await js.create_stream("METERS", subjects=["meters.*"], allow_batched=True)
    async with js.fast_publisher() as fast:
        for number in range(1000):
            await fast.publish("meters.7", b"%d" % number)
    print(fast.ack.count)


async def schemas(client: Client, js: JetStream) -> None:
    await js.schemas().add("ORDERS", "orders.>", '{"type": "object", "required": ["id"]}')
    await js.publish("orders.new", b'{"id": 1}', validate=True)


async def stream(client: Client, js: JetStream) -> None:
    orders = await js.stream("ORDERS")
    state = (await orders.info()).state
    print(state.messages, state.first_seq, state.last_seq)
    print(await orders.purge(subject="orders.old"))


async def stored_message(client: Client, js: JetStream) -> None:
    orders = await js.stream("ORDERS")
    newest = await orders.get(last_by_subject="orders.new")
    print(newest.sequence, newest.time, newest.payload)


async def consumer(client: Client, js: JetStream) -> None:
    orders = await js.stream("ORDERS")
    worker = await orders.create_consumer("worker", filter_subject="orders.new", ack_wait=30, max_deliver=5)
    message = await worker.next(timeout=1)
    if message is not None:
        await message.ack()
    print((await worker.info()).num_pending)


async def message_batch(client: Client, js: JetStream) -> None:
    worker = await js.create_consumer("ORDERS", "worker")
    messages = await worker.fetch(100, expires=1)
    print(len(messages))
    await messages.ack()  # all of them, by one call


async def fetch(client: Client, js: JetStream) -> None:
    worker = await js.create_consumer("ORDERS", "worker")
    fetched = worker.fetch(10, expires=1)
    async for message in fetched:  # as they arrive; `await` returns them as a list
        await message.ack()
    print(fetched.error)


async def consume(client: Client, js: JetStream) -> None:
    worker = await js.create_consumer("ORDERS", "worker")
    async with worker.consume(max_messages=100) as messages:
        async for message in messages:
            await message.ack()
            if message.metadata.num_pending == 0:
                break


async def ordered_consumer(client: Client, js: JetStream) -> None:
    orders = await js.stream("ORDERS")
    async for message in orders.ordered(deliver_policy="last_per_subject"):
        print(message.subject, message.payload)
        if message.metadata.num_pending == 0:
            break


async def consumer_group(client: Client, js: JetStream) -> None:
    groups = js.consumer_groups("ORDERS")
    group = await groups.create_elastic("billing", max_members=4, keys={"orders.*": [1]}, members=["ann", "bob"])
    print(group.partitions("ann"), await group.active_members())


async def consumer_groups(client: Client, js: JetStream) -> None:
    groups = js.consumer_groups("ORDERS")
    await groups.create_static("shipping", max_members=2, members=["ann", "bob"])
    print(await groups.names())


async def group_member(client: Client, js: JetStream) -> None:
    async def handle(message: Message) -> None:
        print(message.subject)  # acknowledged when this returns

    group = await js.consumer_groups("ORDERS").create_static("packing", max_members=1, members=["ann"])
    async with group.consume("ann", handle) as member:
        print(member.partitions)


async def push_subscription(client: Client, js: JetStream) -> None:
    async with await js.subscribe("orders.new", durable="mail") as orders:
        message = await orders.next(timeout=2)
        await message.ack()


async def pull_subscription(client: Client, js: JetStream) -> None:
    async with await js.pull_subscribe("orders.new", durable="old-worker") as orders:
        for message in await orders.fetch(10, timeout=1):
            await message.ack()


async def key_value(client: Client, js: JetStream) -> None:
    settings = await js.create_key_value("settings", history=5)
    revision = await settings.put("mail.sender", b"shop@example.org")
    await settings.update("mail.sender", b"orders@example.org", revision)
    print((await settings.get("mail.sender")).value, await settings.keys("mail.*"))


async def key_watch(client: Client, js: JetStream) -> None:
    settings = await js.create_key_value("settings", history=5)
    await settings.put("mail.sender", b"shop@example.org")
    async with settings.watch("mail.>") as watch:
        for entry in await watch.current():
            print(entry.key, entry.value)
        await settings.delete("mail.sender")
        print((await watch.next()).operation)


async def object_store(client: Client, js: JetStream) -> None:
    files = await js.create_object_store("files")
    await files.put("report.txt", b"all is well", description="of today")
    print(await files.get("report.txt"), [info.name for info in await files.list()])


async def object_reader(client: Client, js: JetStream) -> None:
    files = await js.create_object_store("files")
    await files.put("large.bin", bytes(300_000))
    async with files.open("large.bin") as reader:
        async for chunk in reader:
            print(len(chunk))


async def object_watch(client: Client, js: JetStream) -> None:
    files = await js.create_object_store("files")
    await files.put("report.txt", b"all is well")
    async with files.watch() as watch:
        print([info.name for info in await watch.current()])


async def services(client: Client, js: JetStream) -> None:
    services = client.services()
    for one in await services.ping(timeout=0.2):
        print(one.name, one.id)


async def service(client: Client, js: JetStream) -> None:
    async with client.service("till", "1.0.0") as till:

        @till.endpoint(subject="till.price")
        async def price(request: ServiceRequest) -> bytes:
            return b"42"

        print((await client.services().request("till.price", b"tea")).payload)


async def service_request(client: Client, js: JetStream) -> None:
    async def price(request: ServiceRequest) -> None:
        if request.json() == "tea":
            await request.respond(b"42")
        else:
            await request.respond_error(404, "not sold here")

    async with client.service("shop", "1.0.0") as shop:
        shop.add_endpoint("price", price)
        print((await client.request("price", b'"tea"')).payload)


async def counters(client: Client, js: JetStream) -> None:
    votes = await js.create_counters("VOTES", subjects=["votes.*"])
    await votes.add("votes.tea", 3)
    print(await votes.get("votes.tea"))


async def table(client: Client, js: JetStream) -> None:
    orders = await js.stream("ORDERS")
    table = orders.table(start=datetime(2026, 1, 1, tzinfo=UTC), columns=["sequence", "subject", "data"])
    print((await table.to_arrow()).num_rows)


EXAMPLES: list[Any] = [value for name, value in list(globals().items()) if inspect.iscoroutinefunction(value)]


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as connected:
        for example in EXAMPLES:
            js = connected.jetstream()
            orders = await js.create_stream("ORDERS", subjects=["orders.>"])
            await js.publish("orders.new", b'{"id": 1}')
            await example(connected, js)
            await orders.delete()
    print(len(EXAMPLES), "examples")


if __name__ == "__main__":
    asyncio.run(main())
