"""Options of single calls and connections, by the asyncio and the blocking client, on both servers."""

import asyncio
import json
import threading
from urllib.request import urlopen

import nkeys
import pytest

import jetlake
import jetlake.blocking
from jetlake.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectTimeoutError,
    InvalidOptionError,
    NoRespondersError,
    NoServersError,
    PublishTimeoutError,
    WrongLastSequenceError,
)
from tests.support.blocking import connected, fill, in_thread
from tests.support.clients import filled, key, numbers, until

LOGIN = 'authorization { token: "right" }'


# publish_async


async def has_received(server, messages):
    """Whether the server has received so many messages, and no more."""
    url = f"http://{server.host}:{server.monitor_port}/varz"
    found = json.loads(await asyncio.to_thread(lambda: urlopen(url).read()))["in_msgs"]
    assert found <= messages
    return found == messages


async def test_a_message_has_its_own_timeout_and_retries(server, clients):
    client = await clients(server, on_error=lambda error: None)
    js = client.jetstream(timeout=3600)
    await client.subscribe("silent")
    patient = await js.publish_async("silent", b"1")
    hasty = [await js.publish_async("silent", b"2", timeout=wait_s) for wait_s in (0.05, 0.02)]
    for ack, wait in zip(hasty, ("0.05", "0.02"), strict=True):
        with pytest.raises(PublishTimeoutError, match=f"within {wait} s"):
            await ack
    assert not patient.is_done
    await until(lambda: has_received(server, 3))
    for retries, messages in ((0, 4), (1, 6)):
        with pytest.raises(NoRespondersError):
            await (await js.publish_async("nobody", retries=retries))
        await until(lambda: has_received(server, messages))  # noqa: B023
    with pytest.raises(InvalidOptionError):
        await js.publish_async("silent", timeout=0)
    with pytest.raises(PublishTimeoutError):
        await js.publish_async_complete(0.01)


async def test_timeouts_of_their_own_survive_a_reconnect(start, clients):
    server = await start(process=True)
    client = await clients(server, reconnect_wait=0.01, on_error=lambda error: None)
    js = client.jetstream(timeout=3600)
    await client.subscribe("silent")
    await server.kill()
    await until(lambda: not client.is_connected)
    ack = await js.publish_async("silent", b"1", msg_id="1", timeout=0.05)
    await server.start()
    with pytest.raises(PublishTimeoutError):
        await ack


@connected
def test_blocking_timeouts_and_retries_of_a_message(client):
    js = client.jetstream(timeout=3600)
    client.subscribe("silent")
    patient = js.publish_async("silent", b"1")
    with pytest.raises(PublishTimeoutError):
        js.publish_async("silent", b"2", timeout=0.02).result()
    assert not patient.is_done
    js.publish_async("nobody", retries=0)
    with pytest.raises(PublishTimeoutError):
        js.publish_async_complete(0.05)
    assert js.publish_async_pending == 1
    client.close()


async def test_the_last_sequence_of_another_subject(server, clients):
    js = (await clients(server)).jetstream()
    await js.create_stream("S", subjects=["s.>"])
    first = await js.publish("s.a.1")
    await js.publish("s.b")
    expectation = {"expected_last_subject_sequence": first.seq, "expected_last_subject_sequence_subject": "s.a.*"}
    await js.publish("s.c", **expectation)
    await js.publish("s.a.2")
    with pytest.raises(WrongLastSequenceError):
        await js.publish("s.c", **expectation)
    with pytest.raises(WrongLastSequenceError):
        await (await js.publish_async("s.c", **expectation))
    with pytest.raises(InvalidOptionError, match="needs expected_last_subject_sequence"):
        await js.publish("s.c", expected_last_subject_sequence_subject="s.a.*")

    def work():
        with jetlake.blocking.connect(server.url) as client:
            js = client.jetstream()
            with pytest.raises(WrongLastSequenceError):
                js.publish("s.c", **expectation)
            with pytest.raises(WrongLastSequenceError):
                js.publish_async("s.c", **expectation).result()

    await in_thread(work)


# consume


