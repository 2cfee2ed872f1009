"""Operator mode: who is let in by a token, with what, and until when."""

import base64
import json

import nats
import nkeys
import pytest
import websockets

from tests.support.leaf import report
from tests.support.operators import FREE, Key, Realm, creds_text, encoded, enter, is_let_in, login, token

NO_JETSTREAM = ["no_jetstream"]


@pytest.fixture
def realm(clock):
    return Realm(clock)


async def test_the_chain_of_signatures(start, connect, realm):
    account = realm.new_account()
    stranger = Key(nkeys.PREFIX_BYTE_ACCOUNT, 90)
    impostor = Key(nkeys.PREFIX_BYTE_OPERATOR, 91)
    forged = Key(nkeys.PREFIX_BYTE_ACCOUNT, 92)
    signing = Key(nkeys.PREFIX_BYTE_ACCOUNT, 93)
    other = Key(nkeys.PREFIX_BYTE_USER, 94)
    server = await start(realm.config(), NO_JETSTREAM)
    jwt, user = realm.user(account)
    head, body, signature = jwt.split(".")
    assert await is_let_in(connect, server, jwt, user)

    async def refused(jwt, pair=user, **more):
        assert not await is_let_in(connect, server, jwt, pair, **more)

    await refused("", None)
    await refused(jwt, None)
    await refused(jwt, other)
    await refused("", user, nkey=user.public)
    await refused("x.y.z")
    await refused(f"{head}.{body}")
    await refused(f"{head}.{body}.{signature}.")
    await refused(f"{head}.{body}.")
    await refused(f"{head}.{body}.{'A' * len(signature)}")
    await refused(f"{jwt}==")
    await refused(f"{head}==.{body}.{signature}")
    await refused(f"{head}.{body}.{signature}", user, sig="%%")
    # Another algorithm, or none.
    for algorithm in ("none", "HS256", ""):
        none = encoded(json.dumps({"typ": "JWT", "alg": algorithm}).encode())
        await refused(f"{none}.{body}.")
        await refused(f"{none}.{body}.{signature}")
    # Signed by the wrong one.
    claims = {"type": "user", **FREE}
    for issuer in (stranger, user, realm.operator, signing):
        await refused(token(issuer.pair, user.public, "worker", claims))
    await refused(realm.user_of(user, account, signer=signing))
    await refused(realm.user_of(user, account, signer=stranger))
    # About the wrong one, and of the wrong type.
    await refused(realm.accounts[account.public], account)
    await refused(realm.operator_token(), realm.operator)
    if server.is_embedded:  # nats-server takes a user whose key is not a user's.
        await refused(token(account.pair, account.public, "worker", claims), account)
    await refused(token(account.pair, user.public, "worker", {**claims, "type": "account"}))
    # An account that another operator signed.
    await refused(token(forged.pair, user.public, "worker", claims))
    realm.account(forged, signer=impostor)
    await refused(realm.user_of(user, forged))
    # Changed after it was signed.
    text = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    text["nats"]["pub"] = {}
    await refused(f"{head}.{encoded(json.dumps(text).encode())}.{signature}")
    assert await is_let_in(connect, server, jwt, user)


async def test_a_signature_is_good_for_one_connection_and_an_account_for_itself(start, connect, realm):
    ours, theirs = realm.new_account("ours"), realm.new_account("theirs")
    shared = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    template = {"kind": "user_scope", "key": shared.public, "template": {"pub": {"allow": ["a"]}}}
    scoped, free = realm.new_account("scoped", signing_keys=[template]), realm.new_account(signing_keys=[shared.public])
    server = await start(realm.config(), NO_JETSTREAM)
    jwt, user = realm.user(ours)
    first = await connect(server)
    replayed = user.signature(first.info["nonce"])
    assert not await is_let_in(connect, server, jwt, user, sig=replayed)
    await first.hello(**login(first, jwt, user))
    # One account names another as the user's, or a key of two accounts does without the scope that one of them set.
    for signer, account in ((ours, theirs), (realm.system, ours), (shared, ours), (shared, scoped)):
        assert not await is_let_in(connect, server, realm.user_of(user, account, signer=signer), user)
    assert await is_let_in(connect, server, realm.user_of(user, free, signer=shared), user)


