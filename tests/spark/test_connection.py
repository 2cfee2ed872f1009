"""Logins and TLS as the options give them: by their content, because executors do not have the driver's files."""

from __future__ import annotations

import subprocess

import nkeys
import pytest

from jetlake.client.tables.stream_api import retrying
from jetlake.errors import AuthorizationError, ConfigError, NoServersError
from jetlake.spark.options.connection_options import ConnectionOptions, open_connection


def options(server, **given):
    return ConnectionOptions.of({"servers": server.url, "retryFor": "0s", **given})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
    )
    return folder


def test_tls_with_certificates_as_text(start_server, certificates):
    cert, key = certificates / "cert.pem", certificates / "key.pem"
    flags = ("--tls", "--tlscert", str(cert), "--tlskey", str(key), "--tlsverify", "--tlscacert", str(cert))
    server = start_server(*flags)
    pair = {"tls.cert": cert.read_text(), "tls.keySecret": key.read_text()}
    with open_connection(options(server, **{"tls.ca": cert.read_text()}, **pair)) as connection:
        connection.flush()
    with open_connection(options(server, **{"tls.ca": str(cert)}, **pair)) as connection:
        connection.flush()
    with pytest.raises(NoServersError, match="certificate"):
        open_connection(options(server, tls="true"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tls.ca": "/no/such/file"}, r"option tls\.ca is neither PEM text nor a file"),
        ({"tls.ca": "-----BEGIN CERTIFICATE-----\nnope\n-----END CERTIFICATE-----"}, "cannot be loaded"),
        ({"auth.nkeySecret": "SUnope"}, "nkey_seed"),
        (
            {"auth.credsSecret": "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------"},
            "needs both sections",
        ),
    ],
)
def test_credentials_that_cannot_be_used(given, reason):
    with pytest.raises(ConfigError, match=reason):
        open_connection(ConnectionOptions.of({"servers": "nats://127.0.0.1:1", **given}))


def test_an_nkey(start_server, tmp_path):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    config = tmp_path / "server.conf"
    config.write_text(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    server = start_server("-c", str(config))
    with open_connection(options(server, **{"auth.nkeySecret": seed.decode()})) as connection:
        connection.flush()
    other = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode()
    with pytest.raises(AuthorizationError):
        open_connection(options(server, **{"auth.nkeySecret": other}))


def test_connections_are_kept_for_the_next_task(server):
    settings = options(server, requestTimeout="4s")
    with settings.lease() as first:
        pass
    with settings.lease() as second:
        assert second is first
        with settings.lease() as third:
            assert third is not first
    with pytest.raises(RuntimeError), settings.lease() as broken:
        raise RuntimeError
    assert broken.closed


def test_a_kept_connection_that_died_is_replaced(start_server):
    server = start_server()
    settings = options(server, retryFor="20s")
    with settings.lease() as first:
        pass
    server.kill()
    server.start()
    assert retrying(settings, lambda connection: connection.flush() or connection) is not first
