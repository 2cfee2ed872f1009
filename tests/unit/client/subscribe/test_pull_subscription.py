"""The older pull subscription against a server that is a script (NATS ADR-13)."""

import asyncio
import gc

import pytest

from jetlake.client.subscribe.pull_subscription import _Inbox
from jetlake.errors import (
    ConsumerDeletedError,
    DisconnectedError,
    InvalidOptionError,
    NoRespondersError,
    PullStatusError,
    SubscriptionClosedError,
)
from jetlake.protocol.frames import Sub, Unsub
from tests.support.fake_server import consumer_info, delivery, ended, status

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.d"


@pytest.fixture
async def subscription(fake):
    fake.serve_consumer("S", "d", durable_name="d")
    js = (await fake.connect()).jetstream()
    return await js.pull_subscribe(stream="S", durable="d")


def pulls(fake):
    return fake.pulls("S", "d")


async def test_pull_n_takes_what_is_there(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(5))
    await clock.settle()
    assert (pulls(fake)[0].batch, pulls(fake)[0].no_wait, pulls(fake)[0].expires) == (5, True, 0)
    inbox = fake.pull_reply("S", "d")
    fake.deliver(inbox, delivery(1), delivery(2), status(404, "No Messages", inbox))
    assert len(await task) == 2
    await clock.settle()
    assert len(pulls(fake)) == 1
    assert fake.sid(fake.wire, inbox) is None


async def test_what_came_for_a_fetch_that_was_cancelled_goes_back(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(5))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "d"), delivery(1))
    await clock.settle()
    task.cancel()
    await clock.settle()
    assert task.cancelled()
    assert fake.sid(fake.wire, fake.pull_reply("S", "d")) is None
    assert [frame.payload for frame in fake.published("$JS.ACK.S.C.1.1.1.1790000000000000000.0")] == [b"-NAK"]


async def test_what_came_in_the_moment_of_a_cancellation_goes_back(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(5))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "d"), delivery(1))
    task.cancel()
    await clock.settle()
    assert task.cancelled()
    assert [frame.payload for frame in fake.published("$JS.ACK.S.C.1.1.1.1790000000000000000.0")] == [b"-NAK"]


async def test_what_came_in_the_moment_of_the_time_out_is_returned(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(5, timeout=2))
    await clock.settle()
    inbox = fake.pull_reply("S", "d")
    clock.call_at(clock.time() + 2, fake.deliver, inbox, delivery(1))
    await clock.advance(2)
    assert len(await task) == 1


async def test_pull_1_sends_no_pull_for_a_lost_inbox(fake, clock, subscription):
    for seq in (1, 2):
        task = asyncio.create_task(subscription.fetch(1))
        await clock.settle()
        inbox = fake.pull_reply("S", "d")
        assert fake.sid(fake.wire, inbox) is not None
        fake.deliver(inbox, delivery(seq))
        assert len(await task) == 1
        fake.wire.lose()
        await clock.advance(1)
    assert len(pulls(fake)) == 2


async def test_bound_to_a_consumer_without_acknowledgements_none_is_sent(fake, clock):
    fake.serve_consumer("S", "d", durable_name="d", ack_policy="none")
    subscription = await (await fake.connect()).jetstream().pull_subscribe(stream="S", consumer="d")
    task = asyncio.create_task(subscription.fetch(2))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "d"), delivery(1), delivery(2))
    for message in await task:
        await message.ack()
    await clock.settle()
    assert not any(getattr(frame, "subject", b"").startswith(b"$JS.ACK") for frame in fake.wire.frames)


async def test_pull_n_waits_if_nothing_is_there(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(5, timeout=5))
    await clock.settle()
    inbox = fake.pull_reply("S", "d")
    sid = fake.sid(fake.wire, inbox)
    fake.deliver(inbox, status(404, "No Messages", inbox))
    await clock.settle()
    assert (pulls(fake)[1].batch, pulls(fake)[1].no_wait, pulls(fake)[1].expires) == (5, False, 4_900_000_000)
    # The same inbox, which ends by itself after the batch and the status that came first.
    assert fake.pull_reply("S", "d") == inbox
    assert Unsub(sid, 6) in fake.wire.frames
    fake.deliver(inbox, delivery(1), ended(408, "Request Timeout", 4))
    assert len(await task) == 1
    await clock.settle()
    assert Unsub(sid, 0) in fake.wire.frames


async def test_pull_1_has_one_wildcard_inbox_for_all(fake, clock, subscription):
    for number in range(3):
        task = asyncio.create_task(subscription.fetch(1))
        await clock.settle()
        assert (pulls(fake)[-1].batch, pulls(fake)[-1].no_wait) == (1, True)
        fake.deliver(fake.pull_reply("S", "d"), delivery(number + 1))
        assert len(await task) == 1
    wildcards = [frame for frame in fake.wire.frames if isinstance(frame, Sub) and frame.subject.endswith(b".*")]
    # One of the requests, one of the fetches.
    assert len(wildcards) == 2
    assert len({frame.reply for frame in fake.published(NEXT)}) == 3


