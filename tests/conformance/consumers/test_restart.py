"""Consumers across restarts: clean ones on both servers, and kill -9, after which nothing confirmed may come back."""

import asyncio

import pytest

from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of, sequences


async def test_a_clean_restart_keeps_positions_counts_and_floors(server):
    bench = await Workbench.open(server)
    await bench.fill(6)
    await bench.consumer(ack_wait=60 * SECOND)
    await bench.pull(b"4")
    first, _, third, fourth = await bench.take(4)
    await bench.answer(first)
    await bench.answer(third, b"-NAK")
    assert numbers_of(await bench.next())[:3] == (2, 3, 5)
    await bench.answer(fourth)
    before = await bench.numbers()
    assert before == ((5, 4), (1, 1), 2, 2, 1, 0)
    await server.restart()
    await bench.reconnect()
    assert await bench.numbers() == before
    assert numbers_of(await bench.next())[:3] == (1, 5, 6)
    await bench.close()


async def test_pending_messages_come_again_after_a_restart(server):
    bench = await Workbench.open(server)
    await bench.fill(2)
    await bench.consumer(ack_wait=300 * MILLISECOND)
    await bench.pull(b"2")
    first, _ = await bench.take(2)
    await bench.answer(first)
    await server.restart()
    await bench.reconnect()
    assert numbers_of(await bench.next())[:2] == (2, 2)
    await bench.close()


async def test_a_work_queue_keeps_what_a_reset_has_passed(server):
    bench = await Workbench.open(server, retention="workqueue")
    await bench.fill(6)
    await bench.consumer()
    await bench.api("CONSUMER.RESET.S.c", {"seq": 5})
    await bench.answer(await bench.next())
    await server.restart()
    await bench.reconnect()
    state = (await bench.api("STREAM.INFO.S", {"deleted_details": True}))["state"]
    assert (state["messages"], state["deleted"]) == (5, [5])
    await bench.close()


async def test_a_work_queue_keeps_what_was_passed_under_another_filter(server):
    bench = await Workbench.open(server, retention="workqueue")
    await bench.fill(6)
    await bench.consumer(filter_subject="s.4")
    await bench.answer(await bench.next())
    await bench.consumer(filter_subject="s.*")
    await bench.answer(await bench.next())
    await server.restart()
    await bench.reconnect()
    state = (await bench.api("STREAM.INFO.S", {"deleted_details": True}))["state"]
    assert (state["messages"], state["deleted"]) == (4, [4, 5])
    await bench.close()


async def test_a_work_queue_keeps_what_its_consumer_has_passed_and_never_delivered(server):
    bench = await Workbench.open(server, retention="workqueue")
    await bench.consumer(filter_subject="s.a")
    await bench.store("s.b", "s.a", "s.b", "s.a")
    for _ in range(2):
        await bench.answer(await bench.next())
    await bench.consumer(filter_subject="s.>")
    await server.restart()
    await bench.reconnect()
    assert (await bench.numbers())[0] == (2, 4)
    assert (await bench.api("CONSUMER.DELETE.S.c"))["success"]
    await bench.consumer("again")
    await bench.pull(b"2", "again")
    assert sequences(await bench.take(2)) == [1, 3]
    await bench.close()


@pytest.fixture
async def ours(start, kind):
    """Our server in a process that can be killed."""
    if kind == "embedded":
        return await start(process=True)
    return None


async def test_a_confirmed_ack_survives_kill_9(ours, start):
    """nats-server 2.15.1 loses most of them, also with `sync_interval: always`; there is nothing to hold it to."""
    server = ours or await start()
    bench = await Workbench.open(server)
    await bench.fill(60)
    await bench.consumer(ack_wait=SECOND)
    await bench.pull(b"60")
    messages = await bench.take(60)
    confirmed = messages[::2]
    for message in confirmed:
        await bench.answer(message)
    if not server.is_embedded:
        await bench.close()
        return
    await server.kill()
    await server.start()
    await bench.reconnect()
    assert (await bench.numbers())[3] == 30
    await bench.pull({"batch": 60, "expires": 5 * SECOND})
    again = await bench.take(30)
    assert sorted(sequences(again)) == sequences(messages[1::2])
    assert {numbers_of(message)[0] for message in again} == {2}
    await bench.close()


async def test_a_work_queue_survives_kill_9(ours, start):
    """No message is lost, and none that was confirmed as done is handed out again."""
    server = ours or await start()
    bench = await Workbench.open(server, retention="workqueue")
    done = set()
    for _ in range(3 if server.is_embedded else 1):
        await bench.fill(20)
        await bench.consumer(ack_wait=50 * MILLISECOND)
        await bench.pull(b"10")
        for message in await bench.take(10):
            await bench.answer(message)
            done.add(numbers_of(message)[1])
        if server.is_embedded:
            await server.kill()
            await server.start()
            await bench.reconnect()
    state = (await bench.api("STREAM.INFO.S"))["state"]
    async with asyncio.timeout(5):
        while state["messages"] != state["last_seq"] - len(done):
            await asyncio.sleep(0.01)
            state = (await bench.api("STREAM.INFO.S"))["state"]
    rest = state["messages"]
    await bench.pull({"batch": rest, "expires": 5 * SECOND})
    assert done.isdisjoint(sequences(await bench.data.messages(rest)))
    await bench.close()


async def test_an_ephemeral_consumer_survives_kill_9(ours, start):
    """Each was answered for a moment ago; a power cut may still take it."""
    server = ours or await start()
    bench = await Workbench.open(server)
    await bench.fill(3)
    names = [f"e{number}" for number in range(8)]
    for name in names:
        config = {"name": name, "ack_policy": "explicit", "inactive_threshold": 60 * SECOND}
        await bench.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    await server.kill()
    await server.start()
    await bench.reconnect()
    assert (await bench.api("CONSUMER.NAMES.S", {}))["consumers"] == names
    await bench.close()
