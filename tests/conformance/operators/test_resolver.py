"""Accounts that change while their users are connected: pushed, looked up, revoked and deleted, as nsc does it."""

import json

import nkeys
import pytest

import jetlake
from tests.support.clients import until
from tests.support.leaf import RawLeaf, report
from tests.support.operators import Key, Realm, creds_text, enter, is_let_in, token

FULL = '{ type: full, dir: "FOLDER", allow_delete: true }'


@pytest.fixture
def realm(clock):
    return Realm(clock)


@pytest.fixture
async def full(start, realm, tmp_path, request):
    """A function that starts a server with a folder of accounts, without JetStream unless it is asked for."""

    async def full(jetstream=False, resolver=FULL, **more):
        resolver = resolver.replace("FOLDER", str(tmp_path / "accounts"))
        return await start(realm.config(resolver), [] if jetstream else ["no_jetstream"], **more)

    return full


@pytest.fixture
async def system(clients, realm):
    """A function that connects to the system account."""

    async def system(server):
        jwt, user = realm.user(realm.system, "admin")
        return await clients(server, credentials=creds_text(jwt, user.seed))

    return system


async def push(client, jwt, subject="$SYS.REQ.CLAIMS.UPDATE"):
    answer = json.loads((await client.request(subject, jwt.encode())).payload)
    assert answer["server"]["name"]
    return answer.get("data") or answer["error"]


