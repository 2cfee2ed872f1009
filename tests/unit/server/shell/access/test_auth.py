"""Who a client is, decided from what it said; and what of it is kept."""

import bcrypt
import nkeys
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.auth.keys import USER, kind_of
from jetlake.server.config.options import Options, Secret, User
from jetlake.server.nkey import new_server_id, verify_signature
from jetlake.server.shell.access.auth import Authenticator
from jetlake.server.shell.access.connect_options import BadConnectError, ConnectOptions
from jetlake.server.shell.connection.traces import redact

SEED = b"SUAEL6GG2L2HIF7DUGZJGMRUFKXELGGYFMHF76UO2AYBG3K4YLWR3FKC2Q"


def say(**options):
    return ConnectOptions(**options)


def test_an_open_server_lets_everybody_in():
    open_server = Authenticator(Options())
    assert not open_server.required
    assert open_server.default.account == "$G"
    assert open_server.authenticate(say(user="whoever", password="x"), "").user == "whoever"
    assert open_server.authenticate(say(account="A"), "") is None


def test_token():
    authenticator = Authenticator(Options(token=Secret("t")))
    assert authenticator.default is None
    assert authenticator.authenticate(say(auth_token="t"), "").kind == "token"
    for wrong in (say(), say(auth_token="x"), say(user="t"), say(password="t"), say(auth_token="\ud800")):
        assert authenticator.authenticate(wrong, "") is None


def test_hashed_secrets_are_slow():
    hashed = Secret(bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode())
    users = Authenticator(Options(users=(User(name="a", password=hashed), User(name="b", password=Secret("p")))))
    assert users.is_slow(say(user="a", password="p"))
    assert users.is_slow(say(user="nobody", password="p"))  # as long as for a user, so that nobody can tell
    assert users.is_slow(say(user="b", password="p"))  # the same
    assert users.authenticate(say(user="b", password="p"), "").user == "b"
    assert not users.is_slow(say())
    assert users.authenticate(say(user="a", password="p"), "").user == "a"
    assert users.authenticate(say(user="a", password="q"), "") is None
    assert users.authenticate(say(user="nobody", password="p"), "") is None
    broken = Authenticator(Options(token=Secret("$2a$11$broken")))
    assert broken.authenticate(say(auth_token="x"), "") is None


def test_no_auth_user():
    authenticator = Authenticator(
        Options(users=(User(name="a", password=Secret("p")),), no_auth_user="a", auth_timeout_s=1.0)
    )
    assert authenticator.authenticate(say(), "").user == "a"
    assert authenticator.authenticate(say(user="a", password="wrong"), "") is None


def test_nkey():
    pair = nkeys.from_seed(bytearray(SEED))
    public = pair.public_key.decode()
    assert kind_of(public) == USER
    assert kind_of(public[:-1] + ("A" if public[-1] != "A" else "B")) is None
    for text in ("", "U", "ü", "U" * 56, "=" * 56, public.lower(), new_server_id()):
        assert kind_of(text) != USER
    import base64

    signature = base64.b64encode(pair.sign(b"nonce")).decode()
    assert verify_signature(public, b"nonce", signature)
    assert verify_signature(public, b"nonce", signature.rstrip("=").replace("+", "-").replace("/", "_"))
    assert not verify_signature(public, b"other", signature)
    authenticator = Authenticator(Options(users=(User(name=public, is_nkey=True),)))
    assert authenticator.uses_nonce
    assert authenticator.authenticate(say(nkey=public, sig=signature), "nonce").kind == "nkey"
    for wrong in (say(nkey=public), say(nkey=public, sig="x"), say(nkey="U" * 56, sig=signature), say(user=public)):
        assert authenticator.authenticate(wrong, "nonce") is None
    assert authenticator.authenticate(say(nkey=public, sig=signature), "") is None


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=90))
def test_no_text_is_a_signature_by_chance(key, signature):
    assert not verify_signature(key, b"nonce", signature)


def test_connect_options_add_up():
    first = ConnectOptions().changed_by(b'{"verbose":false,"name":"n","unknown":{"a":1},"headers":null}')
    assert (first.verbose, first.pedantic, first.name, first.headers) == (False, True, "n", False)
    second = first.changed_by(b'{"HEADERS":true,"pass":"p"}')
    assert (second.verbose, second.headers, second.name, second.password) == (False, True, "n", "p")
    kept = second.without_secrets()
    assert (kept.name, kept.password, kept.headers) == ("n", "", True)


@pytest.mark.parametrize("json", [b"", b"x", b"[]", b"5", b'{"verbose":1}', b'{"name":5}', b"{", b'{"a":' * 2000])
def test_bad_connect_options(json):
    with pytest.raises(BadConnectError):
        ConnectOptions().changed_by(json)


SECRETS = [
    b'{"pass":"hunter2"}',
    b'{"user":"a", "pass" : "hunter2" ,"auth_token":"hunter2"}',
    b'{"PASS":"hunter2"}',
    b'{"pass":"a\\"hunter2"}',
    b'{"sig":"hunter2","jwt":"hunter2","nkey":"hunter2"}',
    b'{"pass":hunter2}',
    b'{"pass":"hunter2',
]


@pytest.mark.parametrize("json", SECRETS)
def test_traces_show_no_secret(json):
    assert b"hunter2" not in redact(json)
    assert b"REDACTED" in redact(json)
