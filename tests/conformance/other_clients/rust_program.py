"""What users of natsrpy write, which has Rust's async-nats underneath: `rust_program.py URL PART` tells what it saw.

A program of its own: its threads live in Rust, and a panic there ends the process. It leaves without tearing them down.
"""

import asyncio
import io
import json
import os
import sys
from datetime import UTC, datetime, timedelta

from natsrpy import Nats
from natsrpy.exceptions import NatsrpyBaseError
from natsrpy.js import (
    AckPolicy,
    CountersConfig,
    DeliverPolicy,
    KVConfig,
    ObjectStoreConfig,
    PriorityPolicy,
    PullConsumerConfig,
    PushConsumerConfig,
    Source,
    StreamConfig,
)

TIMEOUT_S = 20


async def error_of(awaitable):
    """The text of the error that must come."""
    try:
        result = await awaitable
    except NatsrpyBaseError as error:
        return str(error)
    return f"no error but {result!r}"


async def take(iterator, count):
    return [await anext(iterator) for _ in range(count)]


async def copies(client, js):
    await js.streams.create(StreamConfig("O", ["o.*"]))
    for number in range(3):
        await js.publish(f"o.{number}", b"%d" % number, wait=True)
    mirror = await js.streams.create(StreamConfig("M", [], mirror=Source("O")))
    some = await js.streams.create(StreamConfig("S", [], sources=[Source("O", filter_subject="o.1")]))
    async with asyncio.timeout(TIMEOUT_S):
        while (await mirror.get_info()).state.messages < 3 or (await some.get_info()).state.messages < 1:
            await asyncio.sleep(0.02)
    info = (await mirror.get_info()).mirror
    return {"mirror": [info.name, info.lag], "copies": [(await some.get_info()).sources[0].name]}


async def core(client, js):
    seen = {}

    async def answer(message):
        await client.publish(message.reply, message.payload[::-1], headers={"Kind": "answer"})

    async with client.subscribe("words.>") as words, client.subscribe("ask", answer, queue="workers"):
        await client.flush()
        await client.publish("words.one", b"1", headers={"Single": "a", "Many": ["b", "c"]}, reply="back")
        (message,) = await take(words, 1)
        seen["message"] = [message.subject, message.reply, message.payload.decode(), message.headers]
        reply = await client.request("ask", b"abc")
        seen["reply"] = [reply.payload.decode(), reply.headers]
    seen["nobody"] = await error_of(client.request("nobody.there", b""))
    return seen


async def streams(client, js):
    seen = {}
    config = StreamConfig(name="S", subjects=["s.>"], allow_direct=True, description="all", max_messages=100)
    stream = await js.streams.create(config)
    acks = [await js.publish(f"s.{number % 2}", b"%d" % number, wait=True) for number in range(6)]
    seen["acks"] = [[ack.stream, ack.sequence, ack.duplicate] for ack in acks]
    once = [await js.publish("s.once", b"", headers={"Nats-Msg-Id": "1"}, wait=True) for _ in range(2)]
    seen["once"] = [[ack.sequence, ack.duplicate] for ack in once]
    expected = {"Nats-Expected-Last-Sequence": "3"}
    seen["expected"] = await error_of(js.publish("s.x", b"", headers=expected, wait=True))
    seen["nobody"] = await error_of(js.publish("nobody", b"", wait=True))
    found = [
        await stream.direct_get(2),
        await stream.direct_get_first_for_subject("s.1"),
        await stream.direct_get_next_for_subject("s.1", 3),
        await stream.direct_get_last_for_subject("s.0"),
    ]
    seen["direct"] = [[message.sequence, message.subject, message.payload.decode()] for message in found]
    seen["missing"] = await error_of(stream.direct_get(99))
    await stream.delete_message(1)
    seen["purged"] = [await stream.purge(filter="s.1", keep=1), await stream.purge(sequence=5), await stream.purge()]
    state = (await stream.get_info()).state
    seen["state"] = [state.messages, state.first_sequence, state.last_sequence]
    other = StreamConfig(name="S", subjects=["s.>"], allow_direct=True, description="other")
    seen["in use"] = await error_of(js.streams.create(other))
    await js.streams.update(other)
    seen["updated"] = (await (await js.streams.get("S")).get_info()).config.description
    seen["deleted"] = [await js.streams.delete("S"), await error_of(js.streams.get("S"))]
    return seen


async def counters(client, js):
    counted = await js.counters.create(CountersConfig(name="C", subjects=["c.>"]))
    totals = [await counted.incr("c.a"), await counted.add("c.a", 5), await counted.decr("c.a")]
    entry = await counted.get("c.a")
    return {"totals": totals, "entry": [entry.subject, entry.value], "none": await error_of(counted.get("c.b"))}


