"""What the five documents ask of a client and no other module tests: both clients, on both servers."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetlake.blocking
from jetlake.client.subscribe.subscriptions import Subscriptions
from jetlake.errors import (
    ConsumerDeletedError,
    ConsumerNotFoundError,
    InvalidOptionError,
    PermissionsError,
    PullStatusError,
    SequenceGapError,
)
from tests.support.blocking import connected, fill, in_thread, wait_until
from tests.support.clients import filled, numbers, until

# NATS ADR-37: the error that ends a read is told


async def test_a_handler_that_nobody_waits_for_tells_its_end(server, clients):
    told = []
    js = (await clients(server, on_error=told.append)).jetstream()
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    handled = []
    with pytest.raises(ConsumerDeletedError):
        async with consumer.consume(handled.append):
            await until(lambda: len(handled) == 3)
            await consumer.delete()
            await until(lambda: told)
    assert [type(error) for error in told] == [ConsumerDeletedError]


async def test_the_error_goes_to_the_reads_own_callback_or_to_who_waits(server, clients):
    told, own = [], []
    js = (await clients(server, on_error=told.append)).jetstream()
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    reading = consumer.consume(lambda message: None, on_error=own.append).start()
    await until(lambda: reading.handled == 3)
    await consumer.delete()
    await until(lambda: own)
    assert isinstance(own[0], ConsumerDeletedError)
    await reading.stop()
    consumer = await stream.create_consumer("d")
    async with consumer.consume(lambda message: None, on_error=own.append) as reading:
        waiting = asyncio.create_task(reading.wait())
        await until(lambda: reading.handled == 3 and reading._pull.waiting)
        await consumer.delete()
        with pytest.raises(ConsumerDeletedError):
            await waiting
    assert len(own) == 1
    assert not told


async def test_a_blocking_handler_that_nobody_waits_for_tells_its_end(server):
    told = []

    def work():
        with jetlake.blocking.connect(server.url, on_error=told.append) as client:
            stream = fill(client.jetstream(), 3)
            consumer = stream.create_consumer("c")
            with pytest.raises(ConsumerDeletedError), consumer.consume(lambda message: None) as reading:
                wait_until(lambda: reading.handled == 3)
                consumer.delete()
                wait_until(lambda: told)
            consumer = stream.create_consumer("d")
            with consumer.consume(lambda message: None) as reading, ThreadPoolExecutor(1) as pool:

                def delete():
                    wait_until(lambda: reading.handled == 3 and reading._waiting)
                    consumer.delete()

                deleting = pool.submit(delete)
                with pytest.raises(ConsumerDeletedError):
                    reading.wait(60)
                deleting.result()

    await in_thread(work)
    assert [type(error) for error in told] == [ConsumerDeletedError]


# NATS ADR-37: the buffer has a limit


@connected
def test_a_blocking_read_holds_no_more_than_its_limit(client):
    stream = fill(client.jetstream(), 400)
    consumer = stream.create_consumer("c")

    def unacked():
        return consumer.info().num_ack_pending

    with consumer.consume(max_messages=100) as reading:
        for number in range(76):
            assert int(reading.next(60).payload) == number
            if number in (0, 73):
                # Everything that was asked for is here: nothing more is on its way.
                wait_until(lambda taken=number + 1: reading.pending_messages == 100 - taken)
                assert unacked() == 100
        # At the threshold of 25 more are asked for, as many as there is room for.
        wait_until(lambda: unacked() > 100)
        wait_until(lambda: reading.pending_messages == 99)
        assert unacked() == 175
        rest = [int(message.payload) for message in reading.next_batch()]
        assert rest == list(range(76, 76 + len(rest)))
        seen = 76 + len(rest)
        for message in reading:
            assert int(message.payload) == seen
            seen += 1
            if seen == 400:
                break


@connected
def test_a_blocking_read_by_bytes_holds_no_more_than_its_limit(client):
    stream = fill(client.jetstream(), 400)
    consumer = stream.create_consumer("c")
    with consumer.consume(max_bytes=5000) as reading:
        first = reading.next(60)
        held = consumer.info().num_ack_pending
        assert held * (first.size - 2) <= 5000
        for number in range(1, 400):
            assert int(reading.next(60).payload) == number


async def test_a_message_that_never_fits_ends_the_read(server, clients):
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s"])
    await js.publish("s", b"x" * 500)
    consumer = await stream.create_consumer("c")
    with pytest.raises(PullStatusError, match="409 Message Size Exceeds MaxBytes"):
        async with asyncio.timeout(60), consumer.consume(max_bytes=300) as messages:
            async for _ in messages:
                pass

    def work():
        with jetlake.blocking.connect(server.url) as client:
            reading = client.jetstream().consumer("S", "c").consume(max_bytes=300)
            with pytest.raises(PullStatusError, match="409 Message Size Exceeds MaxBytes"):
                reading.next(60)

    await in_thread(work)


# NATS ADR-37: the requests for a consumer's info and deletion may not be available

NO_INFO = """authorization { users: [
  { user: admin, password: p },
  { user: worker, password: p, permissions: { publish: {
    deny: ["$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.DELETE.>"] } } } ] }"""


async def test_who_may_pull_and_not_ask_reads_all_the_same(start, clients):
    server = await start(NO_INFO)
    stream = await filled((await clients(server, user="admin", password="p")).jetstream(), 6)
    await stream.create_consumer("c")
    await stream.create_consumer("g", priority_policy="overflow", priority_groups=["jobs"])
    js = (await clients(server, user="worker", password="p", on_error=lambda error: None)).jetstream()
    consumer = await js.consumer("S", "c")
    assert not consumer.is_known
    assert numbers(await consumer.fetch(2)) == [0, 1]
    async with consumer.consume() as messages:
        assert int((await messages.next(60)).payload) == 2
        assert int((await messages.next(60)).payload) == 3
    grouped = await js.consumer("S", "g", lookup=False)
    assert numbers(await grouped.fetch(1, group="jobs")) == [0]
    pulls = await js.pull_subscribe(stream="S", consumer="g")
    assert numbers(await pulls.fetch(2, group="jobs")) == [1, 2]
    with pytest.raises(PermissionsError):
        await consumer.delete()

    def work():
        quiet = {"on_error": lambda error: None}
        with jetlake.blocking.connect(server.url, user="worker", password="p", **quiet) as client:
            grouped = client.jetstream().consumer("S", "g")
            assert not grouped.is_known
            assert numbers(grouped.fetch(1, group="jobs")) == [3]
            pulls = client.jetstream().pull_subscribe(stream="S", consumer="g")
            assert numbers(pulls.fetch(2, group="jobs")) == [4, 5]
            with pytest.raises(PermissionsError):
                grouped.delete()

    await in_thread(work)


# NATS ADR-42: every way to pull has the group's options


async def test_older_fetches_have_the_options_of_groups(server, clients):
    js = (await clients(server)).jetstream()
    stream = await filled(js, 4)
    await stream.create_consumer("g", priority_policy="overflow", priority_groups=["jobs"])
    await stream.create_consumer("p", priority_policy="pinned_client", priority_groups=["jobs"])
    pulls = await js.pull_subscribe(stream="S", consumer="g")
    with pytest.raises(InvalidOptionError, match="pass group"):
        await pulls.fetch(1)
    assert numbers(await pulls.fetch(1, group="jobs", min_pending=4)) == [0]
    assert await pulls.fetch(1, timeout=0.2, group="jobs", min_pending=4) == []
    assert numbers(await pulls.fetch(1, group="jobs", min_ack_pending=1)) == [1]
    pinned = await js.pull_subscribe(stream="S", consumer="p")
    with pytest.raises(InvalidOptionError, match="pinned_client"):
        await pinned.fetch(1, group="jobs")

    def work():
        with jetlake.blocking.connect(server.url) as client:
            pulls = client.jetstream().pull_subscribe(stream="S", consumer="g")
            assert numbers(pulls.fetch(5, group="jobs", min_pending=2)) == [2]
            assert numbers(pulls.fetch(5, group="jobs", min_pending=1)) == [3]

    await in_thread(work)


@connected
def test_a_blocking_read_gets_and_loses_its_pin(client):
    js = client.jetstream()
    stream = fill(js, 1)
    consumer = stream.create_consumer("c", priority_policy="pinned_client", priority_groups=["jobs"])
    told = []
    with pytest.raises(InvalidOptionError, match="pinned_client"):
        consumer.fetch(1, group="jobs")
    limits = {"group": "jobs", "max_messages": 1}
    with consumer.consume(**limits, on_pinned=told.append, on_unpinned=lambda: told.append("")) as reading:
        reading.next(60).ack_sync()
        first = reading.pin_id
        # The next pull, which has the pin, waits.
        wait_until(lambda: consumer.info().num_waiting == 1)
        consumer.unpin("jobs")
        js.publish("s.1", b"1")
        assert reading.next(60).payload == b"1"
        assert told == [first, "", reading.pin_id]
        assert first != reading.pin_id != ""


# NATS ADR-13: a status is the error


async def test_an_older_fetch_tells_the_status_behind_its_messages(server, clients):
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s"])

    async def until_waiting(name):
        await until(lambda: has_waiting(name))

    async def has_waiting(name):
        return (await stream.consumer_info(name)).num_waiting == 1

    async def cut_off(name):
        """Give the fetch a message, then delete its consumer."""
        await until_waiting(name)
        await js.publish("s", b"1")
        await stream.delete_consumer(name)

    await stream.create_consumer("c")
    pulls = await js.pull_subscribe(stream="S", consumer="c")
    fetching = asyncio.create_task(pulls.fetch(5, timeout=60))
    await cut_off("c")
    messages = await fetching
    assert len(messages) == 1
    assert isinstance(messages.error, ConsumerDeletedError)

    await stream.create_consumer("d", deliver_policy="new")

    def work():
        with jetlake.blocking.connect(server.url) as client:
            messages = client.jetstream().pull_subscribe(stream="S", consumer="d").fetch(5, timeout=60)
            assert len(messages) == 1
            assert isinstance(messages.error, ConsumerDeletedError)

    fetching = asyncio.create_task(in_thread(work))
    await cut_off("d")
    await fetching


# NATS ADR-15: flow control, gaps, acknowledgements, the deletion's error

FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


async def pushing(js, wire, names, count):
    """Push consumers, to whose deliver subjects tests publish statuses as the server would."""
    await filled(js, count)
    for name in names:
        config = {"durable_name": name, "deliver_subject": f"to.{name}", "idle_heartbeat": 60_000_000_000}
        request = {"stream_name": "S", "config": {**config, "flow_control": True, "ack_policy": "none"}}
        assert "error" not in (await wire.request(f"$JS.API.CONSUMER.DURABLE.CREATE.S.{name}", request)).json


def status(name, header, reply=""):
    return f"HPUB to.{name} {reply} {len(header)} {len(header)}\r\n".encode() + header + b"\r\n"


async def test_flow_control_is_answered_when_its_turn_comes(server, clients, connect):
    nc = await clients(server)
    js = nc.jetstream()
    wire = await (await connect(server)).hello()
    await pushing(js, wire, ["c", "b"], 3)
    answers = await nc.subscribe("answers.c")
    subscription = await js.subscribe(stream="S", consumer="c")
    await until(lambda: subscription.pending_messages == 3)
    await wire.send(status("c", FLOW, "answers.c"))
    await wire.ping()
    for _ in range(2):
        await subscription.next(60)
    await nc.flush()
    assert answers.pending_messages == 0
    await subscription.next(60)
    assert (await answers.next(60)).payload == b""

    loop = asyncio.get_running_loop()

    async def request_flow():
        await wire.send(status("b", FLOW, "answers.b"))
        await wire.ping()

    def work():
        with jetlake.blocking.connect(server.url) as client:
            answered = client.subscribe("answers.b")
            subscription = client.jetstream().subscribe(stream="S", consumer="b")
            wait_until(lambda: subscription.pending_messages == 3)
            asyncio.run_coroutine_threadsafe(request_flow(), loop).result()
            for _ in range(2):
                # All three cross threads together, and count only as they are handed out.
                subscription.next(60)
            client.flush()
            assert answered.pending_messages == 0
            subscription.next(60)
            assert answered.next(60).payload == b""

    await in_thread(work)


BEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 3\r\n\r\n"


async def test_a_lost_first_delivery_is_a_gap(server, clients, connect):
    told = []
    nc = await clients(server, on_error=told.append)
    js = nc.jetstream()
    wire = await (await connect(server)).hello()
    await pushing(js, wire, ["c", "b"], 0)
    subscription = await js.subscribe(stream="S", consumer="c")
    await nc.flush()
    await wire.send(status("c", BEAT))
    await until(lambda: told)
    assert [(type(gap), gap.expected, gap.received) for gap in told] == [(SequenceGapError, 1, 4)]
    await subscription.unsubscribe()
    loop = asyncio.get_running_loop()

    def work():
        told = []
        with jetlake.blocking.connect(server.url, on_error=told.append) as client:
            subscription = client.jetstream().subscribe(stream="S", consumer="b")
            client.flush()
            asyncio.run_coroutine_threadsafe(wire.send(status("b", BEAT)), loop).result()
            wait_until(lambda: told)
            subscription.unsubscribe()
        assert (told[0].expected, told[0].received) == (1, 4)

    await in_thread(work)


async def test_while_a_confirmation_is_awaited_nothing_else_is_sent(server, clients):
    nc = await clients(server)
    js = nc.jetstream()
    stream = await filled(js, 2)
    consumer = await stream.create_consumer("c")
    acks = await nc.subscribe("$JS.ACK.>")
    await nc.flush()
    message = (await consumer.fetch(1))[0]
    asked = [asyncio.create_task(message.ack_sync()) for _ in range(2)]
    await asyncio.sleep(0)
    await message.nak()
    await message.term()
    await message.in_progress()
    await asyncio.gather(*asked)
    await nc.flush()
    assert (await acks.next(60)).payload == b"+ACK"
    assert acks.pending_messages == 0

    def work():
        with jetlake.blocking.connect(server.url) as client, ThreadPoolExecutor(4) as pool:
            message = client.jetstream().consumer("S", "c").fetch(1)[0]
            for confirmed in [pool.submit(message.ack_sync) for _ in range(4)]:
                confirmed.result()
            message.nak()
            client.flush()

    await in_thread(work)
    await nc.flush()
    assert (await acks.next(60)).payload == b"+ACK"
    assert acks.pending_messages == 0


async def test_the_end_of_a_subscription_tells_that_its_consumer_was_gone(server, clients):
    told = []
    js = (await clients(server, on_error=told.append)).jetstream()
    stream = await filled(js, 1)
    for subscribe in (js.subscribe, js.pull_subscribe):
        ended = await subscribe("s.>", durable="d")
        await stream.delete_consumer("d")
        with pytest.raises(ConsumerNotFoundError):
            await ended.unsubscribe()
        drained = await subscribe("s.>", durable="d")
        await stream.delete_consumer("d")
        await drained.drain()
        async with await subscribe("s.>", durable="d"):
            await stream.delete_consumer("d")
    assert [type(error) for error in told] == [ConsumerNotFoundError] * 2

    def work():
        told = []
        with jetlake.blocking.connect(server.url, on_error=told.append) as client:
            js = client.jetstream()
            for subscribe in (js.subscribe, js.pull_subscribe):
                ended = subscribe("s.>", durable="d")
                js.delete_consumer("S", "d")
                with pytest.raises(ConsumerNotFoundError):
                    ended.unsubscribe()
                drained = subscribe("s.>", durable="d")
                js.delete_consumer("S", "d")
                drained.drain()
                with subscribe("s.>", durable="d"):
                    js.delete_consumer("S", "d")
        assert [type(error) for error in told] == [ConsumerNotFoundError] * 2

    await in_thread(work)


async def test_a_consumer_that_another_client_created_meanwhile_is_not_deleted(server, clients, clock, monkeypatch):
    js = (await clients(server)).jetstream()
    stream = await filled(js, 1)
    other = await js.pull_subscribe("s.>", durable="d")
    await clock.passes(1.5)
    found = Subscriptions._look_up

    async def too_early(self, stream, request):
        """The consumer was created behind the look-up."""
        await found(self, stream, request)

    monkeypatch.setattr(Subscriptions, "_look_up", too_early)
    mine = await js.pull_subscribe("s.>", durable="d")
    assert other.owns_consumer
    assert not mine.owns_consumer
    await mine.unsubscribe()

    def work():
        with jetlake.blocking.connect(server.url) as client:
            mine = client.jetstream().pull_subscribe("s.>", durable="d")
            assert not mine.owns_consumer
            mine.unsubscribe()

    await in_thread(work)
    assert await stream.consumer_names() == ["d"]


# Other NATS documents: ADR-11 spreads clients over the addresses of a name, ADR-40 lets a program choose


async def test_the_addresses_of_a_name_are_tried_in_random_order(core, clients, monkeypatch):
    orders = []

    def resolve(host, port, *arguments, **options):
        if host != "many.test":
            return found(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    def shuffled(hosts):
        hosts.sort(key=lambda host: host != "127.0.0.2")
        orders.append(list(hosts))

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("jetlake.client.connection.wire_protocol.random.shuffle", shuffled)
    client = await clients(core, url=f"nats://many.test:{core.port}")
    # The first one refuses, the next one is tried.
    await client.flush()
    assert orders == [["127.0.0.2", "127.0.0.1"]]

    def work():
        with jetlake.blocking.connect(f"nats://many.test:{core.port}") as client:
            client.flush()

    await in_thread(work)
    assert len(orders) == 2


async def test_a_program_chooses_the_server(start, clients):
    first, second = await start(flags=["no_jetstream"]), await start(flags=["no_jetstream"])
    servers = [first.url, second.url]

    def choose(names):
        assert len(names) == 2
        return next(name for name in names if name.endswith(f":{second.port}"))

    client = await clients(first, url=servers, shuffle_servers=False, choose_server=choose)
    assert client.server.endswith(f":{second.port}")

    def work():
        with jetlake.blocking.connect(servers, shuffle_servers=False, choose_server=choose) as client:
            assert client.server.endswith(f":{second.port}")

    await in_thread(work)
