"""The client's core messaging on both servers."""

import asyncio
import threading

import pytest

import jetlake
from jetlake.errors import (
    AuthorizationError,
    ConfigError,
    NoRespondersError,
    NoServersError,
    PermissionsError,
    RequestTimeoutError,
    SlowSubscriberError,
)
from tests.support.clients import until
from tests.support.tls import TLS, client_context


async def test_publish_and_subscribe(core, clients):
    client = await clients(core, name="tester")
    assert client.is_connected
    assert client.server_info.max_payload == 1024 * 1024
    subscription = await client.subscribe("a.*.c")
    await client.publish("a.b.c", b"payload", headers={"Key": ["1", "2"]}, reply="answers")
    message = await subscription.next(5)
    assert (message.subject, message.reply, message.payload) == ("a.b.c", "answers", b"payload")
    assert message.headers.get_all("Key") == ["1", "2"]


async def test_large_and_empty_payloads(core, clients):
    client = await clients(core)
    subscription = await client.subscribe("a")
    payloads = [b"", b"\r\n", bytes(range(256)) * 4096, b"x"]
    for payload in payloads:
        await client.publish("a", payload)
    assert [(await subscription.next(5)).payload for _ in payloads] == payloads


async def test_many_messages_keep_their_order(core, clients):
    sender, receiver = await clients(core), await clients(core)
    subscription = await receiver.subscribe("n")
    await receiver.flush()
    for number in range(20_000):
        await sender.publish("n", b"%d" % number)
    received = []
    async for message in subscription:
        received.append(int(message.payload))
        if len(received) == 20_000:
            break
    assert received == list(range(20_000))


async def test_request_and_reply(core, clients):
    service, client = await clients(core), await clients(core)

    async def answer(message):
        await message.respond(message.payload.upper(), headers={"Answered": "yes"})

    await service.subscribe("service", answer)
    await service.flush()
    answers = await asyncio.gather(*(client.request("service", b"n%d" % number) for number in range(100)))
    assert [one.payload for one in answers] == [b"N%d" % number for number in range(100)]
    assert answers[0].headers["Answered"] == "yes"


async def test_nobody_listens(core, clients):
    client = await clients(core)
    with pytest.raises(NoRespondersError):
        await client.request("nobody")


async def test_nobody_answers(core, clients):
    client = await clients(core)
    await client.subscribe("silent", lambda message: None)
    with pytest.raises(RequestTimeoutError):
        await client.request("silent", timeout=0.05)


async def test_queue_groups(core, clients):
    counts = [0, 0, 0]

    def counter(number):
        def count(message):
            counts[number] += 1

        return count

    members = [await clients(core) for _ in counts]
    for number, member in enumerate(members):
        await member.subscribe("jobs", counter(number), queue="workers")
        await member.flush()
    sender = await clients(core)
    for _ in range(300):
        await sender.publish("jobs")
    await until(lambda: sum(counts) == 300)
    assert all(counts)


async def test_echo(core, clients):
    client = await clients(core, echo=False)
    other = await clients(core)
    subscription = await client.subscribe("a")
    await client.publish("a", b"own")
    await client.flush()
    await other.publish("a", b"theirs")
    assert (await subscription.next(5)).payload == b"theirs"


async def test_unsubscribe_after_some_messages(core, clients):
    client = await clients(core)
    subscription = await client.subscribe("a")
    await subscription.unsubscribe(after=3)
    for number in range(5):
        await client.publish("a", b"%d" % number)
    await client.flush()
    assert [message.payload async for message in subscription] == [b"0", b"1", b"2"]


async def test_a_burst_is_never_dropped_in_silence(core, clients):
    """A known trap of the peers: a burst beyond the limit vanishes and nobody is told."""
    errors = []
    sender, receiver = await clients(core), await clients(core, on_error=errors.append)
    subscription = await receiver.subscribe("a", pending_messages_max=1000)
    await receiver.flush()
    for _ in range(5000):
        await sender.publish("a", b"x")
    await sender.flush()
    await until(lambda: subscription.pending_messages + subscription.dropped == 5000)
    assert subscription.dropped > 0
    assert isinstance(errors[0], SlowSubscriberError)


async def test_a_slow_subscriber_can_pause_the_connection_and_lose_nothing(core, clients):
    sender, receiver = await clients(core), await clients(core, on_error=lambda error: None)
    subscription = await receiver.subscribe("a", pending_messages_max=100, on_slow="pause")
    await receiver.flush()
    for number in range(5000):
        await sender.publish("a", b"%d" % number)
    received = []
    async for message in subscription:
        received.append(int(message.payload))
        if len(received) % 500 == 0:
            await asyncio.sleep(0)
        if len(received) == 5000:
            break
    assert received == list(range(5000))
    assert subscription.dropped == 0


