"""Who may come in, and what each may do."""

import base64
import json

import nkeys
import pytest

VIOLATION = b"-ERR 'Authorization Violation'\r\n"
SEED = b"SUAEL6GG2L2HIF7DUGZJGMRUFKXELGGYFMHF76UO2AYBG3K4YLWR3FKC2Q"


async def is_let_in(server, connect, **options):
    wire = await connect(server)
    await wire.send(b"CONNECT " + json.dumps({"verbose": False, **options}).encode() + b"\r\nPING\r\n")
    line = await wire.line()
    if line == b"PONG":
        return True
    assert line == VIOLATION.strip()
    assert await wire.rest() == b""
    return False


async def check(server, connect, good, bad):
    wire = await connect(server)
    assert wire.info["auth_required"] is True
    for options in good:
        assert await is_let_in(server, connect, **options), options
    for options in bad:
        assert not await is_let_in(server, connect, **options), options


async def test_token(start, connect):
    server = await start(flags=["no_jetstream", "--auth", "s3cr3t"])
    await check(
        server,
        connect,
        good=[{"auth_token": "s3cr3t"}],
        bad=[{}, {"auth_token": "other"}, {"pass": "s3cr3t"}, {"auth_token": ""}],
    )
    assert "s3cr3t" not in server.log
    # A secret in the wrong field is none that nats-server would hide.
    assert not await is_let_in(server, connect, user="s3cr3t")
    assert "s3cr3t" not in server.log or not server.is_embedded


async def test_user_and_password(start, connect):
    server = await start(flags=["no_jetstream", "--user", "ann", "--pass", "s3cr3t"])
    await check(
        server,
        connect,
        good=[{"user": "ann", "pass": "s3cr3t"}],
        bad=[{}, {"user": "ann"}, {"user": "ann", "pass": "x"}, {"user": "bob", "pass": "s3cr3t"}, {"pass": "s3cr3t"}],
    )
    assert "s3cr3t" not in server.log


@pytest.fixture(scope="module")
def hashes():
    import bcrypt

    return {
        text: bcrypt.hashpw(text.encode(), bcrypt.gensalt(4, prefix=b"2a")).decode() for text in ("s3cr3t", "t0k3n")
    }


async def test_hashed_password(start, connect, hashes):
    config = f"authorization {{ users: [{{user: ann, password: {hashes['s3cr3t']}}}, {{user: bob, password: plain}}] }}"
    server = await start(config, ["no_jetstream"])
    await check(
        server,
        connect,
        good=[{"user": "ann", "pass": "s3cr3t"}, {"user": "bob", "pass": "plain"}],
        bad=[{"user": "ann", "pass": hashes["s3cr3t"]}, {"user": "ann", "pass": ""}, {"user": "eve", "pass": "s3cr3t"}],
    )


async def test_what_follows_connect_waits_for_the_check(start, connect, hashes):
    server = await start(f"authorization {{ user: ann, password: {hashes['s3cr3t']} }}", ["no_jetstream"])
    wire = await connect(server)
    await wire.send(b'CONNECT {"verbose":false,"pedantic":false,"user":"ann","pass":"s3cr3t"}\r\nSUB a 1\r\n')
    await wire.send(b"PUB a 1\r\nx\r\nPUB a 1\r\ny\r\n")
    assert await wire.ping() == b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n"


async def test_hashed_token(start, connect, hashes):
    server = await start(f'authorization {{ token: "{hashes["t0k3n"]}" }}', ["no_jetstream"])
    await check(server, connect, good=[{"auth_token": "t0k3n"}], bad=[{}, {"auth_token": hashes["t0k3n"]}])


async def test_nkey(start, connect):
    pair = nkeys.from_seed(bytearray(SEED))
    public = pair.public_key.decode()
    server = await start(
        f"authorization {{ users: [{{nkey: {public}}}, {{user: ann, password: p}}] }}", ["no_jetstream"]
    )
    wire = await connect(server)
    nonce = wire.info["nonce"]
    assert len(nonce) >= 11

    def signed(text):
        return base64.urlsafe_b64encode(pair.sign(text.encode())).decode().rstrip("=")

    await wire.hello(nkey=public, sig=signed(nonce))
    again = await connect(server)
    assert again.info["nonce"] != nonce
    for options in ({"sig": signed(nonce)}, {"sig": "AAAA"}, {"sig": "%%"}, {}):
        assert not await is_let_in(server, connect, nkey=public, **options), options
    assert await is_let_in(server, connect, user="ann", **{"pass": "p"})


