"""Priority groups over the wire, as today's servers do them and, where that is more, as NATS ADR-42 wants them."""

import asyncio

import pytest

from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of

GROUP = {"batch": 1, "group": "jobs", "expires": 60 * SECOND}


@pytest.fixture
async def bench(server):
    bench = await Workbench.open(server)
    yield bench
    await bench.close()


async def group(bench, policy, **config):
    await bench.consumer(priority_policy=policy, priority_groups=["jobs"], **config)


async def waiting(bench, count):
    async with asyncio.timeout(60):
        while (await bench.numbers())[5] != count:
            await asyncio.sleep(0.005)


async def test_the_group_must_be_named(bench):
    await bench.fill(1)
    await group(bench, "overflow")
    assert await bench.status({"batch": 1}) == "400 Bad Request - Priority Group missing"
    assert await bench.status({"batch": 1, "group": "x"}) == "400 Bad Request - Invalid Priority Group"
    # NATS ADR-42: pulls that are not part of a valid group are an error; nats-server serves bodies that are no JSON.
    for body in (b"", b"1"):
        if bench.is_embedded:
            assert await bench.status(body) == "400 Bad Request - Priority Group missing"
        else:
            await bench.pull(body)
    if not bench.is_embedded:
        assert numbers_of(await bench.take())[1] == 1


# Overflow


async def test_overflow_waits_for_a_backlog(bench):
    await bench.fill(2)
    await group(bench, "overflow")
    await bench.pull({**GROUP, "batch": 9, "min_pending": 3})
    await waiting(bench, 1)
    await bench.quiet()
    await bench.store("s.x")
    assert numbers_of(await bench.take())[1] == 1
    await bench.quiet()
    await bench.store("s.y")
    assert numbers_of(await bench.take())[1] == 2


async def test_overflow_sends_heartbeats_to_who_waits_for_a_backlog(bench, clock):
    await bench.fill(2)
    await group(bench, "overflow")
    await bench.pull({**GROUP, "min_pending": 3, "idle_heartbeat": 100 * MILLISECOND})
    await waiting(bench, 1)
    for _ in range(2):
        clock.advance(0.1)
        assert (await bench.take()).description == "Idle Heartbeat"
    await bench.store("s.x")
    message = await bench.take()
    while message.status == 100:
        message = await bench.take()
    assert numbers_of(message)[1] == 1


async def test_overflow_by_acks_due(bench):
    await bench.fill(4)
    await group(bench, "overflow")
    await bench.next(GROUP)
    await bench.pull({**GROUP, "min_ack_pending": 2}, inbox="inbox.far")
    await waiting(bench, 1)
    await bench.quiet()
    await bench.pull(GROUP)
    messages = await bench.take(2)
    assert {message.sid for message in messages} == {"1", "2"}


async def test_either_condition_is_enough(bench):
    await bench.fill(3)
    await group(bench, "overflow")
    assert numbers_of(await bench.next({**GROUP, "min_pending": 3, "min_ack_pending": 100}))[1] == 1
    assert numbers_of(await bench.next({**GROUP, "min_pending": 100, "min_ack_pending": 1}))[1] == 2
    assert await bench.status({"batch": 1, "group": "jobs", "min_pending": 100, "no_wait": True}) == "404 No Messages"
    short = {"batch": 1, "group": "jobs", "min_pending": 100, "expires": 50 * MILLISECOND}
    assert await bench.status(short) == "408 Request Timeout"


async def test_pulls_without_conditions_come_first(bench):
    """NATS ADR-42: a pull with `min_pending: 1` is served only when no other one waits; nats-server goes by arrival."""
    await group(bench, "overflow", max_ack_pending=1)
    await bench.pull({**GROUP, "min_pending": 1}, inbox="inbox.conditional")
    await bench.pull(GROUP)
    await waiting(bench, 2)
    await bench.store("s.x")
    assert (await bench.take()).sid == ("1" if bench.is_embedded else "2")


# Pinned client


