"""Consumed messages that come in runs: the same as those that come one by one."""

import pytest

from tests.support.fake_server import acks, consumer_of, delivery, ended

COUNT = 40
PAYLOAD = b"x" * 100


def runs(first=1, count=COUNT):
    return [delivery(number, PAYLOAD) for number in range(first, first + count)]


@pytest.mark.parametrize("policy", ["explicit", "none"])
async def test_messages_are_settled_only_where_nothing_waits_for_an_acknowledgement(fake, clock, policy):
    consumer = await consumer_of(fake, ack_policy=policy)
    needs_ack = policy == "explicit"
    async with consumer.consume(max_messages=1000) as messages:
        for first in (1, 1 + COUNT, 1 + 2 * COUNT):  # The third read is taken apart by a pattern.
            fake.deliver(fake.pull_reply(), *runs(first))
        taken = await messages.next_batch()
        assert [message.metadata.stream_seq for message in taken] == list(range(1, 3 * COUNT + 1))
        assert {message.is_settled for message in taken} == {not needs_ack}
        for message in taken:
            await message.ack()
        await clock.settle()
    assert len(acks(fake)) == (3 * COUNT if needs_ack else 0)


async def test_a_consumer_that_was_made_again_gets_its_acknowledgements(fake, clock):
    consumer = await consumer_of(fake, ack_policy="none")
    async with consumer.consume(max_messages=1000) as messages:
        for first in (1, 1 + COUNT, 1 + 2 * COUNT):
            fake.deliver(fake.pull_reply(), *runs(first))
        assert all(message.is_settled for message in await messages.next_batch())
        fake.serve_consumer(ack_policy="explicit")
        fake.wire.lose()
        await clock.advance(5)
        for first in (1, 1 + COUNT, 1 + 2 * COUNT):
            fake.deliver(fake.pull_reply(), *runs(first))
        taken = await messages.next_batch()
        assert not any(message.is_settled for message in taken)
        for message in taken:
            await message.ack()
        await clock.settle()
    assert len(acks(fake)) == 3 * COUNT


@pytest.mark.parametrize("place", [0, 1, COUNT // 2, COUNT - 1, COUNT])
async def test_a_status_is_read_wherever_it_stands(fake, clock, place):
    consumer = await consumer_of(fake)
    async with consumer.consume(max_messages=200, threshold_messages=10) as messages:
        fake.deliver(fake.pull_reply(), *runs())
        fake.deliver(fake.pull_reply(), *runs(1 + COUNT))
        assert len(await messages.next_batch()) == 2 * COUNT
        sent = runs(1 + 2 * COUNT)
        sent.insert(place, ended(408, "Request Timeout", 200 - 3 * COUNT, inbox=fake.pull_reply()))
        pulls = len(fake.pulls())
        fake.deliver(fake.pull_reply(), *sent)
        taken = await messages.next_batch()
        assert [message.metadata.stream_seq for message in taken] == list(range(1 + 2 * COUNT, 1 + 3 * COUNT))
        assert len(fake.pulls()) > pulls
