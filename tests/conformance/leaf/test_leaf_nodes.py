"""Leaf nodes: a server of either kind joins one of either kind, and what crosses the line between them is the same."""

from contextlib import AsyncExitStack

import pytest

import jetlake
from tests.support.clients import until
from tests.support.leaf import Edge, report


@pytest.fixture(params=["hub-nats-server", "hub-embedded"])
def hub_kind(request):
    """Which server the hub is."""
    return request.param.removeprefix("hub-")


@pytest.fixture
async def make_edge(kind, hub_kind):
    """A function that starts a hub and a leaf node: `await make_edge(remote="…")`."""
    async with AsyncExitStack() as stack:

        async def make_edge(**options):
            edge = Edge(kind, hub_kind=hub_kind, **options)
            stack.push_async_callback(edge.discard)
            await edge.start()
            return edge

        yield make_edge


@pytest.fixture
async def edge(make_edge):
    """A leaf node that has joined its hub."""
    return await (await make_edge()).joined()


@pytest.fixture
async def both(edge, clients):
    """A client at the hub and one at the leaf node."""
    return await clients(edge.hub), await clients(edge.leaf)


async def next_messages(subscription, count):
    return [await subscription.next(timeout=10) for _ in range(count)]


async def test_messages_cross_both_ways(edge, both):
    at_hub, at_leaf = both
    down = await at_leaf.subscribe("down.*")
    up = await at_hub.subscribe("up.>")
    await edge.knows(edge.hub, "down.*")
    await edge.knows(edge.leaf, "up.>")
    for number in range(5):
        await at_hub.publish(f"down.{number}", b"d%d" % number, headers={"K": "v"}, reply="r")
        await at_leaf.publish(f"up.a.{number}", b"u%d" % number)
    got = await next_messages(down, 5)
    assert [(m.subject, m.payload, m.reply) for m in got] == [(f"down.{n}", b"d%d" % n, "r") for n in range(5)]
    assert got[0].headers["K"] == "v"
    assert [m.payload for m in await next_messages(up, 5)] == [b"u%d" % n for n in range(5)]


async def test_one_copy_for_overlapping_interest(edge, both):
    at_hub, at_leaf = both
    wide, narrow = await at_hub.subscribe("x.>"), await at_hub.subscribe("x.1")
    await edge.knows(edge.leaf, "x.>", "x.1")
    await at_leaf.publish("x.1", b"1")
    await at_leaf.publish("x.2", b"2")
    assert [m.payload for m in await next_messages(wide, 2)] == [b"1", b"2"]
    assert [m.payload for m in await next_messages(narrow, 1)] == [b"1"]


async def test_requests_cross_both_ways(edge, both):
    at_hub, at_leaf = both

    async def answer(message):
        await message.respond(b"to " + message.payload)

    await at_leaf.subscribe("ask.leaf", callback=answer)
    await at_hub.subscribe("ask.hub", callback=answer)
    await edge.knows(edge.hub, "ask.leaf")
    await edge.knows(edge.leaf, "ask.hub")
    assert (await at_hub.request("ask.leaf", b"1", timeout=10)).payload == b"to 1"
    assert (await at_leaf.request("ask.hub", b"2", timeout=10)).payload == b"to 2"


async def test_a_request_without_a_responder_on_either_side_fails_at_once(edge, both):
    for client in both:
        with pytest.raises(jetlake.NoRespondersError):
            await client.request("nobody", b"", timeout=10)


async def test_interest_ends_with_its_last_subscriber(edge, both):
    _, at_leaf = both
    first, second = await at_leaf.subscribe("gone.1"), await at_leaf.subscribe("gone.1")
    await edge.knows(edge.hub, "gone.1")
    await first.unsubscribe()
    await at_leaf.flush()
    await edge.knows(edge.hub, "gone.1")
    await second.unsubscribe()

    async def is_gone():
        row = (await report(edge.hub, "leafz?subs=1"))["leafs"][0]
        return "gone.1" not in row.get("subscriptions_list", ())

    await until(is_gone)


async def test_a_queue_group_takes_each_message_once_and_near_members_first(edge, both):
    at_hub, at_leaf = both
    near = await at_leaf.subscribe("work", queue="q")
    far = await at_hub.subscribe("work", queue="q")
    other = await at_hub.subscribe("work", queue="other")
    plain = await at_hub.subscribe("work")
    await edge.knows(edge.leaf, "work", "work", "work")
    await edge.knows(edge.hub, "work")
    for number in range(20):
        await at_leaf.publish("work", b"%d" % number)
    expected = [b"%d" % number for number in range(20)]
    assert [m.payload for m in await next_messages(near, 20)] == expected
    assert [m.payload for m in await next_messages(other, 20)] == expected
    assert [m.payload for m in await next_messages(plain, 20)] == expected
    for number in range(20, 40):
        await at_hub.publish("work", b"%d" % number)
    assert [m.payload for m in await next_messages(far, 20)] == [b"%d" % number for number in range(20, 40)]
    await near.unsubscribe()
    await at_leaf.flush()
    await at_leaf.publish("work", b"last")
    assert [m.payload for m in await next_messages(far, 1)] == [b"last"]


