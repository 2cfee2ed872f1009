"""Monitoring over HTTP and over NATS: the reports' keys are the same on both servers."""

import asyncio
import json
import time
import urllib.error
from urllib.request import urlopen

import pytest

from tests.support.clients import until

SECRET = "hunter2"


async def fetch(server, path):
    """Status, content type and body."""

    def get():
        try:
            with urlopen(f"http://127.0.0.1:{server.monitor_port}{path}", timeout=10) as response:
                return response.status, response.headers["content-type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["content-type"], error.read().decode()

    return await asyncio.get_running_loop().run_in_executor(None, get)


async def report(server, path):
    status, kind, body = await fetch(server, path)
    assert (status, kind) == (200, "application/json")
    return json.loads(body)


VARZ = (
    "server_id server_name version proto go host port max_connections ping_interval ping_max http_host http_port "
    "https_port auth_timeout max_control_line max_payload max_pending jetstream tls_timeout write_deadline start now "
    "uptime mem cores cpu connections total_connections routes remotes leafnodes in_msgs out_msgs in_bytes out_bytes "
    "slow_consumers subscriptions http_req_stats config_load_time system_account feature_flags"
)


async def test_varz(server, wire):
    await wire.send(b"SUB a 1\r\nPUB a 5\r\nhello\r\n")
    await wire.ping()
    varz = await report(server, "/varz")
    assert set(VARZ.split()) <= varz.keys()
    assert (varz["port"], varz["connections"], varz["in_msgs"], varz["out_msgs"]) == (server.port, 1, 1, 1)
    assert varz["in_bytes"] == 5
    assert varz["ping_interval"] == 120_000_000_000
    assert {"max_memory", "max_storage", "store_dir", "sync_interval", "strict"} <= varz["jetstream"]["config"].keys()
    stats = varz["jetstream"]["stats"]
    assert {"memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets", "api"} <= stats.keys()
    assert (await report(server, "/varz"))["http_req_stats"]["/varz"] == 2


async def test_sync_policy_shows(start):
    always = await start('jetstream { store_dir: "STORE_DIR", sync_interval: always }')
    settings = (await report(always, "/varz"))["jetstream"]["config"]
    assert (settings["sync_always"], settings["sync_interval"]) == (True, 120_000_000_000)
    relaxed = await start('jetstream { store_dir: "STORE_DIR", sync_interval: "30s", domain: hub }')
    settings = (await report(relaxed, "/varz"))["jetstream"]["config"]
    assert (settings["sync_interval"], settings["domain"]) == (30_000_000_000, "hub")
    assert "sync_always" not in settings


CONNECTION = (
    "cid kind type ip port start last_activity uptime idle pending_bytes in_msgs out_msgs in_bytes out_bytes "
    "subscriptions name lang version"
)


async def test_connz(server, connect):
    wire = await (await connect(server)).hello(name="me", lang="wire", version="1.0")
    await wire.send(b"SUB a.* q 1\r\nSUB b 2\r\nPUB b 5\r\nhello\r\n")
    await wire.ping()
    connz = await report(server, "/connz")
    assert {"server_id", "now", "num_connections", "total", "offset", "limit", "connections"} <= connz.keys()
    (connection,) = connz["connections"]
    assert set(CONNECTION.split()) <= connection.keys()
    assert (connection["name"], connection["lang"], connection["version"]) == ("me", "wire", "1.0")
    assert (connection["in_msgs"], connection["in_bytes"], connection["out_msgs"]) == (1, 5, 1)
    assert (connection["subscriptions"], connection["ip"], connection["kind"]) == (2, "127.0.0.1", "Client")
    listed = (await report(server, "/connz?subs=1"))["connections"][0]["subscriptions_list"]
    assert sorted(listed) == ["a.*", "b"]
    details = (await report(server, "/connz?subs=detail"))["connections"][0]["subscriptions_list_detail"]
    cid = connection["cid"]
    assert sorted(details, key=lambda entry: entry["sid"]) == [
        {"subject": "a.*", "qgroup": "q", "sid": "1", "msgs": 0, "cid": cid},
        {"subject": "b", "sid": "2", "msgs": 1, "cid": cid},
    ]
    other = await (await connect(server)).hello()
    assert (await report(server, f"/connz?cid={cid}"))["num_connections"] == 1
    assert (await report(server, "/connz?limit=1&offset=1&sort=cid"))["num_connections"] == 1
    await other.close()
    for _ in range(100):
        closed = await report(server, "/connz?state=closed")
        if closed["total"]:
            break
    assert closed["connections"][0]["reason"] == "Client Closed"
    assert {"stop", "reason"} <= closed["connections"][0].keys()


async def test_bytes_are_those_of_headers_and_payloads(server, connect):
    a, b = await (await connect(server)).hello(), await (await connect(server)).hello()

    async def counts(expected):
        """Look until the counts are as expected: nats-server counts some messages after it has sent them."""
        keys = ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
        await a.ping()
        deadline = time.monotonic() + 10
        while True:
            rows = (await report(server, "/connz?sort=cid"))["connections"]
            varz = await report(server, "/varz")
            found = [[row[key] for key in keys] for row in rows]
            total = [sum(row[key] for row in rows) for key in keys] == [varz[key] for key in keys]
            if (total and found == expected) or time.monotonic() > deadline:
                assert total
                return found
            await asyncio.sleep(0.01)

    assert await counts(expected := [[0, 0, 0, 0], [0, 0, 0, 0]]) == expected, "neither INFO nor PONG counts"
    await b.subscribe("x", 1)
    await b.subscribe("x", 2, "queue")
    await b.ping()
    await a.publish("x", b"12345", reply="a.long.reply.subject")
    await a.publish("x", b"12345", header=b"NATS/1.0\r\nA: b\r\n\r\n")
    assert await counts(expected := [[2, 28, 0, 0], [0, 0, 4, 56]]) == expected
    assert (await a.request("nobody")).status == 503
    assert await counts(expected := [[3, 28, 0, 0], [0, 0, 4, 56]]) == expected, "a 503 is no message"
    request = {"name": "S", "subjects": ["s.*"]}
    answer = await a.request("$JS.API.STREAM.CREATE.S", request)
    sent, got = 28 + len(json.dumps(request)), len(answer.payload)
    assert await counts(expected := [[4, sent, 1, got], [0, 0, 4, 56]]) == expected
    await a.send(b"SUB acks.* 5\r\n")
    for number in range(12):
        await a.publish("s.x", b"abc", reply=f"acks.{number}")
    got += sum(len(message.payload) for message in await a.messages(12))
    assert await counts(expected := [[16, sent + 36, 13, got], [0, 0, 4, 56]]) == expected
    create = {"stream_name": "S", "config": {"ack_policy": "none", "deliver_subject": "to.a"}}
    await a.subscribe("to.a", 6)
    await a.publish("$JS.API.CONSUMER.CREATE.S", json.dumps(create), reply="acks.create")
    got += sum(len(message.payload) for message in await a.messages(13))
    assert await counts(expected := [[17, sent + 36 + len(json.dumps(create)), 26, got], [0, 0, 4, 56]]) == expected


async def test_jsz_shows_how_mirrors_and_sources_are_doing(server, connect):
    a = await (await connect(server)).hello()
    for config in (
        {"name": "O", "subjects": ["o.*"]},
        {"name": "M", "mirror": {"name": "O"}},
        {"name": "R", "sources": [{"name": "O", "filter_subject": "o.x"}]},
    ):
        assert "error" not in (await a.request(f"$JS.API.STREAM.CREATE.{config['name']}", config)).json
    for subject in ("o.x", "o.y"):
        await a.request(subject, b"1")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        (account,) = (await report(server, "/jsz?streams=true"))["account_details"]
        details = {detail["name"]: detail for detail in account["stream_detail"]}
        if (details["M"]["state"]["messages"], details["R"]["state"]["messages"]) == (2, 1):
            break
        await asyncio.sleep(0.05)
    (source,), mirror = details["R"]["sources"], details["M"]["mirror"]
    assert (mirror.pop("active") >= 0, source.pop("active") >= 0) == (True, True)
    # The last sequence copied is ours; nats-server does not tell it here.
    assert (mirror.pop("seq", 2), source.pop("seq", 1)) == (2, 1)
    assert mirror == {"name": "O", "lag": 0}
    assert source == {"name": "O", "lag": 0, "filter_subject": "o.x"}
    assert "mirror" not in details["O"] and "sources" not in details["O"]


@pytest.mark.parametrize("query", ["sort=bogus", "limit=x", "offset=-x", "auth=perhaps", "subs=perhaps"])
async def test_bad_queries(core, query):
    status, _, _ = await fetch(core, f"/connz?{query}")
    assert status == 400


@pytest.mark.parametrize("query", ["limit=x", "streams=perhaps"])
async def test_bad_queries_of_jetstream(server, query):
    status, _, _ = await fetch(server, f"/jsz?{query}")
    assert status == 400


@pytest.mark.parametrize("path", ["/connz", "/subsz", "/jsz"])
async def test_negative_pages_count_as_missing(server, path):
    status, _, _ = await fetch(server, f"{path}?limit=-1&offset=-1")
    assert status == 200


async def test_subsz(server, wire):
    await wire.send(b"SUB a.* q 1\r\nSUB b 2\r\n")
    await wire.ping()
    keys = "num_subscriptions num_cache num_inserts num_removes num_matches cache_hit_rate max_fanout avg_fanout"
    assert set(keys.split()) <= (await report(server, "/subsz")).keys()
    detailed = (await report(server, "/subsz?subs=1"))["subscriptions_list"]
    assert {"account", "subject", "sid", "msgs", "cid"} <= detailed[0].keys()
    assert {"a.*", "b"} <= {entry["subject"] for entry in detailed}


async def test_jsz(server, wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await wire.request(
        "$JS.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {"name": "C", "ack_policy": "none"}}
    )
    await wire.request("s", b"hi")
    jsz = await report(server, "/jsz")
    keys = "memory storage reserved_memory reserved_storage accounts ha_assets api server_id now config limits streams"
    assert set(keys.split()) <= jsz.keys()
    assert (jsz["streams"], jsz["consumers"], jsz["messages"], jsz["total"]) == (1, 1, 1, 1)
    assert "account_details" not in jsz

    async def has_counted():
        # nats-server counts a message as pending after its PubAck.
        return (await wire.request("$JS.API.CONSUMER.INFO.S.C")).json["num_pending"] == 1

    await until(has_counted)
    jsz = await report(server, "/jsz?accounts=1&streams=1&consumers=1&config=1")
    (account,) = jsz["account_details"]
    (stream,) = account["stream_detail"]
    assert (account["name"], stream["name"], stream["state"]["messages"]) == ("$G", "S", 1)
    assert stream["config"]["subjects"] == ["s"]
    assert {"name", "created", "cluster", "config", "state", "consumer_detail"} <= stream.keys()
    (consumer,) = stream["consumer_detail"]
    assert (consumer["stream_name"], consumer["name"], consumer["num_pending"]) == ("S", "C", 1)
    assert "config" not in (await report(server, "/jsz?acc=$G&streams=1"))["account_details"][0]["stream_detail"][0]


async def test_healthz(server, wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    for path in ("", "?js-enabled-only=1", "?js-server-only=1", "?account=$G", "?account=$G&stream=S"):
        assert await fetch(server, f"/healthz{path}") == (200, "application/json", '{"status":"ok"}')
    for path in ("?account=none", "?account=$G&stream=X", "?account=$G&stream=S&consumer=Z"):
        status, _, body = await fetch(server, f"/healthz{path}")
        assert (status, json.loads(body)["status"]) == (404, "unavailable")
        assert "not found" in json.loads(body)["error"]


async def test_healthz_without_jetstream(core):
    assert (await fetch(core, "/healthz"))[0] == 200
    assert (await fetch(core, "/healthz?js-enabled-only=1"))[0] == 200


async def test_the_small_ones(server, wire):
    for path, keys in {
        "/accountz": {"server_id", "now", "system_account", "accounts"},
        "/accountz?acc=$G": {"account_detail"},
        "/accstatz?unused=1": {"server_id", "now", "account_statz"},
        "/routez": {"server_id", "now", "num_routes", "routes"},
        "/gatewayz": {"server_id", "now", "outbound_gateways", "inbound_gateways"},
        "/leafz": {"server_id", "now", "leafnodes", "leafs"},
    }.items():
        assert keys <= (await report(server, path)).keys()
    status, kind, body = await fetch(server, "/")
    assert (status, kind.partition(";")[0]) == (200, "text/html")
    assert "varz" in body
    assert (await fetch(server, "/nope"))[0] == 404


async def test_no_report_shows_a_secret(start, connect):
    server = await start(
        f"authorization {{ users: [{{user: ann, password: {SECRET}}}] }}", ["no_jetstream", "-DV"], process=True
    )
    await (await connect(server)).hello(user="ann", **{"pass": SECRET})
    for path in ("/varz", "/connz?auth=1&subs=detail", "/accountz?acc=$G", "/subsz?subs=1", "/accstatz", "/healthz"):
        assert SECRET not in (await fetch(server, path))[2]
    assert (await report(server, "/connz?auth=1"))["connections"][0]["authorized_user"] == "ann"
    assert SECRET not in server.log
    assert "CONNECT" in server.log


async def test_requests_over_nats(core, core_wire):
    user = (await core_wire.request("$SYS.REQ.USER.INFO")).json
    assert user["data"]["account"] == "$G"
    assert user["server"]["ver"] == core_wire.info["version"]
    connections = (await core_wire.request("$SYS.REQ.ACCOUNT.PING.CONNZ", {"subscriptions": True})).json["data"]
    assert connections["num_connections"] == 1
    statistics = (await core_wire.request("$SYS.REQ.ACCOUNT.PING.STATZ")).json["data"]["account_statz"]
    assert [row["acc"] for row in statistics] == ["$G"]
    assert (await core_wire.request("$SYS.REQ.SERVER.PING")).status == 503


async def test_the_system_account_asks_about_the_server(start, connect):
    config = """accounts { SYS { users: [{user: s, password: p}] }, A { users: [{user: a, password: p}] } }
    system_account: SYS"""
    server = await start(config, ["no_jetstream"])
    system = await (await connect(server)).hello(user="s", **{"pass": "p"})
    await (await connect(server)).hello(user="a", **{"pass": "p"})
    for name, key in {"VARZ": "server_name", "CONNZ": "connections", "HEALTHZ": "status", "JSZ": "streams"}.items():
        assert key in (await system.request(f"$SYS.REQ.SERVER.PING.{name}")).json["data"]
    assert (await system.request("$SYS.REQ.SERVER.PING")).json["statsz"]["connections"] == 2
    other = await (await connect(server)).hello(user="a", **{"pass": "p"})
    assert (await other.request("$SYS.REQ.SERVER.PING.VARZ")).status == 503


@pytest.mark.parametrize(
    ("written", "shown"), [('[ "cloud:aws", "Region:EU" ]', ["cloud:aws", "region:eu"]), ('"one"', ["one"])]
)
async def test_server_tags(start, written, shown):
    server = await start(config=f"server_tags: {written}")
    assert (await report(server, "/varz"))["tags"] == shown
