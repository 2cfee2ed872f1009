"""The older workflow against a server that is a script: creation, statuses, heartbeats, deletion."""

import asyncio

import pytest

from jetlake.errors import (
    ConsumerDeletedError,
    ConsumerNotFoundError,
    HeartbeatMissedError,
    InvalidOptionError,
    PullStatusError,
    SequenceGapError,
    StreamNotFoundError,
    SubscribeMismatchError,
)
from jetlake.model.encoding.codec import decode
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.protocol.frames import Pub, Sub
from tests.support.fake_server import consumer_info, delivery, status

NOT_FOUND = {
    "type": "io.nats.jetstream.api.v1.consumer_info_response",
    "error": {"code": 404, "err_code": 10014, "description": "consumer not found"},
}
DELETED = {"type": "io.nats.jetstream.api.v1.consumer_delete_response", "success": True}


def names(*streams):
    return {"type": "io.nats.jetstream.api.v1.stream_names_response", "total": len(streams), "streams": list(streams)}


@pytest.fixture
async def js(fake):
    fake.answers["$JS.API.STREAM.NAMES"] = names("S")
    for name in ("d", "q", "E"):
        fake.answers[f"$JS.API.CONSUMER.INFO.S.{name}"] = NOT_FOUND
        fake.answers[f"$JS.API.CONSUMER.DELETE.S.{name}"] = DELETED
        fake.answers[f"$JS.API.CONSUMER.DURABLE.CREATE.S.{name}"] = created(name)
    fake.answers["$JS.API.CONSUMER.CREATE.S"] = created("E")
    return (await fake.connect()).jetstream()


def created(name):
    def answer(frame):
        config = decode(ConsumerCreateRequest, frame.payload).config
        return consumer_info(
            "S",
            name,
            "create",
            deliver_subject=config.deliver_subject,
            idle_heartbeat=config.idle_heartbeat,
            flow_control=config.flow_control,
            ack_policy=config.ack_policy.value,
        )

    return answer


def creation(fake, subject="$JS.API.CONSUMER.CREATE.S"):
    return decode(ConsumerCreateRequest, fake.published(subject)[-1].payload).config


async def test_an_ephemeral_consumer_is_created_behind_its_subscription(fake, clock, js):
    subscription = await js.subscribe("s.1")
    config = creation(fake)
    assert config.filter_subject == "s.1"
    assert config.ack_policy == "explicit"
    assert config.deliver_subject.startswith("_INBOX.")
    assert config.durable_name == ""
    order = [frame for frame in fake.wire.frames if isinstance(frame, (Sub, Pub))]
    subscribed = next(i for i, frame in enumerate(order) if frame.subject == config.deliver_subject.encode())
    asked = next(i for i, frame in enumerate(order) if frame.subject == b"$JS.API.CONSUMER.CREATE.S")
    assert subscribed < asked
    assert (subscription.stream_name, subscription.consumer_name) == ("S", "E")
    assert subscription.owns_consumer


async def test_a_durable_consumer_uses_its_own_subject(fake, clock, js):
    subscription = await js.subscribe("s.1", durable="d", ack_wait=5)
    config = creation(fake, "$JS.API.CONSUMER.DURABLE.CREATE.S.d")
    assert (config.durable_name, config.ack_wait) == ("d", 5_000_000_000)
    assert subscription.owns_consumer


async def test_a_queue_without_a_name_is_durable_under_the_queues_name(fake, clock, js):
    subscription = await js.queue_subscribe("s.1", "q")
    config = creation(fake, "$JS.API.CONSUMER.DURABLE.CREATE.S.q")
    assert (config.durable_name, config.deliver_group) == ("q", "q")
    assert any(isinstance(frame, Sub) and frame.queue == b"q" for frame in fake.wire.frames)
    assert subscription.queue == b"q"


