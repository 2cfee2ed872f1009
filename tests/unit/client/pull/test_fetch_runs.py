"""Fetches whose messages come in runs: cut anywhere, ended anywhere, lost or given up in the middle."""

import asyncio

import pytest

from tests.support.fake_server import consumer_of, delivery, ended

COUNT = 40


def batch(first=1, count=COUNT):
    return [delivery(number, b"content %d" % number) for number in range(first, first + count)]


async def begin(clock, fetch):
    async def run():
        return await fetch

    task = asyncio.create_task(run())
    await clock.settle()
    return task


def wire_bytes(fake, frames):
    sid = fake.sid(fake.wire, fake.pull_reply())
    return b"".join(frame(sid) for frame in frames)


def sequences(messages):
    return [message.metadata.stream_seq for message in messages]


async def test_a_batch_may_be_cut_at_every_byte(fake, clock):
    consumer = await consumer_of(fake)
    sent = batch()
    task = await begin(clock, consumer.fetch(COUNT))
    size = len(wire_bytes(fake, sent[20:21]))
    start = len(wire_bytes(fake, sent[:20]))
    for cut in range(start, start + size):
        if cut > start:
            task = await begin(clock, consumer.fetch(COUNT))
        data = wire_bytes(fake, sent)
        fake.wire.deliver(data[:cut])
        await clock.settle()
        assert not task.done()
        fake.wire.deliver(data[cut:])
        assert [(one.metadata.stream_seq, one.payload) for one in await task] == [
            (number, b"content %d" % number) for number in range(1, COUNT + 1)
        ]


@pytest.mark.parametrize("place", [0, 1, COUNT // 2, COUNT - 1, COUNT])
async def test_a_status_ends_a_fetch_wherever_it_stands_in_a_read(fake, clock, place):
    consumer = await consumer_of(fake)
    task = await begin(clock, consumer.fetch(2 * COUNT))
    sent = batch()
    sent.insert(place, ended(408, "Request Timeout", COUNT, inbox=fake.pull_reply()))
    fake.deliver(fake.pull_reply(), *sent)
    assert sequences(await task) == list(range(1, COUNT + 1))


async def test_a_message_that_was_cut_off_by_a_lost_connection_is_pulled_again(fake, clock):
    consumer = await consumer_of(fake)
    task = await begin(clock, consumer.fetch(COUNT, expires=5))
    data = wire_bytes(fake, batch())
    fake.wire.deliver(data[: len(wire_bytes(fake, batch(count=25))) - 3])
    fake.wire.lose()
    await clock.advance(0.5)
    await clock.advance(3)
    assert [pull.batch for pull in fake.pulls()] == [COUNT, COUNT - 24]
    fake.deliver(fake.pull_reply(), *batch(25, COUNT - 24))
    assert sequences(await task) == list(range(1, COUNT + 1))


async def test_a_fetch_that_is_cancelled_in_the_middle_gives_all_back(fake, clock):
    consumer = await consumer_of(fake)
    task = await begin(clock, consumer.fetch(2 * COUNT))
    data = wire_bytes(fake, batch())
    fake.wire.deliver(data[:-5])
    task.cancel()
    await clock.settle()
    naks = [frame for frame in fake.wire.frames if getattr(frame, "payload", b"") == b"-NAK"]
    assert [int(frame.subject.split(b".")[5]) for frame in naks] == list(range(1, COUNT))
    fake.wire.deliver(data[-5:])
    # The next fetch has another inbox, and gets nothing of the first.
    task = await begin(clock, consumer.fetch(COUNT))
    fake.deliver(fake.pull_reply(), *batch(COUNT + 1))
    assert sequences(await task) == list(range(COUNT + 1, 2 * COUNT + 1))
