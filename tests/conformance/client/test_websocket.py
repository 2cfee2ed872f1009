"""Our client over WebSocket, on both servers."""

import ssl

import pytest

import jetlake
import jetlake.blocking
from jetlake.errors import NoServersError
from tests.support.blocking import fill, in_thread
from tests.support.clients import filled, numbers, until
from tests.support.tls import TLS, client_context


@pytest.fixture
async def listen(start):
    async def listen(keys="no_tls: true", more=""):
        return await start(f'{more}\nwebsocket {{ port: -1, {keys} }}\njetstream {{ store_dir: "STORE_DIR" }}')

    return listen


async def test_streams_consumers_and_buckets(listen, clients):
    server = await listen()
    assert server.websocket_url.startswith("ws://")
    client = await clients(server, url=server.websocket_url)
    assert client.server == server.websocket_url
    js = client.jetstream()
    stream = await filled(js, 1000)
    consumer = await stream.create_consumer("worker")
    assert numbers(await consumer.fetch(1000)) == list(range(1000))
    bucket = await js.create_key_value("B")
    picture = bytes(range(256)) * 3000
    await bucket.put("picture", picture)
    assert (await bucket.get("picture")).value == picture


async def test_tls(listen, clients):
    server = await listen(f"{TLS} }}")
    assert server.websocket_url.startswith("wss://")
    client = await clients(server, url=server.websocket_url, tls=client_context())
    await client.flush()
    with pytest.raises(NoServersError):
        await jetlake.connect(server.websocket_url, tls=ssl.create_default_context(), reconnect=False)


async def test_a_lost_connection_is_made_again(listen, clients):
    server = await listen()
    url = server.websocket_url
    client = await clients(server, url=f"{url},{server.url}", shuffle_servers=False, reconnect_wait=0.01)
    assert client.server == url
    subscription = await client.subscribe("a")
    await client.force_reconnect()
    await until(lambda: client.is_connected)
    await client.publish("a", b"after")
    assert (await subscription.next(5)).payload == b"after"


async def test_the_blocking_client(listen):
    server = await listen()

    def work():
        with jetlake.blocking.connect(server.websocket_url) as client:
            js = client.jetstream()
            consumer = fill(js, 500).create_consumer("worker")
            assert numbers(consumer.fetch(500)) == list(range(500))
            bucket = js.create_key_value("B")
            bucket.put("key", bytes(300_000))
            assert bucket.get("key").value == bytes(300_000)

    await in_thread(work)


async def test_what_does_not_speak_websocket_is_told(listen):
    server = await listen()
    with pytest.raises(NoServersError, match="does not speak WebSocket"):
        await jetlake.connect(f"ws://{server.host}:{server.monitor_port}", connect_timeout=5)


async def test_credentials(listen, clients):
    server = await listen(more="authorization { user: ann, password: secret }")
    url = server.websocket_url.replace("ws://", "ws://ann:secret@")
    await (await clients(server, url=url)).flush()
    with pytest.raises(jetlake.errors.AuthorizationError):
        await jetlake.connect(server.websocket_url)


async def test_headers_of_the_request(listen, clients):
    server = await listen('no_tls: true, allowed_origins: ["http://good.example"]')
    url, headers = server.websocket_url, {"Origin": "http://good.example", "X-Many": ["a", "b"]}
    client = await clients(server, url=url, websocket_headers=headers)
    await client.flush()
    with pytest.raises(NoServersError):
        await jetlake.connect(url, websocket_headers={"Origin": "http://bad.example"}, reconnect=False)
