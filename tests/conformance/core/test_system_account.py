"""The system account, as tools use it: who reaches it, what it answers, and the events of the server."""

import signal

import pytest

SYSTEM = """
    jetstream { store_dir: "STORE_DIR" }
    accounts { SYS { users: [ { user: sys, password: sys } ] } }
    system_account: SYS
"""
TENANTS = """
    server_name: one
    jetstream { store_dir: "STORE_DIR" }
    accounts {
      SYS { users: [ { user: sys, password: sys } ] }
      A { users: [ { user: a, password: a } ], jetstream: enabled }
      PLAIN { users: [ { user: p, password: p } ] }
    }
    system_account: SYS
"""


@pytest.fixture
async def system_server(start):
    return await start(SYSTEM)


@pytest.fixture
async def system(system_server, connect):
    return await (await connect(system_server)).hello(user="sys", **{"pass": "sys"})


async def test_clients_without_credentials_use_the_global_account(system_server, system, connect):
    first = await connect(system_server)
    assert first.info["auth_required"] is True
    await first.hello()
    assert (first.info["remote_account"], "acc_is_sys" in first.info) == ("$G", False)
    assert "error" not in (await first.request("$JS.API.INFO")).json
    assert (await first.request("$SYS.REQ.SERVER.PING")).status == 503
    assert (system.info["remote_account"], system.info["acc_is_sys"]) == ("SYS", True)
    wrong = await connect(system_server)
    await wrong.send(b'CONNECT {"verbose":false,"user":"sys","pass":"guess"}\r\nPING\r\n')
    assert await wrong.rest() == b"-ERR 'Authorization Violation'\r\n"


async def test_with_another_account_credentials_are_needed(start, connect):
    server = await start("accounts { SYS { users: [ { user: s, password: s } ] }\n A {} }\nsystem_account: SYS")
    wire = await connect(server)
    await wire.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
    assert await wire.rest() == b"-ERR 'Authorization Violation'\r\n"


PERMISSIONS = """accounts { A { users: [
    { user: a, password: a, permissions: {
        publish: { allow: ["x.>", "$SYS.REQ.>"], deny: x.y }, subscribe: { allow: ["_INBOX.>", "q.* g"], deny: z }
        allow_responses: { max: 5, expires: "1m" } } }
    { user: b, password: b, permissions: { publish: ["$SYS.REQ.>"] } }
    { user: c, password: c }
] } }"""


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        (
            "a",
            {
                "publish": {"allow": ["$SYS.REQ.>", "x.>"], "deny": ["x.y"]},
                "subscribe": {"allow": ["_INBOX.>", "q.* g"], "deny": ["z"]},
                "responses": {"max": 5, "ttl": 60_000_000_000},
            },
        ),
        ("b", {"publish": {"allow": ["$SYS.REQ.>"]}, "subscribe": {}}),
        ("c", None),
    ],
)
async def test_a_user_learns_its_permissions(start, connect, name, permissions):
    server = await start(PERMISSIONS, ["no_jetstream"])
    wire = await (await connect(server)).hello(user=name, **{"pass": name})
    data = (await wire.request("$SYS.REQ.USER.INFO")).json["data"]
    shown = data.pop("permissions", None)
    for rules in ("publish", "subscribe") if shown else ():
        shown[rules] = {key: sorted(subjects) for key, subjects in shown[rules].items()}
    assert shown == permissions
    assert data == {"user": name, "account": "A", "account_name": "A"}


@pytest.fixture
async def tenants(start):
    return await start(TENANTS)


async def login(server, connect, user, **options):
    return await (await connect(server)).hello(user=user, **{"pass": user}, **options)


@pytest.fixture
async def root(tenants, connect):
    """A client of the system account, beside tenants."""
    return await login(tenants, connect, "sys")


@pytest.fixture
async def tenant(tenants, connect):
    return await login(tenants, connect, "a", name="tenant", lang="wire", version="7")


SERVER = {
    "VARZ": {"server_id", "server_name", "port", "in_bytes", "system_account"},
    "CONNZ": {"num_connections", "connections"},
    "SUBSZ": {"num_subscriptions", "total"},
    "ROUTEZ": {"num_routes"},
    "GATEWAYZ": {"outbound_gateways"},
    "LEAFZ": {"leafnodes"},
    "ACCOUNTZ": {"accounts", "system_account"},
    "JSZ": {"streams", "memory", "api"},
    "HEALTHZ": {"status", "status_code"},
    "EXPVARZ": {"memstats"},
    "IPQUEUESZ": set(),
    "RAFTZ": set(),
    "PROFILEZ": {"error"},
}