@pytest.mark.parametrize("first", [b"PING\r\n", b"SUB a 1\r\n", b"PUB a 0\r\n\r\n", b"GARBAGE\r\n"])
async def test_nothing_before_connect(start, connect, first):
    server = await start(flags=["no_jetstream", "--auth", "t"])
    wire = await connect(server)
    await wire.send(first)
    assert await wire.rest() == VIOLATION


async def test_authentication_timeout(start, connect):
    server = await start("authorization { token: t, timeout: 0.2 }", ["no_jetstream"])
    wire = await connect(server)
    assert await wire.rest() == b"-ERR 'Authentication Timeout'\r\n"


PERMISSIONS = """authorization { users: [
  { user: a, password: p, permissions: {
      publish: { allow: ["foo", "bar.>"], deny: "bar.x" }
      subscribe: { allow: ["foo.*", "in.>", "q.> workers", "all.>"], deny: ["foo.secret", "all.x"] } } }
  { user: answers, password: p, permissions: { subscribe: "svc", allow_responses: true } }
  { user: twice, password: p, permissions: { subscribe: "two", allow_responses: { max: 2, expires: "1m" } } }
  { user: listed, password: p, permissions: { publish: ["x", "y.*"], subscribe: "z" } }
  { user: free, password: p }
] }"""


def denied(*what):
    return b"".join(b"-ERR 'Permissions Violation for %b'\r\n" % text.encode() for text in what)


async def test_publish_permissions(start, connect):
    server = await start(PERMISSIONS, ["no_jetstream"])
    free = await (await connect(server)).hello(user="free", **{"pass": "p"})
    await free.send(b"SUB > 1\r\n")
    await free.ping()
    wire = await (await connect(server)).hello(user="a", **{"pass": "p"})
    await wire.send(
        b"".join(b"PUB %b 0\r\n\r\n" % subject for subject in (b"foo", b"baz", b"bar.y", b"bar.x", b"bar.>"))
    )
    assert await wire.ping() == denied('Publish to "baz"', 'Publish to "bar.x"')
    assert [message.subject for message in await free.messages(3)] == ["foo", "bar.y", "bar.>"]
    listed = await (await connect(server)).hello(user="listed", **{"pass": "p"})
    await listed.send(b"PUB x 0\r\n\r\nPUB y.1 0\r\n\r\nPUB y.1.2 0\r\n\r\nSUB z 1\r\nSUB y 2\r\n")
    assert await listed.ping() == denied('Publish to "y.1.2"', 'Subscription to "y"')


async def test_subscribe_permissions(start, connect):
    server = await start(PERMISSIONS, ["no_jetstream"])
    wire = await (await connect(server)).hello(user="a", **{"pass": "p"})
    await wire.send(
        b"SUB foo.a 1\r\nSUB foo.* 2\r\nSUB > 3\r\nSUB foo.secret 4\r\nSUB q.a 5\r\nSUB q.a workers 6\r\n"
        b"SUB q.a other 7\r\nSUB foo.a g 8\r\nSUB all.> 9\r\n"
    )
    assert await wire.ping() == denied(
        'Subscription to ">"',
        'Subscription to "foo.secret"',
        'Subscription to "q.a"',
        'Subscription to "q.a" using queue "other"',
    )
    free = await (await connect(server)).hello(user="free", **{"pass": "p"})
    await free.send(b"PUB all.x 0\r\n\r\nPUB all.y 0\r\n\r\nPUB foo.secret 0\r\n\r\nPUB q.a 0\r\n\r\n")
    await free.ping()
    received = {message.subject for message in await wire.messages(2)}
    assert received == {"all.y", "q.a"}
    assert await wire.ping() == b""


async def test_verbose_clients_get_the_error_instead_of_ok(start, connect):
    server = await start(PERMISSIONS, ["no_jetstream"])
    wire = await connect(server)
    await wire.send(b'CONNECT {"user":"a","pass":"p"}\r\nPUB baz 0\r\n\r\nSUB > 1\r\nPUB foo 0\r\n\r\nPING\r\n')
    expected = b"+OK\r\n" + denied('Publish to "baz"', 'Subscription to ">"') + b"+OK\r\n"
    assert await wire.until(b"PONG\r\n") == expected


