"""Batches that are acknowledged by one call, on both servers: what the consumer knows afterwards."""

from random import Random

import pytest

import jetlake.blocking
from jetlake.client import MessageBatch
from jetlake.errors import ConnectionClosedError
from tests.support.blocking import connected, fill, wait_until
from tests.support.clients import filled, numbers, until
from tests.support.leaf import Line

COUNT = 120
FOREVER_S = 600


def copied(message):
    """The message as it came, which may be acknowledged once more."""
    return type(message)(message.raw_subject, b"", message.raw_reply, b"", b"", message._outlet)


async def until_acknowledged(consumer, floor, pending=0):
    async def has_counted():
        info = await consumer.info()
        return (info.ack_floor.stream_seq, info.num_ack_pending) == (floor, pending)

    await until(has_counted)


async def test_a_fetch(js):
    stream = await filled(js, 30, retention="workqueue")
    consumer = await stream.consumer("keeper")
    messages = await consumer.fetch(20)
    assert numbers(messages[:2]) == [0, 1]
    await messages[4].ack()
    await messages.ack()
    assert all(message.is_settled for message in messages)
    await until_acknowledged(consumer, 20)
    await messages.ack()
    rest = await consumer.fetch(20, no_wait=True)
    await MessageBatch(rest[:7]).ack()
    await until_acknowledged(consumer, 27, pending=3)
    assert (await stream.info()).state.messages == 3


async def test_batches_of_a_read(js):
    stream = await filled(js, 500)
    consumer = await stream.create_consumer("c")
    received = []
    async with consumer.consume(max_messages=100) as reading:
        async for batch in reading.batches():
            received += numbers(batch)
            await batch.ack()
            if len(received) == 500:
                break
    assert received == list(range(500))
    await until_acknowledged(consumer, 500)


async def test_refused_and_given_up(js):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c")
    await (await consumer.fetch(10)).nak()
    messages = await consumer.fetch(10)
    assert [message.metadata.delivered for message in messages] == [2] * 10
    await messages.in_progress()
    assert (await consumer.info()).num_ack_pending == 10
    await messages.term("of no use")
    await until_acknowledged(consumer, 10)


@pytest.mark.parametrize("ack_policy", ["none", "all"])
async def test_other_ack_policies(js, clients, server, ack_policy):
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c", ack_policy=ack_policy)
    client = await clients(server)
    messages = await (await client.jetstream().consumer("S", "c")).fetch(10)
    await client.flush()
    before = client.statistics.frames_sent
    await messages.ack()
    await client.flush()
    # One of the frames is the ping of `flush`.
    assert client.statistics.frames_sent - before == {"none": 1, "all": 11}[ack_policy]
    await until_acknowledged(consumer, {"none": 10, "all": 10}[ack_policy])


@connected
def test_without_await(client):
    js = client.jetstream()
    stream = fill(js, 300)
    consumer = stream.create_consumer("c")
    messages = consumer.fetch(100)
    sent = client.statistics.frames_sent
    messages[0].ack()
    messages.ack()
    wait_until(lambda: consumer.info().ack_floor.stream_seq == 100)
    assert client.statistics.frames_sent - sent >= 100
    received = 100
    with consumer.consume() as reading:
        for batch in reading.batches():
            assert isinstance(batch, jetlake.blocking.MessageBatch)
            batch.ack()
            received += len(batch)
            if received == 300:
                break
    wait_until(lambda: consumer.info().ack_floor.stream_seq == 300)
    client.close()
    with pytest.raises(ConnectionClosedError):
        jetlake.blocking.MessageBatch(map(copied, messages)).ack()