async def test_an_existing_consumer_is_used_and_not_deleted(fake, clock, js):
    fake.serve_consumer("S", "d", deliver_subject="deliver.here", durable_name="d")
    subscription = await js.subscribe("s.1", durable="d")
    assert subscription.subject == b"deliver.here"
    assert not subscription.owns_consumer
    await subscription.unsubscribe()
    assert fake.published("$JS.API.CONSUMER.DELETE.S.d") == []
    assert fake.published("$JS.API.CONSUMER.DURABLE.CREATE.S.d") == []


async def test_binding_never_creates(fake, clock, js):
    with pytest.raises(ConsumerNotFoundError):
        await js.subscribe("s.1", consumer="d")
    assert fake.published("$JS.API.CONSUMER.DURABLE.CREATE.S.d") == []
    fake.serve_consumer("S", "d", deliver_subject="deliver.here")
    subscription = await js.subscribe(stream="S", consumer="d")
    assert subscription.consumer_name == "d"
    assert fake.published("$JS.API.STREAM.NAMES")


@pytest.mark.parametrize("streams", [(), ("A", "B")])
async def test_the_stream_must_be_one(fake, clock, js, streams):
    fake.answers["$JS.API.STREAM.NAMES"] = names(*streams)
    with pytest.raises(StreamNotFoundError, match="name one with stream="):
        await js.subscribe("s.1")
    assert not any(isinstance(frame, Sub) and b"*" not in frame.subject for frame in fake.wire.frames)


@pytest.mark.parametrize("is_bound", [True, False])
async def test_a_consumer_that_appeared_meanwhile_is_an_error_without_a_queue(fake, clock, js, is_bound):
    theirs = consumer_info("S", "d", deliver_subject="theirs", push_bound=is_bound)
    answers = [NOT_FOUND]
    fake.answers["$JS.API.CONSUMER.INFO.S.d"] = lambda frame: answers.pop(0) if answers else theirs
    fake.answers["$JS.API.CONSUMER.DURABLE.CREATE.S.d"] = {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "error": {"code": 400, "err_code": 10148, "description": "consumer already exists"},
    }
    subscribing = asyncio.create_task(js.subscribe("s.1", durable="d"))
    while not subscribing.done():
        await clock.advance(0.1)
    with pytest.raises(SubscribeMismatchError, match="duplicate subscription"):
        await subscribing
    assert [pattern for pattern in fake.wire.subscriptions if b"*" not in pattern] == []


async def test_a_queue_whose_last_member_has_just_left_is_made_anew(fake, clock, js):
    theirs = consumer_info("S", "q", deliver_subject="theirs", deliver_group="q")
    answers = [theirs]
    fake.answers["$JS.API.CONSUMER.INFO.S.q"] = lambda frame: answers.pop(0) if answers else NOT_FOUND
    subscription = await js.queue_subscribe("s.1", "q")
    assert subscription.owns_consumer
    await clock.settle()
    assert b"theirs" not in fake.wire.subscriptions


async def test_with_a_queue_the_subscription_moves_to_its_subject(fake, clock, js):
    theirs = consumer_info("S", "q", deliver_subject="theirs", deliver_group="q", push_bound=True)
    answers = [NOT_FOUND]
    fake.answers["$JS.API.CONSUMER.INFO.S.q"] = lambda frame: answers.pop(0) if answers else theirs
    fake.answers["$JS.API.CONSUMER.DURABLE.CREATE.S.q"] = {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "error": {"code": 400, "err_code": 10013, "description": "consumer name already in use"},
    }
    subscription = await js.queue_subscribe("s.1", "q")
    await clock.settle()
    assert subscription.subject == b"theirs"
    assert not subscription.owns_consumer
    assert [pattern for pattern in fake.wire.subscriptions if b"*" not in pattern] == [b"theirs"]


async def test_a_refused_creation_leaves_no_subscription(fake, clock, js):
    fake.answers["$JS.API.CONSUMER.CREATE.S"] = {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "error": {"code": 400, "err_code": 10094, "description": "no"},
    }
    with pytest.raises(Exception, match="no"):
        await js.subscribe("s.1")
    await clock.settle()
    assert [pattern for pattern in fake.wire.subscriptions if b"*" not in pattern] == []