async def test_a_group_on_the_leaf_alone_works_for_the_hub(edge, both):
    at_hub, at_leaf = both
    got = []
    for _ in range(2):
        await at_leaf.subscribe("jobs", got.append, queue="q")
    await edge.knows(edge.hub, "jobs")
    for number in range(50):
        await at_hub.publish("jobs", b"%d" % number)
    await until(lambda: len(got) >= 50)
    assert sorted(int(message.payload) for message in got) == list(range(50))


async def test_streams_of_the_leaf_are_managed_from_the_hub(edge, both):
    at_hub, at_leaf = both
    remote = at_hub.jetstream(domain="edge")
    stream = await remote.create_stream("ES", subjects=["es.>"])
    await edge.knows(edge.hub, "es.>")
    ack = await at_hub.jetstream().publish("es.1", b"from the hub")
    assert (ack.stream, ack.domain, ack.seq) == ("ES", "edge", 1)
    assert (await at_leaf.jetstream().publish("es.2", b"from the leaf")).seq == 2
    worker = await stream.create_consumer("worker", ack_wait=30)
    messages = await worker.fetch(2, expires=10)
    assert [(m.subject, m.payload) for m in messages] == [("es.1", b"from the hub"), ("es.2", b"from the leaf")]
    assert messages[0].reply.count(".") == 8
    for message in messages:
        await message.ack_sync()
    assert (await worker.info()).num_ack_pending == 0
    assert (await (await at_leaf.jetstream().stream("ES")).info()).state.messages == 2


async def test_each_side_has_its_own_api(edge, both):
    at_hub, at_leaf = both
    await at_hub.jetstream().create_stream("S", subjects=["hub.s"])
    await at_leaf.jetstream().create_stream("S", subjects=["leaf.s"])
    assert (await (await at_hub.jetstream().stream("S")).info()).config.subjects == ("hub.s",)
    assert (await (await at_leaf.jetstream().stream("S")).info()).config.subjects == ("leaf.s",)
    assert (await (await at_leaf.jetstream(domain="hub").stream("S")).info()).config.subjects == ("hub.s",)


async def test_key_value_buckets_are_reached_by_their_domain(edge, both):
    at_hub, at_leaf = both
    here = await at_leaf.jetstream().create_key_value("B")
    there = await at_hub.jetstream(domain="edge").key_value("B")
    await there.put("k", b"from the hub")
    assert (await here.get("k")).value == b"from the hub"
    await here.put("k", b"from the leaf")
    assert (await there.get("k")).value == b"from the leaf"


async def test_a_hub_stream_sources_from_the_leaf_and_a_leaf_mirror_copies_it_back(edge, both):
    at_hub, at_leaf = both
    js = at_leaf.jetstream()
    await js.create_stream("ES", subjects=["es.>"])
    for number in range(200):
        await js.publish_async(f"es.{number % 7}", b"%d" % number)
    await js.publish_async_complete()
    external = {"api": "$JS.edge.API", "deliver": ""}
    central = await at_hub.jetstream().create_stream("HS", sources=[{"name": "ES", "external": external}])

    async def holds(stream, count):
        return (await stream.info()).state.messages == count

    await until(lambda: holds(central, 200))
    external = {"api": "$JS.hub.API", "deliver": ""}
    mirror = await js.create_stream("M", mirror={"name": "HS", "external": external})
    await until(lambda: holds(mirror, 200))
    await js.publish("es.new", b"200")
    await until(lambda: holds(mirror, 201))
    edge.line.cut()
    await edge.parted()
    payloads = []
    async for message in mirror.ordered():
        payloads.append(int(message.payload))
        if len(payloads) == 201:
            break
    assert payloads == list(range(201))
    edge.line.restore()
    await edge.joined()
    await js.publish("es.newer", b"201")
    await until(lambda: holds(mirror, 202))


async def test_permissions_of_the_hubs_user(make_edge, clients):
    hub_config = (
        'server_name: hub\njetstream { store_dir: "STORE_DIR", domain: hub }\n'
        "accounts { APP { jetstream: enabled, users [ "
        '{ user: leaf, password: leaf, permissions { subscribe { deny: "secret.>" }, publish { deny: "own.>" } } },'
        "{ user: app, password: app } ] } }\n"
    )
    edge = await make_edge(hub_config=hub_config, user="leaf:leaf")
    await edge.joined()
    at_hub = await clients(edge.hub, user="app", password="app")
    at_leaf = await clients(edge.leaf)
    below = await at_leaf.subscribe("*.down")
    await at_leaf.subscribe("secret.down")  # Not announced: the hub would close the line.
    above = await at_hub.subscribe("*.up")
    await edge.knows(edge.hub, "*.down")
    await edge.knows(edge.leaf, "*.up")
    for subject in ("secret.down", "open.down"):
        await at_hub.publish(subject, b"")
    for subject in ("own.up", "other.up"):
        await at_leaf.publish(subject, b"")
    assert (await below.next(timeout=10)).subject == "open.down"
    assert (await above.next(timeout=10)).subject == "other.up"


