"""Authorization callouts: a service, written with the package's own services, decides who may connect."""

import asyncio
import json

import nkeys
import pytest

from jetlake.auth.callout import SUBJECT, read_question
from jetlake.auth.claims import AuthorizationResponse, UnlimitedUser, UserClaims
from jetlake.auth.keys import CurveKey, KeyPair
from jetlake.auth.tokens import encode_token
from jetlake.errors import ConfigError
from tests.support.leaf import RawLeaf
from tests.support.operators import VIOLATION, Realm, creds_text, enter, is_let_in
from tests.support.servers import make_server

ISSUER = KeyPair("account", bytes([50] * 32))
CURVE = CurveKey(bytes([51] * 32))


def config(more="", accounts="", top="", timeout=10):
    return f"""
        accounts {{
            AUTH: {{ users: [ {{ user: auth, password: pwd }}, {{ user: other, password: pwd }} ] }}
            APP: {{ users: [ {{ user: known, password: pwd }} ] }}
            {accounts}
        }}
        authorization {{
            timeout: {timeout}
            auth_callout {{ issuer: {ISSUER.public}, account: AUTH, auth_users: [auth], {more} }}
        }}
        {top}
    """


@pytest.fixture
async def service(clients):
    """A function that starts a service: `await service(server, decide)`; it lists the questions."""

    async def service(server, decide, curve=None, **login):
        client = await clients(server, **(login or {"user": "auth", "password": "pwd"}))
        questions = []
        provider = client.service("auth-callout", "1.0.0")

        async def answer(request):
            xkey = request.headers.get("Nats-Server-Xkey", "") if request.headers else ""
            question = read_question(request.payload, xkey, curve)
            questions.append(question)
            given = decide(question)
            if given is not None:
                await request.respond(given)

        provider.add_endpoint("auth", answer, subject=SUBJECT)
        await provider.__aenter__()
        await client.flush()
        return questions

    return service


async def attempt(connect, server, **options):
    wire = await connect(server)
    await wire.send(b"CONNECT " + json.dumps({"verbose": False, "protocol": 1, **options}).encode() + b"\r\nPING\r\n")
    line = await wire.line()
    assert line in (b"PONG", VIOLATION, b"-ERR 'Authentication Timeout'"), line
    return wire if line == b"PONG" else None


def by_password(question):
    if question.connect.password != "s3cr3t":
        return question.refuse(ISSUER, "wrong password")
    return question.allow(ISSUER, "APP", name=f"{question.connect.user}@app", publish=["app.>"], subscribe=["app.>"])


@pytest.mark.parametrize("curve", [None, CURVE], ids=["plain", "sealed"])
async def test_a_service_decides(start, connect, service, curve):
    server = await start(config(f"xkey: {CURVE.public}" if curve else ""), ["no_jetstream"])
    questions = await service(server, by_password, curve)
    wire = await attempt(connect, server, user="ann", name="n", lang="x", version="1", **{"pass": "s3cr3t"})
    (question,) = questions
    assert question.request.aud == "nats-authorization-request"
    assert question.request.sub == ISSUER.public
    assert question.connect.user == "ann" and question.connect.password == "s3cr3t"
    assert question.client.name == "n" and question.client.kind == "Client" and question.client.type == "nats"
    assert question.client.host == "127.0.0.1" and question.client.user == "ann"
    assert question.request.nats.server_id.id == wire.info["server_id"] if wire.info else True
    await wire.line()
    await wire.send(b"PUB app.x 0\r\n\r\nPUB other 0\r\n\r\n")
    assert b'Publish to "other"' in await wire.ping()
    assert await attempt(connect, server, user="ann", **{"pass": "wrong"}) is None
    # Users of the configuration are not asked for their password, but about.
    assert await attempt(connect, server, user="known", **{"pass": "pwd"}) is None
    assert await attempt(connect, server, user="known", **{"pass": "s3cr3t"}) is not None
    assert await attempt(connect, server) is None
    # The service's own users are: and may not ask in the server's place.
    assert await attempt(connect, server, user="auth", **{"pass": "s3cr3t"}) is None
    own = await attempt(connect, server, user="auth", **{"pass": "pwd"})
    await own.line()
    await own.send(f"PUB {SUBJECT} 0\r\n\r\n".encode())
    assert b"Permissions Violation for Publish" in await own.ping()


async def test_a_service_decides_about_leaf_nodes(start, service):
    server = await start(config(top='leafnodes { listen: "127.0.0.1:-1" }'), ["no_jetstream"])
    questions = await service(server, by_password)
    leaf = await (await RawLeaf().connect(server, user="ann", **{"pass": "s3cr3t"})).joined()
    assert leaf.told["remote_account"] == "APP" and leaf.told["import"]["allow"] == ["app.>"]
    assert questions[0].client.kind == "Leafnode" and questions[0].connect.user == "ann"
    stranger = await RawLeaf().connect(server, user="ann", name="s", **{"pass": "wrong"})
    assert VIOLATION in await stranger.read_to_end()
    leaf.close()
    stranger.close()