async def test_reports_about_the_server(root):
    identity = root.info["server_id"]
    for target in ("PING", identity):
        for name, keys in SERVER.items():
            answer = (await root.request(f"$SYS.REQ.SERVER.{target}.{name}")).json
            assert answer["server"]["id"] == identity
            assert {"name", "host", "ver", "feature_flags", "jetstream", "seq", "time"} <= answer["server"].keys()
            assert keys <= answer["data"].keys(), name
        assert (await root.request(f"$SYS.REQ.SERVER.{target}.IDZ")).json.keys() == {"name", "host", "id"}
    for subject in ("PING", "PING.STATSZ", f"{identity}.STATSZ"):
        statistics = (await root.request(f"$SYS.REQ.SERVER.{subject}")).json["statsz"]
        assert {"start", "mem", "cores", "cpu", "sent", "received", "jetstream"} <= statistics.keys()
        assert (statistics["connections"], statistics["active_servers"]) == (1, 1)
    for subject in ("PING.NOPE", "PING.RELOAD", f"{identity}.NOPE", "NOBODY.VARZ"):
        assert (await root.request(f"$SYS.REQ.SERVER.{subject}")).status == 503


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_whether_there_is_jetstream(start, connect, is_enabled):
    server = await start(SYSTEM if is_enabled else SYSTEM.split("\n", 2)[2], [] if is_enabled else ["no_jetstream"])
    system = await (await connect(server)).hello(user="sys", **{"pass": "sys"})
    reports = {}
    for name in ("PING", "PING.STATSZ", "PING.VARZ", "PING.JSZ"):
        answer = (await system.request(f"$SYS.REQ.SERVER.{name}")).json
        assert answer["server"]["jetstream"] is is_enabled, name
        reports[name] = answer.get("data")
    assert system.info.get("jetstream", False) is is_enabled
    assert (await system.request("$SYS.REQ.ACCOUNT.SYS.INFO")).json["data"]["jetstream_enabled"] is False
    assert reports["PING.JSZ"].get("disabled", False) is not is_enabled
    if is_enabled:
        assert reports["PING.VARZ"]["jetstream"]["config"] == reports["PING.JSZ"]["config"]
        assert reports["PING.JSZ"]["config"]["sync_interval"] == 120_000_000_000
    else:
        assert reports["PING.VARZ"]["jetstream"] == {}
        assert reports["PING.JSZ"]["config"] == {"max_memory": 0, "max_storage": 0}


@pytest.mark.parametrize(
    ("filters", "is_answered"),
    [
        (b'{"server_name": "one"}', True),
        (b'{"server_name": "on"}', True),
        (b'{"server_name": "on", "exact_match": true}', False),
        (b'{"server_name": "two"}', False),
        (b'{"host": "127"}', True),
        (b'{"cluster": "x"}', False),
        (b'{"tags": ["x"]}', False),
        (b'{"domain": "x"}', False),
        (b'{"something": 1}', True),
    ],
)
async def test_a_request_for_another_server_is_not_answered(root, filters, is_answered):
    await root.subscribe("inbox", 1)
    await root.publish("$SYS.REQ.SERVER.PING.VARZ", filters, reply="inbox")
    await root.publish("$SYS.REQ.SERVER.PING.IDZ", b"", reply="inbox")
    first = (await root.message()).json
    assert ("data" in first) is is_answered


async def test_a_request_that_is_no_json(root):
    assert (await root.request("$SYS.REQ.SERVER.PING.VARZ", b"{bad")).json["error"]["code"] == 400


SHARING = """
accounts {
  A {
    users: [ { user: a, password: a } ], mappings { x: y }
    exports: [ { stream: "ev.>" }, { service: calc, accounts: [ B ], response: stream }, { service: open } ]
  }
  B {
    imports: [
      { stream: { account: A, subject: "ev.x" }, prefix: from }
      { service: { account: A, subject: calc }, to: mine, share: true }
    ]
  }
  SYS { users: [ { user: root, password: root } ] }
}
system_account: SYS
"""


