"""What people have complained about in other clients, on both servers."""

import asyncio

import pytest

import jetlake
from jetlake.errors import AuthorizationError
from tests.support.clients import until

QUICK = {"reconnect_wait": 0.02, "reconnect_wait_max": 0.1}


@pytest.fixture
async def silent():
    """The address of a server that takes TCP connections and never says a word."""
    ended = asyncio.Event()
    greeted = []

    async def greet(reader, writer):
        greeted.append(writer)
        await ended.wait()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}", greeted
    ended.set()
    listener.close()
    await listener.wait_closed()


async def restart(server, client):
    await server.kill()
    await until(lambda: not client.is_connected)
    await server.start()


async def test_a_server_that_never_speaks_does_not_hold_a_reconnect_up(start, silent, clients):
    server = await start(flags=["no_jetstream"], process=True)
    address, greeted = silent
    client = await clients(
        server, url=[server.url, address], shuffle_servers=False, connect_timeout=1, reconnect_jitter=0, **QUICK
    )
    await restart(server, client)
    await until(lambda: client.is_connected)
    assert greeted
    await client.flush()


async def test_refused_credentials_may_be_good_later(start, clients):
    config = "authorization { user: u, password: PASSWORD }"
    server = await start(config.replace("PASSWORD", "right"), ["no_jetstream"], process=True)
    errors = []
    client = await clients(server, user="u", password="right", on_error=errors.append, **QUICK)
    subscription = await client.subscribe("a")
    path = server.folder / "server.conf"
    path.write_text(config.replace("PASSWORD", "wrong"))
    await restart(server, client)
    await until(lambda: len(errors) >= 4)
    assert not client.is_closed
    assert all(isinstance(error, AuthorizationError) for error in errors)
    await server.kill()
    path.write_text(config.replace("PASSWORD", "right"))
    await server.start()
    await until(lambda: client.is_connected)
    await client.publish("a", b"x")
    assert (await subscription.next(5)).payload == b"x"


async def test_a_connection_lost_during_drain_ends_it(start):
    server = await start(flags=["no_jetstream"], process=True)
    client = await jetlake.connect(server.url, on_error=lambda error: None, **QUICK)
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message):
        at_work.set()
        await go_on.wait()

    await client.subscribe("a", handle)
    await client.publish("a")
    await at_work.wait()
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0)
    await server.kill()
    await until(lambda: not client.is_connected)
    go_on.set()
    async with asyncio.timeout(10):
        await draining
    assert client.is_closed


async def test_a_subscription_made_while_reconnecting_is_there_afterwards(start, clients):
    server = await start(flags=["no_jetstream"], process=True)
    client = await clients(server, **QUICK)
    await server.kill()
    await until(lambda: not client.is_connected)
    subscription = await client.subscribe("a", queue="q")
    gone = await client.subscribe("a")
    await gone.unsubscribe()
    await client.publish("a", b"kept")
    await server.start()
    await until(lambda: client.is_connected)
    await client.publish("a", b"new")
    assert [(await subscription.next(5)).payload for _ in range(2)] == [b"kept", b"new"]


async def test_names_are_resolved_for_every_connection(start, clients, monkeypatch):
    old, new = [await start(flags=["no_jetstream"], process=True) for _ in range(2)]
    loop = asyncio.get_running_loop()
    resolve, current = loop.getaddrinfo, [old]

    async def resolve_name(host, port, **options):
        if host == "service.test":
            host, port = current[0].host, current[0].port
        return await resolve(host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", resolve_name)
    client = await clients(old, url="nats://service.test:4222", discover_servers=False, **QUICK)
    assert client.server_info.port == old.port
    current[0] = new
    await old.kill()
    await until(lambda: client.is_connected and client.server_info.port == new.port)