async def test_a_bearer_signs_nothing(start, connect, realm):
    account, strict = realm.new_account(), realm.new_account(limits={"disallow_bearer": True})
    server = await start(realm.config(), NO_JETSTREAM)
    assert await is_let_in(connect, server, realm.user(account, bearer_token=True)[0])
    assert not await is_let_in(connect, server, realm.user(account)[0])
    assert not await is_let_in(connect, server, *realm.user(strict, bearer_token=True))
    assert await is_let_in(connect, server, *realm.user(strict))


async def test_a_token_has_its_time(start, connect, realm, clock):
    account = realm.new_account()
    late = realm.new_account(exp=realm.now() - 10)
    ending = realm.new_account(exp=realm.now() + 3)
    server = await start(realm.config(), NO_JETSTREAM)
    now = realm.now()
    assert not await is_let_in(connect, server, *realm.user(account, exp=now - 10))
    assert not await is_let_in(connect, server, *realm.user(account, nbf=now + 1000))
    assert not await is_let_in(connect, server, *realm.user(late))
    assert await is_let_in(connect, server, *realm.user(account, exp=now + 1000, nbf=now - 10))
    wire = await enter(connect, server, *realm.user(account, exp=now + 3))
    of_account = realm.user(ending)
    ending_wire = await enter(connect, server, *of_account)
    stays = await enter(connect, server, *realm.user(account, exp=now + 1000))
    clock.advance(4)
    assert await wire.rest() == b"-ERR 'User Authentication Expired'\r\n"
    assert await ending_wire.rest() == b"-ERR 'Account Authentication Expired'\r\n"
    assert not await is_let_in(connect, server, *of_account)
    assert await stays.ping() == b""


async def test_permissions(start, connect, realm):
    strict = realm.new_account(default_permissions={"pub": {"allow": ["d.>"]}, "sub": {"deny": ["secret"]}})
    account = realm.new_account()
    server = await start(realm.config(), NO_JETSTREAM)
    free = await enter(connect, server, *realm.user(account))
    await free.subscribe(">", 1)
    await free.ping()
    limited = realm.user(
        account, pub={"allow": ["a", "b.>"], "deny": ["b.x"]}, sub={"allow": ["in.>", "q.> group"], "deny": ["in.no"]}
    )
    wire = await enter(connect, server, *limited)
    await wire.send(b"".join(b"PUB %b 0\r\n\r\n" % subject for subject in (b"a", b"b.x", b"b.y", b"c")))
    await wire.send(b"SUB in.a 1\r\nSUB in.no 2\r\nSUB q.1 3\r\nSUB q.1 group 4\r\n")
    denied = [line.decode() for line in (await wire.ping()).splitlines()]
    assert denied == [
        "-ERR 'Permissions Violation for Publish to \"b.x\"'",
        "-ERR 'Permissions Violation for Publish to \"c\"'",
        "-ERR 'Permissions Violation for Subscription to \"in.no\"'",
        "-ERR 'Permissions Violation for Subscription to \"q.1\"'",
    ]
    assert [message.subject for message in await free.messages(2)] == ["a", "b.y"]
    # The account's own, for users without any.
    wire = await enter(connect, server, *realm.user(strict))
    await wire.send(b"PUB x 0\r\n\r\nSUB secret 1\r\nPUB d.1 0\r\n\r\n")
    assert (await wire.ping()).count(b"Permissions Violation") == 2
    wire = await enter(connect, server, *realm.user(strict, pub={"allow": ["x"]}))
    await wire.send(b"PUB x 0\r\n\r\nSUB secret 1\r\nPUB d.1 0\r\n\r\n")
    assert (await wire.ping()).count(b"Permissions Violation") == 1
    # Answers to what is received.
    service = await enter(connect, server, *realm.user(account, sub={"allow": ["svc"]}, resp={"max": 1, "ttl": 10**9}))
    await service.subscribe("svc", 1)
    await service.send(b"PUB nowhere 0\r\n\r\n")
    assert b"Permissions Violation" in await service.ping()
    await free.send(b"UNSUB 1\r\nSUB back 2\r\n")
    await free.ping()
    await free.publish("svc", b"?", reply="back")
    assert (await service.message()).reply == "back"
    await service.send(b"PUB back 1\r\n!\r\nPUB back 1\r\n!\r\n")
    assert (await service.ping()).count(b"Permissions Violation") == 1
    assert (await free.message()).payload == b"!"