def pin_of(message):
    return message.headers["Nats-Pin-Id"]


async def test_one_client_gets_everything(bench):
    await group(bench, "pinned_client")
    await bench.pull({**GROUP, "batch": 2})
    await bench.pull({**GROUP, "batch": 9}, inbox="inbox.standby")
    await waiting(bench, 2)
    await bench.fill(2)
    messages = await bench.take(2)
    assert [message.sid for message in messages] == ["1", "1"]
    pin = pin_of(messages[0])
    assert len(pin) == 22
    assert pin_of(messages[1]) == pin
    (state,) = (await bench.info())["priority_groups"]
    assert (state["group"], state["pinned_client_id"]) == ("jobs", pin)
    assert state["pinned_ts"] > "2020"
    await bench.store("s.x")
    await bench.quiet()
    message = await bench.next({**GROUP, "id": pin})
    assert (numbers_of(message)[1], message.sid) == (3, "1")


async def test_a_foreign_pin_is_refused(bench):
    await bench.fill(2)
    await group(bench, "pinned_client")
    await bench.next(GROUP)
    message = await bench.next({**GROUP, "id": "foreign"})
    assert message.header == b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
    assert await bench.status({"batch": 1, "group": "jobs", "no_wait": True}) == "404 No Messages"


async def test_unpin_passes_the_pin_on(bench):
    await bench.fill(1)
    await group(bench, "pinned_client")
    first = await bench.next(GROUP)
    await bench.answer(first)
    await bench.pull({**GROUP, "id": pin_of(first), "batch": 5, "max_bytes": 1000})
    await bench.pull(GROUP, inbox="inbox.standby")
    await waiting(bench, 2)
    assert await bench.api("CONSUMER.UNPIN.S.c", {"group": "jobs"}) == {
        "type": "io.nats.jetstream.api.v1.consumer_unpin_response"
    }
    await bench.store("s.x")
    messages = {message.sid: message for message in await bench.take(2)}
    assert messages["1"].header == (
        b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 1000\r\n\r\n"
    )
    assert numbers_of(messages["2"])[1] == 2
    assert pin_of(messages["2"]) != pin_of(first)


async def test_the_pin_times_out(bench, clock):
    await bench.fill(1)
    await group(bench, "pinned_client", priority_timeout=200 * MILLISECOND)
    first = await bench.next(GROUP)
    await bench.answer(first)
    await bench.control.subscribe("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.S.c", "5")
    await bench.control.ping()
    await bench.pull(GROUP, inbox="inbox.standby")
    await waiting(bench, 1)
    clock.advance(0.2)
    unpinned = (await bench.control.message()).json
    assert (unpinned["group"], unpinned["reason"]) == ("jobs", "timeout")
    await bench.control.send("UNSUB 5\r\n")
    await bench.store("s.x")
    message = await bench.take()
    assert (message.sid, numbers_of(message)[1]) == ("2", 2)
    assert pin_of(message) != pin_of(first)


async def test_pins_are_told(bench):
    """NATS ADR-42 wants the advisory to name the client; nats-server leaves it out."""
    await bench.fill(1)
    await group(bench, "pinned_client")
    await bench.control.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.S.c", "5")
    await bench.control.ping()
    message = await bench.next(GROUP)
    pinned = await bench.control.message()
    assert pinned.subject == "$JS.EVENT.ADVISORY.CONSUMER.PINNED.S.c"
    event = pinned.json
    assert event["type"] == "io.nats.jetstream.advisory.v1.consumer_group_pinned"
    assert (event["group"], event["pinned_id"], event["account"]) == ("jobs", pin_of(message), "$G")
    assert (event["stream"], event["consumer"]) == ("S", "c")
    assert ("client" in event) == bench.is_embedded
    await bench.data.publish("$JS.API.CONSUMER.UNPIN.S.c", b'{"group":"jobs"}')
    unpinned = await bench.control.message()
    assert unpinned.subject == "$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.S.c"
    event = unpinned.json
    assert event["type"] == "io.nats.jetstream.advisory.v1.consumer_group_unpinned"
    assert (event["group"], event["reason"], event["account"]) == ("jobs", "admin", "$G")
    assert (event["stream"], event["consumer"]) == ("S", "c")