async def test_an_account_tells_what_it_shares(start, connect):
    server = await start(SHARING, ["no_jetstream"])
    root = await (await connect(server)).hello(user="root", **{"pass": "root"})
    a, b = [(await root.request(f"$SYS.REQ.ACCOUNT.{name}.INFO")).json["data"] for name in "AB"]
    assert a["mappings"] == {"x": [{"subject": "y", "weight": 100}]}
    assert sorted(a["exports"], key=lambda entry: entry["subject"]) == [
        {"subject": "calc", "type": "service", "response_type": "Streamed", "approved_accounts": ["B"]},
        {"subject": "ev.>", "type": "stream"},
        {"subject": "open", "type": "service", "response_type": "Singleton"},
    ]
    assert "exports" not in b and "mappings" not in b
    # nats-server lists what every account has of the system account too.
    imports = [entry for entry in b["imports"] if entry["account"] == "A"]
    common = {"account": "A", "invalid": False, "tracking": False}
    assert sorted(imports, key=lambda entry: entry["subject"]) == [
        {"subject": "calc", "to": "mine", "local_subject": "mine", "type": "service", "share": True, **common},
        {"subject": "ev.x", "local_subject": "from.ev.x", "type": "stream", "share": False, **common},
    ]


async def test_reports_about_an_account(root, tenant):
    await tenant.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})

    async def ask(name, report, body=b""):
        return (await root.request(f"$SYS.REQ.ACCOUNT.{name}.{report}", body)).json

    data = (await ask("A", "INFO"))["data"]
    assert (data["account_name"], data["jetstream_enabled"], data["client_connections"]) == ("A", True, 1)
    assert (data["name_tag"], "is_system" in data) == ("A", False)
    for name in ("SYS", "PLAIN"):
        data = (await ask(name, "INFO"))["data"]
        assert (data["jetstream_enabled"], data.get("is_system", False)) == (False, name == "SYS")
        assert (await ask(name, "JSZ"))["error"]["description"] == f'account "{name}" not jetstream enabled'
    (connection,) = (await ask("A", "CONNZ"))["data"]["connections"]
    assert connection["name"] == "tenant"
    assert (await ask("A", "JSZ"))["data"]["name"] == "A"
    assert (await ask("A", "SUBSZ"))["data"]["num_subscriptions"] > 0
    assert (await ask("A", "LEAFZ"))["data"]["leafnodes"] == 0
    (row,) = (await ask("A", "STATZ"))["data"]["account_statz"]
    assert (row["acc"], row["conns"], row["received"]["msgs"]) == ("A", 1, 1)
    event = await ask("A", "CONNS")
    assert (event["type"], event["acc"]) == ("io.nats.server.advisory.v1.account_connections", "A")
    rows = (await ask("PING", "STATZ"))["data"]["account_statz"]
    assert {row["acc"] for row in rows} == {"A", "SYS"}
    rows = (await ask("PING", "STATZ", {"accounts": ["A", "nobody"]}))["data"]["account_statz"]
    assert [row["acc"] for row in rows] == ["A"]
    for report in ("INFO", "JSZ"):
        answer = await ask("nobody", report)
        assert (answer["data"], answer["error"]["code"]) == (None, 500)
    assert (await root.request("$SYS.REQ.ACCOUNT.A.NOPE")).status == 503
    assert (await tenant.request("$SYS.REQ.ACCOUNT.A.INFO")).status == 503


async def test_the_messages_of_ended_connections_stay_counted(root, tenants, tenant, connect):
    other = await login(tenants, connect, "a")
    await other.publish("x", b"123")
    await other.ping()
    await other.close()
    for _ in range(100):
        (row,) = (await root.request("$SYS.REQ.ACCOUNT.A.STATZ")).json["data"]["account_statz"]
        if row["conns"] == 1:
            break
    assert (row["conns"], row["received"]["msgs"], row["received"]["bytes"]) == (1, 1, 3)