async def test_consume_stops_after_so_many(server, clients):
    client = await clients(server)
    stream = await filled(client.jetstream(), 100)
    consumer = await stream.create_consumer("c", ack_wait=3600)
    async with consumer.consume(stop_after=25, max_messages=10) as messages:
        taken = []
        async for message in messages:
            await message.ack()
            taken.append(message)
    assert numbers(taken) == list(range(25))
    info = await consumer.info()
    # No more than these were asked for: nothing goes back, and no delivery is used up.
    assert (info.delivered.stream_seq, info.num_waiting) == (25, 0)
    handled = []

    async def handle(message):
        handled.append(message)
        message.ack()

    read = consumer.consume(handle, stop_after=30)
    await read.wait()
    assert (read.handled, numbers(handled)) == (30, list(range(25, 55)))
    ordered = stream.ordered().consume(stop_after=7)
    assert numbers([message async for message in ordered]) == list(range(7))
    await until(lambda: _has_consumers(stream, ["c"]))
    with pytest.raises(InvalidOptionError):
        consumer.consume(stop_after=0)
    with pytest.raises(InvalidOptionError):
        consumer.consume(stop_after=1, max_bytes=1000)


@pytest.mark.parametrize("max_deliver", [1, 2])
async def test_messages_in_their_last_delivery_count_for_stop_after(server, clients, max_deliver):
    client = await clients(server)
    stream = await filled(client.jetstream(), 10)
    consumer = await stream.create_consumer("c", max_deliver=max_deliver)
    if max_deliver > 1:
        (await consumer.fetch(3)).nak()
    async with consumer.consume(stop_after=5) as messages:
        taken = [message async for message in messages]
        assert sorted(numbers(taken)) == list(range(5))


async def _has_consumers(stream, names):
    return await stream.consumer_names() == names


@connected
def test_blocking_consume_stops_after_so_many(client):
    stream = fill(client.jetstream(), 100)
    consumer = stream.create_consumer("c", ack_wait=3600)
    with consumer.consume(stop_after=25, max_messages=10) as messages:
        assert numbers(messages) == list(range(25))
    assert consumer.info().delivered.stream_seq == 25
    read = consumer.consume(lambda message: message.ack(), concurrency=2, stop_after=30)
    read.wait(20)
    assert read.handled == 30
    ordered = stream.ordered().consume(stop_after=7)
    assert ordered.pending_at_start() == 100
    assert numbers(ordered) == list(range(7))
    assert (ordered.resets, ordered.pin_id) == (0, "")


async def test_a_read_has_its_own_error_callback(server, clients):
    of_client, of_read = [], []
    client = await clients(server, on_error=of_client.append)
    consumer = await (await filled(client.jetstream(), 3)).create_consumer("c")
    await consumer.consume(lambda message: 1 / 0, stop_after=2, on_error=of_read.append).wait()
    assert [type(error) for error in of_read] == [ZeroDivisionError] * 2
    assert of_client == []
    with pytest.raises(InvalidOptionError):
        consumer.consume(on_error=1)

    def work():
        errors = []
        with jetlake.blocking.connect(server.url, on_error=of_client.append) as client:
            consumer = client.jetstream().consumer("S", "c")
            consumer.consume(lambda message: 1 / 0, stop_after=1, on_error=errors.append).wait(20)
        assert [type(error) for error in errors] == [ZeroDivisionError]

    await in_thread(work)
    assert of_client == []


# The connection


async def test_statistics_and_forced_reconnect(server, clients):
    client = await clients(server, reconnect_wait=0.01)
    subscription = await client.subscribe("a")
    before = client.statistics
    for _ in range(10):
        await client.publish("a", b"x" * 100)
    await client.force_reconnect()
    assert client.is_connected
    now = client.statistics
    assert (now.messages_received - before.messages_received, now.reconnects, now.subscriptions) == (10, 1, 1)
    assert now.frames_sent - before.frames_sent >= 10
    assert now.bytes_sent - before.bytes_sent > 1000
    assert now.bytes_received - before.bytes_received > 1000
    assert len(await subscription.next_batch()) == 10
    await client.publish("a", b"y")
    assert (await subscription.next(5)).payload == b"y"
    await client.close()
    with pytest.raises(ConnectionClosedError):
        await client.force_reconnect()

    def work():
        with jetlake.blocking.connect(server.url, reconnect_wait=0.01) as client:
            client.force_reconnect()
            assert (client.statistics.reconnects, client.is_connected) == (1, True)
            client.flush()

    await in_thread(work)