async def test_without_a_service_nobody_gets_in(start, connect):
    server = await start(config(timeout=0.5), ["no_jetstream"])
    assert await attempt(connect, server, user="ann", **{"pass": "s3cr3t"}) is None
    assert await attempt(connect, server, user="auth", **{"pass": "pwd"}) is not None


async def test_a_service_that_does_not_answer(start, connect, service, clock):
    server = await start(config(timeout=0.5), ["no_jetstream"])
    asked = await service(server, lambda question: None)
    entering = asyncio.create_task(attempt(connect, server, user="ann", **{"pass": "s3cr3t"}))
    while not asked:
        await asyncio.sleep(0.005)
    clock.advance(1.5)
    assert await entering is None


def stranger(question):
    return question.allow(KeyPair.create("account"), "APP")


def signed_by_a_stranger(question):
    return question.allow(KeyPair.create("account"), "APP", account_key=ISSUER)


def user_of_a_stranger(question):
    return question.allow(ISSUER, "APP", account_key=KeyPair.create("account"))


def unknown_account(question):
    return question.allow(ISSUER, "NOWHERE")


def no_account(question):
    return question.allow(ISSUER)


def nothing(question):
    return b""


def noise(question):
    return b"\x00\xff" * 50


def yes(question):
    return b"true"


def signing_key(question):
    return question.allow(ISSUER, "APP", issuer_account=KeyPair.create("account").public)


def with_user(**changes):
    """An answer about another user or for another server."""

    def answer(question):
        user = KeyPair.create("user").public
        about = user if changes.get("response") else question.request.nats.user_nkey
        claims = UserClaims(
            sub=user if changes.get("user") else question.request.nats.user_nkey,
            aud="APP",
            exp=1000 if changes.get("expired") else 0,
            nats=UnlimitedUser(**changes.get("limits", {})),
        )
        response = AuthorizationResponse(
            sub=about,
            aud=KeyPair.create("server").public if changes.get("server") else question.request.nats.server_id.id,
        )
        body = type(response.nats)(jwt=encode_token(claims, ISSUER))
        return encode_token(type(response)(sub=response.sub, aud=response.aud, nats=body), ISSUER).encode()

    return answer


LIES = {
    "stranger": stranger,
    "signed_by_a_stranger": signed_by_a_stranger,
    "user_of_a_stranger": user_of_a_stranger,
    "unknown_account": unknown_account,
    "no_account": no_account,
    "nothing": nothing,
    "noise": noise,
    "yes": yes,
    "signing_key": signing_key,
    "another_user": with_user(user=True),
    "about_another": with_user(response=True),
    "another_server": with_user(server=True),
    "expired": with_user(expired=True),
    "elsewhere": with_user(limits={"src": ("10.0.0.0/8",)}),
    "too_late": with_user(limits={"times": ({"start": "00:00:00", "end": "00:00:00"},)}),
    "other_way": with_user(limits={"allowed_connection_types": ("MQTT",)}),
    "bare_user": lambda question: encode_token(
        UserClaims(sub=question.request.nats.user_nkey, aud="APP", nats=UnlimitedUser()), ISSUER
    ).encode(),
}
# What nats-server takes all the same.
TAKEN = {"signed_by_a_stranger", "elsewhere", "other_way"}


async def test_a_service_that_lies(start, connect, service):
    server = await start(config(), ["no_jetstream"])
    await service(server, lambda question: LIES[question.connect.user](question))
    for name in LIES:
        if name in TAKEN and not server.is_embedded:
            continue
        assert await attempt(connect, server, user=name, **{"pass": "x"}) is None, name


async def test_an_old_answer_fits_no_new_question(start, connect, service):
    server = await start(config(), ["no_jetstream"])
    answers = []

    def replayed(question):
        answers.append(by_password(question))
        return answers[0]

    await service(server, replayed)
    assert await attempt(connect, server, user="ann", **{"pass": "s3cr3t"}) is not None
    assert await attempt(connect, server, user="ann", **{"pass": "s3cr3t"}) is None


async def test_expiry_and_limits_of_the_answer(start, connect, service, clock):
    server = await start(config(), ["no_jetstream"])

    def brief(question):
        now_s = clock.manual.now_ns() // 10**9 if clock.manual is not None else None
        claims = UserClaims(
            sub=question.request.nats.user_nkey,
            aud="APP",
            exp=(now_s or question.request.iat) + 2,
            nats=UnlimitedUser(subs=1),
        )
        response = AuthorizationResponse(sub=question.request.nats.user_nkey, aud=question.request.nats.server_id.id)
        body = type(response.nats)(jwt=encode_token(claims, ISSUER))
        return encode_token(type(response)(sub=response.sub, aud=response.aud, nats=body), ISSUER).encode()

    await service(server, brief)
    wire = await attempt(connect, server, user="ann", **{"pass": "s3cr3t"})
    await wire.line()
    clock.advance(3)
    assert await wire.rest() == b"-ERR 'User Authentication Expired'\r\n"