async def test_streams_of_an_account_are_removed(root, tenant):
    for name in ("S", "T"):
        await tenant.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
    answer = (await root.request("$JS.API.ACCOUNT.PURGE.A")).json
    assert answer == {"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True}
    for _ in range(100):
        if not (await tenant.request("$JS.API.STREAM.NAMES")).json["total"]:
            break
    assert (await tenant.request("$JS.API.STREAM.NAMES")).json["total"] == 0
    assert (await root.request("$JS.API.ACCOUNT.PURGE.nobody")).json["initiated"] is True


async def test_a_client_is_ended_or_asked_to_leave(root, tenants, tenant, connect):
    identity = root.info["server_id"]
    answer = (await root.request(f"$SYS.REQ.SERVER.{identity}.LDM", {"cid": tenant.info["client_id"]})).json
    assert answer.keys() == {"server"}
    tenant.read_info(await tenant.line())
    assert tenant.info["ldm"] is True
    assert "ldm" not in (await connect(tenants)).info
    await root.request(f"$SYS.REQ.SERVER.{identity}.KICK", {"cid": tenant.info["client_id"]})
    assert await tenant.rest() == b""
    answer = (await root.request(f"$SYS.REQ.SERVER.{identity}.KICK", {"cid": 999})).json
    assert answer["error"] == {"code": 500, "description": "no such client or leafnode id"}


async def test_reload(start, connect):
    server = await start(TENANTS, process=True)
    root = await login(server, connect, "sys")
    subject = f"$SYS.REQ.SERVER.{root.info['server_id']}.RELOAD"
    path = server.folder / "server.conf"
    path.write_text(path.read_text() + "\nmax_connections: 7\n")
    assert (await root.request(subject)).json.keys() == {"server"}
    assert (await root.request("$SYS.REQ.SERVER.PING.VARZ")).json["data"]["max_connections"] == 7
    path.write_text(path.read_text() + "\nserver_name: other\n")
    assert (await root.request(subject)).json["error"]["code"] == 500


async def events(wire, *subjects):
    """The events until the last of these subjects has come, by subject."""
    found = {}
    while subjects and not set(subjects) <= found.keys():
        message = await wire.message()
        found[message.subject] = message.json
    return found


async def test_clients_come_and_go(root, tenants, connect):
    await root.subscribe("$SYS.>", 1)
    await root.ping()
    client = await login(tenants, connect, "a", name="tenant", lang="wire", version="7")
    conns = ("$SYS.SERVER.ACCOUNT.A.CONNS", "$SYS.ACCOUNT.A.SERVER.CONNS")
    found = await events(root, "$SYS.ACCOUNT.A.CONNECT", *conns)
    event = found["$SYS.ACCOUNT.A.CONNECT"]
    assert event["type"] == "io.nats.server.advisory.v1.client_connect"
    assert {"id", "timestamp", "server"} <= event.keys()
    seen = event["client"]
    assert (seen["acc"], seen["user"], seen["name"], seen["lang"], seen["ver"]) == ("A", "a", "tenant", "wire", "7")
    assert (seen["id"], seen["kind"], seen["client_type"]) == (client.info["client_id"], "Client", "nats")
    assert found[conns[0]]["conns"] == found[conns[1]]["conns"] == 1
    await client.publish("x", b"123")
    await client.ping()
    await client.close()
    found = await events(root, "$SYS.ACCOUNT.A.DISCONNECT", *conns)
    event = found["$SYS.ACCOUNT.A.DISCONNECT"]
    assert event["type"] == "io.nats.server.advisory.v1.client_disconnect"
    assert (event["sent"], event["received"]) == ({"msgs": 1, "bytes": 3}, {"msgs": 0, "bytes": 0})
    assert (event["reason"], event["client"]["name"], "stop" in event["client"]) == ("Client Closed", "tenant", True)
    assert found[conns[0]]["conns"] == 0


async def test_a_refused_client(root, tenants, connect):
    await root.subscribe("$SYS.>", 1)
    await root.ping()
    client = await connect(tenants)
    await client.send(b'CONNECT {"verbose":false,"user":"a","pass":"guess","name":"bad"}\r\nPING\r\n')
    await client.rest()
    subject = f"$SYS.SERVER.{root.info['server_id']}.CLIENT.AUTH.ERR"
    event = (await events(root, subject))[subject]
    assert event["reason"] == "Authentication Failure"
    assert (event["client"]["name"], event["client"]["user"]) == ("bad", "a")
    assert "guess" not in str(event)


async def test_a_shutdown_is_told(start, connect):
    server = await start(TENANTS, process=True)
    root = await login(server, connect, "sys")
    await root.subscribe("$SYS.SERVER.*.SHUTDOWN", 1)
    await root.ping()
    server.process.send_signal(signal.SIGTERM)
    assert (await root.message()).subject == f"$SYS.SERVER.{root.info['server_id']}.SHUTDOWN"
    await server.kill()


async def test_heartbeats_lame_duck_mode_and_shutdown(start, connect):
    server = await start(TENANTS, process=True)
    root = await login(server, connect, "sys", protocol=0)
    subject = f"$SYS.SERVER.{root.info['server_id']}."
    await root.subscribe("$SYS.SERVER.>", 1)
    await root.ping()
    beat = (await events(root, subject + "STATSZ"))[subject + "STATSZ"]
    assert beat["statsz"]["connections"] == 1
    server.enter_lame_duck()
    event = (await events(root, subject + "LAMEDUCK"))[subject + "LAMEDUCK"]
    assert event["id"] == root.info["server_id"]
    if server.is_embedded:
        server.process.send_signal(signal.SIGTERM)
        await events(root, subject + "SHUTDOWN")  # nats-server in lame duck mode closes the connection without it
    await server.kill()
