"""Acknowledgements over the wire: every body, both forms of the subject, floors, waits, and what is told of them."""

import json

import pytest

from jetlake.errors import AlreadyAcknowledgedError, ConfigError, InvalidOptionError
from tests.support.blocking import connected, fill
from tests.support.clients import filled, until
from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of, sequences


@pytest.fixture
async def bench(server):
    bench = await Workbench.open(server)
    yield bench
    await bench.close()


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+OK", b"+TERM", b"+TERM because"])
async def test_what_ends_a_message(bench, body):
    await bench.fill(2)
    await bench.consumer(ack_wait=50 * MILLISECOND)
    message = await bench.next()
    await bench.answer(message, body)
    await bench.answer(message, body)
    assert await bench.numbers() == ((1, 1), (1, 1), 1, 0, 0, 0)
    assert numbers_of(await bench.next())[:2] == (1, 2)


@pytest.mark.parametrize("body", [b"-NAK", b"-NAK nonsense", b"-NAK {"])
async def test_a_nak_comes_back_first(bench, body):
    await bench.fill(3)
    await bench.consumer()
    await bench.pull(b"2")
    first, second = await bench.take(2)
    await bench.answer(second, body)
    await bench.answer(first, body)
    await bench.pull(b"3")
    assert [numbers_of(message)[:3] for message in await bench.take(3)] == [(2, 2, 3), (2, 1, 4), (1, 3, 5)]


@pytest.mark.parametrize("body", [b"-NAK 300ms", b'-NAK {"delay":300000000}'])
async def test_a_delayed_nak(bench, clock, body):
    await bench.fill(2)
    await bench.consumer()
    message = await bench.next()
    # The pull follows at once: on a busy machine the delay could be over before a confirmation is back.
    await bench.data.publish(message.reply, body)
    await bench.pull(b"2")
    assert numbers_of(await bench.take())[:2] == (1, 2)
    clock.advance(0.3)
    assert numbers_of(await bench.take())[:2] == (2, 1)


async def test_progress_extends_the_wait(bench, clock):
    await bench.fill(2)
    await bench.consumer(ack_wait=2500 * MILLISECOND)
    await bench.pull(b"2")
    first, _ = await bench.take(2)
    await clock.passes(1.25)
    await bench.answer(first, b"+WPI")
    await bench.pull(b"2")
    await bench.quiet()
    # The one that was not extended is back first.
    for sequence in (2, 1):
        clock.advance(1.25)
        assert numbers_of(await bench.take())[:2] == (2, sequence)


async def test_a_shorter_ack_wait_counts_at_once(bench, clock):
    await bench.fill(2)
    await bench.consumer(ack_wait=30 * SECOND)
    await bench.next()
    await bench.consumer(ack_wait=SECOND)
    await bench.next()
    await bench.pull(b"2")
    clock.advance(1)
    assert sorted(numbers_of(message)[:2] for message in await bench.take(2)) == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("body", "count"), [(b"+NXT", 1), (b"+NXT 2", 2), (b'+NXT {"batch":2}', 2), (b'+NXT {"no_wait":true}', 1)]
)
async def test_next(bench, body, count):
    await bench.fill(4)
    await bench.consumer()
    message = await bench.next()
    await bench.data.publish(message.reply, body, reply="inbox")
    taken = await bench.data.messages(count)
    assert sequences(taken) == list(range(2, 2 + count))
    await bench.quiet()
    assert (await bench.numbers())[3] == count


async def test_next_without_a_reply_is_an_ack(bench):
    await bench.fill(2)
    await bench.consumer()
    await bench.data.publish((await bench.next()).reply, b"+NXT 5")
    await bench.reaches(((1, 1), (1, 1), 1, 0, 0, 0))


async def test_unknown_bodies_are_answered_and_ignored(bench):
    await bench.fill(1)
    await bench.consumer()
    message = await bench.next()
    for body in (b"nonsense", b"+ack", b"+WPI!"):
        await bench.answer(message, body)
    assert (await bench.numbers())[3] == 1


async def test_nobody_answers_for_what_was_never_delivered(bench):
    await bench.fill(3)
    await bench.consumer()
    message = await bench.next()
    for sequence in (2, 99, "x"):
        await bench.data.publish(f"$JS.ACK.S.c.1.{sequence}.1.1.1", reply="inbox")
    await bench.answer(message)
    await bench.quiet()


async def test_acks_that_find_nobody(bench):
    await bench.fill(1)
    await bench.consumer()
    await bench.consumer("none", ack_policy="none")
    message = await bench.next()
    for subject in (
        "$JS.ACK.S.nobody.1.1.1.1.1",
        "$JS.ACK.T.c.1.1.1.1.1",
        "$JS.ACK.S.c.1.1.1.1",
        "$JS.ACK._.abcdefgh.S.c.1.1.1.1.1",
        (await bench.next(name="none")).reply,
    ):
        await bench.data.publish(subject, reply="inbox")
        assert (await bench.take()).status == 503, subject
    await bench.answer(message)


