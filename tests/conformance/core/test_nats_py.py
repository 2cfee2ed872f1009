"""nats-py, as it is: an independent client of both servers."""

import asyncio
import ssl
from pathlib import Path

import nats
import pytest
from nats.errors import NoRespondersError

from tests.support.clients import until

HERE = Path(__file__).parents[1] / "certificates"
SEED = "SUAEL6GG2L2HIF7DUGZJGMRUFKXELGGYFMHF76UO2AYBG3K4YLWR3FKC2Q"


@pytest.fixture
async def client(core):
    client = await nats.connect(core.url, max_reconnect_attempts=0)
    yield client
    await client.close()


async def test_publish_and_subscribe(client):
    subscription = await client.subscribe("greet.*")
    await client.publish("greet.joe", b"hello", headers={"Key": "value", "Other": "ümlaut"})
    message = await subscription.next_msg(timeout=5)
    assert (message.subject, message.data, message.headers["Key"]) == ("greet.joe", b"hello", "value")


async def test_request_and_reply(client):
    async def answer(message):
        await message.respond(b"re: " + message.data)

    await client.subscribe("svc", cb=answer)
    replies = await asyncio.gather(*(client.request("svc", b"%d" % number, timeout=5) for number in range(50)))
    assert [reply.data for reply in replies] == [b"re: %d" % number for number in range(50)]
    assert (await client.request("svc", b"old", timeout=5, old_style=True)).data == b"re: old"


async def test_no_responders(client):
    with pytest.raises(NoRespondersError):
        await client.request("nobody", b"", timeout=5)


async def test_queue_and_auto_unsubscribe(client):
    counts = [0, 0]

    def counter(index):
        async def count(message):
            counts[index] += 1

        return count

    for index in range(2):
        await client.subscribe("work", queue="workers", cb=counter(index))
    limited = await client.subscribe("work")
    await limited.unsubscribe(limit=3)
    for _ in range(100):
        await client.publish("work", b"")
    await until(lambda: sum(counts) == 100)
    assert min(counts) > 0
    assert limited.delivered == 3


async def test_drain(core):
    client = await nats.connect(core.url)
    received = []

    async def take(message):
        received.append(message.data)

    await client.subscribe("d", cb=take)
    for number in range(200):
        await client.publish("d", b"%d" % number)
    await client.drain()
    assert len(received) == 200


async def test_user_and_password(start):
    server = await start(flags=["no_jetstream", "--user", "ann", "--pass", "p"])
    client = await nats.connect(server.url, user="ann", password="p")
    await client.flush()
    await client.close()


async def test_token(start):
    server = await start(flags=["no_jetstream", "--auth", "t0k3n"])
    client = await nats.connect(server.url, token="t0k3n")
    await client.flush()
    await client.close()


async def test_nkey(start, tmp_path):
    import nkeys

    public = nkeys.from_seed(bytearray(SEED.encode())).public_key.decode()
    server = await start(f"authorization {{ users: [{{nkey: {public}}}] }}", ["no_jetstream"])
    seed = tmp_path / "user.nk"
    seed.write_text(SEED)
    client = await nats.connect(server.url, nkeys_seed=str(seed))
    await client.flush()
    await client.close()


@pytest.mark.parametrize("first", [False, True])
async def test_tls(start, first):
    server = await start(
        f'tls {{ cert_file: "{HERE / "server.pem"}", key_file: "{HERE / "server-key.pem"}", '
        f'ca_file: "{HERE / "ca.pem"}", verify: true, handshake_first: {str(first).lower()} }}',
        ["no_jetstream"],
    )
    context = ssl.create_default_context(cafile=HERE / "ca.pem")
    context.load_cert_chain(HERE / "client.pem", HERE / "client-key.pem")
    client = await nats.connect(
        f"tls://localhost:{server.port}", tls=context, tls_hostname="localhost", tls_handshake_first=first
    )
    subscription = await client.subscribe("t")
    await client.publish("t", b"secure" * 10_000)
    assert len((await subscription.next_msg(timeout=5)).data) == 60_000
    await client.close()


async def test_reconnect_after_a_restart(start):
    server = await start(flags=["no_jetstream"])
    reconnected = asyncio.Event()

    async def on_reconnect():
        reconnected.set()

    client = await nats.connect(
        server.url, reconnect_time_wait=0.02, reconnected_cb=on_reconnect, max_reconnect_attempts=200
    )
    subscription = await client.subscribe("x")
    await server.restart()
    await asyncio.wait_for(reconnected.wait(), 10)
    await client.publish("x", b"back")
    assert (await subscription.next_msg(timeout=5)).data == b"back"
    await client.close()
