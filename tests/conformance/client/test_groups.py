"""Consumer groups on both servers: every key in order, whatever members come, go or are killed."""

import asyncio
import signal
import sys
import time
from collections import defaultdict
from itertools import groupby

import pytest

import jetlake.blocking
from jetlake.errors import ConsumerGroupError, InvalidOptionError
from tests.support.clients import until

KEYS = {"orders.*.*": [1]}
PARTITIONED = {"src": "orders.*.*", "dest": "{{partition(4,1)}}.orders.{{wildcard(1)}}.{{wildcard(2)}}"}
# A member in a process of its own, which writes what it handles to a file before it is acknowledged.
MEMBER = """
import asyncio, os, sys, jetlake
url, name, path = sys.argv[1:]

async def main():
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(message):
        os.write(out, b"%b %b\\n" % (message.raw_subject, message.payload))
        await asyncio.sleep(0.002)

    async with await jetlake.connect(url) as client:
        group = await client.jetstream().consumer_groups("ORDERS").get("g")
        async with group.consume(name, handle, ack_wait=1) as member:
            await member.wait()

asyncio.run(main())
"""


class Record:
    """What handlers have seen, by subject."""

    def __init__(self):
        self.seen = defaultdict(list)
        self.by_member = defaultdict(set)

    def handler(self, member, work=None):
        async def handle(message):
            if work is not None:
                await work(message)
            self.seen[message.subject].append(int(message.payload))
            self.by_member[member].add(message.subject)

        return handle

    @property
    def count(self):
        return sum(map(len, self.seen.values()))


async def published(js, numbers, keys=11):
    for number in numbers:
        await js.publish_async(f"orders.{number % keys}.new", b"%d" % number)
    await js.publish_async_complete()


def in_order(seen):
    """Whether every key was handled in order; a message may come again, before the next one."""
    runs = [[number for number, _ in groupby(numbers)] for numbers in seen.values()]
    return all(run == sorted(set(run)) for run in runs)


async def until_info(consumer, holds):
    async with asyncio.timeout(30):
        while not holds(await consumer.info()):
            await asyncio.sleep(0.02)


@pytest.fixture
async def groups(js):
    await js.create_stream("ORDERS", subjects=["orders.>"])
    return js.consumer_groups("ORDERS")


async def test_members_share_the_keys_of_an_elastic_group(js, groups):
    group = await groups.create_elastic("g", max_members=4, keys=KEYS, members=["a", "b"])
    record = Record()
    await published(js, range(100))
    async with (
        group.consume("a", record.handler("a")) as first,
        group.consume("b", record.handler("b")) as second,
    ):
        await until(lambda: record.count >= 100)
        assert first.is_active
        assert (first.partitions, second.partitions) == ((0, 1), (2, 3))
        assert await group.active_members() == ["a", "b"]
    assert in_order(record.seen)
    assert not record.by_member["a"] & record.by_member["b"]
    assert record.by_member["a"] and record.by_member["b"]
    left = await (await js.stream("ORDERS-g")).info()
    assert left.state.messages == 0


async def test_members_come_and_go(js, groups):
    group = await groups.create_elastic("g", max_members=4, keys=KEYS)
    record = Record()
    members = {name: await group.consume(name, record.handler(name), ack_wait=2).start() for name in "abc"}
    assert await group.add_members("a") == ("a",)
    await published(js, range(100))
    await until(lambda: record.count >= 50)
    assert await group.add_members("b", "c") == ("a", "b", "c")
    await published(js, range(100, 200))
    await until(lambda: record.count >= 150)
    assert await group.remove_members("a") == ("b", "c")
    await published(js, range(200, 300))
    await until(lambda: record.count >= 300)
    await group.map_members({"b": [3], "a": [0, 1, 2]})
    await published(js, range(300, 400))
    await until(lambda: record.count >= 400)
    assert in_order(record.seen)
    assert members["a"].partitions == (0, 1, 2)
    with pytest.raises(ConsumerGroupError, match="mapped"):
        await group.add_members("d")
    await groups.delete("g")
    await asyncio.wait_for(asyncio.gather(*(member.wait() for member in members.values())), 15)


async def test_a_partition_changes_hands_only_after_its_handler_has_returned(js, groups):
    group = await groups.create_elastic("g", max_members=2, keys=KEYS, members=["a"])
    record, began, go_on = Record(), asyncio.Event(), asyncio.Event()

    async def work(_message):
        began.set()
        await go_on.wait()

    await published(js, range(20), keys=2)
    async with (
        group.consume("a", record.handler("a", work), ack_wait=1),
        group.consume("b", record.handler("b"), ack_wait=1) as other,
    ):
        await asyncio.wait_for(began.wait(), 15)
        await group.add_members("b")
        await until(lambda: other.partitions)
        # Longer than an ack wait and than the life of a consumer that nobody pulls from.
        await asyncio.sleep(2.5)
        assert not record.count
        go_on.set()
        await until(lambda: record.count >= 20)
    assert in_order(record.seen)