async def test_limits_of_users_and_accounts(start, connect, realm):
    account = realm.new_account(limits={"payload": 100, "subs": 3, "conn": 2})
    server = await start(realm.config(), NO_JETSTREAM)
    wire = await enter(connect, server, *realm.user(account))
    assert wire.info["max_payload"] == 100
    await wire.send(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nSUB d 4\r\n")
    assert await wire.ping() == b"-ERR 'maximum subscriptions exceeded'\r\n"
    small = await enter(connect, server, *realm.user(account, payload=10, subs=1))
    assert small.info["max_payload"] == 10
    await small.send(b"SUB a 1\r\nSUB b 2\r\n")
    assert await small.ping() == b"-ERR 'maximum subscriptions exceeded'\r\n"
    jwt, user = realm.user(account)
    third = await connect(server)
    await third.send(b"CONNECT " + json.dumps(login(third, jwt, user)).encode() + b"\r\nPING\r\n")
    assert await third.rest() == b"-ERR 'maximum account active connections exceeded'\r\n"
    await small.send(b"PUB a 11\r\n" + b"x" * 11 + b"\r\n")
    assert b"Maximum Payload Violation" in await small.rest()


async def test_ways_places_and_hours(start, connect, realm):
    account = realm.new_account()
    server = await start(realm.config(), NO_JETSTREAM)

    async def enters(**claims):
        return await is_let_in(connect, server, *realm.user(account, **claims))

    assert await enters(allowed_connection_types=["STANDARD"])
    assert await enters(allowed_connection_types=["standard", "UNHEARD_OF"])
    assert not await enters(allowed_connection_types=["WEBSOCKET", "MQTT"])
    assert not await enters(allowed_connection_types=["UNHEARD_OF"])
    assert await enters(src=["10.0.0.0/8", "127.0.0.0/8"])
    assert await enters(src="10.0.0.0/8, 127.0.0.1/32")
    assert not await enters(src=["10.0.0.0/8"])
    assert not await enters(src=["::1/128"])
    assert not await enters(src=["127.0.0.1"])
    # Masks can be read in two ways, and are none.
    for mask in ("255.0.0.0", "0.255.255.255", "0.0.0.0", "-1", "8 "):
        assert not await enters(src=[f"127.0.0.0/{mask}"])
        assert not await enters(src=["127.0.0.0/8", f"10.0.0.0/{mask}"])
    assert not await enters(src=["nowhere"])
    assert await enters(times=[{"start": "00:00:00", "end": "23:59:59"}])
    assert not await enters(times=[{"start": "00:00:00", "end": "00:00:00"}])
    assert not await enters(times=[{"start": "8", "end": "later"}])
    assert not await enters(times=[{"start": "00:00:00", "end": "23:59:59"}], times_location="No/Where")
    assert not await enters(times_location="No/Where")
    assert await enters(times=[{"start": "00:00:00", "end": "23:59:59"}], times_location="Europe/Berlin")


async def test_signing_keys_with_and_without_a_scope(start, connect, realm):
    plain, scoped, regional, odd = (realm.key(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(4))
    template = {
        "pub": {"allow": ["{{account-name()}}.{{name()}}.>", "{{tag(region)}}.x", "id.{{subject()}}"]},
        "sub": {"allow": ["{{account-tag(team)}}.{{account-subject()}}"], "deny": ["deny.{{name()}}"]},
        **FREE,
        "subs": 1,
    }
    account = realm.new_account(
        "APP",
        tags=["team:blue"],
        signing_keys=[
            plain.public,
            {"kind": "user_scope", "key": scoped.public, "template": template},
            {"kind": "user_scope", "key": regional.public, "template": {"pub": {"allow": ["{{tag(region)}}.x"]}}},
            {"kind": "user_scope", "key": odd.public, "template": {"pub": {"allow": ["ok", "{{foo()}}"]}}},
        ],
    )
    server = await start(realm.config(), NO_JETSTREAM)
    assert await is_let_in(connect, server, *realm.user(account, signer=plain))
    jwt, user = realm.user(account, "ann", signer=scoped, free=False, tags=["region:eu", "region:us", "other:x"])
    wire = await enter(connect, server, jwt, user)
    subjects = ["APP.ann.1", "eu.x", "us.x", f"id.{user.public}", "x.x", "APP.bob.1", "other"]
    await wire.send("".join(f"PUB {subject} 0\r\n\r\n" for subject in subjects))
    await wire.send(f"SUB blue.{account.public} 1\r\nSUB deny.ann 2\r\nSUB red.x 3\r\n")
    lines = (await wire.ping()).decode().splitlines()
    assert [line.split('"')[1] for line in lines] == ["x.x", "APP.bob.1", "other", "deny.ann", "red.x"]
    # A scoped user brings no permissions of its own.
    for own in ({"subs": -1}, {"pub": {"allow": [">"]}}, {"bearer_token": True}, {"src": ["127.0.0.0/8"]}):
        assert not await is_let_in(connect, server, *realm.user(account, signer=scoped, free=False, **own))
    assert not await is_let_in(connect, server, *realm.user(account, "ann", signer=odd, free=False))
    # A denied subject that cannot be made would deny nothing.
    assert not await is_let_in(connect, server, *realm.user(account, "", signer=scoped, free=False))
    # Nothing is left of what it may publish: it may publish nothing.
    wire = await enter(connect, server, *realm.user(account, "ann", signer=regional, free=False))
    await wire.send(b"PUB eu.x 0\r\n\r\nPUB x 0\r\n\r\n")
    assert (await wire.ping()).count(b"Permissions Violation for Publish") == 2


@pytest.mark.parametrize("name", ["*", ">", "a b", "a..b", ".", "a.*", "\u00a0", "x\ty"])
async def test_names_and_tags_fill_tokens_and_are_no_patterns(start, connect, realm, name):
    key = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    template = {"pub": {"allow": ["n.{{name()}}.x", "t.{{tag(t)}}", "ok"]}}
    account = realm.new_account(signing_keys=[{"kind": "user_scope", "key": key.public, "template": template}])
    server = await start(realm.config(), NO_JETSTREAM)
    for named, tags in ((name, []), ("ann", [f"t:{name}"])):
        user = realm.user(account, named, signer=key, free=False, tags=tags)
        if any(wildcard in name for wildcard in "*>"):
            # nats-server lets the holder of the signing key widen its own scope in this way.
            assert not server.is_embedded or not await is_let_in(connect, server, *user)
            continue
        wire = await enter(connect, server, *user)
        await wire.send(b"PUB n.q.x 0\r\n\r\nPUB t.q 0\r\n\r\nPUB t.q.r 0\r\n\r\nPUB ok 0\r\n\r\n")
        assert (await wire.ping()).count(b"Permissions Violation") == 3


async def test_only_signing_keys_of_a_strict_operator(start, connect, realm):
    signing = Key(nkeys.PREFIX_BYTE_OPERATOR, 7)
    operator = realm.operator_token(signing_keys=[signing.public], strict_signing_key_usage=True)
    for pair, name in ((realm.system, "SYS"),):
        realm.account(pair, name, signer=signing)
    key = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    account = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    realm.account(account, signer=signing, signing_keys=[key.public])
    server = await start(realm.config(operator=operator), NO_JETSTREAM)
    assert await is_let_in(connect, server, *realm.user(account, signer=key))
    assert not await is_let_in(connect, server, *realm.user(account))


async def test_a_creds_file(start, clients, realm, tmp_path):
    account = realm.new_account()
    server = await start(realm.config(), NO_JETSTREAM)
    jwt, user = realm.user(account, exp=realm.now() + 1000)
    path = tmp_path / "worker.creds"
    path.write_text(creds_text(jwt, user.seed))
    client = await clients(server, credentials=path)
    subscription = await client.subscribe("a")
    await client.publish("a", b"x")
    assert (await subscription.next(5)).payload == b"x"
    data = json.loads((await client.request("$SYS.REQ.USER.INFO")).payload)["data"]
    assert 0 < data.pop("expires") <= 1000 * 10**9
    assert data == {
        "user": user.public,
        "account": account.public,
        "account_name": "team",
        "user_name": "worker",
    }


async def test_a_token_in_a_cookie(start, realm):
    account = realm.new_account()
    server = await start(realm.config(more="websocket { port: -1, no_tls: true, jwt_cookie: pass }"), NO_JETSTREAM)

    async def enters(**claims):
        jwt, _ = realm.user(account, bearer_token=True, **claims)
        async with websockets.connect(server.websocket_url, additional_headers={"Cookie": f"pass={jwt}"}) as socket:
            await socket.recv()
            await socket.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            return (await socket.recv()).startswith(b"PONG")

    assert await enters()
    assert await enters(allowed_connection_types=["WEBSOCKET"])
    assert not await enters(allowed_connection_types=["STANDARD"])


async def test_monitoring_tells_who_a_token_stands_for(start, clients, realm):
    signing = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    account = realm.new_account("team", signing_keys=[signing.public])
    server = await start(realm.config(), NO_JETSTREAM)
    jwt, user = realm.user(realm.system)
    admin = await clients(server, credentials=creds_text(jwt, user.seed))
    events = await admin.subscribe(f"$SYS.ACCOUNT.{account.public}.CONNECT")
    await admin.flush()
    jwt, user = realm.user(account, "ann", signer=signing, tags=["t:1"])
    await clients(server, credentials=creds_text(jwt, user.seed))
    client = json.loads((await events.next(5)).payload)["client"]
    asked = await admin.request(f"$SYS.REQ.ACCOUNT.{account.public}.CONNZ", b'{"auth":true}')
    row = json.loads(asked.payload)["data"]["connections"][0]
    assert (client["user"], row["authorized_user"]) == (user.public, user.public)
    for shown in (client, row):
        assert {key: shown[key] for key in ("jwt", "issuer_key", "name_tag", "tags")} == {
            "jwt": jwt,
            "issuer_key": signing.public,
            "name_tag": "team",
            "tags": ["t:1"],
        }


async def test_monitoring_shows_the_tokens_of_operators_and_accounts(start, connect, realm):
    account = realm.new_account("team", tags=["t:1"])
    operator = realm.operator_token(tags=["o:1"])
    server = await start(realm.config(operator=operator), NO_JETSTREAM)
    varz = await report(server, "varz")
    assert varz["trusted_operators_jwt"] == [operator]
    (claim,) = varz["trusted_operators_claim"]
    assert (claim["sub"], claim["nats"]["tags"]) == (realm.operator.public, ["o:1"])
    assert await is_let_in(connect, server, *realm.user(account))
    detail = (await report(server, f"accountz?acc={account.public}"))["account_detail"]
    assert (detail["jwt"], detail["issuer_key"]) == (realm.accounts[account.public], realm.operator.public)
    assert (detail["name_tag"], detail["decoded_jwt"]["nats"]["tags"], detail["expired"]) == ("team", ["t:1"], False)


async def test_nats_py_logs_in_with_a_creds_file(start, realm, tmp_path):
    account = realm.new_account(limits={"mem_storage": -1, "disk_storage": -1})
    server = await start(realm.config())
    jwt, user = realm.user(account)
    path = tmp_path / "worker.creds"
    path.write_text(creds_text(jwt, user.seed))
    client = await nats.connect(server.url, user_credentials=str(path))
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    assert (await js.publish("s", b"x")).seq == 1
    await client.close()


async def test_only_users_of_pinned_accounts(start, connect, realm):
    pinned, other = realm.new_account(), realm.new_account()
    server = await start(realm.config(more=f"resolver_pinned_accounts: [{pinned.public}]"), NO_JETSTREAM)
    assert await is_let_in(connect, server, *realm.user(pinned))
    assert not await is_let_in(connect, server, *realm.user(other))
    assert await is_let_in(connect, server, *realm.user(realm.system))


async def test_a_sentinel_for_clients_without_a_token(start, connect, realm):
    account = realm.new_account()
    sentinel, _ = realm.user(account, bearer_token=True, pub={"allow": ["hello"]})
    server = await start(realm.config(more=f"default_sentinel: {sentinel}"), NO_JETSTREAM)
    wire = await (await connect(server)).hello()
    assert wire.info["remote_account"] == account.public
    await wire.send(b"PUB other 0\r\n\r\nPUB hello 0\r\n\r\n")
    assert (await wire.ping()).count(b"Permissions Violation") == 1
    # Whoever shows a bad token is no client without any; for nats-server it is.
    assert await is_let_in(connect, server, "x.y.z") == (not server.is_embedded)