async def test_contradictions_are_refused_before_anything_is_sent(fake, clock, js):
    for attempt in (
        lambda: js.subscribe(),
        lambda: js.queue_subscribe("s.1", "q", idle_heartbeat=1),
        lambda: js.queue_subscribe("s.1", ""),
        lambda: js.pull_subscribe("s.1", "d", ack_policy="none"),
        lambda: js.subscribe("s.1", ordered=True, durable="d"),
    ):
        with pytest.raises(InvalidOptionError):
            await attempt()
    assert [frame for frame in fake.wire.frames if isinstance(frame, Pub)] == []


# Statuses


async def test_statuses_stay_out_of_the_messages(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=1, flow_control=True)
    fake.deliver(
        subscription.subject,
        delivery(1),
        status(100, "Idle Heartbeat", Nats_Last_Consumer=1, Nats_Last_Stream=1),
        delivery(2),
        status(408, "Request Timeout"),
    )
    assert [(await subscription.next()).metadata.consumer_seq for _ in range(2)] == [1, 2]
    assert subscription.pending_messages == 0
    assert fake.errors == []


async def test_flow_control_is_answered_when_the_messages_before_it_were_handed_out(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=1, flow_control=True)
    sid = fake.sid(fake.wire, subscription.subject)
    header = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    flow = b"HMSG deliver %b $JS.FC.1 %d %d\r\n%b\r\n" % (sid, len(header), len(header), header)
    fake.wire.deliver(delivery(1)(sid) + delivery(2)(sid) + flow + delivery(3)(sid))
    await clock.settle()
    assert fake.published("$JS.FC.1") == []
    await subscription.next()
    await clock.settle()
    assert fake.published("$JS.FC.1") == []
    await subscription.next()
    await clock.settle()
    assert [frame.payload for frame in fake.published("$JS.FC.1")] == [b""]
    assert (await subscription.next()).metadata.consumer_seq == 3
    # A heartbeat that repeats it is not answered again.
    fake.deliver(subscription.subject, status(100, "Idle Heartbeat", Nats_Consumer_Stalled="$JS.FC.1"))
    await clock.settle()
    assert len(fake.published("$JS.FC.1")) == 1


async def test_flow_control_with_nothing_waiting_is_answered_at_once(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=1, flow_control=True)
    fake.deliver(subscription.subject, status(100, "Idle Heartbeat", Nats_Consumer_Stalled="$JS.FC.9"))
    await clock.settle()
    assert len(fake.published("$JS.FC.9")) == 1


async def test_a_gap_is_noticed(fake, clock, js):
    subscription = await js.subscribe("s.1")
    fake.deliver(subscription.subject, delivery(1), delivery(3))
    assert [type(error) for error in fake.errors] == [SequenceGapError]
    assert subscription.pending_messages == 2


async def test_errors_are_raised_out_of_the_iterator(fake, clock, js):
    subscription = await js.subscribe("s.1")
    fake.deliver(subscription.subject, delivery(1), status(409, "Conflict"))
    await subscription.next()
    with pytest.raises(PullStatusError, match="409 Conflict"):
        await subscription.next()


async def test_with_a_callback_errors_are_reported(fake, clock, js):
    taken = []
    subscription = await js.subscribe("s.1", taken.append)
    fake.deliver(subscription.subject, delivery(1), status(409, "Conflict"), delivery(2))
    assert len(taken) == 2
    assert [type(error) for error in fake.errors] == [PullStatusError]


async def test_the_alarm_and_its_pause(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=2)
    fake.serve_consumer("S", "E", deliver_subject=subscription.subject.decode())
    await clock.advance(5)
    assert fake.errors == []
    fake.deliver(subscription.subject, delivery(1))
    await clock.advance(5)
    assert fake.errors == []
    await clock.advance(1)
    assert [type(error) for error in fake.errors] == [HeartbeatMissedError]
    fake.is_down = True
    fake.wire.lose()
    await clock.advance(100)
    assert len(fake.errors) == 1
    fake.is_down = False
    await clock.advance(5)
    await clock.advance(6)
    assert len(fake.errors) == 2
    await subscription.unsubscribe()
    await clock.advance(100)
    assert len(fake.errors) == 2


