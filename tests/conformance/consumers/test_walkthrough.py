"""The walk-through of the model deep dive, step by step, with the numbers that servers show today."""

import asyncio

import pytest

from jetlake.model.encoding.times import format_time, parse_time
from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of


@pytest.fixture
async def orders(server):
    bench = await Workbench.open(server, subjects=["ORDERS.*"])
    yield bench
    await bench.close()


async def test_acknowledgement_floors_as_messages_come_and_go(orders, clock):
    # Publish, next, ack; publish, next without ack, again, and at last with ack: info after each step.
    await orders.consumer("DISPATCH", ack_wait=150 * MILLISECOND)
    state = (await orders.api("STREAM.INFO.S"))["state"]
    assert (state["messages"], state["bytes"], state["first_seq"], state["last_seq"]) == (0, 0, 0, 0)
    assert state["consumer_count"] == 1
    # The deep dive counts the next message (1, 1); today both show the last one (NATS ADR-13).
    assert await orders.numbers("DISPATCH") == ((0, 0), (0, 0), 0, 0, 0, 0)

    await orders.store("ORDERS.processed", payload=b"order 4")
    state = (await orders.api("STREAM.INFO.S"))["state"]
    assert (state["messages"], state["bytes"], state["first_seq"], state["last_seq"]) == (1, 53, 1, 1)
    message = await orders.next(name="DISPATCH")
    assert (message.subject, message.payload) == ("ORDERS.processed", b"order 4")
    await orders.answer(message, b"+ACK")
    assert await orders.numbers("DISPATCH") == ((1, 1), (1, 1), 0, 0, 0, 0)

    await orders.store("ORDERS.processed", payload=b"order 5")
    message = await orders.next(name="DISPATCH")
    assert numbers_of(message)[:3] == (1, 2, 2)
    assert await orders.numbers("DISPATCH") == ((2, 2), (1, 1), 0, 1, 0, 0)
    for count in (2, 3):
        # Each attempt has a consumer sequence of its own; the stream sequence stays.
        clock.advance(0.15)
        message = await orders.next(name="DISPATCH")
        assert (message.payload, numbers_of(message)[:3]) == (b"order 5", (count, 2, count + 1))
        assert await orders.numbers("DISPATCH") == ((count + 1, 2), (1, 1), 0, 1, 1, 0)
    await orders.answer(message)
    assert await orders.numbers("DISPATCH") == ((4, 2), (4, 2), 0, 0, 0, 0)


async def test_the_starting_positions(orders):
    for number in range(1, 101):
        await orders.store("ORDERS.processed", payload=b"order %d" % number)
    stored = (await orders.api("STREAM.MSG.GET.S", {"seq": 60}))["message"]
    base = {"filter_subject": "ORDERS.processed", "ack_policy": "none", "replay_policy": "instant"}
    for name, config, payload in (
        ("ALL", {"deliver_policy": "all"}, b"order 1"),
        ("LAST", {"deliver_policy": "last"}, b"order 100"),
        ("TEN", {"deliver_policy": "by_start_sequence", "opt_start_seq": 10}, b"order 10"),
        ("TIME", {"deliver_policy": "by_start_time", "opt_start_time": stored["time"]}, b"order 60"),
    ):
        await orders.consumer(name, **base, **config)
        assert (await orders.next(name=name)).payload == payload
    await orders.consumer("NEW", **base, deliver_policy="new")
    await orders.pull(name="NEW")
    await orders.store("ORDERS.processed", payload=b"order 101")
    assert (await orders.take()).payload == b"order 101"


async def test_two_minutes_ago_finds_the_second_message_after_a_purge(orders, clock):
    # The deep dive waits a minute between messages; the moments of storing do as well.
    await orders.store("ORDERS.processed", payload=b"before")
    await orders.api("STREAM.PURGE.S")
    times = []
    for number in (1, 2, 3):
        seq = (await orders.store("ORDERS.processed", payload=b"order %d" % number))["seq"]
        times.append(parse_time((await orders.api("STREAM.MSG.GET.S", {"seq": seq}))["message"]["time"]))
        await clock.passes(0.002)
    between = format_time((times[0] + times[1]) // 2)
    await orders.consumer("2MIN", ack_policy="none", deliver_policy="by_start_time", opt_start_time=between)
    assert (await orders.next(name="2MIN")).payload == b"order 2"


async def test_an_ephemeral_monitor(orders, clock):
    await orders.store("ORDERS.processed", payload=b"old")
    await orders.store("ORDERS.processed", payload=b"newest")
    await orders.data.subscribe("my.monitor", "7")
    config = {"deliver_subject": "my.monitor", "deliver_policy": "last", "inactive_threshold": SECOND // 5}
    created = await orders.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
    message = await orders.take()
    assert (message.sid, message.subject, message.payload) == ("7", "ORDERS.processed", b"newest")
    await orders.store("ORDERS.shipped", payload=b"now")
    assert (await orders.take()).payload == b"now"
    assert (await orders.api(f"CONSUMER.INFO.S.{created['name']}"))["push_bound"] is True
    await orders.data.send("UNSUB 7\r\n")
    await orders.data.ping()
    clock.advance(0.2)
    await orders.is_gone(created["name"])


async def test_replay_at_the_original_pace(orders, clock):
    """As the deep dive shows it for push; servers do it for pull too."""
    loop = asyncio.get_running_loop()
    for number in (1, 2, 3):
        await orders.store("ORDERS.processed", payload=b"order %d" % number)
        await clock.passes(0.12)
    await orders.data.subscribe("out.original", "7")
    base = {"filter_subject": "ORDERS.processed", "ack_policy": "none", "replay_policy": "original"}
    await orders.consumer("PULL", **base)
    started = loop.time()
    await orders.consumer("REPLAY", **base, deliver_subject="out.original", sample_freq="100")
    for pulls in (False, True):
        if pulls:
            started = loop.time()
            await orders.pull({"batch": 3}, name="PULL")
        for number in (1, 2, 3):
            assert (await orders.take()).payload == b"order %d" % number
            if orders.is_embedded:
                await orders.quiet()
            clock.advance(0.12)
        # Not a measurement: without the replay policy all three would come at once.
        assert orders.is_embedded or loop.time() - started > 0.2


async def test_messages_behind_the_creation_are_not_replayed_at_a_pace(orders, clock):
    """The deep dive shows them at their original pace; no server does that, and a follower would lag for ever."""
    base = {"filter_subject": "ORDERS.processed", "ack_policy": "none", "replay_policy": "original"}
    await orders.consumer("REPLAY", **base, deliver_subject="out.original")
    for number in (1, 2):
        await orders.store("ORDERS.processed", payload=b"order %d" % number)
        await clock.passes(0.3)
    await orders.data.subscribe("out.original", "7")
    assert [(await orders.take()).payload for _ in (1, 2)] == [b"order 1", b"order 2"]
