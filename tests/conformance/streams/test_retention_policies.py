"""What interest and work queue streams keep while consumers acknowledge, come and go."""

import asyncio

import pytest

from tests.support.workbench import MILLISECOND, Workbench, numbers_of, sequences


@pytest.fixture
async def open_bench(server):
    opened = []

    async def open_bench(**stream):
        opened.append(await Workbench.open(server, **stream))
        return opened[-1]

    yield open_bench
    for bench in opened:
        await bench.close()


async def holds(bench, *expected):
    """The stream holds just these sequences, now or in a moment: removal may follow the ack by a little."""
    async with asyncio.timeout(60):
        while True:
            state = (await bench.api("STREAM.INFO.S", {"deleted_details": True}))["state"]
            numbers = range(max(state["first_seq"], 1), state["last_seq"] + 1)
            held = [seq for seq in numbers if seq not in state.get("deleted", [])]
            if state["messages"] == 0:
                held = []
            if tuple(held) == expected:
                return
            await asyncio.sleep(0.005)


async def test_interest_keeps_a_message_until_everybody_is_done(open_bench):
    bench = await open_bench(retention="interest")
    await bench.consumer("a")
    await bench.consumer("b", filter_subject="s.1")
    await bench.fill(2)
    await bench.pull(b"2", "a")
    first, second = await bench.take(2)
    await bench.answer(second)
    await holds(bench, 1)
    await bench.answer(first)
    await holds(bench, 1)
    await bench.answer(await bench.next(name="b"), b"+TERM")
    await holds(bench)
    assert (await bench.api("STREAM.INFO.S"))["state"]["first_seq"] == 3


async def test_interest_drops_what_nobody_wants(open_bench):
    bench = await open_bench(retention="interest")
    assert (await bench.store("s.x"))["seq"] == 1
    await bench.consumer(filter_subject="s.a")
    assert (await bench.store("s.a", "s.b"))["seq"] == 3
    await holds(bench, 2)


async def test_interest_goes_with_its_consumer(open_bench):
    bench = await open_bench(retention="interest")
    await bench.consumer("a", filter_subject="s.a")
    await bench.consumer("b")
    await bench.store("s.a", "s.b")
    await bench.api("CONSUMER.DELETE.S.b")
    await holds(bench, 1)
    await bench.api("CONSUMER.DELETE.S.a")
    await holds(bench)


async def test_interest_with_ack_all_and_none(open_bench):
    bench = await open_bench(retention="interest")
    await bench.consumer("all", ack_policy="all")
    await bench.consumer("none", ack_policy="none")
    await bench.fill(3)
    await bench.pull(b"3", "all")
    messages = await bench.take(3)
    await bench.answer(messages[1])
    await holds(bench, 1, 2, 3)
    await bench.next(name="none")
    await holds(bench, 2, 3)
    await bench.pull(b"2", "none")
    await bench.take(2)
    await holds(bench, 3)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
async def test_a_message_that_was_tried_often_enough_is_kept_for_a_late_ack(open_bench, clock, retention):
    bench = await open_bench(retention=retention)
    await bench.consumer(max_deliver=1, ack_wait=50 * MILLISECOND)
    await bench.fill(1)
    message = await bench.next()
    clock.advance(0.05)
    await bench.reaches(((1, 1), (0, 0), 0, 0, 0, 0))
    await holds(bench, 1)
    await bench.answer(message)
    await holds(bench)


async def test_a_work_queue_gives_up_what_is_done(open_bench):
    bench = await open_bench(retention="workqueue")
    await bench.fill(3)
    await bench.consumer()
    await bench.pull(b"2")
    first, second = await bench.take(2)
    await bench.answer(second)
    await holds(bench, 1, 3)
    await bench.answer(first, b"+TERM")
    await holds(bench, 3)
    await bench.api("CONSUMER.DELETE.S.c")
    await holds(bench, 3)


async def test_a_work_queue_split_by_subject(open_bench):
    bench = await open_bench(retention="workqueue")
    await bench.store("s.a", "s.b", "s.a")
    await bench.consumer("a", filter_subject="s.a")
    await bench.consumer("b", filter_subject="s.b")
    await bench.pull(b"2", "a")
    messages = await bench.take(2)
    assert sequences(messages) == [1, 3]
    for message in messages:
        await bench.answer(message)
    await holds(bench, 2)
    assert numbers_of(await bench.next(name="b"))[1] == 2


async def test_a_stream_that_becomes_interest_lets_go_of_what_is_done(open_bench):
    bench = await open_bench()
    await bench.fill(3)
    await bench.consumer()
    await bench.answer(await bench.next())
    await bench.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})
    await holds(bench, 2, 3)


async def test_limits_apply_on_top(open_bench):
    bench = await open_bench(retention="interest", max_msgs=2)
    await bench.consumer()
    await bench.fill(3)
    await holds(bench, 2, 3)
    await bench.pull(b"2")
    assert sequences(await bench.take(2)) == [2, 3]


async def test_a_new_consumer_on_interest_wants_what_is_there(open_bench):
    bench = await open_bench(retention="interest")
    await bench.consumer("a")
    await bench.fill(2)
    await bench.consumer("b")
    await bench.pull(b"2", "a")
    for message in await bench.take(2):
        await bench.answer(message)
    await holds(bench, 1, 2)
    await bench.pull(b"2", "b")
    for message in await bench.take(2):
        await bench.answer(message)
    await holds(bench)
