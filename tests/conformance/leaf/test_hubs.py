"""The hub of leaf nodes: chains, loops, permissions, limits and a leaf node that misbehaves, on either server."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

import jetlake
from tests.support.clients import until
from tests.support.leaf import JOIN_S, RawLeaf, leaf_port, report
from tests.support.servers import make_server
from tests.support.tls import CERTIFICATES, TLS

ACCOUNTS = """
accounts {
  APP {
    jetstream: enabled, limits { max_leafnodes: 2 }
    users [
      { user: leaf, password: leaf, permissions { subscribe { deny: "secret.>" }, publish { deny: "own.>" } } }
      { user: app, password: app }
    ]
  }
  OTHER { users [ { user: other, password: other } ] }
}
"""
HUB = 'server_name: hub\njetstream { store_dir: "STORE_DIR", domain: hub }\nleafnodes { listen: "127.0.0.1:-1" }\n'


@pytest.fixture
async def serve(kind):
    """A function that starts a server of the kind under test: `await serve(config)`."""
    async with AsyncExitStack() as stack:

        async def serve(config):
            server = make_server(kind, config)
            stack.push_async_callback(server.discard)
            await server.start()
            return server

        yield serve


async def wanted(server, place=0):
    """The subjects that the leaf connection of this place has interest in, as its server reports them."""
    rows = (await report(server, "leafz?subs=1"))["leafs"]
    return rows[place].get("subscriptions_list", []) if len(rows) > place else []


async def has_leafs(server, count):
    async def does():
        return (await report(server, "leafz"))["leafnodes"] == count

    await until(does, JOIN_S)


@pytest.fixture
async def raw():
    """A function that connects a leaf node played by the test: `await raw(server, name="…")`."""
    leaves = []

    async def raw(server, **fields):
        leaf = RawLeaf()
        leaves.append(leaf)
        return await leaf.connect(server, **fields)

    yield raw
    for leaf in leaves:
        leaf.close()


def config_of(name, *, hub_port=None, remote="", listen=True):
    """A server of a chain with a JetStream domain of its own."""
    parts = ['listen: "127.0.0.1:-1"'] if listen else []
    if hub_port is not None:
        url = f'url: "nats://127.0.0.1:{hub_port}", ignore_discovered_servers: true'
        parts.append(f'reconnect: "0.1s", remotes [ {{ {url}, {remote} }} ]')
    return (
        f'server_name: {name}\njetstream {{ store_dir: "STORE_DIR", domain: {name} }}\n'
        f"leafnodes {{ {', '.join(parts)} }}\n"
    )


@pytest.fixture
async def chain(serve):
    """Three servers in a row: `top` accepts `middle`, which accepts `bottom`."""
    top = await serve(config_of("top"))
    middle = await serve(config_of("middle", hub_port=await leaf_port(top)))
    bottom = await serve(config_of("bottom", hub_port=await leaf_port(middle), listen=False))
    await has_leafs(top, 1)
    await has_leafs(middle, 2)
    await has_leafs(bottom, 1)
    return top, middle, bottom


async def test_messages_and_requests_cross_three_servers_in_a_row(chain, clients):
    ends = [await clients(server) for server in chain]
    top, middle, bottom = ends

    async def answer(message):
        await message.respond(b"from the bottom to " + message.payload)

    await bottom.subscribe("ask", callback=answer)
    heard = [await client.subscribe("news.*") for client in ends]

    async def spread():
        return all([set(await wanted(chain[0])) >= {"ask", "news.*"}, "news.*" in await wanted(chain[2])])

    await until(spread, JOIN_S)
    assert (await top.request("ask", b"the top", timeout=10)).payload == b"from the bottom to the top"
    assert (await middle.request("ask", b"the middle", timeout=10)).payload == b"from the bottom to the middle"
    for number, client in enumerate(ends):
        await client.publish(f"news.{number}", b"%d" % number, headers={"K": "v"})
    for subscription in heard:
        got = [await subscription.next(timeout=10) for _ in ends]
        assert sorted(message.payload for message in got) == [b"0", b"1", b"2"]
        assert all(message.headers["K"] == "v" for message in got)
    with pytest.raises(jetlake.NoRespondersError):
        await top.request("nobody", b"", timeout=10)


async def test_a_queue_group_across_three_servers_takes_each_message_once(chain, clients):
    top, middle, bottom = [await clients(server) for server in chain]
    got = []
    for client in (top, bottom):
        await client.subscribe("work", got.append, queue="q")

    async def knows():
        names = [name for place in (0, 1) for name in await wanted(chain[1], place)]
        return names.count("work") == 2

    await until(knows, JOIN_S)
    for number in range(60):
        await middle.publish("work", b"%d" % number)
    await until(lambda: len(got) >= 60)
    assert sorted(int(message.payload) for message in got) == list(range(60))


async def test_streams_are_managed_and_sourced_over_two_lines(chain, clients):
    top, _, bottom = [await clients(server) for server in chain]
    js = bottom.jetstream()
    await js.create_stream("SALES", subjects=["sales.>"])
    for number in range(50):
        await js.publish(f"sales.{number % 3}", b"%d" % number)

    async def reaches():
        return "$JS.bottom.API.INFO" in await wanted(chain[0])

    await until(reaches, JOIN_S)
    remote = await top.jetstream(domain="bottom").stream("SALES")
    assert (await remote.info()).state.messages == 50
    worker = await remote.create_consumer("worker")
    messages = await worker.fetch(3, expires=10)
    assert [(m.subject, m.payload) for m in messages] == [(f"sales.{n}", b"%d" % n) for n in range(3)]
    for message in messages:
        await message.ack_sync()
    source = {"name": "SALES", "external": {"api": "$JS.bottom.API", "deliver": ""}}
    everything = await top.jetstream().create_stream("ALL", sources=[source])

    async def holds(count):
        return (await everything.info()).state.messages == count

    await until(lambda: holds(50))
    await js.publish("sales.new", b"50")
    await until(lambda: holds(51))


async def test_a_ring_of_servers_is_found_out(serve):
    top = await serve(config_of("top"))
    port = await leaf_port(top)
    middle = await serve(config_of("middle", hub_port=port))
    await has_leafs(top, 1)
    # The bottom joins both: what the top announces would come back to it.
    both = f'urls: ["nats://127.0.0.1:{await leaf_port(middle)}"], ignore_discovered_servers: true'
    top_url = f'urls: ["nats://127.0.0.1:{port}"], ignore_discovered_servers: true'
    bottom = await serve(
        'server_name: bottom\njetstream { store_dir: "STORE_DIR", domain: bottom }\n'
        f'leafnodes {{ reconnect: "0.1s", remotes [ {{ {both} }}, {{ {top_url} }} ] }}\n'
    )
    await until(lambda: "Loop detected" in "".join(server.log for server in (top, middle, bottom)), JOIN_S)


async def test_what_a_hub_tells_a_leaf_node(serve, raw):
    server = await serve(HUB + ACCOUNTS)
    leaf = await (await raw(server)).joined()
    assert leaf.greeting["leafnode_urls"] == [f"127.0.0.1:{await leaf_port(server)}"]
    assert (leaf.greeting["info_on_connect"], leaf.greeting["domain"]) == (True, "hub")
    assert "nonce" in leaf.greeting and "nonce" not in leaf.told
    assert (leaf.told["connect_info"], leaf.told["remote_account"]) == (True, "APP")
    assert leaf.told["import"]["deny"] == ["secret.>"]
    assert leaf.told["export"]["deny"] == ["own.>"]
    told = {line.split()[1] for line in leaf.lines if line.startswith(b"LS+ ")}
    assert {b"$JS.hub.API.STREAM.>", b"$JS.hub.API.INFO"} <= told
    assert sum(subject.startswith(b"$LDS.") for subject in told) == 1


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"LS+ secret.x\r\n", b"-ERR 'Permissions Violation for Subscription to \"secret.x\"'"),
        (b"LMSG own.x 2\r\nhi\r\n", b"-ERR 'Permissions Violation for Publish to \"own.x\"'"),
        (b"LMSG a 9999999\r\n", b"-ERR 'Maximum Payload Violation'"),
        (b"NONSENSE\r\n", b"-ERR 'Unknown Protocol Operation'"),
    ],
)
async def test_a_leaf_node_that_does_what_it_may_not_is_disconnected(serve, raw, line, answer):
    server = await serve(HUB + ACCOUNTS)
    leaf = await (await raw(server)).joined()
    leaf.send(line)
    assert answer in await leaf.read_to_end()
    await has_leafs(server, 0)


async def test_denied_parts_of_wildcards_are_filtered_and_invalid_subjects_refused(serve, raw, clients):
    server = await serve(HUB + ACCOUNTS)
    leaf = await (await raw(server)).joined()
    leaf.send(b"LS+ a..b\r\nLS+ *.x\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    assert b"-ERR 'Invalid Subscription'" in leaf.lines
    client = await clients(server, user="app", password="app")
    for subject in ("secret.x", "open.x"):
        await client.publish(subject, b"")
    assert await leaf.read_line(b"LMSG") == b"LMSG open.x 0"


SERVICES = """
accounts {
  APP {
    exports [ { service: ask }, { service: mine } ]
    users [
      { user: leaf, password: leaf, permissions { subscribe { allow: "mine" }, publish { allow: "mine" } } }
      { user: app, password: app }
    ]
  }
  OTHER {
    imports [ { service { account: APP, subject: ask } }, { service { account: APP, subject: mine } } ]
    users [ { user: other, password: other } ]
  }
}
"""


async def test_a_leaf_node_answers_its_own_requests_and_learns_nothing_of_others(serve, raw, clients):
    server = await serve(HUB + SERVICES)
    leaf = await (await raw(server)).joined()
    leaf.send(b"LS+ _R_.>\r\nLS+ mine\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    app = await clients(server, user="app", password="app")
    other = await clients(server, user="other", password="other")
    replies = []

    async def answer(message):
        replies.append(message.reply.encode())
        await message.respond(b"secret")

    await app.subscribe("ask", callback=answer)
    await app.flush()
    assert (await other.request("ask", b"", timeout=10)).payload == b"secret"
    asking = asyncio.create_task(other.request("mine", b"", timeout=10))
    request = await leaf.read_line(b"HMSG mine")
    assert not [line for line in leaf.lines if line.startswith(b"LMSG") or replies[0] in line]
    leaf.send(b"LMSG %b 2\r\nok\r\n" % request.split()[2])
    assert (await asking).payload == b"ok"
    leaf.send(b"LMSG $GR.x 0\r\n\r\n")
    assert b'Permissions Violation for Publish to "$GR.x"' in await leaf.read_to_end()


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"pass": "wrong"}, b"-ERR 'Authorization Violation'"),
        ({"user": "", "pass": ""}, b"-ERR 'Authorization Violation'"),
        ({"lang": "go"}, b"-ERR 'attempted to connect to leaf node port'"),
        ({"gateway": "x"}, b"-ERR 'Rejecting connection from gateway \"x\" on the leafnode port'"),
        ({"cluster": "a b"}, b"-ERR 'cluster name cannot contain spaces'"),
    ],
)
async def test_who_is_not_let_in(serve, raw, fields, answer):
    server = await serve(HUB + ACCOUNTS)
    leaf = await raw(server, **fields)
    assert answer in await leaf.read_to_end()
    assert (await report(server, "leafz"))["leafs"] == []


async def test_nothing_is_heard_before_connect(serve):
    server = await serve(HUB + ACCOUNTS)
    reader, writer = await asyncio.open_connection("127.0.0.1", await leaf_port(server))
    await reader.readline()
    writer.write(b"LS+ a\r\nLMSG a 1\r\nx\r\n")
    async with asyncio.timeout(30):
        assert b"-ERR 'Authorization Violation'" in await reader.read()
    writer.close()


async def test_a_leaf_node_that_comes_back_replaces_its_old_connection(serve, raw):
    server = await serve(HUB + ACCOUNTS)
    old = await (await raw(server, remote_account="$G")).joined()
    await (await raw(server, remote_account="$G")).joined()
    assert b"-ERR 'Duplicate Remote LeafNode Connection'" in await old.read_to_end()
    await has_leafs(server, 1)


async def test_an_account_takes_so_many_leaf_nodes(serve, raw):
    server = await serve(HUB + ACCOUNTS)
    for name in ("a", "b"):
        await (await raw(server, name=name, cluster=name)).joined()
    surplus = await raw(server, name="c", cluster="c")
    assert b"-ERR 'maximum account active connections exceeded'" in await surplus.read_to_end()
    assert (await report(server, "leafz"))["leafnodes"] == 2


async def test_leaf_nodes_of_one_cluster_hear_nothing_of_each_other(serve, raw):
    server = await serve(HUB + ACCOUNTS)
    one = await (await raw(server, name="1", cluster="edge")).joined()
    two = await (await raw(server, name="2", cluster="edge")).joined()
    two.send(b"LS+ a\r\nLMSG b 0\r\n\r\nPING\r\n")
    await two.read_line(b"PONG")
    one.send(b"LS+ b\r\nPING\r\n")
    await one.read_line(b"PONG")
    assert b"LS+ a" not in one.lines
    two.send(b"LMSG b 0\r\n\r\nPING\r\n")
    await two.read_line(b"PONG")
    one.send(b"PING\r\n")
    await one.read_line(b"PONG")
    assert not [line for line in one.lines if line.startswith(b"LMSG")]


async def test_leaf_nodes_of_different_clusters_reach_each_other(serve, raw):
    server = await serve(HUB + ACCOUNTS)
    one = await (await raw(server, name="1", cluster="1")).joined()
    two = await (await raw(server, name="2", cluster="2")).joined()
    two.send(b"LS+ a\r\nLS+ w q 3\r\n")
    heard = {await one.read_line(b"LS+ "), await one.read_line(b"LS+ ")}
    assert heard == {b"LS+ a", b"LS+ w q 3"}
    one.send(b"HMSG a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nLMSG w | q 1\r\nx\r\n")
    assert await two.read_line(b"HMSG") == b"HMSG a r 12 14"
    assert await two.read_line(b"LMSG") == b"LMSG w | q 1"
    two.close()
    gone = {await one.read_line(b"LS- "), await one.read_line(b"LS- ")}
    assert gone == {b"LS- a", b"LS- w q"}


async def test_users_of_the_listener_have_their_own_accounts(serve, raw, clients):
    users = "{ user: one, password: one, account: APP }, { user: two, password: two, account: OTHER }"
    server = await serve(HUB.replace('-1"', f'-1", authorization {{ users [ {users} ] }}') + ACCOUNTS)
    for name, account in (("one", "APP"), ("two", "OTHER")):
        leaf = await (await raw(server, user=name, **{"pass": name, "name": name, "cluster": name})).joined()
        assert leaf.told["remote_account"] == account
    refused = await raw(server)  # A user of clients is none of this listener.
    assert b"-ERR 'Authorization Violation'" in await refused.read_to_end()


async def test_a_leaf_node_without_headers_gets_none(serve, raw, clients):
    server = await serve(HUB)
    leaf = await (await raw(server, headers=False, user="")).joined()
    leaf.send(b"LS+ a\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    await (await clients(server)).publish("a", b"x", headers={"K": "v"})
    assert await leaf.read_line(b"LMSG") == b"LMSG a 1"


async def test_what_a_leaf_node_denies_is_not_sent_to_it(serve, raw, clients):
    server = await serve(HUB)
    leaf = await (await raw(server, deny_pub=["noise.>"], user="")).joined()
    leaf.send(b"LS+ *.x\r\nPING\r\n")
    await leaf.read_line(b"PONG")
    client = await clients(server)
    for subject in ("noise.x", "news.x"):
        await client.publish(subject, b"")
    assert await leaf.read_line(b"LMSG") == b"LMSG news.x 0"


async def test_an_isolated_leaf_node_is_told_nothing_of_others(serve, raw, clients):
    server = await serve(HUB)
    alone = await (await raw(server, isolate=True, user="")).joined()
    other = await (await raw(server, name="o", cluster="o", user="")).joined()
    other.send(b"LS+ from.leaf\r\nPING\r\n")
    await other.read_line(b"PONG")
    await (await clients(server)).subscribe("from.client")
    assert await alone.read_line(b"LS+ from") == b"LS+ from.client"
    assert b"LS+ from.leaf" not in alone.lines


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_leaf_node_joins_over_websocket(serve, clients, scheme):
    of_hub, of_leaf = "no_tls: true", ""
    if scheme == "wss":
        of_hub, of_leaf = TLS + "}", f', tls {{ ca_file: "{CERTIFICATES / "ca.pem"}" }}'
    hub = await serve(HUB + f'websocket {{ listen: "127.0.0.1:-1", {of_hub} }}\n')
    leaf = make_server(
        "nats-server",
        'server_name: edge\njetstream { store_dir: "STORE_DIR", domain: edge }\n'
        f'leafnodes {{ remotes [ {{ url: "{scheme}:{hub.websocket_url.partition(":")[2]}", '
        f"ignore_discovered_servers: true{of_leaf} }} ] }}\n",
    )
    try:
        await leaf.start()
        await has_leafs(hub, 1)
        at_hub, at_leaf = await clients(hub), await clients(leaf)
        below = await at_leaf.subscribe("down")

        async def knows():
            return "down" in await wanted(hub)

        await until(knows, JOIN_S)
        await at_hub.publish("down", b"x" * 100_000)
        assert len((await below.next(timeout=10)).payload) == 100_000
        await at_hub.jetstream(domain="edge").create_stream("ES", subjects=["es"])
    finally:
        await leaf.discard()


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
async def test_mqtt_devices_publish_through_a_nats_server_that_joins(serve, clients):
    """What the page about refused keys recommends."""
    hub = await serve(HUB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        mqtt_port = free.getsockname()[1]
    broker = make_server(
        "nats-server",
        'server_name: broker\njetstream { store_dir: "STORE_DIR", domain: broker }\n'
        f'mqtt {{ listen: "127.0.0.1:{mqtt_port}" }}\n'
        f'leafnodes {{ remotes [ {{ url: "nats://127.0.0.1:{await leaf_port(hub)}" }} ] }}\n',
    )
    try:
        await broker.start()
        await has_leafs(hub, 1)
        client = await clients(hub)
        await client.jetstream().create_stream("DEVICES", subjects=["devices.>"])

        async def knows():
            return "devices.>" in await wanted(broker)

        await until(knows, JOIN_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", mqtt_port)
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d")  # CONNECT of client "d", clean session
        async with asyncio.timeout(30):
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"  # CONNACK
        writer.write(b"\x30\x10\x00\x0bdevices/one" + b"on!")  # PUBLISH, at most once
        stream = await client.jetstream().stream("DEVICES")

        async def is_stored():
            return (await stream.info()).state.messages == 1

        await until(is_stored)
        assert (await stream.get(1)).subject == "devices.one"
        writer.close()
    finally:
        await broker.discard()