async def test_pull_1_waits_on_an_inbox_of_its_own(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(1, timeout=5))
    await clock.settle()
    first = fake.pull_reply("S", "d")
    fake.deliver(first, status(404, "No Messages", first))
    await clock.settle()
    second = fake.pull_reply("S", "d")
    assert second.rpartition(b".")[0] != first.rpartition(b".")[0]
    assert pulls(fake)[1].expires == 4_900_000_000
    fake.deliver(second, delivery(1))
    assert len(await task) == 1
    await clock.settle()
    assert fake.sid(fake.wire, second) is None


async def test_two_fetches_of_one_at_once(fake, clock, subscription):
    first, second = asyncio.create_task(subscription.fetch(1)), asyncio.create_task(subscription.fetch(1))
    await clock.settle()
    one, other = (frame.reply for frame in fake.published(NEXT))
    assert fake.sid(fake.wire, one) != fake.sid(fake.wire, other)
    fake.deliver(other, delivery(2))
    fake.deliver(one, delivery(1))
    assert (await first)[0].metadata.stream_seq == 1
    assert (await second)[0].metadata.stream_seq == 2


async def test_nothing_comes(fake, clock, subscription):
    for batch in (1, 3):
        task = asyncio.create_task(subscription.fetch(batch, timeout=2))
        await clock.settle()
        inbox = fake.pull_reply("S", "d")
        fake.deliver(inbox, status(404, "No Messages", inbox))
        await clock.settle()
        await clock.advance(2)
        assert await task == []


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_connection_that_was_dropped_in_silence_is_replaced(fake, clock, subscription, batch):
    fake.wire.is_cut = True
    task = asyncio.create_task(subscription.fetch(batch, timeout=3))
    await clock.settle()
    await clock.advance(3)
    assert await task == []
    # The ping has `connect_timeout` seconds for its answer.
    await clock.advance(2)
    assert not fake.wires[0].alive
    await clock.advance(1)
    task = asyncio.create_task(subscription.fetch(batch, timeout=3))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "d"), *[delivery(number) for number in range(1, batch + 1)])
    assert len(await task) == batch


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (409, "Consumer Deleted", ConsumerDeletedError),
        (409, "Consumer is push based", PullStatusError),
        (400, "Bad Request", PullStatusError),
        (599, "Unheard Of", PullStatusError),
    ],
)
async def test_errors_are_raised(fake, clock, subscription, batch, number, words, kind):
    task = asyncio.create_task(subscription.fetch(batch))
    await clock.settle()
    inbox = fake.pull_reply("S", "d")
    fake.deliver(inbox, status(number, words, inbox))
    with pytest.raises(kind):
        await task


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_consumer_that_is_gone_has_no_responders(fake, clock, subscription, batch):
    fake.remove_consumer("S", "d")
    task = asyncio.create_task(subscription.fetch(batch))
    await clock.settle()
    inbox = fake.pull_reply("S", "d")
    fake.deliver(inbox, status(503, "", inbox))
    with pytest.raises(NoRespondersError):
        await task


NO_QUORUM = [(503, "", NoRespondersError), (409, "Leadership Change", PullStatusError)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("number", "words", "kind"), NO_QUORUM)
async def test_a_consumer_without_a_leader_is_pulled_from_until_the_time_is_over(
    fake, clock, subscription, batch, number, words, kind
):
    task = asyncio.create_task(subscription.fetch(batch, timeout=2))
    while not task.done():
        await clock.settle()
        inbox = fake.pull_reply("S", "d")
        if fake.sid(fake.wire, inbox) is not None:  # Else it waits for its next try.
            fake.deliver(inbox, status(number, words, inbox))
        await clock.settle()
        await clock.advance(0.3)
    assert len(pulls(fake)) > 3
    with pytest.raises(kind):
        await task


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("number", "words"), [(number, words) for number, words, _ in NO_QUORUM])
async def test_a_consumer_without_a_leader_is_pulled_from_again(fake, clock, subscription, batch, number, words):
    task = asyncio.create_task(subscription.fetch(batch))
    for _ in range(3):
        await clock.settle()
        inbox = fake.pull_reply("S", "d")
        fake.deliver(inbox, status(number, words, inbox))
        await clock.settle()
        await clock.advance(0.3)
    fake.deliver(fake.pull_reply("S", "d"), *(delivery(number) for number in range(1, batch + 1)))
    assert len(await task) == batch


