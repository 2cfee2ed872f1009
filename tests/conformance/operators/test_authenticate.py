"""A Python function decides who may connect: `Server(authenticate=function)`."""

import asyncio
import json
import subprocess
import sys
import threading

import nkeys
import pytest

import jetlake
from jetlake import blocking
from jetlake.errors import AuthorizationError, ConfigError, PermissionsError
from jetlake.server import Access, Options, Permissions, SubjectPermissions
from jetlake.server.config.options import AccountOptions, CalloutOptions, Secret, User
from jetlake.server.shell.log import LineLog
from jetlake.testing import ManualClock
from tests.support.clients import TIMEOUT_S, key, until
from tests.support.operators import Realm
from tests.support.wire import Wire

NO_JETSTREAM = {"jetstream": False}


def guest(request):
    """By token or password; plain."""
    if request.token == "t0k3n":
        return Access(user="guest", permissions=Permissions(publish=SubjectPermissions(allow=("public.>",))))
    return request.user == "ann" and request.password == "s3cr3t"


async def later(request):
    await asyncio.sleep(0)
    return guest(request)


class Callable:
    async def __call__(self, request):
        return guest(request)


@pytest.mark.parametrize("function", [guest, later, Callable()], ids=["plain", "coroutine", "object"])
async def test_a_function_decides(function):
    async with jetlake.Server(authenticate=function, **NO_JETSTREAM) as server:
        assert server.options.token is None
        async with jetlake.connect(server.url, user="ann", password="s3cr3t") as client:
            await client.publish("anywhere", b"")
        async with jetlake.connect(server.url, token="t0k3n") as client:
            await client.publish("public.x", b"")
            with pytest.raises(PermissionsError):
                await client.request("private", b"")
        for wrong in ({}, {"token": "x"}, {"user": "ann", "password": "x"}):
            with pytest.raises(AuthorizationError):
                await jetlake.connect(server.url, **wrong)


async def test_blocking_servers_too():
    def decide(request):
        return request.user == "ann"

    def check():
        with blocking.Server(authenticate=decide, **NO_JETSTREAM) as server:
            with blocking.connect(server.url, user="ann", password="x") as client:
                client.publish("a", b"")
            with pytest.raises(AuthorizationError):
                blocking.connect(server.url, user="bob", password="x")

    await asyncio.to_thread(check)


async def test_a_key_counts_when_it_has_signed():
    seen = []

    def decide(request):
        seen.append(request)
        return bool(request.nkey)

    pair, seed = key(nkeys.PREFIX_BYTE_USER, 5)
    public = pair.public_key.decode()
    async with jetlake.Server(authenticate=decide, **NO_JETSTREAM) as server:
        async with jetlake.connect(server.url, nkey_seed=seed, name="worker"):
            assert seen[0].nkey == public
            assert (seen[0].name, seen[0].host, seen[0].connection_type) == ("worker", "127.0.0.1", "STANDARD")
        wire = await Wire.open("127.0.0.1", server.port)
        await wire.send(b'CONNECT {"nkey":"%b","sig":"AAAA"}\r\nPING\r\n' % public.encode())
        assert b"Authorization Violation" in await wire.rest()
        assert seen[1].nkey == ""
        await wire.close()
    assert "s3cr3t" not in repr(seen[0])


async def test_accounts_users_and_expiry():
    options = Options(
        accounts=(AccountOptions(name="APP"),),
        users=(User(name="admin", password=Secret("pwd"), account="APP"),),
    )
    clock = ManualClock()

    def decide(request):
        assert request.user != "admin"
        return Access(account=request.user, expires_s=10, user="somebody")

    server = jetlake.Server(authenticate=decide, options=options, clock=clock)
    clock.on_move(server.clock_moved)
    async with server:
        async with jetlake.connect(server.url, user="admin", password="pwd") as admin:
            report = json.loads((await admin.request("$SYS.REQ.USER.INFO")).payload)["data"]
            assert report["user"] == "admin"
        with pytest.raises(AuthorizationError):
            await jetlake.connect(server.url, user="admin", password="x")
        with pytest.raises(AuthorizationError):
            await jetlake.connect(server.url, user="NOWHERE", password="x")
        wire = await (await Wire.open("127.0.0.1", server.port)).hello(user="APP")
        assert wire.info["remote_account"] == "APP"
        answer = json.loads((await wire.request("$SYS.REQ.USER.INFO")).payload)["data"]
        assert answer["user"] == "somebody"
        clock.advance(11)
        assert await wire.rest() == b"-ERR 'User Authentication Expired'\r\n"
        await wire.close()


def raises(request):
    raise RuntimeError("no database")


def ends(request):
    raise SystemExit("goodbye")


async def ends_later(request):
    raise SystemExit("goodbye")


@pytest.mark.parametrize("function", [ends, ends_later])
async def test_a_function_that_ends_the_program_ends_no_server(function):
    async with jetlake.Server(authenticate=function, **NO_JETSTREAM) as server:
        for _ in range(2):
            with pytest.raises(AuthorizationError):
                await jetlake.connect(server.url, user="x", password="y")