async def test_both_versions_of_the_ack_subject(bench):
    await bench.fill(3)
    await bench.consumer()
    await bench.pull(b"3")
    for number, message in enumerate(await bench.take(3), 1):
        tokens = message.reply.split(".")
        assert len(tokens) == 9
        version_2 = ".".join(["$JS", "ACK", "_", "szMpdrwD", *tokens[2:]])
        extended = version_2 + ".more.tokens"
        await bench.data.publish([message.reply, version_2, extended][number - 1], reply="inbox")
        assert (await bench.take()).payload == b""
    assert await bench.numbers() == ((3, 3), (3, 3), 0, 0, 0, 0)


async def test_version_2_is_sent_when_configured(start):
    server = await start(
        config='feature_flags { js_ack_fc_v2: true }\njetstream { store_dir: "STORE_DIR", domain: hub }\n'
    )
    bench = await Workbench.open(server)
    await bench.fill(1)
    await bench.consumer()
    message = await bench.next()
    assert message.reply.startswith("$JS.ACK.hub.szMpdrwD.S.c.1.1.1.")
    await bench.data.publish(message.reply, reply="inbox")
    assert (await bench.take()).payload == b""
    await bench.close()


async def test_no_domain_is_called_as_no_domain_is_written(start, kind):
    """NATS ADR-15: users cannot pick `_`; nats-server 2.15.1 lets them."""
    config = 'jetstream { store_dir: "STORE_DIR", domain: _ }\n'
    if kind == "nats-server":
        await start(config)
        return
    for given in ([config], ["", ["--domain", "_"]]):
        with pytest.raises(ConfigError, match="_ stands for no domain"):
            await start(*given)


async def test_floors_out_of_order(bench, clock):
    await bench.fill(5)
    await bench.consumer(ack_wait=60 * MILLISECOND)
    for _ in range(3):
        await bench.pull(b"5")
        messages = await bench.take(5)
        assert sequences(messages) == [1, 2, 3, 4, 5]
        clock.advance(0.06)
    assert (await bench.numbers())[0] == (15, 5)
    for sequence, floor in ((3, (0, 0)), (1, (1, 1)), (2, (3, 3))):
        await bench.answer(messages[sequence - 1])
        assert (await bench.numbers())[1] == floor


async def test_ack_all(bench):
    await bench.fill(5)
    await bench.consumer(ack_policy="all")
    await bench.pull(b"4")
    messages = await bench.take(4)
    await bench.answer(messages[2])
    assert await bench.numbers() == ((4, 4), (3, 3), 1, 1, 0, 0)
    await bench.answer(messages[0])
    assert await bench.numbers() == ((4, 4), (3, 3), 1, 1, 0, 0)


async def test_ack_none(bench):
    await bench.fill(3)
    await bench.consumer(ack_policy="none")
    await bench.pull(b"2")
    await bench.take(2)
    assert await bench.numbers() == ((2, 2), (2, 2), 1, 0, 0, 0)


async def test_backoff(bench, clock):
    await bench.fill(1)
    await bench.consumer(backoff=[50 * MILLISECOND, 100 * MILLISECOND], max_deliver=3)
    await bench.pull({"batch": 9, "expires": 10 * SECOND})
    for delivery, wait_s in ((1, 0.05), (2, 0.1), (3, 0)):
        assert numbers_of(await bench.take())[:3] == (delivery, 1, delivery)
        clock.advance(wait_s)


async def test_deleting_a_pending_message_ends_it(bench):
    await bench.fill(3)
    await bench.consumer()
    await bench.pull(b"2")
    await bench.take(2)
    await bench.control.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>", "5")
    await bench.control.ping()  # The other connection publishes only when this one is listened to.
    await bench.data.publish("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":1}')
    event = (await bench.control.message()).json
    assert (event["stream_seq"], event["reason"]) == (1, "Unacknowledged message was deleted")
    await bench.control.send("UNSUB 5\r\n")
    await bench.reaches(((2, 2), (1, 1), 1, 1, 0, 0))


