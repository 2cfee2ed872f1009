"""Fetches against a server that is a script."""

import asyncio

import pytest

from jetlake.errors import (
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    DisconnectedError,
    HeartbeatMissedError,
    InvalidOptionError,
    PullStatusError,
)
from tests.support.fake_server import acks, delivery, ended, status


@pytest.fixture
async def consumer(fake):
    fake.serve_consumer()
    client = await fake.connect()
    return await client.jetstream().consumer("S", "C")


def begin(work):
    async def run():
        return await work

    return asyncio.create_task(run())


async def test_a_full_fetch(fake, clock, consumer):
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    assert fake.pulls()[0].batch == 3
    assert fake.pulls()[0].expires == 5_000_000_000
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
    fake.deliver(fake.pull_reply(), delivery(3))
    assert [message.metadata.stream_seq for message in await fetch] == [1, 2, 3]


async def test_a_pull_follows_the_acknowledgements_that_were_said_before_it(fake, clock, consumer):
    fetch = begin(consumer.fetch(4))
    await clock.settle()
    fake.deliver(fake.pull_reply(), *map(delivery, range(1, 5)))
    messages = await fetch
    writes = len(fake.wire.writes)

    async def settle_and_fetch():
        for message in messages[:3]:
            message.ack()
        messages[3].nak()
        return await consumer.fetch(1)

    fetch = begin(settle_and_fetch())
    await clock.settle()
    # A pull that the server read first would bring messages again whose ack wait is over.
    assert [frame.payload for frame in fake.wire.frames[-5:-1]] == [b"+ACK", b"+ACK", b"+ACK", b"-NAK"]
    assert fake.wire.frames[-1].reply == fake.pull_reply()
    assert len(fake.wire.writes) == writes + 1
    fake.deliver(fake.pull_reply(), delivery(5))
    assert len(await fetch) == 1


async def test_acknowledgements_after_a_fetch_are_written_in_the_turn_that_they_are_said_in(fake, clock, consumer):
    async def fetch_and_ack():
        for message in await consumer.fetch(3):
            message.ack()

    work = begin(fetch_and_ack())
    await clock.settle()
    fake.deliver(fake.pull_reply(), *map(delivery, range(1, 4)))
    await asyncio.sleep(0)
    assert work.done()
    assert acks(fake) == [b"+ACK"] * 3


async def test_a_batch_is_acknowledged_in_the_same_write_as_the_next_pull(fake, clock, consumer):
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    fake.deliver(fake.pull_reply(), *map(delivery, range(1, 4)))
    messages = await fetch
    writes = len(fake.wire.writes)

    async def ack_and_fetch():
        await messages.ack()
        return await consumer.fetch(1)

    fetch = begin(ack_and_fetch())
    await clock.settle()
    assert acks(fake) == [b"+ACK"] * 3
    assert len(fake.wire.writes) == writes + 1
    assert fake.wire.frames[-1].reply == fake.pull_reply()
    fake.deliver(fake.pull_reply(), delivery(4))
    await fetch


async def test_a_batch_that_is_acknowledged_without_a_server_is_kept_for_the_next(fake, clock):
    fake.serve_consumer()
    client = await fake.connect()
    consumer = await client.jetstream().consumer("S", "C")
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    fake.deliver(fake.pull_reply(), *map(delivery, range(1, 4)))
    messages = await fetch
    fake.wire.lose()
    await messages.ack()
    assert acks(fake) == []
    await clock.advance(6)
    assert acks(fake) == [b"+ACK"] * 3


async def test_acknowledgements_that_were_never_sent_are_counted(fake, clock):
    fake.serve_consumer()
    client = await fake.connect()
    consumer = await client.jetstream().consumer("S", "C")
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    fake.deliver(fake.pull_reply(), *map(delivery, range(1, 4)))
    messages = await fetch
    fake.is_down = True
    fake.wire.lose()
    await messages.term("PUB a 1\\r\\nx")
    await client.publish("s.1", b"\r\nPUB a 1\r\nx\r\n", headers={"A": "1"})
    await client.close()
    assert "4 messages that waited for a server were not sent" in str(fake.errors[-1])


