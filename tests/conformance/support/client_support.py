"""What the tests of the client share: clients that end with the test, streams with messages in them."""

import asyncio

import nkeys

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


async def flush_nats_py(client):
    """Wait until the server knows all subscriptions of a client of nats-py.

    Its flush writes PING before the commands that are pending, so the first PONG says nothing of them; the second does.
    """
    await client.flush()
    await client.flush()


async def filled(js, count, name="S", **options):
    """A stream with so many messages, whose payloads count from 0, on `s.0` to `s.9`."""
    stream = await js.create_stream(name, subjects=["s.>"], **options)
    for number in range(count):
        await js.publish_async(f"s.{number % 10}", b"%d" % number)
    await js.publish_async_complete()
    return stream


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
