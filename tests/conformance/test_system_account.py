"""The system account, as tools use it: who reaches it, what it answers, and the events of the server."""

import pytest

SYSTEM = """
    jetstream { store_dir: "STORE_DIR" }
    accounts { SYS { users: [ { user: sys, password: sys } ] } }
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