async def test_functions_are_asked_for_credentials_at_each_connect(start, clients):
    server = await start(LOGIN, ["no_jetstream"])
    tokens = iter(["right", "right", "right"])
    client = await clients(server, token=lambda: next(tokens), reconnect_wait=0.01)
    await client.force_reconnect()
    assert list(tokens) == ["right"]

    async def ask():
        return "right"

    await clients(server, token=ask)
    with pytest.raises(AuthorizationError):
        await clients(server, token=lambda: "wrong")
    with pytest.raises(NoServersError, match="the function for token failed: no vault"):
        await clients(server, token=_fail)
    with pytest.raises(NoServersError) as caught:
        await clients(server, token=lambda: asyncio.sleep(60), connect_timeout=0.05)
    assert isinstance(caught.value.__cause__, ConnectTimeoutError)
    with pytest.raises(InvalidOptionError, match="one way"):
        await clients(server, token=ask, user=ask)

    def work():
        threads = []
        client = jetlake.blocking.connect(
            server.url, token=lambda: (threads.append(threading.current_thread()), "right")[1]
        )
        client.force_reconnect()
        client.close()
        assert len(threads) == 2

    await in_thread(work)


def _fail():
    raise RuntimeError("no vault")


async def test_functions_give_users_passwords_and_seeds(start, clients):
    server = await start("authorization { user: u, password: p }", ["no_jetstream"])
    await clients(server, user=lambda: "u", password=lambda: "p")
    await clients(server, user="u", password=lambda: "p")
    pair, seed = key(nkeys.PREFIX_BYTE_USER, 7)
    config = f"authorization {{ users = [ {{ nkey: {pair.public_key.decode()} }} ] }}"
    server = await start(config, ["no_jetstream"])
    await clients(server, nkey_seed=lambda: seed)


# A connection


async def test_a_connection_is_awaited_entered_or_made_by_a_task(core):
    async with jetlake.connect(core.url) as entered:
        assert entered.is_connected
    assert entered.is_closed
    awaited = await jetlake.connect(core.url)
    async with awaited:
        assert awaited.is_connected
    async with asyncio.timeout(15), await asyncio.create_task(jetlake.connect(core.url)) as client:
        assert client.is_connected
    with pytest.raises(ZeroDivisionError):
        async with jetlake.connect(core.url) as broken:
            1 / 0  # noqa: B018
    assert broken.is_closed
    given_up = jetlake.connect(core.url)
    given_up.close()
    with pytest.raises(InvalidOptionError):
        async with jetlake.connect(core.url, ping_interval=0):
            pass


async def test_a_saved_context_has_the_login_and_the_domain(start, tmp_path, monkeypatch):
    server = await start("jetstream { store_dir: STORE_DIR, domain: hub }\n" + LOGIN)
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    keys = {"url": server.url, "token": "right", "jetstream_domain": "hub", "inbox_prefix": "_MINE"}
    (folder / "prod.json").write_text(json.dumps(keys))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with jetlake.connect(context="prod") as client:
        js = client.jetstream()
        await js.create_stream("S", subjects=["s"])
        assert (await js.publish("s", b"")).domain == "hub"
        assert js.api.prefix == "$JS.hub.API"
        assert client.new_inbox().startswith("_MINE.")
    with pytest.raises(AuthorizationError):
        await jetlake.connect(context="prod", token="wrong")

    def blocking():
        with jetlake.blocking.connect(context="prod") as client:
            return client.jetstream().stream_names()

    assert await asyncio.to_thread(blocking) == ["S"]


async def test_programs_that_a_context_asks_hold_up_nobody(core, tmp_path, monkeypatch):
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "prod.json").write_text(json.dumps({"nsc": "nsc://op/team/me"}))
    profile = json.dumps({"operator": {"service": [core.url]}})
    program = tmp_path / "nsc"
    program.write_text(f"#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.02; done\necho '{profile}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    connecting = asyncio.create_task(jetlake.connect(context="prod"))
    # The loop goes on meanwhile, or the program waits for ever.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (tmp_path / "go").touch()
    async with await connecting as client:
        assert client.is_connected


async def test_servers_can_be_replaced(start, clients):
    first, second = await start(flags=["no_jetstream"]), await start(flags=["no_jetstream"])
    client = await clients(first, reconnect_wait=0.01, on_error=lambda error: None)
    assert client.servers == [client.server]
    client.set_servers(second.url)
    assert client.is_connected
    await client.force_reconnect(timeout=15)
    assert client.server.endswith(f":{second.port}")
    assert client.servers == [client.server]
    for bad in ([], "http://a"):
        with pytest.raises(InvalidOptionError):
            client.set_servers(bad)

    def blocking():
        with jetlake.blocking.connect(first.url, reconnect_wait=0.01) as other:
            other.set_servers([second.url, first.url])
            return len(other.servers)

    assert await asyncio.to_thread(blocking) == 2
    await client.close()
    with pytest.raises(ConnectionClosedError):
        client.set_servers(first.url)
