"""A hub, and leaf nodes, that are not to be trusted: what they send out of turn, in others' names, or in floods."""

import asyncio
import json
import socket
import ssl

import pytest

from tests.support.clients import until
from tests.support.leaf import RawLeaf, leaf_port, report
from tests.support.tls import CERTIFICATES

INFO = {"server_id": "N", "server_name": "hub", "client_id": 7, "leafnode_urls": ["h:1"], "info_on_connect": True}


def info(**fields):
    return b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n"


def read_until(sock, end):
    data = b""
    while not data.endswith(end):
        part = sock.recv(1)
        assert part, data
        data += part
    return data


def serve_once(listener):
    """Greet a leaf in the clear with more behind the greeting, and go on by TLS; returns what the leaf said there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server-key.pem")
    plain, _ = listener.accept()
    plain.settimeout(60)
    # Somebody on the way appends frames to the greeting, the last of them to swallow what the hub says.
    plain.sendall(info(tls_required=True) + b"PING\r\n" + info(max_payload=1) + b"LMSG a 1000\r\n")
    secured = context.wrap_socket(plain, server_side=True)
    first = read_until(secured, b"\r\n")
    secured.sendall(info(connect_info=True) + b"PING\r\n")
    return secured, first, read_until(secured, b"PONG\r\n")


def wait_for_end(sock):
    with sock:
        while sock.recv(1000):
            pass


async def test_what_comes_in_the_clear_is_not_continued_over_tls(start):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        serving = asyncio.create_task(asyncio.to_thread(serve_once, listener))
        url = f"tls://localhost:{listener.getsockname()[1]}"
        server = await start(
            f'leafnodes {{ remotes [ {{ url: "{url}", tls {{ ca_file: "{CERTIFICATES / "ca.pem"}" }} }} ] }}'
        )
        secured, first, answer = await serving
        assert first.startswith(b"CONNECT ")
        assert answer.count(b"PONG") == 1
        await server.stop()
        await asyncio.to_thread(wait_for_end, secured)


HUB = """
server_name: hub
jetstream { store_dir: "STORE_DIR", domain: hub }
max_payload: 1MB
leafnodes { listen: "127.0.0.1:-1" }
accounts {
  APP {
    jetstream: enabled
    limits { max_subscriptions: 50 }
    users [
      { user: leaf, password: leaf, permissions { publish { allow: ["up.>", "_INBOX.>"] } } }
      { user: app, password: app }
    ]
  }
}
"""


@pytest.fixture
async def hub(start):
    return await start(HUB)


@pytest.fixture
async def raw(hub):
    leaves = []

    async def raw(**fields):
        leaf = RawLeaf()
        leaves.append(leaf)
        return await leaf.connect(hub, **fields)

    yield raw
    for leaf in leaves:
        leaf.close()


async def test_a_leaf_node_acknowledges_nothing_through_the_answer_of_a_client(hub, raw, connect):
    app = await connect(hub, user="app", **{"pass": "app"})
    await app.request("$JS.API.STREAM.CREATE.S", b'{"name": "S", "subjects": ["s"]}')
    consumer = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await app.request("$JS.API.CONSUMER.DURABLE.CREATE.S.c", json.dumps(consumer).encode())
    await app.subscribe("up.svc", "9")
    await app.ping()
    leaf = await (await raw()).joined()
    forged = "$JS.ACK.S.c.1.1.1.1790000000000000000.0"
    own = "$JS.ACK.EDGE.c.1.1.1.1790000000000000000.0"
    refused = (
        forged,
        f"{forged}@up.svc",
        "$JS.API.STREAM.DELETE.S",
        "$JS.hub.API.STREAM.DELETE.S",
        "$O.bucket.M.name",
    )
    for reply in (*refused, own, "_INBOX.x"):
        leaf.send(f"LMSG up.svc {reply} 0\r\n\r\n".encode())
    assert [message.reply for message in await app.messages(7)] == ["", "", "", "", "", own, "_INBOX.x"]


@pytest.mark.parametrize("subject", [b"$JS.API.STREAM.DELETE.S", b"$JS.ACK.S.c.1.1.1.1.0", b"$KV.b.k", b"app.x"])
async def test_a_leaf_node_publishes_nothing_that_its_user_may_not(hub, raw, subject):
    leaf = await (await raw()).joined()
    leaf.send(b"LMSG %b 0\r\n\r\n" % subject)
    assert b"Permissions Violation for Publish" in await leaf.read_to_end()


async def test_interest_in_floods_ends_at_the_limit(hub, raw):
    leaf = await (await raw()).joined()
    leaf.send(b"".join(b"LS+ s.%d\r\n" % number for number in range(20_000)) + b"PING\r\n")
    await leaf.read_line(b"PONG")
    assert b"-ERR 'maximum subscriptions exceeded'" in leaf.lines
    (row,) = (await report(hub, "leafz?subs=1"))["leafs"]
    assert row["subscriptions"] == 50
    assert hub.log.count("maximum subscriptions exceeded") == 1
    leaf.send(b"LS- s.0\r\nLS+ fits\r\nLS+ s.1\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    assert (await report(hub, "leafz?subs=1"))["leafs"][0]["subscriptions_list"][-1] == "fits"


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT " + b"x" * 100_000,
        b"LMSG up.x 1000000\r\n",
        b"LS+ a q -1\r\n",
        b"LS+ a q 99999999999999999999999\r\n",
        b'CONNECT {"deny_pub": 7}\r\n',
        b"CONNECT []\r\n",
        b"CONNECT " + b"[" * 5000 + b"\r\n",
        b"\xff\xfe\r\n",
    ],
)
async def test_strangers_get_nowhere(hub, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", await leaf_port(hub))
    await reader.readline()
    writer.write(data)
    async with asyncio.timeout(60):
        try:
            await reader.read()
        except ConnectionResetError:
            pass
    writer.close()
    assert not hub.server.leafnodes.listener.connections.all


@pytest.mark.parametrize("data", [b"LS+ a q -1\r\n", b"LMSG a | 5\r\n", b"HMSG up.x 99 5\r\n", b"LMSG up.x -5\r\n"])
async def test_malformed_frames_end_the_connection_and_nothing_else(hub, raw, data):
    bad, good = await (await raw()).joined(), await (await raw(name="good", cluster="good")).joined()
    bad.send(data)
    await bad.read_to_end()
    good.send(b"PING\r\n")
    await good.read_line(b"PONG")
    assert (await report(hub, "leafz"))["leafnodes"] == 1


async def test_weights_that_lie_keep_no_message_from_others(hub, raw, connect):
    """A group's members on this server go first, whatever a leaf node claims."""
    app = await connect(hub, user="app", **{"pass": "app"})
    await app.subscribe("up.w", "1", "q")
    await app.ping()
    liar = await (await raw()).joined()
    liar.send(b"LS+ up.w q 999999999\r\nPING\r\n")
    await liar.read_line(b"PONG")
    for _ in range(20):
        await app.publish("up.w", b"x")
    assert len(await app.messages(20)) == 20