async def test_an_empty_fetch_is_an_empty_list(fake, clock, consumer):
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, ended(408, "Request Timeout", 3, inbox=inbox))
    assert await fetch == []


async def test_the_inbox_is_used_again_without_subscribing_anew(fake, clock, consumer):
    for number in range(1, 6):
        fetch = begin(consumer.fetch(1))
        await clock.settle()
        fake.deliver(fake.pull_reply(), delivery(number))
        await fetch
    inboxes = {reply.rpartition(b".")[0] for reply in replies(fake)}
    assert len(inboxes) == 1
    assert len(set(replies(fake))) == 5


async def test_concurrent_fetches_have_inboxes_of_their_own(fake, clock, consumer):
    first, second = begin(consumer.fetch(1)), begin(consumer.fetch(1))
    await clock.settle()
    one, other = replies(fake)
    assert one.rpartition(b".")[0] != other.rpartition(b".")[0]
    fake.deliver(other, delivery(2))
    fake.deliver(one, delivery(1))
    assert (await first)[0].metadata.stream_seq == 1
    assert (await second)[0].metadata.stream_seq == 2


async def test_a_late_status_of_an_earlier_fetch_does_not_end_the_next(fake, clock, consumer):
    first = begin(consumer.fetch(1, max_bytes=1000))
    await clock.settle()
    old = fake.pull_reply()
    fake.deliver(old, delivery(1))
    await first
    second = begin(consumer.fetch(1))
    await clock.settle()
    fake.deliver(fake.pull_reply(), ended(409, "Batch Completed", 0, 900, inbox=old))
    await clock.settle()
    assert not second.done()
    fake.deliver(fake.pull_reply(), delivery(2))
    assert len(await second) == 1


async def test_a_fetch_that_was_given_up_leaves_no_inbox_behind(fake, clock, consumer):
    fetch = begin(consumer.fetch(1))
    await clock.settle()
    old = fake.pull_reply()
    fetch.cancel()
    await clock.settle()
    assert fake.sid(fake.wire, old) is None
    again = begin(consumer.fetch(1))
    await clock.settle()
    assert fake.pull_reply().rpartition(b".")[0] != old.rpartition(b".")[0]
    fake.deliver(fake.pull_reply(), delivery(1))
    await again


async def test_messages_as_they_come(fake, clock, consumer):
    iterator = aiter(consumer.fetch(3))
    first = asyncio.create_task(anext(iterator))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, delivery(1))
    assert (await first).metadata.stream_seq == 1
    fake.deliver(inbox, delivery(2), ended(408, "Request Timeout", 1, inbox=inbox))
    assert [message.metadata.stream_seq async for message in iterator] == [2]


async def test_an_error_without_messages_is_raised(fake, clock, consumer):
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, status(409, "Consumer Deleted", inbox))
    with pytest.raises(ConsumerDeletedError):
        await fetch


async def test_an_error_after_messages_does_not_lose_them(fake, clock, consumer):
    pull = consumer.fetch(3)
    fetch = begin(pull)
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, delivery(1), status(409, "Consumer Deleted", inbox))
    assert len(await fetch) == 1
    assert isinstance(pull.error, ConsumerDeletedError)

    iterator = aiter(consumer.fetch(3))
    first = asyncio.create_task(anext(iterator))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, delivery(1), status(400, "Bad Request", inbox))
    await first
    with pytest.raises(PullStatusError):
        await anext(iterator)


async def test_nobody_answers(fake, clock, consumer):
    fake.remove_consumer()
    fetch = begin(consumer.fetch(3))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, status(503, "", inbox))
    await clock.settle()
    await clock.advance(0.1)
    with pytest.raises(ConsumerNotFoundError):
        await fetch