async def test_a_switch_is_told_behind_the_first_message(bench):
    """NATS ADR-42 has the message before the advisory before the statuses; nats-server sends the status first."""
    await bench.fill(1)
    await group(bench, "pinned_client")
    first = await bench.next(GROUP)
    await bench.answer(first)
    await bench.data.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PINNED.>", "5")
    await bench.pull({**GROUP, "id": pin_of(first)})
    await bench.pull(GROUP, inbox="inbox.standby")
    await waiting(bench, 2)
    await bench.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    await bench.store("s.x")
    order = [message.sid for message in await bench.take(3)]
    assert sorted(order) == ["1", "2", "5"]
    assert (order == ["2", "5", "1"]) == bench.is_embedded


async def test_unpin_needs_a_policy_with_pins(bench):
    """nats-server answers as if it had unpinned somebody."""
    await group(bench, "overflow")
    answer = await bench.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    assert answer.get("error", {}).get("err_code") == (10160 if bench.is_embedded else None)


async def test_a_switch_waits_for_the_messages_in_flight(bench):
    """As NATS ADR-42 wants it; nats-server serves the next client at once."""
    await bench.fill(2)
    await group(bench, "pinned_client")
    first = await bench.next(GROUP)
    await bench.pull(GROUP, inbox="inbox.standby")
    await waiting(bench, 1)
    await bench.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    if bench.is_embedded:
        await bench.quiet()
        await bench.data.publish(first.reply)
    message = await bench.take()
    assert (message.sid, numbers_of(message)[1]) == ("2", 2)


async def test_the_pin_survives_a_restart(bench):
    """As NATS ADR-42 wants it; nats-server keeps the pin in memory."""
    await bench.fill(2)
    await group(bench, "pinned_client")
    pin = pin_of(await bench.next(GROUP))
    await bench.server.restart()
    await bench.reconnect()
    (state,) = (await bench.info())["priority_groups"]
    assert state.get("pinned_client_id") == (pin if bench.is_embedded else None)


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 10025), ({}, 10025), ({"group": ""}, 10025), ({"group": "bad name"}, 10162), ({"group": "zz"}, 10160)],
)
async def test_unpin_refusals(bench, body, code):
    await group(bench, "pinned_client")
    await bench.consumer("plain")
    assert (await bench.api("CONSUMER.UNPIN.S.c", body))["error"]["err_code"] == code
    for path, other in (("S.plain", 10160), ("S.nobody", 10014), ("T.nobody", 10059)):
        assert (await bench.api(f"CONSUMER.UNPIN.{path}", {"group": "jobs"}))["error"]["err_code"] == other


async def test_unpin_with_the_group_in_the_subject(bench):
    """As NATS ADR-42 writes it; nats-server does not know this form and says nothing."""
    await group(bench, "pinned_client")
    await bench.data.publish("$JS.API.CONSUMER.UNPIN.S.c.jobs", reply="inbox")
    if bench.is_embedded:
        assert (await bench.take()).json == {"type": "io.nats.jetstream.api.v1.consumer_unpin_response"}
    else:
        await bench.quiet()


# Prioritized


async def test_priorities(bench):
    await group(bench, "prioritized")
    await bench.data.send("SUB low 5\r\nSUB middle 6\r\nSUB high 7\r\n")
    await bench.pull({**GROUP, "priority": 2}, inbox="low")
    await bench.pull({**GROUP, "priority": 1, "batch": 2}, inbox="middle")
    await bench.pull(GROUP, inbox="high")
    await waiting(bench, 3)
    sids = []
    for _ in range(4):
        await bench.store("s.x")
        sids.append((await bench.take()).sid)
    assert sids == ["7", "6", "6", "5"]
