"""INFO in, CONNECT out: which credentials are sent, and which servers are refused."""

import json

import pytest

from jetlake.client.connection.handshake import ServerInfo, complaint, connect_frame, read_info, tls_context
from jetlake.client.settings.options import build_options
from jetlake.client.settings.server_address import parse_address
from jetlake.errors import AuthorizationError, ConfigError, PermissionsError, ServerError, StaleConnectionError

INFO = ServerInfo(headers=True)


def sent(info=INFO, address="h", secure=False, **options):
    frame = connect_frame(build_options(**options), parse_address(address), info, secure=secure)
    assert frame.startswith(b"CONNECT ") and frame.endswith(b"\r\n")
    return json.loads(frame[8:])


@pytest.fixture
def seed():
    import nkeys

    return nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()


def test_what_every_connect_says():
    assert sent(name="worker") == {
        "verbose": False,
        "pedantic": False,
        "tls_required": False,
        "headers": True,
        "no_responders": True,
        "echo": True,
        "protocol": 1,
        "lang": "python3",
        "version": "0.1.0",
        "name": "worker",
    }


def test_without_headers_there_are_no_responders():
    said = sent(ServerInfo(headers=False))
    assert said["headers"] is False
    assert said["no_responders"] is False


@pytest.mark.parametrize(
    ("address", "options", "expected"),
    [
        ("h", {"user": "u", "password": "p"}, {"user": "u", "pass": "p"}),
        ("h", {"token": "t"}, {"auth_token": "t"}),
        ("nats://u:p@h", {}, {"user": "u", "pass": "p"}),
        ("nats://t@h", {}, {"auth_token": "t"}),
        ("nats://other:x@h", {"user": "u", "password": "p"}, {"user": "u", "pass": "p"}),
    ],
)
def test_logins(address, options, expected):
    said = sent(address=address, **options)
    assert {key: said[key] for key in ("user", "pass", "auth_token") if key in said} == expected


def test_echo_and_tls():
    said = sent(echo=False, secure=True)
    assert said["echo"] is False
    assert said["tls_required"] is True


def test_an_nkey_signs_the_nonce(seed):
    import base64

    import nkeys

    said = sent(ServerInfo(headers=True, nonce="abc"), nkey_seed=seed)
    signature = base64.urlsafe_b64decode(said["sig"] + "==")
    assert nkeys.from_seed(seed.encode()).verify(b"abc", signature)
    assert said["nkey"].startswith("U")
    assert "jwt" not in said


def test_credentials_send_the_jwt(seed, tmp_path):
    text = f"""-----BEGIN NATS USER JWT-----
header.body.signature
------END NATS USER JWT------

************************* IMPORTANT *************************

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
    path = tmp_path / "user.creds"
    path.write_text(text)
    for credentials in (path, str(path), text):
        said = sent(ServerInfo(headers=True, nonce="abc"), credentials=credentials)
        assert said["jwt"] == "header.body.signature"
        assert said["sig"]
        assert "nkey" not in said


def test_a_seed_may_be_in_a_file(seed, tmp_path):
    path = tmp_path / "user.nk"
    path.write_text(f"# my key\n{seed}\n")
    assert build_options(nkey_seed=path).credentials.public_key == build_options(nkey_seed=seed).credentials.public_key


def test_a_server_without_nonce_takes_no_nkeys(seed):
    with pytest.raises(AuthorizationError, match="nonce"):
        sent(nkey_seed=seed)


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("nkey_seed", "nothing here", "no seed"),
        ("credentials", "nothing here", "both sections"),
        ("nkey_seed", "S" + "A" * 60, "not an nkey seed"),
    ],
)
def test_broken_files_are_refused_without_their_content(option, text, words, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        build_options(**{option: path})
    assert text not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="missing"):
        build_options(credentials=tmp_path / "missing")


@pytest.mark.parametrize(
    ("address", "options", "info", "has_tls"),
    [
        ("h", {}, ServerInfo(), False),
        ("h", {}, ServerInfo(tls_required=True), True),
        ("h", {}, ServerInfo(tls_available=True), False),
        ("tls://h", {}, ServerInfo(tls_available=True), True),
        ("h", {"tls": True}, ServerInfo(tls_required=True), True),
        ("h", {"tls": False}, ServerInfo(tls_available=True), False),
        ("h", {}, None, False),
        ("h", {"tls_handshake_first": True}, None, True),
    ],
)
def test_when_tls_is_used(address, options, info, has_tls):
    assert (tls_context(build_options(**options), parse_address(address), info) is not None) is has_tls


@pytest.mark.parametrize(
    ("address", "options", "info"),
    [
        ("tls://h", {}, ServerInfo()),
        ("h", {"tls": True}, ServerInfo()),
        ("h", {"tls": False}, ServerInfo(tls_required=True)),
    ],
)
def test_tls_that_does_not_agree_is_refused(address, options, info):
    with pytest.raises(ConfigError, match="TLS"):
        tls_context(build_options(**options), parse_address(address), info)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization Violation", AuthorizationError),
        ("Authentication Timeout", AuthorizationError),
        ("User Authentication Expired", AuthorizationError),
        ("Stale Connection", StaleConnectionError),
        ('Permissions Violation for Publish to "x"', PermissionsError),
        ("Invalid Subject", ServerError),
    ],
)
def test_complaints(text, kind):
    assert type(complaint(text)) is kind


def test_info_that_is_none():
    with pytest.raises(ServerError):
        read_info(b"nonsense")
    assert read_info(b'{"server_id":"x","bogus":1,"connect_urls":["a:1"]}').connect_urls == ("a:1",)