class Model:
    """What a consumer must know: which deliveries are settled for sure, and which perhaps, since the line was cut."""

    def __init__(self):
        self.messages = []
        self.sure = set()
        self.unheard = set()
        self.doubtful = set()

    def delivered(self, messages):
        self.messages += messages

    def settled(self, messages):
        self.unheard |= {message.metadata.stream_seq for message in messages} - self.sure - self.doubtful

    def flushed(self):
        self.sure |= self.unheard
        self.unheard.clear()

    def cut(self):
        self.doubtful |= self.unheard
        self.unheard.clear()

    async def check(self, stream):
        """Compare with what the server says, which may be a little behind."""
        most = len(self.messages) - len(self.sure)

        async def is_told():
            info = await stream.consumer_info("c")
            assert info.num_ack_pending >= most - len(self.doubtful) - len(self.unheard)
            return info.num_ack_pending <= most

        await until(is_told)


class Player:
    """Settles messages of one consumer by chance."""

    def __init__(self, random, client, model):
        self.random = random
        self.client = client
        self.model = model
        self.batches = []

    def took(self, batch):
        self.batches.append(batch)
        self.model.delivered(batch)

    def some(self):
        """Messages of several batches, some of them twice."""
        messages = self.model.messages
        return MessageBatch(self.random.choices(messages, k=self.random.randint(1, 12)) if messages else [])

    def batch(self):
        return self.random.choice(self.batches) if self.batches else MessageBatch()

    async def settle(self, *, may_flush=False):
        """Do one thing to some messages."""
        what = self.random.randrange(7)
        batch = self.batch() if self.random.random() < 0.5 else self.some()
        fresh = [message for message in batch if not message.is_settled]
        if what == 0:
            batch.in_progress()
            assert not any(message.is_settled for message in fresh)
            return
        if what == 1:
            # Refused for longer than the test takes: such a message is pending, and settled for its holder.
            batch.nak(FOREVER_S)
        elif what == 2:
            batch.term()
        elif what == 3:
            for message in batch:
                await message.ack()
                await message.ack()
        else:
            await batch.ack()
            if what == 4:
                await batch.ack()
        assert all(message.is_settled for message in batch)
        if what != 1:
            self.model.settled(fresh)
        if may_flush and self.random.random() < 0.3:
            await self.client.flush()
            self.model.flushed()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["pull", "push"])
async def test_any_order_of_acknowledgements(server, clients, way, seed):
    """Whatever is acknowledged how often, one by one or together, in an outage or not, the consumer knows it."""
    random = Random(seed)
    observer = (await clients(server)).jetstream()
    stream = await filled(observer, COUNT)
    line = Line(server.port)
    await line.start()
    client = await clients(server, url=f"nats://127.0.0.1:{line.port}", reconnect_wait=0.01, reconnect_wait_max=0.05)
    js = client.jetstream()
    model = Model()
    player = Player(random, client, model)
    options = {"ack_wait": FOREVER_S, "max_ack_pending": 10 * COUNT}
    try:
        if way == "pull":
            await stream.create_consumer("c", **options)
            reader = await js.consumer("S", "c")
        else:
            subscription = await js.subscribe("s.>", durable="c", keep_consumer=True, **options)
            while len(model.messages) < COUNT:
                player.took(await subscription.next_batch())
        for _ in range(60):
            if way == "pull" and random.random() < 0.4:
                player.took(await reader.fetch(random.randint(1, 20), no_wait=True))
            elif random.random() < 0.1:
                line.cut()
                await player.settle()  # Perhaps still written to the line, which is cut.
                await until(lambda: not client.is_connected)
                model.cut()
                for _ in range(random.randint(0, 3)):
                    await player.settle()
                line.restore()
                await until(lambda: client.is_connected)
            else:
                await player.settle(may_flush=True)
            if random.random() < 0.2:
                await client.flush()
                model.flushed()
                await model.check(stream)
        await client.flush()
        model.flushed()
        await model.check(stream)
        await MessageBatch(map(copied, model.messages)).ack()
        await client.flush()
        model.sure = {message.metadata.stream_seq for message in model.messages}
        model.doubtful.clear()
        await model.check(stream)
    finally:
        await client.close()
        await line.stop()