async def test_an_instance_that_stands_by_takes_over(js, groups):
    group = await groups.create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    record = Record()
    first = await group.consume("a", record.handler("first"), ack_wait=2).start()
    await published(js, range(10))
    await until(lambda: record.count >= 10)
    async with group.consume("a", record.handler("second"), ack_wait=2):
        await first.stop()
        await first.stop()
        await published(js, range(10, 20))
        await until(lambda: record.count >= 20)
    assert len(record.by_member["second"]) == 10
    assert in_order(record.seen)


async def test_a_frozen_instance_leaves_to_others_what_they_have_handled_since(server, js, groups, tmp_path):
    group = await groups.create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    program, handled = tmp_path / "member.py", tmp_path / "handled"
    program.write_text(MEMBER)
    handled.touch()
    await published(js, [0], keys=1)
    frozen = await asyncio.create_subprocess_exec(sys.executable, program, server.url, "a", handled)
    try:
        await until(handled.read_text, 30)
        stream = await js.stream("ORDERS-g")
        consumer = await stream.consumer("a")
        await until_info(consumer, lambda info: info.num_waiting and not info.num_ack_pending)
        frozen.send_signal(signal.SIGSTOP)
        await published(js, [1, 2], keys=1)

        async def work(message):
            with handled.open("a") as out:
                out.write(f"{message.subject} {message.payload.decode()}\n")

        async with group.consume("a", work, ack_wait=1):
            # The message that waits in the socket of the frozen instance comes again, and others after it.
            await until(lambda: handled.read_text().split()[-1] == "2", 30)
        frozen.send_signal(signal.SIGCONT)
        await published(js, [3], keys=1)
        await until(lambda: handled.read_text().split()[-1] == "3", 30)
    finally:
        frozen.kill()
        await frozen.wait()
    numbers = [int(line.split()[1]) for line in handled.read_text().splitlines()]
    assert [number for number, _ in groupby(numbers)] == [0, 1, 2, 3]


async def test_an_instance_that_stands_by_leaves_the_consumer_to_one_at_work_that_stepped_down(js, groups):
    group = await groups.create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    record, began, go_on = Record(), asyncio.Event(), asyncio.Event()

    async def work(_message):
        began.set()
        await go_on.wait()

    await published(js, range(3), keys=1)
    async with group.consume("a", record.handler("a", work), ack_wait=20):
        await asyncio.wait_for(began.wait(), 15)
        async with group.consume("a", record.handler("a"), ack_wait=20) as standby:
            consumer = await (await js.stream("ORDERS-g")).consumer("a")
            try:
                await until_info(consumer, lambda info: info.num_waiting > 1)
                await group.step_down("a")
                await until_info(consumer, lambda info: not info.priority_groups[0].pinned_client_id)
                await group.remove_members("a")
                await until(lambda: not standby.partitions)
                await standby.stop()
                assert (await consumer.info()).num_ack_pending == 1
            finally:
                go_on.set()
        await group.add_members("a")
        await until(lambda: record.count >= 3)
    assert in_order(record.seen)


async def test_a_handler_stops_its_member(js, groups):
    group = await groups.create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    seen = []

    async def handle(message):
        seen.append(int(message.payload))
        await member.stop()

    member = group.consume("a", handle)
    await published(js, range(3), keys=1)
    await asyncio.wait_for(member.wait(), 15)
    assert seen == [0]
    assert (await (await js.stream("ORDERS-g")).info()).state.messages == 2


async def test_a_message_that_fails_holds_its_keys_up_and_is_given_up(js, groups):
    await js.create_stream("DEAD", subjects=["dead.>"])
    group = await groups.create_elastic("g", max_members=1, keys=KEYS, members=["a"])
    record, tries, errors = Record(), [], []

    async def work(message):
        if message.payload == b"3":
            tries.append(record.count)
            raise ValueError("bad")

    await published(js, range(8))
    options = {"retries": 2, "backoff": 0.01, "dead_letter": "dead.{stream}", "on_error": errors.append}
    async with group.consume("a", record.handler("a", work), **options):
        await until(lambda: record.count >= 7)
    assert tries == [3, 3, 3]  # Nothing overtakes it.
    assert [type(error) for error in errors] == [ValueError] * 3
    letter = await (await js.stream("DEAD")).get(1)
    assert letter.payload == b"3"
    assert "orders.3.new" in str(dict(letter.headers))