async def test_allowed_accounts(start, connect, service):
    server = await start(config("allowed_accounts: [APP]", "OTHER: {}"), ["no_jetstream"])
    await service(server, lambda question: question.allow(ISSUER, question.connect.user))
    assert await attempt(connect, server, user="APP", **{"pass": "x"}) is not None
    # nats-server takes the key and lets the user in.
    assert (await attempt(connect, server, user="OTHER", **{"pass": "x"}) is None) == server.is_embedded


async def test_the_service_stays_for_good(clients, service, connect):
    """Of the embedded server alone: without a restart nobody else can be made to decide."""
    server = make_server("embedded", config(), ["no_jetstream"])
    await server.start()
    await service(server, by_password)
    wire = await attempt(connect, server, user="ann", **{"pass": "s3cr3t"})
    await wire.line()
    with pytest.raises(ConfigError, match="callout"):
        server.server.reload(server.server.options.replace(callout=None))
    users = tuple(user for user in server.server.options.users if user.name != "known")
    server.server.reload(server.server.options.replace(users=users))
    assert await wire.ping() == b""
    await clients.close()
    await server.discard()


@pytest.mark.parametrize("curve", [None, CURVE], ids=["plain", "sealed"])
async def test_the_service_of_an_account(start, connect, service, clock, curve):
    """With operators: users of the account log in with a token, and the service decides which account they get."""
    realm = Realm(clock)
    auth = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    app, closed = realm.new_account("APP"), realm.new_account("CLOSED")
    own = realm.user(auth, "service")
    elsewhere = realm.new_account("ELSEWHERE")
    external = {"auth_users": [own[1].public], "allowed_accounts": [app.public, elsewhere.public]}
    if curve:
        external["xkey"] = curve.public
    realm.account(auth, "AUTH", authorization=external)
    accounts = {"auth": auth, "app": app, "closed": closed, "elsewhere": elsewhere}
    keys = {name: KeyPair.from_seed(pair.seed) for name, pair in accounts.items()}

    def decide(question):
        target = keys.get(question.connect.auth_token)
        if target is None:
            return question.refuse(keys["auth"], "unknown token")
        return question.allow(keys["auth"], account_key=target, name="guest")

    pinned = f"resolver_pinned_accounts: [{auth.public}, {app.public}, {closed.public}]"
    server = await start(realm.config(more=pinned), ["no_jetstream"])
    sentinel, _ = realm.user(auth, "sentinel", bearer_token=True, pub={"deny": [">"]}, sub={"deny": [">"]})
    await service(server, decide, curve, credentials=creds_text(own[0], own[1].seed))
    for token, is_welcome in (("app", True), ("auth", True), ("closed", False), ("", False), ("x", False)):
        assert await is_let_in(connect, server, sentinel, auth_token=token) == is_welcome, token
    # An account that is not pinned; nats-server asks that of the sentinel's account alone.
    assert await is_let_in(connect, server, sentinel, auth_token="elsewhere") == (not server.is_embedded)
    wire = await enter(connect, server, sentinel, auth_token="app")
    assert wire.info["remote_account"] == app.public
    await wire.send(b"SUB a 1\r\nPUB a 0\r\n\r\n")
    assert (await wire.message()).subject == "a"
    # An account without such a service is entered as ever.
    assert await is_let_in(connect, server, *realm.user(app))


async def test_a_signing_key_that_goes_while_the_service_thinks(clients, service, connect):
    """Of the embedded server alone, whose account is changed between question and answer."""
    realm = Realm()
    auth, signing = realm.key(nkeys.PREFIX_BYTE_ACCOUNT), realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    app = realm.new_account("APP")
    own = realm.user(auth, "service")
    external = {"auth_users": [own[1].public], "allowed_accounts": [app.public]}
    realm.account(auth, "AUTH", authorization=external, signing_keys=[signing.public])
    server = make_server("embedded", realm.config(), ["no_jetstream"])
    await server.start()

    def decide(question):
        if question.connect.auth_token == "removed":
            server.server.operators.update(realm.account(auth, "AUTH", authorization=external))
        return question.allow(KeyPair.from_seed(signing.seed), account_key=KeyPair.from_seed(app.seed))

    await service(server, decide, credentials=creds_text(own[0], own[1].seed))
    sentinel, _ = realm.user(auth, "sentinel", bearer_token=True)
    for token, is_welcome in (("there", True), ("removed", False)):
        assert await is_let_in(connect, server, sentinel, auth_token=token) == is_welcome, token
    await clients.close()
    await server.discard()