async def test_a_consumer_without_a_leader_is_pulled_from_until_it_has_one(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=5))
    for _ in range(3):
        await clock.settle()
        inbox = fake.pull_reply()
        fake.deliver(inbox, status(503, "", inbox))
        await clock.settle()
        await clock.advance(0.3)
    assert len(fake.pulls()) == 4
    assert [pull.batch for pull in fake.pulls()] == [3] * 4
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2), delivery(3))
    assert len(await fetch) == 3


async def test_without_a_leader_until_the_end(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=2))
    for _ in range(30):
        await clock.settle()
        inbox = fake.pull_reply()
        if fake.sid(fake.wire, inbox) is not None:
            fake.deliver(inbox, status(503, "", inbox))
        await clock.advance(0.1)
    with pytest.raises(PullStatusError, match="503"):
        await fetch


async def test_a_leader_that_changes_after_some_messages(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=5))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, delivery(1), status(409, "Leadership Change", inbox))
    await clock.settle()
    await clock.advance(0.1)
    assert fake.pulls()[-1].batch == 2
    fake.deliver(fake.pull_reply(), delivery(2), delivery(3))
    assert [message.metadata.stream_seq for message in await fetch] == [1, 2, 3]


async def test_a_missed_heartbeat(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=30, idle_heartbeat=5))
    await clock.settle()
    assert fake.pulls()[0].idle_heartbeat == 5_000_000_000
    inbox = fake.pull_reply()
    await clock.advance(8)
    fake.deliver(inbox, status(100, "Idle Heartbeat", inbox))
    await clock.advance(8)
    assert not fetch.done()
    await clock.advance(2)
    # The silent server's pull is given up, and sent again.
    assert fake.sid(fake.wire, inbox) is None
    await clock.advance(0.1)
    assert len(fake.pulls()) == 2
    assert fake.pulls()[1].expires < 12_000_000_000
    await clock.advance(10)
    await clock.advance(2)
    with pytest.raises(HeartbeatMissedError):
        await fetch


async def test_a_silent_server_is_given_up_a_little_after_the_expiry(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=5))
    await clock.settle()
    inbox = fake.pull_reply()
    await clock.advance(5.9)
    assert not fetch.done()
    await clock.advance(0.2)
    assert await fetch == []
    assert fake.sid(fake.wire, inbox) is None


@pytest.mark.parametrize("expires", [2, 5, 30])
async def test_a_silent_server_is_given_up_in_time_after_other_fetches(fake, clock, consumer, expires):
    for number in range(1, 6):
        fetch = begin(consumer.fetch(1, expires=5, idle_heartbeat=0))
        await clock.settle()
        fake.deliver(fake.pull_reply(), delivery(number))
        await fetch
        await clock.advance(0.5)
    fetch = begin(consumer.fetch(3, expires=expires, idle_heartbeat=0))
    await clock.settle()
    for _ in range(expires):
        await clock.advance(1)
    await clock.advance(0.9)
    assert not fetch.done()
    await clock.advance(0.2)
    assert await fetch == []


async def test_fetches_that_follow_each_other_share_a_timer(fake, clock, consumer):
    def timers():
        return [timer for timer in clock._scheduled if "PooledInbox" in repr(timer) and not timer.cancelled()]

    for number in range(1, 6):
        fetch = begin(consumer.fetch(1))
        await clock.settle()
        fake.deliver(fake.pull_reply(), delivery(number))
        await fetch
        assert len(timers()) == 1
    # It does not outlive its time, nor the connection.
    await clock.advance(7)
    assert not timers()
    fetch = begin(consumer.fetch(1))
    await clock.settle()
    assert len(timers()) == 1
    await fake.clients[0].close()
    assert not timers()
    with pytest.raises(ConnectionClosedError):
        await fetch


async def test_a_lost_connection(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=5))
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    await clock.settle()
    await clock.advance(1)
    fake.is_down = False
    await clock.advance(1)
    await clock.advance(0.1)
    assert len(fake.pulls()) == 2
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2), delivery(3))
    assert len(await fetch) == 3