async def test_a_request_has_no_floor_of_a_flush_interval(core, clients):
    """A known trap of the peers: every request waits for a fixed flush delay of milliseconds."""
    client = await clients(core)
    await client.subscribe("echo", lambda message: message.respond(message.payload))
    await client.request("echo")
    wire = client._connection._link.wire
    timers = []
    loop = asyncio.get_running_loop()
    original = loop.call_later
    try:
        loop.call_later = lambda *arguments, **options: timers.append(arguments) or original(*arguments, **options)
        for _ in range(50):
            await client.request("echo")
    finally:
        loop.call_later = original
    # The embedded server has deadlines of its own in this loop.
    assert [one for one in timers if not one[1].__module__.startswith("jetlake.server")] == []
    assert wire.is_congested is False


# Logging in


async def test_user_and_password(start, clients):
    server = await start('authorization { user: "me", password: "pass word" }', ["no_jetstream"])
    assert (await clients(server, user="me", password="pass word")).is_connected
    assert (await clients(server, url=f"nats://me:pass%20word@{server.host}:{server.port}")).is_connected
    for wrong in ({}, {"user": "me", "password": "no"}, {"token": "me"}):
        with pytest.raises(AuthorizationError):
            await clients(server, **wrong)


async def test_token(start, clients):
    server = await start('authorization { token: "secret" }', ["no_jetstream"])
    assert (await clients(server, token="secret")).is_connected
    assert (await clients(server, url=f"nats://secret@{server.host}:{server.port}")).is_connected
    with pytest.raises(AuthorizationError):
        await clients(server, token="no")


async def test_nkey(start, clients, tmp_path):
    import nkeys

    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    server = await start(f'authorization {{ users: [ {{ nkey: "{public}" }} ] }}', ["no_jetstream"])
    path = tmp_path / "seed.nk"
    path.write_bytes(seed + b"\n")
    assert (await clients(server, nkey_seed=seed.decode())).is_connected
    assert (await clients(server, nkey_seed=path)).is_connected
    other = nkeys.encode_seed(bytes(range(1, 33)), nkeys.PREFIX_BYTE_USER)
    with pytest.raises(AuthorizationError):
        await clients(server, nkey_seed=other.decode())


async def test_permissions(start, clients):
    server = await start(
        "authorization { users: [ { user: u, password: p, permissions: "
        '{ publish: { deny: "secret.>" }, subscribe: { deny: "private" } } } ] }',
        ["no_jetstream"],
    )
    errors = []
    client = await clients(server, user="u", password="p", on_error=errors.append)
    subscription = await client.subscribe("private")
    with pytest.raises(PermissionsError, match="private"):
        await subscription.next(5)
    with pytest.raises(PermissionsError, match=r"secret\.x"):
        await client.request("secret.x", timeout=5)
    assert client.is_connected
    assert all(isinstance(error, PermissionsError) for error in errors)


async def test_tls(start, clients):
    server = await start(f"{TLS} }}", ["no_jetstream"])
    client = await clients(server, tls=client_context(), tls_hostname="localhost")
    subscription = await client.subscribe("a")
    payload = bytes(range(256)) * 2000
    await client.publish("a", payload)
    assert (await subscription.next(5)).payload == payload
    with pytest.raises(NoServersError, match=r"(?i)certificate"):
        await clients(server)
    with pytest.raises((NoServersError, ConfigError), match="TLS"):
        await clients(server, tls=False)


async def test_tls_with_client_certificates(start, clients):
    server = await start(f"{TLS}, verify: true }}", ["no_jetstream"])
    client = await clients(server, tls=client_context("client"), tls_hostname="localhost")
    await client.flush()
    with pytest.raises(NoServersError):
        await clients(server, tls=client_context(), tls_hostname="localhost", reconnect=False)


async def test_tls_before_anything_is_said(start, clients):
    server = await start(f"{TLS}, handshake_first: true }}", ["no_jetstream"])
    client = await clients(server, tls=client_context(), tls_hostname="localhost", tls_handshake_first=True)
    await client.flush()


async def test_tls_that_the_server_does_not_have(core, clients):
    with pytest.raises(NoServersError, match="offers no TLS"):
        await clients(core, tls=True)


# Servers that come and go


async def test_another_server_takes_over(start, clients):
    first, second = await start(flags=["no_jetstream"], process=True), await start(flags=["no_jetstream"])
    events = []
    client = await clients(
        first,
        url=f"{first.url},{second.url}",
        shuffle_servers=False,
        on_disconnected=lambda error: events.append("disconnected"),
        on_reconnected=lambda: events.append("reconnected"),
    )
    subscription = await client.subscribe("a")
    await client.flush()
    await first.kill()
    await until(lambda: events == ["disconnected", "reconnected"])
    assert client.server == second.url
    await client.publish("a", b"again")
    assert (await subscription.next(5)).payload == b"again"


