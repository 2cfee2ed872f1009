"""Push consumers over the wire: interest, groups, heartbeats, flow control, rates."""

import asyncio
import json

import pytest

from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of, sequences


@pytest.fixture
async def bench(server):
    bench = await Workbench.open(server)
    yield bench
    await bench.close()


async def test_delivery_begins_with_interest(bench):
    await bench.fill(2)
    await bench.consumer(deliver_subject="deliver")
    assert "push_bound" not in await bench.info()
    await bench.data.subscribe("deliver", "7")
    messages = await bench.take(2)
    assert [(message.subject, message.sid) for message in messages] == [("s.1", "7"), ("s.2", "7")]
    assert (await bench.info())["push_bound"] is True
    await bench.store("s.x")
    assert numbers_of(await bench.take()) == (1, 3, 3, 0)


async def test_a_subscriber_that_was_there_first(bench):
    await bench.fill(2)
    await bench.data.subscribe("deliver", "7")
    await bench.data.ping()
    await bench.consumer(deliver_subject="deliver")
    assert sequences(await bench.take(2)) == [1, 2]


async def test_a_new_consumer_delivers_after_the_answer_to_its_create(bench):
    await bench.fill(100)
    for number in range(5):
        name = f"c{number}"
        await bench.control.subscribe(f"deliver.{name}", f"9{number}")
        config = {"durable_name": name, "ack_policy": "explicit", "deliver_subject": f"deliver.{name}"}
        body = json.dumps({"stream_name": "S", "config": config})
        await bench.control.subscribe(f"answer.{name}", f"8{number}")
        await bench.control.publish(f"$JS.API.CONSUMER.CREATE.S.{name}", body, reply=f"answer.{name}")
        messages = await bench.control.messages(101)
        places = [place for place, message in enumerate(messages) if message.subject == f"answer.{name}"]
        # nats-server nearly always answers first, and does not promise it.
        assert len(places) == 1
        assert places == [0] or not bench.is_embedded
        assert sequences(message for message in messages if message.reply) == list(range(1, 101))


async def test_unacknowledged_messages_come_again(bench, clock):
    await bench.fill(1)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", ack_wait=80 * MILLISECOND)
    assert numbers_of(await bench.take())[:3] == (1, 1, 1)
    clock.advance(0.08)
    again = await bench.take()
    assert numbers_of(again)[:3] == (2, 1, 2)
    if bench.is_embedded:
        await bench.data.publish(again.reply)
        await bench.reaches(((2, 1), (2, 1), 0, 0, 0, 0))


async def test_lost_interest_stops_and_returning_interest_resumes(bench):
    await bench.fill(1)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", ack_policy="none")
    await bench.take()
    await bench.data.send("UNSUB 7\r\n")
    await bench.is_unbound()
    await bench.fill(2)
    await bench.quiet()
    assert "push_bound" not in await bench.info()
    await bench.data.subscribe("deliver", "8")
    assert sequences(await bench.take(2)) == [2, 3]


async def test_a_group_is_bound_by_its_members_only(bench):
    await bench.fill(4)
    await bench.data.subscribe("deliver", "7")
    await bench.data.ping()
    await bench.consumer(deliver_subject="deliver", deliver_group="workers", ack_policy="none")
    await bench.quiet()
    assert "push_bound" not in await bench.info()
    await bench.data.send("SUB deliver workers 8\r\nSUB deliver workers 9\r\n")
    messages = await bench.take(8)
    assert sequences([message for message in messages if message.sid == "7"]) == [1, 2, 3, 4]
    assert sorted(sequences([message for message in messages if message.sid != "7"])) == [1, 2, 3, 4]


@pytest.mark.parametrize("queue", ["", "workers"])
async def test_a_wildcard_is_no_subscriber(bench, queue):
    """Many clients have one for the answers to their requests, and subscribe to the deliver subject later."""
    await bench.fill(2)
    await bench.data.send(f"SUB in.* {queue} 7\r\nSUB > {queue} 8\r\nSUB in.x others 9\r\n")
    await bench.data.ping()
    await bench.consumer(deliver_subject="in.x", deliver_group=queue, ack_policy="none")
    info = await bench.info()
    assert ("push_bound" in info, info["delivered"]["consumer_seq"]) == (False, 0)
    await bench.data.send(f"SUB in.x {queue} 6\r\n")
    await bench.data.ping()
    async with asyncio.timeout(5):
        while (info := await bench.info())["delivered"]["consumer_seq"] < 2:
            await asyncio.sleep(0.01)
    assert info["push_bound"] is True
    await bench.data.send("UNSUB 6\r\n")
    await bench.is_unbound()
    await bench.fill(1)
    assert (await bench.info())["delivered"]["consumer_seq"] == 2
    # The wildcards still keep the subject from being changed.
    config = {"durable_name": "c", "ack_policy": "none", "deliver_subject": "elsewhere", "deliver_group": queue}
    answer = await bench.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert answer["error"]["err_code"] == 10013


async def test_a_stream_that_captures_the_very_subject_is_a_subscriber(bench):
    await bench.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.in"]})
    await bench.fill(2)
    await bench.consumer(deliver_subject="t.in", ack_policy="none")
    async with asyncio.timeout(5):
        while (await bench.api("STREAM.INFO.T"))["state"]["messages"] < 2:
            await asyncio.sleep(0.01)
    assert (await bench.info())["push_bound"] is True


