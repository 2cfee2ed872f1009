"""What crosses between accounts of an operator: exports, imports, and the activations of private ones."""

import asyncio

import nkeys
import pytest

from jetlake.errors import NoRespondersError
from tests.support.operators import Realm, creds_text, enter, token


@pytest.fixture
def realm(clock):
    return Realm(clock)


def activation(realm, exporter, importer, subject, kind, signer=None, iat=None, **fields):
    claims = {"subject": subject, "kind": kind, "type": "activation"}
    if signer is not None:
        claims["issuer_account"] = exporter.public
    return token(
        (signer or exporter).pair, importer.public, "", claims, iat=realm.now() if iat is None else iat, **fields
    )


def services(exporter, *entries):
    """Imports of services, `svc.N` each, with these fields."""
    return [
        {"subject": f"svc.{number}", "account": exporter.public, "type": "service", **fields}
        for number, fields in enumerate(entries)
    ]


async def test_public_streams_and_services(start, clients, realm):
    exporter = realm.new_account(
        "exporter",
        exports=[
            {"subject": "news.>", "type": "stream"},
            {"subject": "ask", "type": "service"},
            {"subject": "many", "type": "service", "response_type": "Stream"},
            {"subject": "by.*.name", "type": "service", "account_token_position": 2},
        ],
    )
    importer = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    realm.account(
        importer,
        "importer",
        imports=[
            {"subject": "news.>", "account": exporter.public, "type": "stream", "local_subject": "local.>"},
            {"subject": "news.a", "account": exporter.public, "type": "stream", "to": "old"},
            {"subject": "ask", "account": exporter.public, "type": "service", "local_subject": "q"},
            {"subject": "older", "account": exporter.public, "type": "service", "to": "ask"},
            {"subject": "many", "account": exporter.public, "type": "service"},
            {"subject": f"by.{importer.public}.name", "account": exporter.public, "type": "service"},
            {"subject": f"by.{exporter.public}.name", "account": exporter.public, "type": "service"},
            {"subject": "secret", "account": exporter.public, "type": "service"},
        ],
    )
    server = await start(realm.config(), ["no_jetstream"])
    ours, theirs = [
        await clients(server, credentials=creds_text(jwt, user.seed))
        for jwt, user in (realm.user(exporter), realm.user(importer))
    ]
    local, old = await theirs.subscribe("local.>"), await theirs.subscribe("old.>")
    await theirs.flush()
    await ours.publish("news.a", b"1")
    assert (await local.next(5)).subject == "local.a"
    assert (await old.next(5)).subject == "old.news.a"
    listening = [await ours.subscribe(subject) for subject in ("ask", "many", "by.*.name", "secret")]
    await ours.flush()

    async def answered(subject):
        task = asyncio.create_task(theirs.request(subject, b"?", timeout=5))
        waits = [asyncio.create_task(one.next(5)) for one in listening]
        done, rest = await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
        for one in rest - {task}:
            one.cancel()
        if task in done:
            await task
        message = done.pop().result()
        await ours.publish(message.reply, b"!")
        return (await task).payload == b"!"

    for subject in ("q", "older", "many", f"by.{importer.public}.name"):
        assert await answered(subject)
    for subject in (f"by.{exporter.public}.name", "secret"):
        with pytest.raises(NoRespondersError):
            await theirs.request(subject, timeout=5)


async def test_a_private_export_asks_for_an_activation(start, connect, realm, clock):
    key = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    importer, other = (realm.key(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))
    revoked_from = realm.now() - 50
    exporter = realm.new_account(
        "exporter",
        signing_keys=[key.public],
        exports=[
            *({"subject": f"svc.{number}", "type": "service", "token_req": True} for number in range(9)),
            {
                "subject": "svc.9",
                "type": "service",
                "token_req": True,
                "revocations": {importer.public: revoked_from},
            },
            {"subject": "svc.10", "type": "service", "token_req": True, "revocations": {"*": revoked_from}},
            {"subject": "news", "type": "stream", "token_req": True},
        ],
    )

    def token_for(number, account=importer, kind="service", **options):
        return {"token": activation(realm, exporter, account, f"svc.{number}", kind, **options)}

    imports = services(
        exporter,
        token_for(0),
        token_for(1, signer=key),
        {},
        # An account with a token for another account, subject or kind is none at all for nats-server.
        token_for(3, other) if clock.manual is not None else {},
        token_for(4, signer=other) if clock.manual is not None else {},
        token_for(0) if clock.manual is not None else {},
        token_for(6, kind="stream") if clock.manual is not None else {},
        token_for(7, exp=realm.now() - 5),
        token_for(8, exp=realm.now() + 3),
        token_for(9, iat=revoked_from - 10),
        token_for(10, iat=revoked_from + 10),
    )
    imports.append(
        {
            "subject": "news",
            "account": exporter.public,
            "type": "stream",
            "token": activation(realm, exporter, importer, "news", "stream"),
        }
    )
    realm.account(importer, "importer", imports=imports)
    server = await start(realm.config(), ["no_jetstream"])
    ours = await enter(connect, server, *realm.user(exporter))
    theirs = await enter(connect, server, *realm.user(importer))
    await ours.subscribe("svc.>", 1)
    await ours.ping()
    await theirs.subscribe("news", 1)

    async def reached():
        for number in range(11):
            await theirs.send(f"PUB svc.{number} 0\r\n\r\n")
        await theirs.send(b"PING\r\n")
        while await theirs.line() != b"PONG":
            pass
        await ours.send(b"PUB end.here 0\r\n\r\nSUB end.here 2\r\nPUB end.here 0\r\n\r\n")
        found = []
        while (message := await ours.message()).subject != "end.here":
            found.append(int(message.subject.removeprefix("svc.")))
        await ours.send(b"UNSUB 2\r\n")
        return found

    assert await reached() == [0, 1, 8, 10]
    await ours.publish("news", b"x")
    assert (await theirs.message()).payload == b"x"
    if server.is_embedded:  # In nats-server the timer of an import is checked with a leeway of its own.
        clock.advance(4)
        assert await reached() == [0, 1, 10]


async def test_mappings(start, connect, realm):
    account = realm.new_account(mappings={"a": [{"subject": "b"}], "c.*": [{"subject": "d.$1", "weight": 100}]})
    server = await start(realm.config(), ["no_jetstream"])
    wire = await enter(connect, server, *realm.user(account))
    await wire.send(b"SUB > 1\r\nPUB a 0\r\n\r\nPUB c.x 0\r\n\r\n")
    assert [message.subject for message in await wire.messages(2)] == ["b", "d.x"]


async def test_imports_that_form_a_ring_are_left_out(start, connect, realm):
    first, second = realm.key(nkeys.PREFIX_BYTE_ACCOUNT), realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    for one, two in ((first, second), (second, first)):
        realm.account(
            one,
            exports=[{"subject": "ring", "type": "service"}],
            imports=[{"subject": "ring", "account": two.public, "type": "service"}],
        )
    alone = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    own = {"subject": "ring.*", "account": alone.public, "type": "service"}
    realm.account(alone, exports=[{"subject": "ring.>", "type": "service"}], imports=[own])
    server = await start(realm.config(), ["no_jetstream"])
    for account, subject in ((first, b"ring"), (alone, b"ring.x")):
        wire = await enter(connect, server, *realm.user(account))
        await wire.send(b"PUB %b reply 0\r\n\r\n" % subject)
        assert await wire.ping() == b""