async def test_the_alarm_probes_the_connection(fake, clock, js):
    await js.subscribe("s.1", idle_heartbeat=2)
    fake.wire.is_cut = True
    await clock.advance(6)
    assert [type(error) for error in fake.errors] == [HeartbeatMissedError]
    assert len(fake.wires) == 1
    await clock.advance(2)
    assert len(fake.wires) == 2


async def test_the_alarm_can_be_set(fake, clock, js):
    await js.subscribe("s.1", idle_heartbeat=2, heartbeat_alarm=3)
    await clock.advance(3)
    assert len(fake.errors) == 1


async def test_messages_that_come_before_the_answer_are_kept(fake, clock, js):
    answer = fake.answers["$JS.API.CONSUMER.CREATE.S"]
    early = []

    def create(frame):
        inbox = decode(ConsumerCreateRequest, frame.payload).config.deliver_subject.encode()
        asyncio.get_running_loop().call_soon(lambda: fake.deliver(inbox, delivery(1), delivery(2)))
        early.append(inbox)
        return answer(frame)

    fake.answers["$JS.API.CONSUMER.CREATE.S"] = create
    subscription = await js.subscribe("s.1")
    assert early
    assert [(await subscription.next()).metadata.consumer_seq for _ in range(2)] == [1, 2]
    assert fake.errors == []


# Acknowledging


@pytest.mark.parametrize("kind", ["plain", "coroutine", "plain that returns a coroutine"])
async def test_a_callback_that_returns_has_acknowledged(fake, clock, js, kind):
    handled = []

    async def handle_later(message):
        await asyncio.sleep(0)
        handle(message)

    def handle(message):
        if message.metadata.consumer_seq == 2:
            raise ValueError("bad")
        handled.append(message.metadata.consumer_seq)

    callbacks = {"plain": handle, "coroutine": handle_later}
    subscription = await js.subscribe("s.1", callbacks.get(kind) or (lambda message: handle_later(message)))
    fake.deliver(subscription.subject, delivery(1), delivery(2), delivery(3))
    await clock.settle()
    acks = [frame for frame in fake.wire.frames if getattr(frame, "subject", b"").startswith(b"$JS.ACK")]
    assert [frame.subject.split(b".")[6] for frame in acks] == [b"1", b"3"]
    assert handled == [1, 3]
    assert [str(error) for error in fake.errors] == ["bad"]


async def test_manual_acknowledgement(fake, clock, js):
    subscription = await js.subscribe("s.1", lambda message: None, manual_ack=True)
    fake.deliver(subscription.subject, delivery(1))
    await clock.settle()
    assert not any(getattr(frame, "subject", b"").startswith(b"$JS.ACK") for frame in fake.wire.frames)


async def test_ack_policy_none(fake, clock, js):
    subscription = await js.subscribe("s.1", lambda message: None, ack_policy="none")
    fake.deliver(subscription.subject, delivery(1))
    await clock.settle()
    assert not any(getattr(frame, "subject", b"").startswith(b"$JS.ACK") for frame in fake.wire.frames)


# A consumer that is gone, of which nobody is told


async def test_a_consumer_that_is_gone_on_a_new_connection_ends_the_iterator(fake, clock, js):
    subscription = await js.subscribe("s.1")
    fake.deliver(subscription.subject, delivery(1))
    fake.wire.lose()
    await clock.advance(1)
    assert (await subscription.next()).payload == b"x"
    with pytest.raises(ConsumerDeletedError):
        await subscription.next()
    assert fake.errors == []
    await subscription.unsubscribe()
    assert fake.published("$JS.API.CONSUMER.DELETE.S.E") == []