@pytest.mark.parametrize(("user", "subject", "answers"), [("answers", "svc", 1), ("twice", "two", 2)])
async def test_leave_to_answer(start, connect, user, subject, answers):
    server = await start(PERMISSIONS, ["no_jetstream"])
    service = await (await connect(server)).hello(user=user, **{"pass": "p"})
    await service.subscribe(subject, 1)
    await service.publish("in.1")
    assert await service.ping() == denied('Publish to "in.1"')
    free = await (await connect(server)).hello(user="free", **{"pass": "p"})
    await free.subscribe("in.*", 1)
    await free.publish(subject, reply="in.1")
    await service.message()
    await service.send(b"PUB in.1 2\r\nok\r\n" * 3 + b"PUB in.2 0\r\n\r\n")
    assert await service.ping() == denied(*['Publish to "in.1"'] * (3 - answers), 'Publish to "in.2"')
    assert (await free.ping()).count(b"MSG in.1 1 2") == answers


ACCOUNTS = """accounts {
  A { users: [{user: ann, password: p}] }
  B { users: [{user: bob, password: p}] }
}
"""


async def test_accounts_do_not_see_each_other(start, connect):
    server = await start(ACCOUNTS, ["no_jetstream"])
    ann = await (await connect(server)).hello(user="ann", **{"pass": "p"})
    other_ann = await (await connect(server)).hello(user="ann", **{"pass": "p"})
    bob = await (await connect(server)).hello(user="bob", **{"pass": "p"})
    assert (ann.info["remote_account"], bob.info["remote_account"]) == ("A", "B")
    for wire in (ann, other_ann, bob):
        await wire.subscribe(">", 1)
        await wire.ping()
    await ann.publish("x", b"from ann")
    assert (await ann.message()).payload == b"from ann"
    assert (await other_ann.message()).payload == b"from ann"
    assert await bob.ping() == b""
    assert not await is_let_in(server, connect)


async def test_no_auth_user(start, connect):
    server = await start(ACCOUNTS + "no_auth_user: bob", ["no_jetstream"])
    nobody = await connect(server)
    assert "auth_required" not in nobody.info
    await nobody.hello()
    assert nobody.info["remote_account"] == "B"
    silent = await connect(server)
    await silent.send(b"SUB x 1\r\n")
    assert await silent.ping() == b"+OK\r\n"
    ann = await (await connect(server)).hello(user="ann", **{"pass": "p"})
    await ann.publish("x")
    await ann.ping()
    await nobody.publish("x")
    await nobody.ping()
    assert await silent.ping() == b"MSG x 1 0\r\n\r\n"
    assert not await is_let_in(server, connect, user="ann", **{"pass": "wrong"})


async def test_default_permissions(start, connect):
    config = """authorization { default_permissions: { publish: "x" }
      users: [ {user: a, password: p}, {user: b, password: p, permissions: { publish: "y" }} ] }"""
    server = await start(config, ["no_jetstream"])
    for user, allowed, refused in (("a", b"x", "y"), ("b", b"y", "x")):
        wire = await (await connect(server)).hello(user=user, **{"pass": "p"})
        await wire.send(b"PUB %b 0\r\n\r\nPUB %b 0\r\n\r\n" % (allowed, refused.encode()))
        assert await wire.ping() == denied(f'Publish to "{refused}"')


async def test_reload_changes_who_may_do_what(start, connect):
    config = "authorization {{ users: [{{user: a, password: {password}, permissions: {{publish: {subject}}}}}] }}"
    server = await start(config.format(password="p", subject="x"), ["no_jetstream"], process=True)
    wire = await (await connect(server)).hello(user="a", **{"pass": "p"})
    await wire.send(b"PUB y 0\r\n\r\n")
    assert await wire.ping() == denied('Publish to "y"')
    await server.reload(config.format(password="p", subject="y"))
    again = await (await connect(server)).hello(user="a", **{"pass": "p"})
    await again.send(b"PUB y 0\r\n\r\nPUB x 0\r\n\r\n")
    assert await again.ping() == denied('Publish to "x"')
    await server.reload(config.format(password="q", subject="y"))
    assert await again.rest() == VIOLATION
    assert not await is_let_in(server, connect, user="a", **{"pass": "p"})
    assert await is_let_in(server, connect, user="a", **{"pass": "q"})
