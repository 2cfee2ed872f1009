"""The server as a whole, without sockets: lame duck, reload, timers, defects."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import bcrypt
import pytest

from jetlake.errors import ConfigError
from jetlake.server.config.options import (
    AccountOptions,
    JetStreamLimits,
    Permissions,
    Secret,
    SubjectPermissions,
    User,
)


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_lame_duck_lets_clients_go_one_by_one(make_server, connect, clock):
    server = make_server(lame_duck_duration_s=60.0, lame_duck_grace_period_s=10.0)
    server._stopped = asyncio.Event()
    clients = [await connect(server).hello(protocol=1) for _ in range(3)]
    server.enter_lame_duck()
    server.enter_lame_duck()
    await turns()
    for client in clients:
        assert b'"ldm":true' in b"".join(client.transport.written)
    clock.advance(9.9)
    await turns()
    assert len(server.connections) == 3
    clock.advance(0.2)
    await turns()
    assert len(server.connections) == 2
    for _ in range(2):
        clock.advance(1.0)
        await turns()
    assert not server.connections
    for client in clients:
        client.connection.connection_lost(None)
    clock.advance(1.0)
    await turns()
    await asyncio.wait_for(server.wait_stopped(), 5)
    assert server.has_stopped


def user(name, password="p", publish=("x",), account="$G"):
    permissions = Permissions(publish=SubjectPermissions(allow=publish))
    return User(name=name, password=Secret(password), account=account, permissions=permissions)


async def test_reload_changes_permissions_of_those_connected(make_server, connect):
    server = make_server(users=(user("a"), user("b")))
    ann = await connect(server).hello(user="a", **{"pass": "p"})
    bob = await connect(server).hello(user="b", **{"pass": "p"})
    changed = server.reload(server.options.replace(users=(user("a", publish=("y",)),), max_payload=10, ping_max=5))
    assert changed == ["max_payload", "ping_max", "users"]
    assert await bob.take() == b"-ERR 'Authorization Violation'\r\n"
    ann.send(b"PUB y 0\r\n\r\nPUB x 0\r\n\r\n")
    assert await ann.take() == b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    ann.send(b"PUB y 11\r\n")
    assert b"Maximum Payload Violation" in await ann.take()


async def test_reload_ends_subscriptions_that_are_not_allowed_any_more(make_server, connect):
    free = User(name="a", password=Secret("p"))
    server = make_server(users=(free,))
    ann = await connect(server).hello(user="a", **{"pass": "p"})
    ann.send(b"SUB ok 1\r\nSUB secret 2\r\nSUB all.* 3\r\n")
    tight = Permissions(subscribe=SubjectPermissions(allow=("ok", "all.*"), deny=("all.x",)))
    server.reload(server.options.replace(users=(User(name="a", password=Secret("p"), permissions=tight),)))
    assert await ann.take() == b"-ERR 'Permissions Violation for Subscription to \"secret\"'\r\n"
    for subject in (b"ok", b"secret", b"all.x", b"all.y"):
        server.accounts["$G"].publish(subject, b"", b"", b"")
    assert await ann.take() == b"MSG ok 1 0\r\n\r\nMSG all.y 3 0\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ({}, {"token": Secret("t")}, False),
        ({"token": Secret("t")}, {"token": Secret("t")}, True),
        ({"token": Secret("t")}, {"token": Secret("u")}, False),
        ({"users": (user("a"),)}, {"users": (user("a", password="q"),)}, False),
        ({"users": (user("a"),)}, {}, True),
    ],
)
async def test_who_stays_after_a_reload(make_server, connect, before, after, stays):
    server = make_server(**before)
    given = {"auth_token": "t"} if "token" in before else {"user": "a", "pass": "p"} if before else {}
    client = await connect(server).hello(**given)
    server.reload(server.options.replace(**{"token": None, "users": (), **after}))
    client.send(b"PING\r\n")
    expected = b"PONG\r\n" if stays else b"-ERR 'Authorization Violation'\r\n"
    assert await client.take() == expected


HASHED = Secret(bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode())
LOGIN = b'CONNECT {"verbose":false,"user":"a","pass":"p"}\r\nPING\r\n'


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        ({"name": "a", "password": HASHED, "account": "B"}, b"PONG\r\n"),
        ({"name": "b", "password": HASHED}, b"-ERR 'Authorization Violation'\r\n"),
        ({"name": "a", "password": Secret("q")}, b"-ERR 'Authorization Violation'\r\n"),
    ],
)
async def test_a_user_who_is_checked_during_a_reload_is_the_one_of_the_new_options(make_server, connect, after, answer):
    server = make_server(users=(User(name="a", password=HASHED),), accounts=(AccountOptions(name="B"),))
    client = connect(server)
    client.send(LOGIN)
    await asyncio.sleep(0)  # for the check to begin
    server.reload(server.options.replace(users=(User(**after),)))
    while client.connection.handshake.checking:
        await asyncio.sleep(0)
    assert await client.take() == answer
    if answer == b"PONG\r\n":
        assert client.connection.session.account.name == "B"


async def test_no_password_is_hashed_for_clients_that_have_gone(make_server, connect, monkeypatch):
    hashed = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda given, _expected: hashed.append(given) is None)
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, free.wait)
    server = make_server(users=(User(name="a", password=HASHED),))
    clients = [connect(server) for _ in range(5)]
    for client in clients:
        client.send(LOGIN)
    for client in clients[:-1]:
        client.connection.connection_lost(None)
    await asyncio.sleep(0)
    free.set()
    await busy
    while any(client.connection.handshake.checking for client in clients):
        await asyncio.sleep(0)
    assert await clients[-1].take() == b"PONG\r\n"
    assert len(hashed) == 1


@pytest.mark.parametrize(
    "change", [{"port": 5}, {"host": "0.0.0.0"}, {"server_name": "x"}, {"http_port": 1}, {"log_file": "/l"}]
)
async def test_reload_refuses_what_needs_a_restart(make_server, change):
    server = make_server()
    with pytest.raises(ConfigError, match=f"config reload not supported for {next(iter(change))}"):
        server.reload(server.options.replace(max_payload=10, **change))
    assert server.options.max_payload == 1048576


@pytest.mark.parametrize("names", [("A", "B"), ("B",), ("A", "C")])
async def test_reload_switches_jetstream_of_no_account(make_server, names):
    def accounts(enabled):
        known = ("A", "B", *({"C"} & set(enabled)))
        return tuple(
            AccountOptions(name=name, jetstream=JetStreamLimits() if name in enabled else None) for name in known
        )

    server = make_server(accounts=accounts(("A",)))
    with pytest.raises(ConfigError, match=r"config reload not supported for .*JetStream"):
        server.reload(server.options.replace(accounts=accounts(names)))
    assert server.reload(server.options.replace(accounts=accounts(("A",)), ping_max=5)) == ["ping_max"]


async def test_a_failing_timer_does_not_stop_the_others(make_server, clock):
    server = make_server()
    ran = []
    server.engine_loop.timers.schedule(clock.now_ns() + 1, lambda _: 1 / 0)
    server.engine_loop.timers.schedule(clock.now_ns() + 2, lambda _: ran.append("second"))
    clock.advance(1)
    clock.advance(1)
    assert ran == ["second"]
    assert server.defects == 1


async def test_many_servers_in_one_process_share_nothing(make_server, connect):
    first, second = make_server(), make_server()
    one, other = await connect(first).hello(), await connect(second).hello()
    one.send(b"SUB a 1\r\n")
    other.send(b"PUB a 0\r\n\r\n")
    assert await one.take() == b""
    assert first.id != second.id