@pytest.mark.parametrize("no_wait", [False, True])
async def test_no_connection_until_the_end(fake, clock, consumer, no_wait):
    """The loop runs meanwhile, or nobody would ever connect."""
    fake.is_down = True
    fake.wire.lose()
    fetch = begin(consumer.fetch(3, no_wait=no_wait))
    await clock.settle()
    assert not fetch.done()
    for _ in range(6):
        await clock.advance(1)
    with pytest.raises(DisconnectedError):
        await fetch
    fake.is_down = False


async def test_a_worker_that_ignores_errors_lets_the_client_reconnect(fake, clock, consumer):
    fake.is_down = True
    fake.wire.lose()

    async def work():
        while True:
            try:
                return await consumer.fetch(1, expires=0.5)
            except DisconnectedError:
                pass

    worker = begin(work())
    for _ in range(4):
        await clock.advance(1)
    fake.is_down = False
    for _ in range(8):
        await clock.advance(1)
        if fake.pulls():
            break
    fake.deliver(fake.pull_reply(), delivery(1))
    assert len(await worker) == 1


async def test_what_came_before_the_connection_was_lost_is_handed_out(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, expires=5))
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1))
    fake.is_down = True
    fake.wire.lose()
    for _ in range(6):
        await clock.advance(1)
    assert len(await fetch) == 1
    fake.is_down = False


async def test_what_was_not_taken_goes_back(fake, clock, consumer):
    iterator = aiter(consumer.fetch(3))
    first = asyncio.create_task(anext(iterator))
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
    await first
    await iterator.aclose()
    await clock.settle()
    frames = [frame for frame in fake.wire.frames if getattr(frame, "subject", b"").startswith(b"$JS.ACK")]
    assert [frame.payload for frame in frames] == [b"-NAK"]


async def test_what_came_for_a_fetch_that_was_cancelled_goes_back(fake, clock, consumer):
    task = begin(consumer.fetch(3))
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1), delivery(2))
    task.cancel()
    await clock.settle()
    assert task.cancelled()
    naks = [frame for frame in fake.wire.frames if getattr(frame, "payload", b"") == b"-NAK"]
    assert [frame.subject.split(b".")[5] for frame in naks] == [b"1", b"2"]


async def test_next_without_waiting(fake, clock, consumer):
    task = begin(consumer.next(0))
    await clock.settle()
    assert (fake.pulls()[0].no_wait, fake.pulls()[0].expires) == (True, 0)
    fake.deliver(fake.pull_reply(), status(404, "No Messages", fake.pull_reply()))
    assert await task is None
    with pytest.raises(InvalidOptionError, match="timeout must be 0 or more seconds, not -1"):
        await consumer.next(-1)


async def test_a_fetch_is_one_pull(fake, clock, consumer):
    fetch = consumer.fetch(1)
    task = begin(fetch)
    await clock.settle()
    fake.deliver(fake.pull_reply(), delivery(1))
    await task
    with pytest.raises(RuntimeError, match="only once"):
        await fetch


async def test_no_wait(fake, clock, consumer):
    fetch = begin(consumer.fetch(3, no_wait=True))
    await clock.settle()
    assert (fake.pulls()[0].no_wait, fake.pulls()[0].expires) == (True, 0)
    inbox = fake.pull_reply()
    fake.deliver(inbox, delivery(1), status(404, "No Messages", inbox))
    assert len(await fetch) == 1


async def test_next(fake, clock, consumer):
    waiting = begin(consumer.next(timeout=2))
    await clock.settle()
    assert fake.pulls()[0].batch == 1
    fake.deliver(fake.pull_reply(), delivery(1))
    assert (await waiting).metadata.stream_seq == 1
    waiting = begin(consumer.next(timeout=2))
    await clock.settle()
    inbox = fake.pull_reply()
    fake.deliver(inbox, ended(408, "Request Timeout", 1, inbox=inbox))
    assert await waiting is None


def replies(fake):
    return [frame.reply for frame in fake.published("$JS.API.CONSUMER.MSG.NEXT.S.C")]