@pytest.mark.parametrize("max_deliver", [1, 2])
async def test_deleting_a_message_that_ran_out_of_deliveries_is_not_told(bench, max_deliver):
    await bench.fill(2)
    await bench.consumer(max_deliver=max_deliver)
    await listen(bench, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    for _ in range(max_deliver):
        await bench.pull(b"2")
        for message in await bench.take(2):
            await bench.answer(message, b"-NAK")
    await bench.pull({"batch": 1, "expires": 10 * SECOND})
    exceeded = [event.json for event in await bench.control.messages(2)]
    assert sorted((event["stream_seq"], event["deliveries"]) for event in exceeded) == [
        (1, max_deliver),
        (2, max_deliver),
    ]
    await bench.fill(1)
    await bench.take(1)
    await bench.control.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>", "6")
    await bench.control.ping()
    for sequence in (b"1", b"2", b"3"):
        await bench.data.publish("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":%b}' % sequence)
    event = (await bench.control.message()).json
    assert (event["stream_seq"], event["reason"]) == (3, "Unacknowledged message was deleted")
    await bench.control.send("UNSUB 5\r\nUNSUB 6\r\n")
    delivered = 2 * max_deliver + 1
    await bench.reaches(((delivered, 3), (delivered, 3), 0, 0, 0, 0))


async def test_a_purge_moves_floors(bench):
    await bench.fill(6)
    await bench.consumer()
    await bench.pull(b"4")
    await bench.take(4)
    await bench.api("STREAM.PURGE.S")
    assert await bench.numbers() == ((4, 6), (4, 6), 0, 0, 0, 0)


# Advisories and metrics


def without_times(event):
    return {key: value for key, value in event.items() if key not in ("id", "timestamp", "ack_time")}


async def listen(bench, pattern):
    await bench.control.subscribe(pattern, "5")
    await bench.control.ping()


async def test_samples_of_acks(bench):
    await bench.fill(3)
    await bench.consumer(sample_freq="100%")
    await bench.pull(b"3")
    first, second, third = await bench.take(3)
    await listen(bench, "$JS.EVENT.METRIC.>")
    await bench.answer(second, b"+TERM")
    await bench.answer(third, b"-NAK")
    await bench.answer(first)
    message = await bench.control.message()
    assert message.subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.c"
    event = json.loads(message.payload)
    assert event["ack_time"] > 0
    assert without_times(event) == {
        "type": "io.nats.jetstream.metric.v1.consumer_ack",
        "stream": "S",
        "consumer": "c",
        "consumer_seq": 1,
        "stream_seq": 1,
        "deliveries": 1,
    }


async def test_some_of_the_acks_are_sampled(bench):
    await bench.fill(200)
    await bench.consumer(sample_freq="50")
    await bench.pull(b"200")
    messages = await bench.take(200)
    await listen(bench, "$JS.EVENT.METRIC.>")
    for message in messages:
        await bench.answer(message)
    await bench.control.messages(50)
    await bench.quiet()
    assert (await bench.control.ping()).count(b"MSG $JS.EVENT.METRIC") <= 100


async def test_naks_and_terms_are_told(bench):
    await bench.fill(1)
    await bench.consumer()
    message = await bench.next()
    await listen(bench, "$JS.EVENT.ADVISORY.CONSUMER.*.S.c")
    await bench.answer(message, b"-NAK")
    again = await bench.next()
    await bench.answer(again, b"+TERM  for good ")
    naked, terminated = await bench.control.messages(2)
    assert naked.subject == "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.c"
    assert without_times(naked.json) == {
        "type": "io.nats.jetstream.advisory.v1.nak",
        "stream": "S",
        "consumer": "c",
        "consumer_seq": 1,
        "stream_seq": 1,
        "deliveries": 1,
    }
    assert terminated.subject == "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c"
    assert without_times(terminated.json) == {
        "type": "io.nats.jetstream.advisory.v1.terminated",
        "stream": "S",
        "consumer": "c",
        "consumer_seq": 2,
        "stream_seq": 1,
        "deliveries": 2,
        "reason": "for good",
    }


@pytest.mark.parametrize("max_deliver", [1, 2])
async def test_the_last_delivery_is_told(bench, clock, max_deliver):
    await bench.fill(1)
    await bench.consumer(max_deliver=max_deliver, ack_wait=60 * MILLISECOND)
    await listen(bench, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    await bench.pull({"batch": 5, "expires": 10 * SECOND})
    for _ in range(max_deliver):
        message = await bench.take()
        clock.advance(0.06)
    event = await bench.control.message()
    assert event.subject == "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"
    assert without_times(event.json) == {
        "type": "io.nats.jetstream.advisory.v1.max_deliver",
        "stream": "S",
        "consumer": "c",
        "stream_seq": 1,
        "deliveries": max_deliver,
    }
    await bench.control.send("UNSUB 5\r\n")
    redelivered = 0 if max_deliver == 1 else 1
    assert await bench.numbers() == ((max_deliver, 1), (0, 0), 0, 0, redelivered, 1)
    await bench.answer(message)
    assert (await bench.numbers())[4] == 0


async def test_consumers_that_come_go_and_pause_are_told(bench):
    await listen(bench, "$JS.EVENT.ADVISORY.CONSUMER.>")
    body = json.dumps({"stream_name": "S", "config": {"durable_name": "x"}}).encode()
    await bench.data.publish("$JS.API.CONSUMER.CREATE.S.x", body)
    created = await bench.control.message()
    await bench.data.publish("$JS.API.CONSUMER.PAUSE.S.x", b'{"pause_until":"2099-01-01T00:00:00Z"}')
    paused = await bench.control.message()
    await bench.data.publish("$JS.API.CONSUMER.PAUSE.S.x")
    resumed = await bench.control.message()
    await bench.data.publish("$JS.API.CONSUMER.DELETE.S.x")
    deleted = await bench.control.message()
    while deleted.subject == resumed.subject:
        # nats-server tells of a resume twice when its own timer is at it too.
        deleted = await bench.control.message()
    names = {"stream": "S", "consumer": "x"}
    action = "io.nats.jetstream.advisory.v1.consumer_action"
    assert without_times(created.json) == {"type": action, **names, "action": "create"}
    assert without_times(deleted.json) == {"type": action, **names, "action": "delete"}
    pause = {"type": "io.nats.jetstream.advisory.v1.consumer_pause", **names}
    assert without_times(paused.json) == {**pause, "paused": True, "pause_until": "2099-01-01T00:00:00Z"}
    assert without_times(resumed.json) == {**pause, "paused": False, "pause_until": "0001-01-01T00:00:00Z"}
    assert [message.subject.split(".")[4] for message in (created, paused, resumed, deleted)] == [
        "CREATED",
        "PAUSE",
        "PAUSE",
        "DELETED",
    ]


async def test_ack_next_of_our_client(server, clients):
    js = (await clients(server)).jetstream()
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("worker")
    (first,) = await consumer.fetch(1)
    (second,) = await consumer.ack_next(first)
    assert first.is_settled
    more = await consumer.ack_next(second, 3, expires=5, idle_heartbeat=1)
    assert [message.metadata.stream_seq for message in more] == [3, 4, 5]
    rest = [message async for message in consumer.ack_next(more[0], 20, no_wait=True)]
    assert [message.metadata.stream_seq for message in rest] == [6, 7, 8, 9, 10]
    # What was acknowledged before is not acknowledged again; what is asked for comes all the same.
    assert await consumer.ack_next(first, no_wait=True) == []
    assert (await consumer.info()).num_ack_pending == 7
    for message, settle in zip(
        (*more[1:], *rest), ("nak_sync", "term_sync", "in_progress_sync", "ack_sync"), strict=False
    ):
        await getattr(message, settle)()
    await until(lambda: _pending_is(consumer, 5))
    other = await stream.create_consumer("other")
    with pytest.raises(InvalidOptionError, match="belongs to consumer 'worker' of stream 'S', not of"):
        other.ack_next(first)


async def _pending_is(consumer, count):
    return (await consumer.info()).num_ack_pending == count


@connected
def test_ack_next_of_the_blocking_client(client):
    js = client.jetstream()
    consumer = fill(js, 4).create_consumer("worker")
    (first,) = consumer.fetch(1)
    second, third = consumer.ack_next(first, 2)
    second.nak_sync()
    third.term_sync("no use")
    with pytest.raises(AlreadyAcknowledgedError, match="in_progress after term"):
        third.in_progress_sync()
    again = consumer.ack_next(first, 2, no_wait=True)
    assert [message.metadata.stream_seq for message in again] == [2, 4]
    again[1].in_progress_sync()
    again[1].ack_sync()
    assert consumer.info().num_ack_pending == 1


@pytest.mark.parametrize("body", [b"", b"+ACK"])
async def test_acks_of_two_consumers_in_one_write(bench, body):
    await bench.fill(9)
    for name in "cd":
        await bench.consumer(name)
        await bench.pull(b"9", name)
    taken = await bench.take(18)
    ours, others = ([message for message in taken if f".S.{name}." in message.reply] for name in "cd")
    chosen = [*ours[:4], ours[1], *others[4:], *ours[6:8], others[0], ours[4]]
    lines = [b"PUB %b %d\r\n%b\r\n" % (message.reply.encode(), len(body), body) for message in chosen]
    lines.insert(3, b"PUB %b 4\r\n-NAK\r\n" % ours[8].reply.encode())
    lines.insert(5, b"PUB %b inbox.reply %d\r\n%b\r\n" % (ours[0].reply.encode(), len(body), body))
    await bench.data.send(b"".join(lines))
    assert (await bench.take()).subject == "inbox.reply"
    await bench.reaches(((9, 9), (5, 5), 0, 2, 0, 0))
    await bench.reaches(((9, 9), (1, 1), 0, 3, 0, 0), "d")
    assert numbers_of(await bench.next())[:2] == (2, 9)
