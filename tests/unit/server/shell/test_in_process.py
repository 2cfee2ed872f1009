"""A client and a server in one event loop talk without TCP, and behave as over TCP."""

import asyncio
import tempfile

import pytest

import jetlake
import jetlake.blocking
from jetlake.errors import InvalidOptionError, NoServersError


async def test_messages_streams_and_drain():
    async with jetlake.Server() as server:
        client = await jetlake.connect(server=server)
        js = client.jetstream()
        stream = await js.create_stream("S", subjects=["s"])
        for number in range(3000):
            await js.publish_async("s", b"%d" % number * 100)
        await js.publish_async_complete()
        consumer = await stream.create_consumer("c")
        done = []

        async def handle(message):
            await message.ack()
            done.append(message)

        reading = consumer.consume(handle).start()
        while len(done) < 3000:
            await asyncio.sleep(0.01)
        await client.drain()
        assert client.is_closed and reading.is_stopped and client.server == "nats://in-process:4222"
        while not server.closed_connections:
            await asyncio.sleep(0)
        assert [one.peer.host for one in server.closed_connections] == [""]


async def test_a_replaced_server_is_connected_again():
    with tempfile.TemporaryDirectory() as folder:
        current = jetlake.Server(folder)
        await current.start()
        client = await jetlake.connect(server=lambda: current, reconnect_wait=0.01)
        js = client.jetstream()
        await js.create_stream("S", subjects=["s"])
        await js.publish("s", b"1")
        await current.stop()
        while client.is_connected:
            await asyncio.sleep(0)
        current = jetlake.Server(folder)
        await current.start()
        await js.publish("s", b"2", retries=50)
        assert client.reconnects == 1
        assert (await (await js.stream("S")).info()).state.messages == 2
        await client.close()
        await current.stop()


async def test_a_function_that_fails_to_give_the_server_is_asked_again():
    async with jetlake.Server() as server:
        answers = [server, None, server]

        def current():
            answer = answers.pop(0)
            if answer is None:
                raise LookupError("it is being replaced")
            return answer

        client = await jetlake.connect(server=current, reconnect_wait=0.01)
        await client.force_reconnect()
        assert (client.is_connected, answers) == (True, [])
        await client.close()


async def test_what_cannot_work_is_said():
    server = jetlake.Server()
    with pytest.raises(NoServersError, match="does not run"):
        await jetlake.connect(server=server)
    async with server:
        with pytest.raises(InvalidOptionError, match="mutually exclusive"):
            await jetlake.connect(server.url, server=server)
        with pytest.raises(InvalidOptionError, match="not 'nats://localhost'; for addresses use servers"):
            await jetlake.connect(server="nats://localhost")
        with pytest.raises(NoServersError, match="another event loop"):
            await asyncio.to_thread(jetlake.blocking.connect, server=server)
