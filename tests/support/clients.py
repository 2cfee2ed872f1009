"""What the tests of the client share: clients that end with the test, streams with messages in them."""

import asyncio

import nkeys
import pytest

import jetlake
from jetlake.errors import KeyNotFoundError

TIMEOUT_S = 60


async def until(condition, timeout_s=TIMEOUT_S):
    """Wait until the condition holds; it is checked every few milliseconds."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.005)


async def cancelled_in_first_turn(ending):
    """Begin a stop or a drain, and cancel it before the tasks that it has started have had a turn."""
    task = asyncio.create_task(ending)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def flush_nats_py(client):
    """Wait until the server knows all subscriptions of a client of nats-py.

    Its flush writes PING before the commands that are pending, so the first PONG says nothing of them; the second does.
    """
    await client.flush()
    await client.flush()


async def filled(js, count, name="S", **options):
    """A stream with so many messages, whose payloads count from 0, on `s.0` to `s.9`."""
    stream = await js.create_stream(name, subjects=["s.>"], **options)
    if options.get("retention") == "workqueue":
        # A mirror takes messages out of a work queue, but only those that every consumer has acknowledged.
        await stream.create_consumer("keeper")
    for number in range(count):
        await js.publish_async(f"s.{number % 10}", b"%d" % number)
    await js.publish_async_complete()
    return stream


LACKS = ["limited", "filtered", "older"]
"""What a mirror may lack of its origin: old messages, other subjects, or all of it, for it mirrored a stream before."""


async def with_partial_mirror(client, lack, count, **options):
    """A stream as by `filled`, and a mirror that answers direct gets for it, but holds something else."""
    js = client.jetstream()
    options = {"allow_direct": True, **options}
    before = await filled(js, count // 2 if lack == "older" else count, **options)
    mirror = {"name": "S", **({"filter_subject": "s.3"} if lack == "filtered" else {})}
    copy = await js.create_stream("COPY", mirror=mirror, mirror_direct=True, max_msgs=10 if lack == "limited" else -1)
    held = {"older": count // 2, "limited": 10, "filtered": count // 10}[lack]

    async def has(messages):
        return (await copy.info()).state.messages >= messages

    await until(lambda: has(held))
    if lack == "older":
        await before.delete()
        await filled(js, count, **options)
    await until_both_answer(client, "S", "COPY")
    return await js.stream("S")


async def until_both_answer(client, stream, mirror):
    """Wait until direct gets of a stream are answered by itself and by its mirror, now and then."""
    answered_by = set()

    async def both_answer():
        request = b'{"seq":1,"next_by_subj":">","batch":1}'
        answer = await client.request(f"$JS.API.DIRECT.GET.{stream}", request)
        answered_by.add(answer.headers.get("Nats-Stream"))
        return answered_by >= {stream, mirror}

    await until(both_answer)


async def with_stale_mirror(client, stream, *removed):
    """Create a mirror that answers direct gets for a stream, and has lost these messages: as a replica that lags."""
    js = client.jetstream()
    copy = await js.create_stream("STALE", mirror={"name": stream}, mirror_direct=True)

    async def is_caught_up():
        return (await copy.info()).state.last_seq >= max(removed)

    await until(is_caught_up)
    for sequence in removed:
        await copy.delete_message(sequence)
    await until_both_answer(client, stream, "STALE")


async def until_value(bucket, key, value):
    """Wait until a bucket has that value: a mirror answers direct gets of its origin before it has the message."""

    async def has_value():
        try:
            return (await bucket.get(key)).value == value
        except KeyNotFoundError:
            return False

    await until(has_value)


def numbers(messages):
    return [int(message.payload) for message in messages]


class Clients:
    """Opens clients and closes them at the end."""

    def __init__(self):
        self._open = []

    async def __call__(self, server, **options):
        url = options.pop("url", server.url)
        client = await jetlake.connect(url, **{"connect_timeout": 10, **options})
        self._open.append(client)
        return client

    async def close(self):
        for client in self._open:
            await client.close()


def key(prefix, number):
    """A key pair and its public key, made of a number."""
    seed = nkeys.encode_seed(bytes([number] * 32), prefix)
    return nkeys.from_seed(bytearray(seed)), seed.decode()
