"""Runs of publishes on a connection: one that a stream takes goes there whole, any other message by message."""

import asyncio

import pytest

from jetlake.protocol.frames import Pub


class Stream:
    """A sink that keeps what it receives."""

    def __init__(self):
        self.messages = []
        self.runs = 0

    def receive(self, subject, reply, header, payload, origin):
        self.messages.append(Pub(subject, reply, header, payload))

    def receive_run(self, run):
        self.runs += 1
        self.messages += run.messages()


@pytest.fixture
async def server(make_server):
    server = make_server()
    server.stream = Stream()
    server.accounts["$G"].capture(b"s.>", server.stream)
    return server


def publish(number, reply=b"_INBOX.a"):
    header = b"NATS/1.0\r\nNats-Msg-Id: %04d\r\n\r\n" % number
    return Pub(b"s.%d" % (number % 7), reply, header, b"%0100d" % number)


def encode(message):
    sizes = (len(message.header), len(message.header) + len(message.payload))
    words = (message.subject, message.reply, *sizes, message.header, message.payload)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % words


async def settle(client):
    while not client.transport.is_reading:
        await asyncio.sleep(0)


async def test_a_run_goes_to_its_stream_whole(server, connect):
    client = await connect(server).hello()
    messages = list(map(publish, range(1200)))
    data = b"".join(map(encode, messages))
    client.send(data[:100_000])
    await settle(client)
    client.send(data[100_000:])
    await settle(client)
    assert server.stream.messages == messages
    assert 0 < server.stream.runs < 10
    size = sum(len(message.header) + len(message.payload) for message in messages)
    assert (client.connection.in_msgs, client.connection.in_bytes) == (1200, size)


async def test_a_connection_whose_publishes_are_looked_at_has_no_runs(server, connect):
    client = connect(server)
    client.send(b'CONNECT {"verbose":true,"headers":true}\r\n')
    await client.take()
    messages = list(map(publish, range(600)))
    client.send(b"".join(map(encode, messages)))
    await settle(client)
    assert server.stream.messages == messages
    assert server.stream.runs == 0
    assert (await client.take()).count(b"+OK") == 600
    assert client.connection.in_msgs == 600


@pytest.mark.parametrize("reply", [b"_R_.x", b"$JS.ACK.S.C.1.1.1.1.0", b"_GR_.x"])
async def test_a_reserved_reply_among_others_is_refused(server, connect, reply):
    client = await connect(server).hello()
    messages = [publish(number, reply if number == 99 else b"_INBOX.a") for number in range(200)]
    client.send(b"".join(map(encode, messages)))
    await settle(client)
    assert server.stream.messages == messages[:99] + messages[100:]
    assert b"-ERR 'Permissions Violation for Publish with Reply" in await client.take()


async def test_a_fast_batch_is_no_run(server, connect):
    client = await connect(server).hello()
    messages = [publish(number, b"_INBOX.a.b.1.fail.%d.1.$FI" % number) for number in range(1, 200)]
    client.send(b"".join(map(encode, messages)))
    await settle(client)
    assert (server.stream.messages, server.stream.runs) == (messages, 0)


async def test_who_also_subscribes_gets_each_message_and_order_is_kept(server, connect):
    client, reader = await connect(server).hello(), await connect(server).hello()
    reader.send(b"".join(b"SUB s.3 %d\r\n" % sid for sid in range(64)))  # So many that the clock is looked at.
    await reader.take()
    messages = list(map(publish, range(2000)))
    data = b"".join(map(encode, messages))
    ticks = iter(range(1_000_000))
    server.engine_loop.ticks = lambda: next(ticks) * 0.0004
    for start in range(0, len(data), 60_000):
        await settle(client)
        client.send(data[start : start + 60_000])
    await settle(client)
    assert server.stream.messages == messages
    assert (await reader.take()).count(b"HMSG s.3 7 _INBOX.a ") == sum(each.subject == b"s.3" for each in messages)


async def test_runs_that_no_stream_takes_are_tried_less_and_less(server, connect):
    client = await connect(server).hello()
    tries = []
    client.connection._publish_run = lambda run: bool(tries.append(run))
    for _ in range(100):
        client.send(b"PUB nowhere 100\r\n%0100d\r\n" % 1 * 100)
        await settle(client)
    assert client.connection.in_msgs == 10_000
    assert 1 < len(tries) < 20