async def test_a_restarted_server_gets_subscriptions_and_writes(start, clients):
    server = await start(flags=["no_jetstream"], process=True)
    client = await clients(server)
    subscription = await client.subscribe("a")
    await client.flush()
    await server.kill()
    await until(lambda: not client.is_connected)
    for number in range(10):
        await client.publish("a", b"%d" % number)
    await server.start()
    await until(lambda: client.is_connected)
    assert [(await subscription.next(5)).payload for _ in range(10)] == [b"%d" % number for number in range(10)]


async def test_lame_duck(start, clients):
    server = await start('lame_duck_grace_period: "1s"\nlame_duck_duration: "30s"', ["no_jetstream"], process=True)
    ducks = []
    client = await clients(server, on_lame_duck=lambda: ducks.append(1))
    await client.flush()
    server.enter_lame_duck()
    await until(lambda: ducks == [1])


async def test_no_server(start, clients):
    with pytest.raises(NoServersError, match=r"127\.0\.0\.1:1"):
        await jetlake.connect("nats://127.0.0.1:1", connect_timeout=1)


async def test_a_server_that_says_nothing(clients):
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(NoServersError, match="did not answer"):
        await jetlake.connect(f"nats://127.0.0.1:{port}", connect_timeout=0.05)
    listener.close()
    await listener.wait_closed()


async def test_something_that_is_no_server(clients):
    async def http(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(http, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(NoServersError, match="unknown operation"):
        await jetlake.connect(f"nats://127.0.0.1:{port}", connect_timeout=2)
    listener.close()
    await listener.wait_closed()


async def test_a_server_that_breaks_the_protocol_right_behind_its_welcome():
    ended = asyncio.Event()

    async def welcome(reader, writer):
        writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\nNONSENSE\r\n")
        await writer.drain()
        writer.close()
        ended.set()

    listener = await asyncio.start_server(welcome, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(NoServersError, match="unknown operation"):
        await jetlake.connect(f"nats://127.0.0.1:{port}")
    await ended.wait()
    listener.close()
    await listener.wait_closed()


@pytest.fixture
async def scripted():
    """Starts servers that send what they are told with their INFO, and with their first PONG; gives their address."""
    listeners = []

    async def serve(*, behind_info=b"", behind_pong=b""):
        async def greet(reader, writer):
            writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n' + behind_info)
            try:
                await reader.readuntil(b"PING\r\n")
                writer.write(b"PONG\r\n" + behind_pong)
                while await reader.readuntil(b"PING\r\n"):
                    writer.write(b"PONG\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        listeners.append(await asyncio.start_server(greet, "127.0.0.1", 0))
        return f"nats://127.0.0.1:{listeners[-1].sockets[0].getsockname()[1]}"

    yield serve
    for listener in listeners:
        listener.close()
        await listener.wait_closed()


async def test_the_payload_limit_of_an_account_is_known(start, clients):
    limits = "limits { max_payload: 1024 }"
    server = await start(f"accounts {{ A {{ users: [{{user: a, password: a}}], {limits} }} }}", ["no_jetstream"])
    client = await clients(server, user="a", password="a", reconnect_wait=0.01)
    for _ in range(2):
        await client.flush()
        assert client.max_payload == 1024
        await client.force_reconnect()


async def test_an_info_right_behind_the_welcome_counts(scripted):
    ducks = []
    later = b'INFO {"max_payload":1024,"headers":true,"connect_urls":["127.0.0.1:9"],"ldm":true}\r\n'
    address = await scripted(behind_pong=later)
    async with jetlake.connect(address, on_lame_duck=lambda: ducks.append(1)) as client:
        await client.flush()
        assert client.max_payload == 1024
        assert client.server_info.ldm
        assert ducks == [1]
        assert "nats://127.0.0.1:9" in client.servers


async def test_a_complaint_right_behind_the_welcome_is_the_reason(scripted):
    lost = []
    address = await scripted(behind_pong=b"PING\r\n-ERR 'User Authentication Expired'\r\n")
    client = await jetlake.connect(address, on_disconnected=lost.append)
    await client.close()
    assert "Expired" in str(lost[0])


async def test_a_complaint_right_behind_the_greeting_is_the_reason(scripted):
    address = await scripted(behind_info=b"-ERR 'maximum connections exceeded'\r\n")
    with pytest.raises(NoServersError, match="maximum connections exceeded"):
        await jetlake.connect(address)


async def test_no_threads_and_no_tasks_are_left_behind(core):
    before = asyncio.all_tasks()
    threads = set(threading.enumerate())
    async with await jetlake.connect(core.url) as client:
        await client.subscribe("a", lambda message: None)
        await client.flush()
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()} or core.is_embedded)
    assert set(threading.enumerate()) <= threads
