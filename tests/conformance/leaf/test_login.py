"""How a leaf node of either kind authenticates to its hub: passwords, tokens, nkeys, credentials and TLS."""

import asyncio

import nkeys
import pytest

import jetlake
import jetlake.blocking
from tests.support.clients import key, until
from tests.support.leaf import HUB, LEAF, Edge, report
from tests.support.operators import Realm, creds_text, operator_mode
from tests.support.servers import make_server
from tests.support.tls import CERTIFICATES, TLS

LEAF_TLS = f'tls {{ ca_file: "{CERTIFICATES / "ca.pem"}"'
CLIENT_TLS = f'cert_file: "{CERTIFICATES / "client.pem"}", key_file: "{CERTIFICATES / "client-key.pem"}"'
USER, SEED = key(nkeys.PREFIX_BYTE_USER, 7)
NKEY_USER = f"accounts {{ APP {{ users [ {{ nkey: {USER.public_key.decode()} }} ] }} }}\n"
CORE = "server_name: hub\n"

WAYS = {
    "password": {"hub_leaf": "authorization { user: leaf, password: 'a b/c' }", "user": "leaf:a%20b%2Fc"},
    "token": {"hub_config": CORE + "authorization { token: s3cret }\n", "user": "s3cret"},
    "nkey": {"hub_config": CORE + NKEY_USER, "remote": f"nkey: {SEED}"},
    "tls": {"hub_leaf": TLS + "}", "remote": LEAF_TLS + "}"},
    "tls with a client certificate": {
        "hub_leaf": TLS + ", verify: true }",
        "remote": f"{LEAF_TLS}, {CLIENT_TLS} }}",
    },
    "tls first": {
        "hub_leaf": TLS + ", handshake_first: true }",
        "remote": LEAF_TLS + ", handshake_first: true }",
    },
    "tls without a check": {"hub_leaf": TLS + "}", "remote": "tls { insecure: true }"},
}


@pytest.fixture(params=["hub-nats-server", "hub-embedded"])
def hub_kind(request):
    """Which server the hub is."""
    return request.param.removeprefix("hub-")


@pytest.mark.parametrize("way", WAYS)
async def test_a_leaf_node_joins(kind, hub_kind, way):
    edge = Edge(kind, hub_kind=hub_kind, **WAYS[way])
    try:
        await edge.start()
        await edge.joined()
        await edge.knows(edge.leaf, *(["$JS.hub.API.INFO"] if "hub_config" not in WAYS[way] else []))
    finally:
        await edge.discard()


async def test_a_leaf_node_joins_with_a_creds_file(kind, hub_kind, tmp_path):
    config, credentials = operator_mode()
    path = tmp_path / "leaf.creds"
    path.write_text(credentials)
    edge = Edge(kind, hub_kind=hub_kind, hub_config=CORE + config, remote=f'credentials: "{path}"')
    try:
        await edge.start()
        await edge.joined()
    finally:
        await edge.discard()


REFUSED = {
    "none": None,
    "expired": {"exp": 1000},
    "for clients": {"allowed_connection_types": ["STANDARD"]},
    "elsewhere": {"src": ["10.0.0.0/8"]},
}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_leaf_node_without_a_good_token_stays_out(kind, hub_kind, tmp_path, why):
    realm = Realm()
    account = realm.new_account()
    remote = ""
    if REFUSED[why] is not None:
        path = tmp_path / "leaf.creds"
        jwt, user = realm.user(account, **REFUSED[why])
        path.write_text(creds_text(jwt, user.seed))
        remote = f'credentials: "{path}"'
    edge = Edge(kind, hub_kind=hub_kind, hub_config=CORE + realm.config(), remote=remote)
    try:
        await edge.start()
        await until(lambda: "authentication error" in edge.hub.log.lower())
        assert not (await report(edge.hub, "leafz"))["leafnodes"]
    finally:
        await edge.discard()


async def test_a_hub_with_a_foreign_certificate_is_not_joined(kind, hub_kind):
    remote = f'tls {{ ca_file: "{CERTIFICATES / "other-ca.pem"}" }}'
    edge = Edge(kind, hub_kind=hub_kind, hub_leaf=TLS + "}", remote=remote)
    try:
        await edge.start()
        await until(lambda: edge.hub.log.count("TLS leafnode handshake error") >= 2)
        assert "certificate" in edge.leaf.log
    finally:
        await edge.discard()


async def test_accounts_share_nothing_but_what_is_mapped(kind, hub_kind, clients):
    hub = HUB + "accounts { A { users [ { user: a, password: a } ] }, B { users [ { user: b, password: b } ] } }\n"
    leaf = LEAF + "accounts { X { users [ { user: x, password: x } ] }, Y { users [ { user: y, password: y } ] } }\n"
    edge = Edge(kind, hub_kind=hub_kind, hub_config=hub, leaf_config=leaf, user="a:a", remote="account: X")
    try:
        await edge.start()
        await edge.joined()
        taken = {}
        for server, name in ((edge.hub, "a"), (edge.hub, "b"), (edge.leaf, "x"), (edge.leaf, "y")):
            client = await clients(server, user=name, password=name)
            taken[name] = (client, await client.subscribe("s"))
        await edge.knows(edge.hub, "s")
        await edge.knows(edge.leaf, "s")
        for name, (client, _) in taken.items():
            await client.publish("s", name.encode())
        for name, heard in (("a", {b"a", b"x"}), ("x", {b"a", b"x"}), ("b", {b"b"}), ("y", {b"y"})):
            got = {(await taken[name][1].next(timeout=10)).payload for _ in heard}
            assert got == heard, name
    finally:
        await edge.discard()


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
async def test_every_way_to_start_ours_can_name_a_hub(kind):
    hub = make_server("nats-server", HUB + 'leafnodes { listen: "127.0.0.1:-1" }')
    await hub.start()
    url = f"nats://127.0.0.1:{(await report(hub, 'varz'))['leaf']['port']}"

    async def joined_as(name):
        async def is_there():
            leafs = (await report(hub, "leafz?subs=1"))["leafs"]
            return any(f"$JS.{name}.API.INFO" in leaf.get("subscriptions_list", ()) for leaf in leafs)

        await until(is_there)

    try:
        async with jetlake.Server(leaf=[url], domain="library"):
            await joined_as("library")
        thread = await asyncio.to_thread(jetlake.blocking.Server, leaf=url, domain="thread")
        await asyncio.to_thread(thread.start)
        await joined_as("thread")
        await asyncio.to_thread(thread.stop)
        command = make_server("embedded", flags=["--leaf", url, "--domain", "command"], process=True)
        await command.start()
        await joined_as("command")
        await command.discard()
    finally:
        await hub.discard()
