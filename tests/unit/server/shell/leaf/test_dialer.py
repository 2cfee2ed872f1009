"""Dialling: addresses in turn, pauses that grow, addresses that the hub tells of."""

import asyncio
import json
from random import Random
from types import SimpleNamespace

import pytest

from jetlake.errors import ConfigError
from jetlake.server import Options, Server
from jetlake.server.config.leaf_options import LeafOptions, LeafRemote, LeafTls, LeafUrl, parse_leaf_url
from jetlake.server.shell.leaf.announcements import Announcements
from jetlake.server.shell.leaf.dialer import Dialer
from jetlake.server.shell.leaf.hub_info import HubInfo
from jetlake.server.shell.leaf.login import check_secrets, encode_connect
from tests.support.shell import Lines


def make_dialer(server, **remote):
    account = server.accounts["$G"]
    urls = remote.pop("urls", ("a:1", "b:2"))
    nodes = SimpleNamespace(services=server._services, domain="", reconnect_s=1.0, random=Random(1), sockets=set())
    options = LeafRemote(urls=tuple(map(parse_leaf_url, urls)), no_randomize=True, **remote)
    return Dialer(nodes, options, account, Announcements(account, b""))


async def test_addresses_are_tried_in_turn(make_server):
    dialer = make_dialer(make_server(), urls=("nats://u:p@a:1", "b:2"))
    dialer._discover(HubInfo(leafnode_urls=("a:1", "c:3", "no url://x", "[::1]:4")))
    found = [dialer._next_url() for _ in range(5)]
    assert [str(url) for url in found] == ["a:1", "b:2", "c:3", "[::1]:4", "a:1"]
    assert (found[2].user, found[2].password.reveal()) == ("u", "p")


async def test_discovered_addresses_may_be_ignored(make_server):
    dialer = make_dialer(make_server(), ignore_discovered_servers=True)
    dialer._discover(HubInfo(leafnode_urls=("c:3",)))
    assert {str(dialer._next_url()) for _ in range(4)} == {"a:1", "b:2"}


async def test_an_address_known_by_number_is_checked_by_the_configured_name(make_server):
    dialer = make_dialer(make_server(), urls=("tls://hub.example:1",))
    dialer._discover(HubInfo(leafnode_urls=("10.0.0.2:1", "other.example:1")))
    names = [dialer._certificate_name(dialer._next_url()) for _ in range(3)]
    assert names == ["hub.example", "hub.example", "other.example"]


async def test_pauses_grow_to_a_limit_and_are_never_in_step(make_server):
    dialer = make_dialer(make_server())
    assert dialer._pause_s("Client Closed") == 1.0
    pauses = []
    for failures in range(1, 40):
        dialer._failures = failures
        pauses.append(dialer._pause_s("refused"))
    assert 1.0 <= pauses[0] <= 2.0
    assert all(30.0 <= pause <= 60.0 for pause in pauses[12:])
    assert len(set(pauses)) == len(pauses)
    assert dialer._pause_s('Loop detected for leafnode account="$G"') == 30.0


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("nats://h", {}),
        ("nats://u:p%20w@h", {"user": "u", "pass": "p w"}),
        ("nats://token@h", {"user": "token", "auth_token": "token"}),
    ],
)
def test_connect_names_the_server_and_its_credentials(url, fields):
    remote = LeafRemote(urls=(parse_leaf_url(url),), deny_imports=("x.>",))
    text = encode_connect(
        remote, remote.urls[0], HubInfo(), server_id="N1", name="edge", domain="d", has_jetstream=True, headers=True
    )
    sent = json.loads(text)
    assert {name: sent[name] for name in fields} == fields
    assert ("lang" in sent, sent["cluster"], sent["domain"], sent["deny_pub"]) == (False, "edge", "d", ["x.>"])
    assert ("user" in sent) == bool(fields)


def test_credentials_that_cannot_be_used_are_told_before_the_first_dial(tmp_path):
    urls = (LeafUrl(host="h"),)
    with pytest.raises(ConfigError, match="cannot read"):
        check_secrets(LeafRemote(urls=urls, credentials=str(tmp_path / "none")))
    (tmp_path / "bad").write_text("nothing")
    with pytest.raises(ConfigError, match="not an nkey seed"):
        check_secrets(LeafRemote(urls=urls, credentials=str(tmp_path / "bad")))


async def test_a_server_whose_hub_is_away_starts_works_and_stops(tmp_path):
    remote = LeafRemote(urls=(parse_leaf_url("127.0.0.1:1"),))
    options = Options(leafnodes=LeafOptions(remotes=(remote,)))
    async with Server(tmp_path, options=options, jetstream=True, domain="edge") as server:
        assert server.leafnodes.open() == []
        assert server.options.jetstream.domain == "edge"


async def test_a_defect_ends_one_attempt_and_not_the_dialling(make_server, clock):
    server = make_server()
    dialer = make_dialer(server)
    attempts = []

    async def fail(url):
        attempts.append(str(url))
        raise KeyError("a defect")

    dialer._connect = fail
    task = asyncio.create_task(dialer.run())
    while len(attempts) < 3:
        await asyncio.sleep(0)
        clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.defects >= 2


async def dial(greeting, count, **remote):
    """Let a server dial a hub that greets so and says no more, so many times; its log."""
    enough = asyncio.Event()
    open_ones = []

    async def greet(_reader, writer):
        open_ones.append(writer)
        writer.write(greeting)
        if len(open_ones) == count:
            enough.set()

    hub = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = hub.sockets[0].getsockname()[1]
    options = LeafRemote(urls=(parse_leaf_url(f"127.0.0.1:{port}"),), **remote)
    log = Lines()
    options = Options(leafnodes=LeafOptions(remotes=(options,), reconnect_s=0.001))
    async with Server(options=options, jetstream=False, log=log), asyncio.timeout(20):
        await enough.wait()
    for writer in open_ones:
        writer.close()
    hub.close()
    return "\n".join(log.lines)


async def test_a_port_that_is_no_hub_is_dialled_again():
    assert "not one for leaf nodes" in await dial(b'INFO {"server_id":"N"}\r\n', 2)


async def test_a_hub_that_does_not_go_on_with_tls_is_dialled_again():
    greeting = b'INFO {"server_id":"N","client_id":1,"leafnode_urls":["h:1"],"tls_required":true}\r\n'
    assert "waits for TLS" in await dial(greeting, 2, tls=LeafTls(insecure=True, timeout_s=0.05))