async def test_members_that_may_not_get_a_message_keep_it_from_no_other(start, connect):
    server = await start(HUB.replace("publish {", 'subscribe { deny: "secret.>" }, publish {'))
    liar = await (await RawLeaf().connect(server)).joined()
    liar.send(b"LS+ *.x q 999999999\r\nPING\r\n")
    await liar.read_line(b"PONG")
    honest = await (await RawLeaf().connect(server, name="h", cluster="h", user="app", **{"pass": "app"})).joined()
    honest.send(b"LS+ secret.x q 1\r\nPING\r\n")
    await honest.read_line(b"PONG")
    app = await connect(server, user="app", **{"pass": "app"})
    await app.publish("secret.x", b"x")
    assert await honest.read_line(b"LMSG") == b"LMSG secret.x | q 1"
    liar.close()
    honest.close()


async def test_a_leaf_node_that_does_not_read_is_cut_off_and_holds_up_nobody(start, connect):
    server = await start(HUB.replace("max_payload: 1MB", "max_payload: 100KB, max_pending: 1MB"))
    leaf = await (await RawLeaf().connect(server)).joined()
    leaf.send(b"LS+ big\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    leaf.stop_reading()
    app = await connect(server, user="app", **{"pass": "app"})
    await app.subscribe("big", "1")
    for _ in range(200):
        await app.publish("big", b"x" * 100_000)
        await app.message()
    await until(lambda: "Slow Consumer" in server.log)
    assert (await report(server, "leafz"))["leafnodes"] == 0
    leaf.close()
