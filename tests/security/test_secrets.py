"""Secrets are compared without telling how far they were right, are shown nowhere, and have to come in time."""

import hmac

import bcrypt

from jetlake.server.config.options import Options, Secret, User
from jetlake.server.shell.access.auth import Authenticator
from jetlake.server.shell.access.connect_options import ConnectOptions

CONFIG = """
debug: true, trace: true
jetstream { store_dir: "STORE_DIR" }
authorization { users: [{user: ann, password: "s3cret-pw"}] }
"""


def test_tokens_and_passwords_are_compared_in_constant_time(monkeypatch):
    compared = []
    compare_digest = hmac.compare_digest

    def compare(one, other):
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    by_token = Authenticator(Options(token=Secret("s3cret")))
    assert by_token.authenticate(ConnectOptions(auth_token="s3creT"), "") is None
    assert by_token.authenticate(ConnectOptions(auth_token="s3cret"), "") is not None
    by_user = Authenticator(Options(users=(User(name="ann", password=Secret("s3cret")),)))
    assert by_user.authenticate(ConnectOptions(user="ann", password="s3creT"), "") is None
    assert by_user.authenticate(ConnectOptions(user="ann", password="s3cret"), "") is not None
    assert compared == [(b"s3cret", b"s3creT"), (b"s3cret", b"s3cret")] * 2


def test_an_unknown_user_takes_the_same_work_as_a_known_one(monkeypatch):
    calls = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: calls.append(pair) or False)
    authenticator = Authenticator(Options(users=(User(name="ann", password=Secret("s3cret")),)))
    assert authenticator.authenticate(ConnectOptions(user="ann", password="x"), "") is None
    assert authenticator.authenticate(ConnectOptions(user="bob", password="x"), "") is None
    assert len(calls) == 2


def test_plain_and_hashed_passwords_take_the_same_work(monkeypatch):
    hashes = [Secret(bcrypt.hashpw(b"p", bcrypt.gensalt(rounds)).decode()) for rounds in (4, 5)]
    users = [User(name=f"hashed-{number}", password=secret) for number, secret in enumerate(hashes)]
    authenticator = Authenticator(Options(users=(*users, User(name="plain", password=Secret("p")))))
    checked = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda _given, expected: checked.append(expected) or False)
    for name in ("plain", "hashed-1", "nobody"):
        assert authenticator.is_slow(ConnectOptions(user=name, password="x"))
        assert authenticator.authenticate(ConnectOptions(user=name, password="x"), "") is None
    assert checked == [hashes[1].reveal().encode()] * 3
    assert authenticator.authenticate(ConnectOptions(user="plain", password="p"), "").user == "plain"


def test_nobody_gets_in_with_an_empty_secret():
    for options in (
        Options(token=Secret("s3cret")),
        Options(users=(User(name="ann", password=Secret("s3cret")), User(name="eve"))),
    ):
        authenticator = Authenticator(options)
        for connect in (
            ConnectOptions(),
            ConnectOptions(user="ann"),
            ConnectOptions(user="", password="s3cret"),
            ConnectOptions(nkey="ann", sig="x"),
        ):
            assert authenticator.authenticate(connect, "nonce") is None


async def test_secrets_are_not_in_logs_reports_or_tracebacks(start, connect):
    server = await start(CONFIG)
    await connect(server, user="ann", **{"pass": "s3cret-pw"})
    refused = await connect(server)
    await refused.send(b'CONNECT {"user":"ann","pass":"wr0ng-pw"}\r\n')
    await refused.rest()
    from msgspec.json import encode

    from jetlake.server.shell.monitoring.connection_reports import connections_report
    from jetlake.server.shell.monitoring.query import Query
    from jetlake.server.shell.monitoring.server_report import server_report
    from jetlake.store.steps import finish

    shown = server.log + repr(server.server.options)
    connections = finish(connections_report(server.server, Query("auth=1&subs=1&state=all")))
    shown += repr(server_report(server.server, Query(""))) + encode(connections).decode()
    assert "s3cret-pw" not in shown
    assert "wr0ng-pw" not in shown