async def test_a_stream_that_captures_a_wildcard_is_no_subscriber(bench):
    """That a stream would keep what is delivered does not start a delivery."""
    await bench.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"]})
    await bench.consumer(deliver_subject="t.in")
    await bench.fill(1)
    await bench.quiet()
    assert "push_bound" not in await bench.info()
    assert (await bench.api("STREAM.INFO.T"))["state"]["messages"] == 0
    await bench.data.subscribe("t.in", "7")
    assert numbers_of(await bench.take()) == (1, 1, 1, 0)


async def test_max_ack_pending(bench):
    await bench.fill(3)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", max_ack_pending=2)
    first, _ = await bench.take(2)
    await bench.quiet()
    await bench.data.publish(first.reply)
    assert numbers_of(await bench.take())[1] == 3


async def test_heartbeats(bench, clock):
    await bench.fill(1)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", idle_heartbeat=100 * MILLISECOND)
    assert numbers_of(await bench.take())[1] == 1
    clock.advance(0.1)
    beat = await bench.take()
    assert (beat.subject, beat.reply, beat.payload) == ("deliver", "", b"")
    assert beat.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    clock.advance(0.1)
    assert (await bench.take()).header == beat.header


async def test_a_deleted_consumer_says_nothing(bench):
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver")
    await bench.api("CONSUMER.DELETE.S.c")
    await bench.quiet()


async def test_the_deliver_subject_moves_only_without_interest(bench):
    await bench.fill(1)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver")
    await bench.take()
    body = {
        "stream_name": "S",
        "config": {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "elsewhere"},
    }
    assert (await bench.api("CONSUMER.CREATE.S.c", body))["error"]["err_code"] == 10013
    await bench.data.send("UNSUB 7\r\n")
    await bench.data.subscribe("elsewhere", "8")
    await bench.data.ping()
    async with asyncio.timeout(5):
        while "error" in await bench.api("CONSUMER.CREATE.S.c", body):
            await asyncio.sleep(0.01)
    # What was on its way to the old subject comes again at once.
    message = await bench.take()
    assert (message.sid, numbers_of(message)[:2]) == ("8", (2, 1))


async def test_headers_only(bench):
    await bench.store("s.a", payload=b"12345")
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", headers_only=True)
    message = await bench.take()
    assert (message.header, message.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


async def read_until_stalled(bench):
    """Messages and the flow control request among them, until nothing more comes but heartbeats."""
    messages, request = [], None
    while True:
        message = await bench.take()
        if message.description == "FlowControl Request":
            request = message
        elif message.description == "Idle Heartbeat":
            return messages, request, message
        else:
            messages.append(message)


async def test_flow_control(bench):
    for _ in range(60):
        await bench.store("s.x", payload=b"x" * 50_000)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(
        deliver_subject="deliver", ack_policy="none", flow_control=True, idle_heartbeat=150 * MILLISECOND
    )
    messages, request, beat = await read_until_stalled(bench)
    # Half of two mebibytes asks, all of it stalls.
    assert (request.subject, request.sid, request.payload) == ("deliver", "7", b"")
    assert request.reply.startswith("$JS.FC.S.c.")
    assert len(request.reply.split(".")[4]) == 4
    assert 40 <= len(messages) <= 43
    assert beat.headers["Nats-Consumer-Stalled"] == request.reply
    for _ in range(2):  # The second one is ignored.
        await bench.data.publish(request.reply)
    rest = []
    while len(messages) + len(rest) < 60:
        message = await bench.take()
        if message.status is None:
            rest.append(message)
    assert sequences(messages + rest) == list(range(1, 61))


async def test_a_rate_limit(start):
    server = await start()
    bench = await Workbench.open(server, max_msg_size=200)
    for _ in range(5):
        await bench.store("s.x", payload=b"x" * 100)
    await bench.data.subscribe("deliver", "7")
    await bench.data.ping()
    loop = asyncio.get_running_loop()
    started = loop.time()
    await bench.consumer(deliver_subject="deliver", ack_policy="none", rate_limit_bps=16_000)
    await bench.take(5)
    # Not a measurement: without the limit all of them would come at once.
    assert loop.time() - started > 0.15
    await bench.close()


async def test_an_ephemeral_goes_when_nobody_listens(bench, clock):
    await bench.data.subscribe("deliver", "7")
    await bench.data.ping()
    config = {"deliver_subject": "deliver", "inactive_threshold": 100 * MILLISECOND}
    created = await bench.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
    await clock.passes(0.15)
    assert "error" not in await bench.info(created["name"])
    await bench.data.send("UNSUB 7\r\n")
    await bench.data.ping()
    clock.advance(0.1)
    await bench.is_gone(created["name"])


async def test_a_pull_ephemeral_goes_too(bench, clock):
    await bench.consumer("e", durable_name="", inactive_threshold=100 * MILLISECOND)
    await bench.pull({"batch": 1, "expires": 300 * MILLISECOND}, "e")
    await bench.data.ping()
    clock.advance(0.3)
    assert (await bench.take()).status == 408
    if bench.is_embedded:
        assert "error" not in await bench.info("e")
    clock.advance(10)
    await bench.is_gone("e")


async def test_a_paused_push_consumer(bench):
    await bench.fill(1)
    await bench.data.subscribe("deliver", "7")
    await bench.consumer(deliver_subject="deliver", pause_until="2099-01-01T00:00:00Z", idle_heartbeat=SECOND // 10)
    assert (await bench.take()).description == "Idle Heartbeat"
    await bench.api("CONSUMER.PAUSE.S.c")
    while (message := await bench.take()).status is not None:
        assert message.description == "Idle Heartbeat"
    assert numbers_of(message)[1] == 1