async def test_a_static_group(js):
    await js.create_stream("ORDERS", subjects=["orders.>"], subject_transform=PARTITIONED)
    groups = js.consumer_groups("ORDERS")
    group = await groups.create_static("g", max_members=4, members=["a", "b"])
    again = await groups.create_static("g", max_members=4, members=["b", "a"])
    assert (again.config, again.is_elastic) == (group.config, False)
    record = Record()
    await published(js, range(60))
    async with group.consume("a", record.handler("a")), group.consume("b", record.handler("b")):
        await until(lambda: record.count >= 60)
    await published(js, range(60, 80))
    async with group.consume("a", record.handler("a")), group.consume("b", record.handler("b")) as member:
        await until(lambda: record.count >= 80)
        assert in_order(record.seen)
        assert await (await js.stream("ORDERS")).consumer_names() == ["g-a", "g-b"]
        for wrong in (group.add_members("c"), groups.create_static("g", max_members=2, members=["a"])):
            with pytest.raises(ConsumerGroupError):
                await wrong
        with pytest.raises(ConsumerGroupError, match="no member"):
            group.consume("c", print)
        assert await groups.names() == ["g"]
        await groups.delete("g")
        await asyncio.wait_for(member.wait(), 15)
    assert await (await js.stream("ORDERS")).consumer_names() == []
    with pytest.raises(ConsumerGroupError, match="no consumer group"):
        await groups.get("g")


async def test_a_group_that_is_replaced_ends_its_members(js, groups):
    group = await groups.create_elastic("g", max_members=2, keys=KEYS, members=["a"])
    async with group.consume("a", print) as member:
        bucket = await js.key_value("elastic-consumer-groups")
        await bucket.put("ORDERS.g", b'{"max_members":3,"partitioning_filters":null,"members":["a"]}')
        with pytest.raises(ConsumerGroupError, match="replaced"):
            await asyncio.wait_for(member.wait(), 15)


async def test_a_group_that_another_program_writes_with_null_for_none_goes_on(js, groups):
    group = await groups.create_elastic("g", max_members=2, members=["a"])
    record = Record()
    async with group.consume("a", record.handler("a")) as member:
        bucket = await js.key_value("elastic-consumer-groups")
        await bucket.put("ORDERS.g", b'{"max_members":2,"partitioning_filters":null,"members":["a"]}')
        await published(js, range(5))
        await until(lambda: record.count >= 5 or member._task.done())
        assert record.count >= 5


async def test_bad_options(groups):
    group = await groups.create_elastic("g", max_members=2, keys=KEYS)
    for wrong in ({"ack_wait": 0}, {"nonsense": 1}):
        with pytest.raises(InvalidOptionError):
            group.consume("a", print, **wrong)
    with pytest.raises(InvalidOptionError):
        group.consume("a.b", print)
    with pytest.raises(InvalidOptionError):
        group.consume("a", None)
    with pytest.raises(InvalidOptionError, match="wildcard"):
        await groups.create_elastic("h", max_members=2, keys={"orders.new": []})


async def test_blocking(server):
    def work():
        with jetlake.blocking.connect(server.url) as client:
            js = client.jetstream()
            js.create_stream("ORDERS", subjects=["orders.>"])
            groups = js.consumer_groups("ORDERS")
            group = groups.create_elastic("g", max_members=2, keys=KEYS, members=["a"])
            seen = []
            for number in range(10):
                js.publish("orders.1.new", b"%d" % number)
            with group.consume("a", lambda message: seen.append((message.subject, int(message.payload)))) as member:
                while len(seen) < 10:
                    time.sleep(0.01)
            assert seen == [("orders.1.new", number) for number in range(10)]
            assert member.partitions == (0, 1)
            assert groups.get("g").config.members == ("a",)
            groups.delete("g")

    await asyncio.wait_for(asyncio.to_thread(work), 30)


async def test_members_are_killed_at_random(server, js, groups, tmp_path):
    group = await groups.create_elastic("g", max_members=4, keys=KEYS, members=["a", "b", "c"])
    program = tmp_path / "member.py"
    program.write_text(MEMBER)
    handled = tmp_path / "handled"
    handled.touch()

    async def member(name):
        return await asyncio.create_subprocess_exec(sys.executable, program, server.url, name, handled)

    def count():
        return handled.read_bytes().count(b"\n")

    processes = {name: await member(name) for name in "abc"}
    try:
        for part in range(3):
            await published(js, range(part * 120, part * 120 + 120))
            await until(lambda part=part: count() >= part * 120 + 30, 60)
            victim = "abc"[part]
            processes[victim].send_signal(signal.SIGKILL)
            await processes[victim].wait()
            if part == 1:
                await group.remove_members(victim)
                processes.pop(victim)
            else:
                processes[victim] = await member(victim)
        expected = {(f"orders.{number % 11}.new", number) for number in range(360)}

        def lines():
            return [(subject, int(number)) for subject, number in map(str.split, handled.read_text().splitlines())]

        await until(lambda: set(lines()) == expected, 60)
    finally:
        for process in processes.values():
            process.kill()
            await process.wait()
    seen = defaultdict(list)
    for subject, number in lines():
        seen[subject].append(number)
    assert in_order(seen)