async def test_a_lost_connection_is_waited_for(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(3))
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    await clock.settle()
    for _ in range(6):
        await clock.advance(1)
    with pytest.raises(DisconnectedError):
        await task
    task = asyncio.create_task(subscription.fetch(3))
    await clock.settle()
    fake.is_down = False
    await clock.advance(4)
    fake.deliver(fake.pull_reply("S", "d"), delivery(1), delivery(2), delivery(3))
    assert len(await task) == 3


async def test_messages_are_returned_though_the_connection_was_lost(fake, clock, subscription):
    task = asyncio.create_task(subscription.fetch(3))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "d"), delivery(1))
    fake.wire.lose()
    assert len(await task) == 1


@pytest.mark.parametrize(("batch", "timeout"), [(0, 1), (-1, 1), (True, 1), (1, 0), (1, -1)])
async def test_bad_arguments(fake, clock, subscription, batch, timeout):
    with pytest.raises(InvalidOptionError):
        await subscription.fetch(batch, timeout)
    assert pulls(fake) == []


async def test_only_a_consumer_that_was_created_is_deleted(fake, clock, subscription):
    await subscription.unsubscribe()
    assert fake.published("$JS.API.CONSUMER.DELETE.S.d") == []
    with pytest.raises(SubscriptionClosedError):
        await subscription.fetch(1)
    fake.answers["$JS.API.CONSUMER.INFO.S.e"] = {
        "type": "io.nats.jetstream.api.v1.consumer_info_response",
        "error": {"code": 404, "err_code": 10014, "description": "consumer not found"},
    }
    fake.answers["$JS.API.CONSUMER.DURABLE.CREATE.S.e"] = consumer_info("S", "e", "create")
    fake.answers["$JS.API.CONSUMER.DELETE.S.e"] = {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response",
        "success": True,
    }
    js = fake.clients[0].jetstream()
    async with await js.pull_subscribe("s.1", "e", stream="S") as created:
        assert created.owns_consumer
        fake.serve_consumer("S", "e")
    assert len(fake.published("$JS.API.CONSUMER.DELETE.S.e")) == 1
    fake.remove_consumer("S", "e")
    async with await js.pull_subscribe("s.1", "e", stream="S", keep_consumer=True) as kept:
        assert not kept.owns_consumer
    fake.remove_consumer("S", "e")
    async with await js.pull_subscribe("s.1", "e", stream="S"):
        fake.answers["$JS.API.CONSUMER.INFO.S.e"] = {**consumer_info("S", "e"), "num_waiting": 1}
    assert len(fake.published("$JS.API.CONSUMER.DELETE.S.e")) == 1


@pytest.mark.parametrize("failure", [404, 500, "silence"])
async def test_binding_goes_on_though_the_consumer_cannot_be_looked_up(fake, clock, failure):
    if failure != "silence":
        fake.answers["$JS.API.CONSUMER.INFO.S.x"] = {
            "type": "io.nats.jetstream.api.v1.consumer_info_response",
            "error": {"code": failure, "err_code": 10014 if failure == 404 else 10000, "description": "no consumer"},
        }
    js = (await fake.connect()).jetstream()
    subscribing = asyncio.create_task(js.pull_subscribe(stream="S", consumer="x"))
    await clock.settle()
    await clock.advance(5)  # The time-out of a request.
    subscription = await subscribing
    task = asyncio.create_task(subscription.fetch(1))
    await clock.settle()
    fake.deliver(fake.pull_reply("S", "x"), delivery(1))
    assert len(await task) == 1


async def test_unsubscribe_returns_the_error_of_the_deletion_and_drain_reports_it(fake, clock):
    fake.answers["$JS.API.CONSUMER.CREATE.S"] = consumer_info("S", "E", "create")
    fake.answers["$JS.API.CONSUMER.DELETE.S.E"] = {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response",
        "error": {"code": 500, "err_code": 10000, "description": "broken"},
    }
    js = (await fake.connect()).jetstream()
    subscription = await js.pull_subscribe("s.1", stream="S")
    with pytest.raises(Exception, match="broken"):
        await subscription.unsubscribe()
    subscription = await js.pull_subscribe("s.1", stream="S")
    await subscription.drain()
    assert "broken" in str(fake.errors[-1])


async def test_fetches_that_are_cut_off_leave_no_inbox_behind(clock, subscription):
    gc.collect()
    before = sum(type(one) is _Inbox for one in gc.get_objects())
    for _ in range(5):
        fetching = asyncio.create_task(subscription.fetch())
        await clock.settle()
        fetching.cancel()
        await asyncio.wait([fetching])
    gc.collect()
    # The last one may still be in the traceback of its task.
    assert sum(type(one) is _Inbox for one in gc.get_objects()) <= before + 1