@pytest.mark.parametrize("given", ["yes", 1, object(), {"user": "x"}, b"", [True]])
async def test_what_is_no_answer_is_a_refusal(given, tmp_path):
    log = LineLog(str(tmp_path / "log"))
    async with jetlake.Server(authenticate=lambda request: given, log=log, **NO_JETSTREAM) as server:
        with pytest.raises(AuthorizationError):
            await jetlake.connect(server.url, user="x", password="y")
    log.close()
    assert "authenticate returned" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Access(permissions=Permissions(publish=SubjectPermissions(allow="a.>"))), "tuple of subjects"),
        (lambda: Access(permissions=Permissions(publish=SubjectPermissions(deny=("a. >",)))), "'a. >' is not a valid"),
        (lambda: Access(permissions=Permissions(subscribe=SubjectPermissions(deny=("a..b",)))), "'a..b' is not a"),
        (lambda: Access(permissions="everything"), "$.permissions"),
        (lambda: Access(permissions=Permissions(publish=("a",))), "$.permissions.publish"),
        (lambda: Access(max_payload="5"), "$.max_payload"),
        (lambda: Access(expires_s=float("nan")), "NaN"),
    ],
)
async def test_an_access_that_makes_no_sense_is_a_refusal(make, complaint, tmp_path):
    log = LineLog(str(tmp_path / "log"))
    async with jetlake.Server(authenticate=lambda request: make(), log=log, **NO_JETSTREAM) as server:
        with pytest.raises(AuthorizationError):
            await jetlake.connect(server.url, user="x", password="y")
        assert server.defects == 0
    log.close()
    assert complaint in (tmp_path / "log").read_text()


async def test_failures_and_silence_are_refusals(tmp_path):
    """Of functions that raise, never end, or hold on when they are cancelled; clients that are gone cost nothing."""
    release, hold = threading.Event(), asyncio.Event()
    started = []

    async def forever(request):
        started.append(request.user)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if request.user == "stubborn":
                await hold.wait()
            raise

    def blocks(request):
        started.append(request.user)
        release.wait(60)
        return True

    def choose(request):
        return {"raises": raises, "blocks": blocks}.get(request.user, forever)(request)

    clock = ManualClock()
    log = LineLog(str(tmp_path / "log"))
    server = jetlake.Server(authenticate=choose, clock=clock, log=log, **NO_JETSTREAM)
    clock.on_move(server.clock_moved)
    async with server:
        wires = []
        for user in ("raises", "silent", "stubborn", "blocks"):
            wire = await Wire.open("127.0.0.1", server.port)
            await wire.send(b'CONNECT {"user":"%b"}\r\nSUB a 1\r\nPUB a 0\r\n\r\nPING\r\n' % user.encode())
            wires.append(wire)
        gone = await Wire.open("127.0.0.1", server.port)
        await gone.send(b'CONNECT {"user":"silent"}\r\nPING\r\n')
        await until(lambda: sorted(started) == ["blocks", "silent", "silent", "stubborn"])
        await gone.close()
        clock.advance(3)
        for wire in wires:
            assert await wire.rest() == b"-ERR 'Authorization Violation'\r\n"
            await wire.close()
        await until(lambda: not server.connections)
        release.set()
        hold.set()
        assert server.defects == 0
    log.close()
    text = (tmp_path / "log").read_text()
    assert "no database" in text and "Traceback" not in text
    assert "no decision about the client within the authentication timeout" in text


async def test_functions_that_hang_are_bounded_and_clients_who_waited_are_forgotten():
    release, asked = threading.Event(), []

    def decide(request):
        asked.append(request.user)
        return release.wait(60)

    clock = ManualClock()
    server = jetlake.Server(authenticate=decide, clock=clock, **NO_JETSTREAM)
    clock.on_move(server.clock_moved)
    async with server:
        wires = [await Wire.open("127.0.0.1", server.port) for _ in range(20)]
        for wire in wires:
            await wire.send(b'CONNECT {"user":"early"}\r\nPING\r\n')
        await until(lambda: len(asked) == 8)
        clock.advance(3)
        for wire in wires:
            assert await wire.rest() == b"-ERR 'Authorization Violation'\r\n"
            await wire.close()
        release.set()
        async with jetlake.connect(server.url, user="late", password="x"):
            pass
    assert asked == [*["early"] * 8, "late"]


PROGRAM = """
import asyncio, threading
import jetlake
from jetlake.server import Options

async def main():
    options = Options(jetstream=None, auth_timeout_s=0.1)
    async with jetlake.Server(authenticate=lambda request: threading.Event().wait(), options=options) as server:
        try:
            await jetlake.connect(server.url, user="x", password="y")
        except jetlake.errors.AuthorizationError:
            print("refused")

asyncio.run(main())
"""


def test_a_function_that_never_returns_keeps_no_program_from_ending():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout == "refused\n", done.stderr


async def test_an_account_that_goes_while_the_function_thinks():
    options = Options(accounts=(AccountOptions(name="APP"),))

    async def decide(request):
        if request.user == "late":
            server.reload(server.options.replace(accounts=()))
        return Access(account="APP")

    async with jetlake.Server(authenticate=decide, options=options) as server:
        async with jetlake.connect(server.url, user="early", password="x"):
            pass
        with pytest.raises(AuthorizationError):
            await jetlake.connect(server.url, user="late", password="x")


async def test_only_one_decides():
    realm = Realm()
    from jetlake.server.config.operator_options import OperatorOptions

    operators = OperatorOptions(tokens=(realm.operator_token(),), preload=tuple(realm.accounts.items()))
    callout = CalloutOptions(issuer=realm.system.public, account="$G", users=("x",))
    for options in (Options(operators=operators), Options(callout=callout), Options(token=Secret("x"))):
        with pytest.raises(ConfigError, match="authenticate="):
            jetlake.Server(authenticate=guest, options=options)
