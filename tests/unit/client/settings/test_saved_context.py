"""Contexts that the `nats` command saved, and what a connection takes from them."""

import base64
import json

import nkeys
import pytest

from jetlake.client.settings.options import build_options
from jetlake.client.settings.saved_context import read_context, saved_context_names, selected_context
from jetlake.errors import InvalidOptionError

SEED = nkeys.encode_seed(bytes([7] * 32), nkeys.PREFIX_BYTE_USER).decode()
CREDS = (
    f"-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig\n------END NATS USER JWT------\n"
    f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
)


@pytest.fixture
def save(tmp_path, monkeypatch):
    """A function that saves a context as the `nats` command does."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)

    def save(name, /, **keys):
        (folder / f"{name}.json").write_text(json.dumps(keys))

    return save


def test_servers_login_and_prefixes(save):
    save(
        "prod",
        description="the real one",
        url="nats://a:4222, tls://b",
        user="me",
        password="secret",
        inbox_prefix="_MINE",
        jetstream_domain="hub",
        tls_first=True,
        color_scheme="red",
        nsc=None,
    )
    options = build_options(context="prod")
    assert [str(one) for one in options.servers] == ["nats://a:4222", "tls://b:4222"]
    assert (options.user, options.password) == ("me", "secret")
    assert (options.inbox_prefix, options.jetstream_domain, options.tls_handshake_first) == ("_MINE", "hub", True)


def test_arguments_win_over_the_context(save):
    save("prod", url="nats://a", user="me", password="secret", inbox_prefix="_MINE", jetstream_api_prefix="JS.there")
    options = build_options("nats://other", context="prod", token="t", inbox_prefix="_OURS")
    assert [str(one) for one in options.servers] == ["nats://other:4222"]
    assert (options.user, options.password, options.token) == ("", "", "t")
    assert (options.inbox_prefix, options.jetstream_prefix) == ("_OURS", "JS.there")


def test_an_empty_context_is_the_local_server(save):
    save("empty")
    assert [str(one) for one in build_options(context="empty").servers] == ["nats://127.0.0.1:4222"]


def test_the_selected_one(save, tmp_path, monkeypatch):
    save("one", url="nats://one")
    save("two", url="nats://two")
    assert selected_context() is None
    with pytest.raises(InvalidOptionError, match="nats context select"):
        build_options(context=True)
    (tmp_path / "nats" / "context.txt").write_text("two\n")
    assert saved_context_names() == ["one", "two"]
    assert str(build_options(context=True).servers[0]) == "nats://two:4222"
    assert str(build_options(context=False).servers[0]) == "nats://127.0.0.1:4222"
    monkeypatch.setenv("NATS_CONTEXT", "one")
    assert str(build_options(context=True).servers[0]) == "nats://one:4222"


def test_the_folder_of_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "ngs.js.json").write_text('{"url": "nats://ngs"}')
    assert read_context("ngs.js").url == "nats://ngs"


def test_the_order_of_logins(save, tmp_path, monkeypatch):
    (tmp_path / "my.creds").write_text(CREDS)
    (tmp_path / "my.nk").write_text(f"# the seed\n{SEED}\n")
    monkeypatch.setenv("KEYS", str(tmp_path))
    keys = {"creds": "$KEYS/my.creds", "nkey": "file://$KEYS/my.nk", "user_jwt": "j.w.t", "user_seed": SEED}
    save("c", **keys)
    assert build_options(context="c").credentials.jwt == "eyJ0.eyJq.sig"
    save("c", **{**keys, "creds": ""})
    assert build_options(context="c").credentials.jwt == ""
    save("c", **{**keys, "creds": "", "nkey": ""})
    assert build_options(context="c").credentials.jwt == "j.w.t"
    save("c", token="t")
    assert build_options(context="c").token == "t"


def test_references(save, tmp_path, monkeypatch):
    (tmp_path / "password").write_text("from a file\n")
    monkeypatch.setenv("MY_TOKEN", "from a variable")
    save("c", user="u", password=f"file://{tmp_path}/password")
    assert build_options(context="c").password == "from a file"
    save("c", token="env://MY_TOKEN")
    assert build_options(context="c").token == "from a variable"
    save("c", creds="data:;base64," + base64.b64encode(CREDS.encode()).decode())
    assert build_options(context="c").credentials.jwt == "eyJ0.eyJq.sig"


def program(folder, name, text):
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_programs_that_keep_secrets(save, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "team.creds").write_text(CREDS)
    profile = {"user_creds": f"{tmp_path}/team.creds", "operator": {"service": ["nats://a", "nats://b"]}}
    program(tmp_path, "nsc", f"[ \"$*\" = 'generate profile nsc://op/team/me' ] && echo '{json.dumps(profile)}'")
    save("c", nsc="nsc://op/team/me")
    options = build_options(context="c")
    assert [str(one) for one in options.servers] == ["nats://a:4222", "nats://b:4222"]
    assert options.credentials.jwt == "eyJ0.eyJq.sig"
    save("c", nsc="nsc://op/team/me", url="nats://own")
    assert [str(one) for one in build_options(context="c").servers] == ["nats://own:4222"]
    program(tmp_path, "op", "[ \"$*\" = 'read op://vault/item/field' ] && echo sesame")
    save("c", token="op://vault/item/field")
    assert build_options(context="c").token == "sesame"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"url": 5}, "context 'c'.*url"),
        ({"socks_proxy": "socks5://x"}, "socks_proxy"),
        ({"windows_cert_store": "user"}, "windows_cert_store"),
        ({"user_jwt": "j.w.t"}, "user_seed"),
        ({"token": "env://NOT_SET_HERE"}, "NOT_SET_HERE"),
        ({"password": "file:///no/such/file", "user": "u"}, "/no/such/file"),
        ({"token": "data:;base64,???"}, "base64"),
        ({"token": "op://vault/item"}, "'op'.*not installed"),
        ({"nsc": "nsc://a/b/c"}, "'nsc'.*not installed"),
        ({"creds": "/no/such.creds"}, "no/such.creds"),
        ({"ca": "/no/such.pem"}, "TLS files"),
    ],
)
def test_what_cannot_work_is_refused(save, monkeypatch, tmp_path, keys, words):
    monkeypatch.setenv("PATH", str(tmp_path))
    save("c", **keys)
    with pytest.raises(InvalidOptionError, match=words):
        build_options(context="c")


@pytest.mark.parametrize("keys", [{"creds": "FILE"}, {"nkey": "FILE"}, {"token": "file://FILE"}])
def test_a_file_that_may_have_no_end_is_refused(save, tmp_path, keys):
    file = tmp_path / "zero"
    file.write_text("\0" * 1_000_001)
    save("c", **{key: value.replace("FILE", str(file)) for key, value in keys.items()})
    with pytest.raises(InvalidOptionError, match=r"zero'.* too long"):
        build_options(context="c")


@pytest.mark.parametrize("name", ["nobody", "../c", "a/b"])
def test_a_context_that_is_not_there(save, name):
    save("c")
    with pytest.raises(InvalidOptionError, match="saved ones: c"):
        build_options(context=name)


def test_a_file_that_is_no_json(save, tmp_path):
    save("c")
    (tmp_path / "nats" / "context" / "c.json").write_text("[1]")
    with pytest.raises(InvalidOptionError, match="context 'c'"):
        build_options(context="c")