async def test_a_request_whose_answer_the_hub_may_not_send_leaves_the_line_open(make_edge, clients):
    hub_config = (
        'server_name: hub\njetstream { store_dir: "STORE_DIR", domain: hub }\n'
        'accounts { APP { users [ { user: leaf, password: leaf, permissions { subscribe { allow: "news" } } },'
        "{ user: app, password: app } ] } }\n"
    )
    leaf_config = (
        'server_name: edge\njetstream { store_dir: "STORE_DIR", domain: edge }\n'
        "accounts { A { exports [ { service: ask } ], users [ { user: a, password: a } ] },"
        "B { imports [ { service { account: A, subject: ask } } ], users [ { user: b, password: b } ] } }\n"
    )
    edge = await make_edge(hub_config=hub_config, leaf_config=leaf_config, user="leaf:leaf", remote="account: A")
    await edge.joined()
    above = await (await clients(edge.hub, user="app", password="app")).subscribe("ask")
    await edge.knows(edge.leaf, "ask")
    below = await clients(edge.leaf, user="b", password="b")
    for _ in range(2):
        await below.publish("ask", b"", reply="_INBOX.x")
        assert (await above.next(timeout=10)).reply.startswith("_R_.")
    assert "Permissions Violation" not in edge.hub.log


async def test_denied_subjects_stay_on_their_side(make_edge, clients):
    edge = await make_edge(remote='deny_exports: ["private.>"], deny_imports: ["noise.>"]')
    await edge.joined()
    at_hub, at_leaf = await clients(edge.hub), await clients(edge.leaf)
    top = await at_hub.subscribe(">")
    bottom = await at_leaf.subscribe("*.x")
    await edge.knows(edge.leaf, ">")
    await edge.knows(edge.hub, "*.x")
    await at_leaf.publish("private.x", b"")
    await at_leaf.publish("public.x", b"")
    await at_hub.publish("noise.x", b"")
    await at_hub.publish("news.x", b"")
    seen = []
    while "public.x" not in seen:
        seen.append((await top.next(timeout=10)).subject)
    assert "private.x" not in seen
    seen = []
    while "news.x" not in seen:
        seen.append((await bottom.next(timeout=10)).subject)
    assert "noise.x" not in seen


async def test_monitoring_shows_the_line(edge):
    await edge.knows(edge.leaf, "$JS.hub.API.INFO")
    (row,) = (await report(edge.leaf, "leafz?subs=1"))["leafs"]
    counts = {"in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "subscriptions_list"}
    assert row.keys() == {"id", "name", "is_spoke", "account", "ip", "port", "rtt", "compression", *counts}
    assert (row["name"], row["is_spoke"], row["account"]) == ("hub", True, "$G")
    varz = await report(edge.leaf, "varz")
    assert varz["leafnodes"] == 1
    (remote,) = varz["leaf"]["remotes"]
    assert (remote["local_account"], remote["urls"]) == ("$G", [f"localhost:{edge.line.port}"])
    assert (await report(edge.leaf, "accountz?acc=$G"))["account_detail"]["leafnode_connections"] == 1
    assert (await report(edge.leaf, "leafz?acc=OTHER"))["leafs"] == []


async def test_a_wrong_password_is_refused_and_tried_again(make_edge):
    edge = await make_edge(hub_leaf="authorization { user: leaf, password: right }", user="leaf:wrong")
    await until(lambda: edge.hub.log.count("authentication error") >= 2)
    assert "Authorization Violation" in edge.leaf.log


async def test_the_line_comes_back(edge, both):
    at_hub, at_leaf = both
    below = await at_leaf.subscribe("below")
    above = await at_hub.subscribe("above")
    for number in range(3):
        await edge.joined()
        await edge.knows(edge.hub, "below")
        await edge.knows(edge.leaf, "above")
        await at_hub.publish("below", b"%d" % number)
        await at_leaf.publish("above", b"%d" % number)
        assert (await below.next(timeout=10)).payload == b"%d" % number
        assert (await above.next(timeout=10)).payload == b"%d" % number
        edge.line.cut()
        await edge.parted()
        with pytest.raises(jetlake.NoRespondersError):
            await at_leaf.request("above", b"lost", timeout=10)
        edge.line.restore()