async def test_accounts_are_pushed_looked_up_listed_and_deleted(full, system, connect, realm, tmp_path):
    server = await full()
    admin = await system(server)
    account = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    user = realm.user(account)
    assert not await is_let_in(connect, server, *user)
    jwt = realm.account(account)
    assert await push(admin, jwt) == {"account": account.public, "code": 200, "message": "jwt updated"}
    assert await is_let_in(connect, server, *user)
    assert (tmp_path / "accounts" / f"{account.public}.jwt").read_text() == jwt
    found = await admin.request(f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.LOOKUP")
    assert found.payload.decode() == jwt
    missing = Key(nkeys.PREFIX_BYTE_ACCOUNT, 99).public
    assert (await admin.request(f"$SYS.REQ.ACCOUNT.{missing}.CLAIMS.LOOKUP")).payload == b""
    listed = json.loads((await admin.request("$SYS.REQ.CLAIMS.LIST")).payload)
    assert sorted(listed["data"]) == sorted([account.public, realm.system.public])
    packed = await admin.subscribe("packed")
    await admin.publish("$SYS.REQ.CLAIMS.PACK", b"", reply="packed")
    lines = {(await packed.next(5)).payload.decode() for _ in range(3)}
    assert lines == {f"{account.public}|{jwt}", f"{realm.system.public}|{realm.accounts[realm.system.public]}", ""}
    # Other subjects of the same request.
    for subject in (f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE", f"$SYS.ACCOUNT.{account.public}.CLAIMS.UPDATE"):
        assert (await push(admin, realm.account(account, "renamed"), subject))["code"] == 200
    # Deleted by the operator alone.
    wire = await enter(connect, server, *user)

    async def delete(signer, subject, *names):
        request = token(signer.pair, subject.public, "", {"accounts": list(names), "type": "generic"}, iat=realm.now())
        answer = json.loads((await admin.request("$SYS.REQ.CLAIMS.DELETE", request.encode())).payload)
        return answer.get("data") or answer["error"]

    stranger = Key(nkeys.PREFIX_BYTE_OPERATOR, 98)
    for answer in (
        await delete(stranger, stranger, account.public),
        await delete(realm.operator, stranger, account.public),
        await delete(realm.operator, realm.operator, realm.system.public),
        await delete(realm.operator, realm.operator, "x"),
    ):
        assert answer["code"] == 500
        assert "delete accounts request by" in answer["description"]
    assert await wire.ping() == b""
    answer = await delete(realm.operator, realm.operator, account.public)
    assert answer == {"code": 200, "message": "deleted 1 accounts"}
    assert await wire.rest() == b"-ERR 'Account Authentication Expired'\r\n"
    assert not await is_let_in(connect, server, *user)
    assert not (tmp_path / "accounts" / f"{account.public}.jwt").exists()
    assert (tmp_path / "accounts" / f"{account.public}.jwt.deleted").exists()


async def test_nobody_pushes_from_another_account_or_over_a_leaf_connection(full, system, connect, realm):
    jwt, user = realm.user(realm.new_account(), bearer_token=True)
    server = await full(resolver=FULL + '\nleafnodes { listen: "127.0.0.1:-1" }')
    account = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    stolen = realm.account(account)  # The operator signed it.
    wire, leaf = await enter(connect, server, jwt, user), await RawLeaf().connect(server, jwt=jwt)
    try:
        for subject in ("$SYS.REQ.CLAIMS.UPDATE", f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE"):
            await wire.send(f"PUB {subject} {len(stolen)}\r\n{stolen}\r\n")
            leaf.send(f"LMSG {subject} {len(stolen)}\r\n{stolen}\r\nPING\r\n".encode())
            await leaf.read_line(b"PONG")
        await wire.ping()
    finally:
        leaf.close()
    assert not await is_let_in(connect, server, *realm.user(account))
    await push(await system(server), stolen)
    assert await is_let_in(connect, server, *realm.user(account))


async def test_what_is_pushed_must_be_an_account_of_the_operator(full, system, connect, realm):
    server = await full()
    admin = await system(server)
    account, other = realm.new_account(), Key(nkeys.PREFIX_BYTE_ACCOUNT, 97)
    stranger = Key(nkeys.PREFIX_BYTE_OPERATOR, 98)
    jwt = realm.accounts[account.public]
    assert (await push(admin, jwt))["code"] == 200
    for bad in ("", "x", jwt[:-4], realm.user(account)[0], realm.operator_token()):
        assert (await push(admin, bad))["code"] == 500
    export = {"subject": "a", "type": "stream"}
    for known, unknown in (
        ({"cluster_traffic": "owner"}, {"cluster_traffic": "other"}),
        ({"info_url": "https://example.com"}, {"info_url": "example.com"}),
        ({"exports": [{**export, "info_url": "https://a.b/c"}]}, {"exports": [{**export, "info_url": "/c"}]}),
    ):
        assert (await push(admin, realm.account(account, **known)))["code"] == 200
        assert (await push(admin, realm.account(account, **unknown)))["code"] == 500
    assert (await push(admin, jwt, f"$SYS.REQ.ACCOUNT.{other.public}.CLAIMS.UPDATE"))["code"] == 500
    forged = realm.account(account, "forged", signer=stranger)
    answer = await push(admin, forged)
    # nats-server stores it, and then does not use it.
    assert answer["code"] == (500 if server.is_embedded else 200)
    assert await is_let_in(connect, server, *realm.user(account)) == server.is_embedded
    # Nobody but the system account may ask.
    jwt, user = realm.user(account)
    if server.is_embedded:
        wire = await enter(connect, server, jwt, user)
        await wire.send(b"SUB r 1\r\nPUB $SYS.REQ.CLAIMS.LIST r 0\r\n\r\n")
        assert b"503" in await wire.ping()


async def test_an_old_token_that_is_pushed_again_brings_nobody_back(full, system, connect, realm):
    server = await full()
    admin = await system(server)
    account = realm.new_account(iat=realm.now() - 100)
    before = realm.accounts[account.public]
    await push(admin, before)
    user = realm.user(account, iat=realm.now() - 50)
    await push(admin, realm.account(account, revocations={"*": realm.now() - 10}))
    assert not await is_let_in(connect, server, *user)
    answer = await push(admin, before)
    # nats-server takes it back, with all that was revoked since.
    assert answer["code"] == (500 if server.is_embedded else 200)
    assert await is_let_in(connect, server, *user) == (not server.is_embedded)


async def test_revoked_users_are_disconnected_and_stay_out(full, system, connect, realm):
    server = await full()
    admin = await system(server)
    account = realm.new_account()
    await push(admin, realm.accounts[account.public])
    now = realm.now()
    revoked, stays, other = (realm.user(account, iat=now - age) for age in (10, 10, 20))
    wire, staying, older = [await enter(connect, server, *user) for user in (revoked, stays, other)]
    assert (await push(admin, realm.account(account, revocations={revoked[1].public: now - 5})))["code"] == 200
    assert await wire.rest() == b"-ERR 'User Authentication Revoked'\r\n"
    assert not await is_let_in(connect, server, *revoked)
    assert await staying.ping() == b"" and await older.ping() == b""
    # A new token for the same key counts.
    assert await is_let_in(connect, server, realm.user_of(revoked[1], account, iat=now), revoked[1])
    # Of all users, those of an earlier time.
    await push(admin, realm.account(account, revocations={"*": now - 15}))
    assert await older.rest() == b"-ERR 'User Authentication Revoked'\r\n"
    assert not await is_let_in(connect, server, *other)
    assert await staying.ping() == b""
    assert await is_let_in(connect, server, *stays)


async def test_a_signing_key_that_is_gone_takes_its_users_along(full, system, connect, realm):
    server = await full()
    admin = await system(server)
    plain, scoped = realm.key(nkeys.PREFIX_BYTE_ACCOUNT), realm.key(nkeys.PREFIX_BYTE_ACCOUNT)

    def scope(**template):
        return {"kind": "user_scope", "key": scoped.public, "template": template}

    account = realm.new_account(signing_keys=[plain.public, scope()])
    await push(admin, realm.accounts[account.public])
    own = await enter(connect, server, *realm.user(account))
    by_plain = await enter(connect, server, *realm.user(account, signer=plain))
    by_scope = await enter(connect, server, *realm.user(account, signer=scoped, free=False))
    await push(admin, realm.account(account, signing_keys=[plain.public, scope(pub={"allow": ["a"]})]))
    assert await by_scope.rest() in (b"", b"-ERR 'Authorization Violation'\r\n")
    assert await by_plain.ping() == b""
    await push(admin, realm.account(account, signing_keys=[scope()]))
    assert await by_plain.rest() in (b"", b"-ERR 'Authorization Violation'\r\n")
    assert await own.ping() == b""


async def test_limits_change_while_clients_are_connected(full, system, connect, realm):
    server = await full()
    admin = await system(server)
    account = realm.new_account()
    await push(admin, realm.accounts[account.public])
    wires = [await enter(connect, server, *realm.user(account)) for _ in range(2)]
    await push(admin, realm.account(account, limits={"conn": 1, "subs": 1}))
    assert await wires[1].rest() == b"-ERR 'maximum account active connections exceeded'\r\n"
    await wires[0].send(b"SUB a 1\r\nSUB b 2\r\n")
    assert await wires[0].ping() == b"-ERR 'maximum subscriptions exceeded'\r\n"


async def test_an_account_gets_streams_and_loses_them(full, system, clients, realm):
    server = await full(jetstream=True)
    admin = await system(server)
    account = realm.new_account(limits={"mem_storage": -1, "disk_storage": -1})
    limits = {"mem_storage": 10_000, "disk_storage": 10_000, "streams": 1, "consumer": 1}
    jwt, user = realm.user(account)
    assert (await push(admin, realm.account(account)))["code"] == 200
    client = await clients(server, credentials=creds_text(jwt, user.seed))
    request = json.dumps({"name": "S", "subjects": ["s"]}).encode()

    async def asked(subject, body=b""):
        return json.loads((await client.request(subject, body)).payload)

    async def is_off():
        return (await asked("$JS.API.INFO")).get("error", {}).get("err_code") == 10039

    assert await is_off()
    assert (await push(admin, realm.account(account, limits=limits)))["code"] == 200

    async def is_on():
        return "error" not in await asked("$JS.API.INFO")

    await until(is_on)
    assert "error" not in await asked("$JS.API.STREAM.CREATE.S", request)
    assert (await asked("s", b"kept"))["seq"] == 1
    other = json.dumps({"name": "T", "subjects": ["t"]}).encode()
    assert (await asked("$JS.API.STREAM.CREATE.T", other))["error"]["err_code"] == 10027
    info = await asked("$JS.API.INFO")
    assert {name: info["limits"][name] for name in ("max_memory", "max_storage", "max_streams", "max_consumers")} == {
        "max_memory": 10_000,
        "max_storage": 10_000,
        "max_streams": 1,
        "max_consumers": 1,
    }
    await clients.close()
    await server.restart()
    client = await clients(server, credentials=creds_text(jwt, user.seed))
    assert (await asked("$JS.API.STREAM.INFO.S"))["state"]["messages"] == 1
    config = {"durable_name": "c", "deliver_subject": "dlv", "ack_policy": "explicit"}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    assert "error" not in await asked("$JS.API.CONSUMER.DURABLE.CREATE.S.c", body)
    admin = await system(server)
    assert (await push(admin, realm.account(account)))["code"] == 200

    await until(is_off)
    # The stream takes nothing and delivers nothing, until the account has JetStream again.
    delivered = await client.subscribe("dlv")
    with pytest.raises(jetlake.NoRespondersError):
        await client.request("s", b"lost")
    assert await is_off() and not delivered.pending_messages
    detail = (await report(server, f"accountz?acc={account.public}"))["account_detail"]
    assert not detail["jetstream_enabled"]
    assert (await push(admin, realm.account(account, limits=limits)))["code"] == 200
    await until(is_on)
    assert (await asked("$JS.API.STREAM.INFO.S"))["state"]["messages"] == 1
    assert (await delivered.next(timeout=30)).payload == b"kept"
    # Off at a start, and on again while the server runs.
    assert (await push(admin, realm.account(account)))["code"] == 200
    await clients.close()
    await server.restart()
    client, admin = await clients(server, credentials=creds_text(jwt, user.seed)), await system(server)
    await until(is_off)
    assert (await push(admin, realm.account(account, limits=limits)))["code"] == 200
    await until(is_on)
    assert (await asked("s", b"more"))["seq"] == 2


@pytest.mark.parametrize(
    "tiers", [{"R1": {"mem_storage": 5000, "disk_storage": 6000, "streams": 1}}, {"R3": {"disk_storage": 1}}]
)
async def test_tiers_of_one_server(start, clients, realm, tiers):
    account = realm.new_account(limits={"tiered_limits": tiers})
    server = await start(realm.config())
    jwt, user = realm.user(account)
    client = await clients(server, credentials=creds_text(jwt, user.seed))

    async def asked(subject, **body):
        return json.loads((await client.request(subject, json.dumps(body).encode() if body else b"")).payload)

    created = await asked("$JS.API.STREAM.CREATE.S", name="S", subjects=["s"])
    if "R1" not in tiers:
        assert created["error"]["err_code"] == 10120
    else:
        assert "error" not in created
        assert (await asked("$JS.API.STREAM.CREATE.T", name="T", subjects=["t"]))["error"]["err_code"] == 10027
    info = await asked("$JS.API.INFO")
    assert set(info["limits"].values()) == {0}
    assert {name: tier["limits"]["max_storage"] for name, tier in info["tiers"].items()} == {
        name: tier["disk_storage"] for name, tier in tiers.items()
    }
    assert sum(tier["streams"] for tier in info["tiers"].values()) == info["streams"] == ("R1" in tiers)


async def test_a_restart_finds_what_was_pushed(full, system, clients, connect, realm):
    server = await full()
    account = realm.new_account()
    await push(await system(server), realm.accounts[account.public])
    user = realm.user(account)
    await clients.close()
    await server.restart()
    assert await is_let_in(connect, server, *user)


async def test_an_account_in_memory_is_updated_too(start, system, connect, realm):
    account = realm.new_account()
    server = await start(realm.config(), ["no_jetstream"])
    admin = await system(server)
    user = realm.user(account, iat=realm.now() - 10)
    wire = await enter(connect, server, *user)
    jwt = realm.account(account, revocations={user[1].public: realm.now() - 5})
    await admin.publish(f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE", jwt.encode())
    assert await wire.rest() == b"-ERR 'User Authentication Revoked'\r\n"
    assert not await is_let_in(connect, server, *user)


async def test_a_reload_takes_over_accounts_in_memory(start, connect, realm):
    account, leaving = realm.new_account(), realm.new_account()
    server = await start(realm.config(), ["no_jetstream"])
    await server.restart()  # with the port that it has now
    user = realm.user(account, iat=realm.now() - 10)
    wire, other = await enter(connect, server, *user), await enter(connect, server, *realm.user(leaving))
    realm.account(account, revocations={user[1].public: realm.now() - 5})
    new, gone = realm.new_account(), realm.accounts.pop(leaving.public)
    await server.reload(realm.config())
    assert await wire.rest() == b"-ERR 'User Authentication Revoked'\r\n"
    assert not await is_let_in(connect, server, *user)
    assert await is_let_in(connect, server, *realm.user(new))
    assert gone
    if server.is_embedded:  # nats-server keeps what it has seen once.
        assert await other.rest() == b"-ERR 'Account Authentication Expired'\r\n"
        assert not await is_let_in(connect, server, *realm.user(leaving))