async def test_a_consumer_that_is_gone_after_an_alarm_is_reported_when_there_is_a_callback(fake, clock, js):
    subscription = await js.subscribe("s.1", lambda message: None, idle_heartbeat=5)
    await clock.advance(15)
    assert [type(error) for error in fake.errors] == [HeartbeatMissedError, ConsumerDeletedError]
    assert subscription.is_closed


@pytest.mark.parametrize("trouble", ["silence", "no leader", "nobody"])
async def test_a_server_that_is_not_ready_is_asked_until_it_tells_of_the_consumer(fake, clock, js, trouble):
    subscription = await js.subscribe("s.1")
    if trouble == "silence":
        del fake.answers["$JS.API.CONSUMER.INFO.S.E"]
    elif trouble == "no leader":
        fake.serve_no_leader("S", "E")
    else:
        fake.serve_nobody("S", "E")
    fake.wire.lose()
    for _ in range(40):
        await clock.advance(1)
    assert not subscription.is_closed
    assert 1 <= len(fake.errors) <= 3
    fake.remove_consumer("S", "E")
    for _ in range(10):
        await clock.advance(1)
    with pytest.raises(ConsumerDeletedError):
        await subscription.next()


async def test_a_consumer_that_is_there_goes_on(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=5)
    fake.serve_consumer("S", "E", deliver_subject=subscription.subject.decode())
    fake.wire.lose()
    await clock.advance(1)
    fake.deliver(subscription.subject, delivery(1))
    assert (await subscription.next()).payload == b"x"
    assert not subscription.is_closed


# Ending


async def test_the_consumer_that_was_created_is_deleted(fake, clock, js):
    subscription = await js.subscribe("s.1")
    await subscription.unsubscribe()
    assert deleted(fake) == 1
    deletions = []

    async def handle(message):
        await asyncio.sleep(1)
        deletions.append(deleted(fake))

    subscription = await js.subscribe("s.1", handle)
    fake.deliver(subscription.subject, delivery(1), delivery(2))
    draining = asyncio.create_task(subscription.drain())
    for _ in range(3):
        await clock.advance(1)
    assert draining.done()
    # Behind the last message that had come.
    assert (deletions, deleted(fake)) == ([1, 1], 2)


def deleted(fake):
    return len(fake.published("$JS.API.CONSUMER.DELETE.S.E"))


async def test_unsubscribe_returns_the_error_of_the_deletion_and_drain_reports_it(fake, clock, js):
    fake.answers["$JS.API.CONSUMER.DELETE.S.E"] = {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response",
        "error": {"code": 500, "err_code": 10000, "description": "broken"},
    }
    subscription = await js.subscribe("s.1")
    with pytest.raises(Exception, match="broken"):
        await subscription.unsubscribe()
    subscription = await js.subscribe("s.1")
    await subscription.drain()
    assert "broken" in str(fake.errors[-1])


async def test_after_so_many_messages_it_ends_and_deletes(fake, clock, js):
    subscription = await js.subscribe("s.1")
    await subscription.unsubscribe(after=2)
    assert fake.published("$JS.API.CONSUMER.DELETE.S.E") == []
    fake.deliver(subscription.subject, delivery(1), delivery(2))
    assert len([message async for message in subscription]) == 2
    await clock.settle()
    assert len(fake.published("$JS.API.CONSUMER.DELETE.S.E")) == 1


async def test_a_long_silence_is_one_alarm_for_each_of_its_intervals(fake, clock, js):
    subscription = await js.subscribe("s.1", idle_heartbeat=5)
    fake.serve_consumer("S", "E", deliver_subject=subscription.subject.decode())
    # A process that was stopped for a long time hears of it once.
    await clock.advance(5000)
    assert [type(error) for error in fake.errors] == [HeartbeatMissedError]
    for _ in range(45):
        await clock.advance(1)
    assert len(fake.errors) == 4
    # Without a server nothing can come, and nothing is missed.
    fake.is_down = True
    fake.wire.lose()
    for _ in range(20):
        await clock.advance(50)
    assert len(fake.errors) == 4