async def consumers(client, js):
    seen = {}
    stream = await js.streams.create(StreamConfig(name="S", subjects=["s.>"]))
    for number in range(20):
        await js.publish(f"s.{number % 2}", b"%d" % number, wait=True)
    manager = stream.consumers

    def numbers(messages):
        return [[message.stream_sequence, message.delivered, message.pending] for message in messages]

    pull = await manager.create(PullConsumerConfig(durable_name="pull", filter_subjects=["s.1"], max_batch=5))
    first = await pull.fetch(max_messages=3)
    seen["fetch"] = numbers(first)
    await first[0].ack(double=True)
    await first[1].nack(double=True)
    await first[2].term(double=True)
    seen["again"] = numbers(await pull.fetch(max_messages=2))
    seen["too many"] = await error_of(pull.fetch(max_messages=6))
    seen["beat"] = await error_of(pull.fetch(max_messages=1, expires=1, heartbeat=0.9))
    reader = await manager.create(PullConsumerConfig(durable_name="reader", ack_policy=AckPolicy.NONE))
    async with reader.consume() as messages:
        seen["consume"] = numbers(await take(messages, 20))[-1]
    last = PullConsumerConfig(name="last", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, filter_subject="s.>")
    seen["last"] = numbers(await (await manager.create(last)).fetch(max_messages=2))
    group = PullConsumerConfig(durable_name="group", priority_policy=PriorityPolicy.OVERFLOW, priority_groups=["g"])
    overflow = await manager.create(group)
    seen["no group"] = await error_of(overflow.fetch(max_messages=1, expires=1))
    seen["few"] = numbers(await overflow.fetch(max_messages=1, group="g", min_pending=21, expires=0.1))
    seen["enough"] = numbers(await overflow.fetch(max_messages=1, group="g", min_pending=20, expires=10))
    push = PushConsumerConfig(deliver_subject="deliver", durable_name="push", flow_control=True, idle_heartbeat=1)
    async with (await manager.create(push)).consume() as messages:
        seen["push"] = numbers(await take(messages, 20))[-1]
    seen["pause"] = [await manager.pause("reader", 60), await manager.resume("reader")]
    seen["names"] = sorted([name async for name in await manager.list_names()])
    seen["kinds"] = sorted([type(consumer).__name__ async for consumer in await manager.list()])
    seen["deleted"] = [await manager.delete("pull"), await error_of(manager.get_pull("pull"))]
    return seen


async def key_value(client, js):
    seen = {}
    bucket = await js.kv.create(KVConfig(bucket="B", history=5))

    def entries(found):
        return [[entry.key, entry.value.decode(), entry.revision, str(entry.operation)] for entry in found]

    seen["revisions"] = [await bucket.put("a", "1"), await bucket.create("b", "2"), await bucket.update("b", "3", 2)]
    seen["taken"] = await error_of(bucket.create("b", "4"))
    seen["late"] = await error_of(bucket.update("b", "4", 2))
    seen["got"] = [(await bucket.get("b")).decode(), await bucket.get("none")]
    watch = await bucket.watch_all(1)
    seen["watched"] = entries(await take(watch, 3))
    await bucket.delete("a")
    await bucket.put("c", "5")
    seen["live"] = entries(await take(watch, 2))
    seen["old"] = entries([await bucket.entry("b", 2)])
    seen["history"] = entries(await take(await bucket.history("a"), 2))
    await bucket.purge("b")
    seen["purged"] = entries(await take(await bucket.history("b"), 1))
    seen["keys"] = [key async for key in await bucket.keys()]
    return seen


async def objects(client, js):
    seen = {}
    store = await js.object_store.create(ObjectStoreConfig(bucket="O"))
    content = bytes(range(256)) * 8192
    await store.put("large", content, chunk_size=100_000, description="two megabytes", metadata={"kind": "test"})
    await store.put("empty", b"", chunk_size=1000)
    written = io.BytesIO()
    await store.get("large", written)
    seen["same"] = written.getvalue() == content
    info = await store.get_info("large")
    seen["info"] = [info.size, info.chunks, info.digest, info.description, info.metadata]
    await store.link_object("large", "link")
    linked = io.BytesIO()
    await store.get("link", linked)
    seen["linked"] = len(linked.getvalue())
    seen["list"] = sorted([info.name async for info in await store.list()])
    await store.delete("large")
    seen["gone"] = await error_of(store.get("large", io.BytesIO()))
    await store.seal()
    seen["sealed"] = await error_of(store.put("more", b"1", chunk_size=10))
    return seen


