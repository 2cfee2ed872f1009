"""Accounts that the server looks up by URL: when it asks, what it makes of the answers, and who waits."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time

import nkeys
import pytest

import jetlake
from jetlake.errors import ConfigError, TokenError
from jetlake.server import Options
from jetlake.server.config.operator_options import OperatorOptions
from jetlake.server.jwt.operators import Operators
from jetlake.server.shell.log import open_log
from jetlake.testing import ManualClock
from tests.conformance.operators.test_resolver import push
from tests.support.clients import until
from tests.support.operators import Realm, creds_text, enter, is_let_in, login
from tests.support.tls import CERTIFICATES
from tests.support.wire import Wire

NO_JETSTREAM = ["no_jetstream"]


class Accounts:
    """A web server with the tokens of accounts; what it was asked for is in `asked`."""

    def __init__(self):
        self.tokens = {}
        self.asked = []
        self.heads = []
        self.answers = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self, tls=None):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "https" if tls else "http"
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{scheme}://127.0.0.1:{port}/jwt/v1/accounts/"
        return self

    async def stop(self):
        self.gate.set()
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            path = head.split()[1]
            name = path.removeprefix("/jwt/v1/accounts/")
            self.asked.append(name)
            await self.gate.wait()
            answer = self.answers.get(name)
            if answer is None:
                found = "all accounts" if not name else self.tokens.get(name)
                body = (found or "").encode()
                status = "200 OK" if found else "404 Not Found"
                answer = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
                    status.encode(),
                    len(body),
                    body,
                )
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def web():
    web = await Accounts().start()
    yield web
    await web.stop()


@pytest.fixture
def realm(clock):
    return Realm(clock)


@pytest.fixture
async def by_url(start, realm, web):
    """A function that starts a server whose accounts, all of the realm so far, are at the URL."""

    async def by_url(more="", flags=NO_JETSTREAM, url=None):
        web.tokens.update(realm.accounts)
        return await start(
            f"""
            operator: {realm.operator_token()}
            system_account: {realm.system.public}
            resolver: URL({url or web.url})
            {more}
            """,
            flags,
        )

    return by_url


async def test_an_account_is_looked_up_when_its_first_user_connects(by_url, connect, realm, web):
    account, other = realm.new_account(), realm.new_account()
    server = await by_url()
    assert set(web.asked) == {"", realm.system.public}, "at the start"
    web.asked.clear()
    user = realm.user(account)
    assert await is_let_in(connect, server, *user)
    assert await is_let_in(connect, server, *user)
    assert web.asked == [account.public], "once"
    # An account that is not there is asked for each time: it may come.
    late = realm.key(nkeys.PREFIX_BYTE_ACCOUNT)
    user = realm.user(late)
    web.asked.clear()
    assert not await is_let_in(connect, server, *user)
    assert not await is_let_in(connect, server, *user)
    web.tokens[late.public] = realm.account(late)
    assert await is_let_in(connect, server, *user)
    assert web.asked == [late.public] * 3
    # With a line feed behind it, as files have one; and by way of another path.
    web.tokens[late.public] += "\n"
    web.answers[other.public] = f"HTTP/1.1 302 Found\r\nLocation: {web.url}moved\r\nConnection: close\r\n\r\n".encode()
    web.tokens["moved"] = realm.accounts[other.public] + "\n"
    assert await is_let_in(connect, server, *realm.user(other))


async def test_what_is_at_the_url_must_be_the_account(by_url, connect, realm, web):
    """Another account's token, a forged one, an expired one, errors, and much of nothing."""
    account, other = realm.new_account(), realm.new_account()
    impostor = realm.key(nkeys.PREFIX_BYTE_OPERATOR)
    server = await by_url()
    user = realm.user(account)
    good = realm.accounts[account.public]
    for wrong in (
        realm.accounts[other.public],
        realm.account(account, signer=impostor),
        realm.account(account, exp=realm.now() - 10),
        realm.user(account)[0],
        good[:-4] + "AAAA",
        "x",
        "",
    ):
        web.tokens[account.public] = wrong
        assert not await is_let_in(connect, server, *user)
    web.tokens[account.public] = good
    for answer in (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", b"\x16\x03", b""):
        web.answers[account.public] = answer
        assert not await is_let_in(connect, server, *user)
    web.answers.clear()
    assert await is_let_in(connect, server, *user)


async def test_an_account_that_has_expired_is_looked_up_again(by_url, connect, realm, web, clock):
    account = realm.new_account(exp=realm.now() + 5)
    server = await by_url()
    user = realm.user(account)
    wire = await enter(connect, server, *user)
    await clock.passes(7)
    assert await wire.rest() == b"-ERR 'Account Authentication Expired'\r\n"
    assert not await is_let_in(connect, server, *user)
    web.tokens[account.public] = realm.account(account, exp=realm.now() + 3600)
    assert await is_let_in(connect, server, *user)
    assert web.asked.count(account.public) == 3


async def test_a_pushed_account_replaces_what_was_looked_up(by_url, connect, clients, realm, web):
    account = realm.new_account()
    server = await by_url()
    jwt, user = realm.user(account)
    wire = await enter(connect, server, jwt, user)
    admin_jwt, admin_key = realm.user(realm.system, "admin")
    admin = await clients(server, credentials=creds_text(admin_jwt, admin_key.seed))
    changed = realm.account(account, revocations={user.public: realm.now() + 1})
    answer = await push(admin, changed, f"$SYS.REQ.ACCOUNT.{account.public}.CLAIMS.UPDATE")
    assert answer["code"] == 200
    assert await wire.rest() == b"-ERR 'User Authentication Revoked'\r\n"
    assert not await is_let_in(connect, server, jwt, user)


async def test_accounts_that_are_imported_from_are_looked_up_too(by_url, connect, realm, web):
    exporter = realm.new_account("exporter", exports=[{"name": "e", "subject": "news.>", "type": "stream"}])
    importer = realm.new_account(
        "importer", imports=[{"name": "i", "subject": "news.>", "account": exporter.public, "type": "stream"}]
    )
    server = await by_url()
    reader = await enter(connect, server, *realm.user(importer))
    await reader.send("SUB news.> 1\r\n")
    await reader.ping()
    assert set(web.asked[-2:]) == {exporter.public, importer.public}
    writer = await enter(connect, server, *realm.user(exporter))
    await writer.send("PUB news.a 2\r\nhi\r\n")
    await writer.ping()
    assert await reader.line() == b"MSG news.a 1 2"


async def test_streams_are_there_after_a_restart(by_url, clients, realm, web, start, tmp_path):
    account = realm.new_account(limits={"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1})
    more = f'jetstream {{ store_dir: "{tmp_path}/store" }}'
    server = await by_url(more, ())
    jwt, user = realm.user(account)
    client = await clients(server, credentials=creds_text(jwt, user.seed))
    js = client.jetstream()
    await js.create_stream("S", subjects=["s.>"])
    await js.publish("s.1", b"kept")
    await client.close()
    await server.stop()
    web.asked.clear()
    server = await by_url(more, ())
    assert account.public in web.asked, "before a client asks"
    client = await clients(server, credentials=creds_text(jwt, user.seed))
    assert (await (await client.jetstream().stream("S")).info()).state.messages == 1


# How the embedded server asks and waits


@pytest.fixture
def own(web):
    """A function that makes an embedded server of a realm, with time that is moved by hand."""

    def own(realm, url=None, **more):
        web.tokens.update(realm.accounts)
        operators = OperatorOptions(tokens=(realm.operator_token(),), url=url or web.url)
        options = Options(operators=operators, system_account=realm.system.public)
        return jetlake.Server(options=options, port=0, jetstream=False, **more)

    return own


async def log_in(server, user):
    jwt, pair = user
    client = await jetlake.connect(server.url, credentials=creds_text(jwt, pair.seed), reconnect=False)
    await client.close()


async def test_nobody_else_waits_for_a_look_up(own, web):
    """Clients of other accounts come and go, those of the account share one request, and time limits all of them."""
    realm = Realm()
    slow, quick = realm.new_account(), realm.new_account()
    clock = ManualClock(time.time_ns())
    async with own(realm, clock=clock) as server:
        await log_in(server, realm.user(quick))
        web.gate.clear()
        waiting = [asyncio.create_task(log_in(server, realm.user(slow))) for _ in range(3)]
        await until(lambda: slow.public in web.asked)
        await log_in(server, realm.user(quick))
        web.gate.set()
        await asyncio.gather(*waiting)
        assert web.asked.count(slow.public) == 1
        # No answer is a refusal once the time for a login is over.
        web.gate.clear()
        mute = realm.new_account()
        wire = await Wire.open("127.0.0.1", server.port)
        jwt, pair = realm.user(mute)
        await wire.send(b"CONNECT " + json.dumps(login(wire, jwt, pair)).encode() + b"\r\nPING\r\n")
        await until(lambda: mute.public in web.asked)
        clock.advance(2.5)
        assert await wire.rest() == b"-ERR 'Authorization Violation'\r\n"
        await wire.close()


async def test_a_look_up_is_bounded(web):
    """In bytes, redirections, time and number; and a stranger gets nobody asked for what is no account."""
    realm = Realm()
    account = realm.new_account()
    operators = OperatorOptions(tokens=(realm.operator_token(),), url=web.url)
    trusted = Operators(Options(operators=operators), ManualClock(time.time_ns()), open_log(Options()))
    lookup = trusted.lookup
    head = b"HTTP/1.1 200 OK\r\n"
    for answer, problem in (
        (head + b"\r\n" + b"a" * (1024 * 1024 + 1), "too long"),
        (head + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "limit"),
        (head + b"Content-Length: 10\r\n\r\nabc", "incomplete"),
        (b"HTTP/1.1 302 Found\r\nLocation: " + account.public.encode() + b"\r\n\r\n", "status 302"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "not a URL with http"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x\xff\r\n\r\n", "no URL"),
        (b"ICY 200 OK\r\n\r\n", "HTTP"),
    ):
        web.answers[account.public] = answer
        with pytest.raises(TokenError, match=problem):
            await lookup.resolve(account.public)
    web.answers.clear()
    asked = len(web.asked)
    for name in ("", "x", "../secret", realm.user(account)[1].public):
        with pytest.raises(TokenError, match="not the public key"):
            await lookup.resolve(name)
    assert len(web.asked) == asked
    web.gate.clear()
    waiting = [asyncio.create_task(lookup.resolve(realm.key(nkeys.PREFIX_BYTE_ACCOUNT).public)) for _ in range(64)]
    await until(lambda: len(web.asked) == asked + 64)
    with pytest.raises(TokenError, match="64 others"):
        await lookup.resolve(account.public)
    await lookup.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    web.gate.set()
    web.tokens[account.public] = realm.accounts[account.public]
    await lookup.resolve(account.public)
    assert account.public in trusted.accounts


async def test_without_a_resolver_or_a_system_account_there_is_no_start(own, web):
    realm = Realm()
    with pytest.raises(ConfigError, match="could not fetch"):
        await own(realm, "http://u:secret@127.0.0.1:1/").start()
    web.answers[""] = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
    with pytest.raises(ConfigError, match="status 503"):
        await own(realm).start()
    web.answers.clear()
    server = own(realm)
    web.tokens.clear()
    with pytest.raises(ConfigError, match="account missing"):
        await server.start()


async def test_over_tls(own, monkeypatch):
    """The system's authorities vouch for the resolver, and its name must be right; the password of the URL is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server-key.pem")
    web = await Accounts().start(context)
    try:
        realm = Realm()
        account = realm.new_account()
        web.tokens.update(realm.accounts)
        with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
            await own(realm, web.url).start()
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
        async with own(realm, web.url.replace("//", "//me:a%20b@")) as server:
            await log_in(server, realm.user(account))
        assert web.heads[-1].count(f"Authorization: Basic {base64.b64encode(b'me:a b').decode()}") == 1
        assert "a%20b@" not in web.heads[-1]
    finally:
        await web.stop()