async def exchange(client, js):
    """Read what another client has written, and write what that one reads."""
    store = await js.object_store.get("O")
    content = io.BytesIO()
    await store.get("ours", content)
    info = await store.get_info("ours")
    await store.put("theirs", content.getvalue(), chunk_size=100_000, description="copied")
    await store.link_object("theirs", "link")
    await store.delete("gone")
    near = io.BytesIO()
    await store.get("near", near)
    bucket = await js.kv.get("K")
    await bucket.put("theirs", (await bucket.get("ours")) + b"!")
    return [info.size, info.chunks, info.description, info.metadata, len(near.getvalue())]


async def publishing(client, js):
    """The same for a batch and a schedule."""
    stream = await js.streams.get("X")
    config = PullConsumerConfig(filter_subjects=["x.ours", "due.ours"], ack_policy=AckPolicy.NONE)
    reader = await stream.consumers.create(config)
    async with reader.consume() as messages:
        taken = await take(messages, 4)
    seen = [
        message.payload.decode()
        if message.subject == "x.ours"
        else [message.subject, message.payload.decode(), message.headers["Nats-Scheduler"]]
        for message in taken
    ]
    for number, payload in enumerate((b"a", b"b"), 1):
        headers = {"Nats-Batch-Id": "theirs", "Nats-Batch-Sequence": str(number)}
        if number == 2:
            headers["Nats-Batch-Commit"] = "1"
        await client.request("x.theirs", payload, headers=headers)
    soon = datetime.now(UTC) + timedelta(milliseconds=100)
    plan = {"Nats-Schedule": f"@at {soon:%Y-%m-%dT%H:%M:%S.%fZ}", "Nats-Schedule-Target": "due.theirs"}
    await js.publish("x.plan.theirs", b"coffee", headers=plan, wait=True)
    return seen


async def services(client, js):
    """Call and find another client's service, which then finds and calls this one, made of subscriptions."""
    seen = {"double": (await client.request("ours.double", b"21")).payload.decode()}
    failed = await client.request("ours.fail", b"")
    seen["failed"] = [failed.headers["Nats-Service-Error"], failed.headers["Nats-Service-Error-Code"]]
    seen["failed"].append(failed.payload.decode())

    async def asked(verb):
        return json.loads((await client.request(f"$SRV.{verb}.ours", b"")).payload)

    ping, info, stats = [await asked(verb) for verb in ("PING", "INFO", "STATS")]
    seen["ping"] = [ping["name"], ping["version"], ping["metadata"]]
    seen["info"] = [info["description"], [one["subject"] for one in info["endpoints"]]]
    seen["stats"] = [[one["name"], one["num_requests"], one["num_errors"]] for one in stats["endpoints"]]
    counts = {"up": 0, "broken": 0}
    identity = {"name": "theirs", "id": "RUST", "version": "2.0.0", "metadata": {}}

    def described(verb):
        answer = {**identity, "type": f"io.nats.micro.v1.{verb.lower()}_response"}
        endpoints = [{"name": name, "subject": f"theirs.{name}", "queue_group": "q"} for name in counts]
        if verb == "INFO":
            answer |= {"description": "theirs", "endpoints": endpoints}
        if verb == "STATS":
            counted = [{**one, "num_requests": counts[one["name"]], "num_errors": 0} for one in endpoints]
            answer |= {"started": "2026-01-01T00:00:00Z", "endpoints": counted}
        return json.dumps(answer).encode()

    async def describe(message):
        await client.publish(message.reply, described(message.subject.split(".")[1]))

    async def answer(message):
        name = message.subject.removeprefix("theirs.")
        counts[name] += 1
        refusal = {"Nats-Service-Error": "pay", "Nats-Service-Error-Code": "402"} if name == "broken" else None
        await client.publish(message.reply, message.payload.upper(), headers=refusal)

    async with client.subscribe("$SRV.*.theirs", describe), client.subscribe("theirs.*", answer, queue="q"):
        await client.flush()
        seen["check"] = json.loads((await client.request("ours.check", b"", timeout=TIMEOUT_S)).payload)
    return seen


PARTS = {
    "copies": copies,
    "core": core,
    "streams": streams,
    "counters": counters,
    "consumers": consumers,
    "kv": key_value,
    "objects": objects,
    "exchange": exchange,
    "publishing": publishing,
    "services": services,
}


async def main(url, part):
    client = Nats([url])
    await client.startup()
    return await asyncio.wait_for(PARTS[part](client, await client.jetstream()), TIMEOUT_S)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))))
    sys.stdout.flush()
    os._exit(0)
