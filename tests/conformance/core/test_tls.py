"""TLS: after INFO or before it, with and without client certificates, and what happens to those who do not speak it."""

import asyncio
import json
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "certificates"
FILES = f'cert_file: "{HERE / "server.pem"}", key_file: "{HERE / "server-key.pem"}", ca_file: "{HERE / "ca.pem"}"'


def client_context(certificate=""):
    context = ssl.create_default_context(cafile=HERE / "ca.pem")
    if certificate:
        context.load_cert_chain(HERE / f"{certificate}.pem", HERE / f"{certificate}-key.pem")
    return context


async def test_info_in_the_clear_then_tls(start, connect):
    server = await start(f"tls {{ {FILES} }}", ["no_jetstream"])
    wire = await connect(server)
    assert wire.info["tls_required"] is True
    assert "tls_verify" not in wire.info
    await wire.start_tls(client_context())
    await wire.hello()
    await wire.send(b"SUB a 1\r\n")
    payload = bytes(range(256)) * 2000
    await wire.publish("a", payload)
    assert (await wire.message()).payload == payload


async def test_flags(start, connect):
    flags = ["--tls", "--tlscert", str(HERE / "server.pem"), "--tlskey", str(HERE / "server-key.pem")]
    server = await start(flags=["no_jetstream", *flags])
    wire = await connect(server)
    await wire.start_tls(client_context())
    await wire.hello()


async def test_cleartext_is_refused(start, connect):
    server = await start(f"tls {{ {FILES} }}", ["no_jetstream"])
    wire = await connect(server)
    await wire.send(b"CONNECT {}\r\nPING\r\n")
    # nats-server has the same words, and closes before it says them.
    assert await wire.rest() == (b"-ERR 'Secure Connection - TLS Required'\r\n" if server.is_embedded else b"")


async def test_cleartext_where_it_is_allowed(start, connect):
    server = await start(f"tls {{ {FILES} }}\nallow_non_tls: true", ["no_jetstream"])
    plain = await connect(server)
    assert plain.info.get("tls_available") is True
    assert "tls_required" not in plain.info
    await plain.hello()
    secure = await connect(server)
    await secure.start_tls(client_context())
    await secure.hello()
    await secure.subscribe("x", 1)
    await secure.ping()
    await plain.publish("x", b"across")
    assert (await secure.message()).payload == b"across"


async def test_clients_must_show_a_certificate(start, connect):
    server = await start(f"tls {{ {FILES}, verify: true }}", ["no_jetstream"])
    wire = await connect(server)
    assert wire.info["tls_verify"] is True
    await wire.start_tls(client_context("client"))
    await wire.hello()
    for certificate, alert in (("", "CERTIFICATE_REQUIRED"), ("other-client", "UNKNOWN_CA")):
        refused = await connect(server)
        with pytest.raises((ssl.SSLError, OSError, EOFError)) as caught:
            # With TLS 1.3 the client learns only behind its own handshake that it was refused.
            await refused.start_tls(client_context(certificate))
            await refused.send(b"CONNECT {}\r\nPING\r\n")
            while True:
                await refused.line()
        if isinstance(caught.value, ssl.SSLError):  # not when the connection ended before the alert was read
            assert alert in caught.value.reason
    while "TLS handshake error: " not in server.log or "failed to verify certificate: " not in server.log:
        await asyncio.sleep(0.005)


async def test_handshake_first(start, connect):
    server = await start(f"tls {{ {FILES}, handshake_first: true }}", ["no_jetstream"])
    wire = await connect(server, ssl=client_context())
    assert wire.info["tls_required"] is True
    await wire.hello()


async def test_handshake_first_or_not(start, connect):
    patient = await start(f'tls {{ {FILES}, handshake_first: "60s" }}', ["no_jetstream"])
    first = await connect(patient, ssl=client_context())
    await first.hello()
    server = await start(f'tls {{ {FILES}, handshake_first: "30ms" }}', ["no_jetstream"])
    later = await connect(server)  # INFO comes when the client keeps silent
    await later.start_tls(client_context())
    await later.hello()


async def test_handshake_timeout(start, connect):
    server = await start(f"tls {{ {FILES}, timeout: 0.1 }}", ["no_jetstream"])
    wire = await connect(server)
    assert b"-ERR" not in await wire.rest()


async def test_a_broken_handshake_ends_one_connection_only(start, connect):
    server = await start(f"tls {{ {FILES} }}", ["no_jetstream"])
    good = await connect(server)
    await good.start_tls(client_context())
    await good.hello()
    for garbage in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 3000):
        broken = await connect(server)
        await broken.send(garbage)
        await broken.close()
    assert await good.ping() == b""


@pytest.mark.parametrize("count", [1, 2000])
async def test_messages_that_come_with_the_end_of_tls(start, connect, count):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    server = await start(f"tls {{ {FILES} }}", ["no_jetstream"])
    bystander = await connect(server)
    await bystander.start_tls(client_context())
    await bystander.hello()
    await bystander.subscribe("a", 1)
    assert await bystander.ping() == b""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    channel = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            channel.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65536))
    channel.write(b'CONNECT {"verbose":false}\r\nPING\r\n' + b"PUB a 1\r\nx\r\n" * count)
    with suppress(ssl.SSLWantReadError):
        channel.unwrap()
    writer.write(outgoing.read())
    for _ in range(count):
        assert (await bystander.message()).payload == b"x"
    await reader.read()
    writer.close()
    assert await bystander.ping() == b""
    assert errors == []


async def test_monitoring_names_version_and_cipher(start, connect):
    from urllib.request import urlopen

    server = await start(f"tls {{ {FILES} }}", ["no_jetstream"])
    wire = await connect(server)
    await wire.start_tls(client_context())
    await wire.hello()

    def fetch():
        with urlopen(f"http://127.0.0.1:{server.monitor_port}/connz", timeout=10) as response:
            return json.load(response)

    (connection,) = (await asyncio.get_running_loop().run_in_executor(None, fetch))["connections"]
    assert connection["tls_version"] == "1.3"
    assert connection["tls_cipher_suite"].startswith("TLS_")


@pytest.mark.parametrize("name", ["localhost", "CN=client"])
async def test_a_certificate_names_its_user(start, connect, name):
    users = f'accounts {{ A {{ users: [ {{ user: "{name}" }} ] }}\n B {{ users: [ {{ user: b, password: b }} ] }} }}'
    server = await start(f"tls {{ {FILES}, verify_and_map: true }}\n{users}", ["no_jetstream"])
    wire = await connect(server)
    assert wire.info["tls_verify"] is True
    await wire.start_tls(client_context("client"))
    await wire.hello(user="b")
    assert wire.info["remote_account"] == "A", "the certificate counts, not what CONNECT says"
    data = (await wire.request("$SYS.REQ.USER.INFO")).json["data"]
    assert (data["user"], data["account"]) == (name, "A")


@pytest.mark.parametrize("user", ["b", "localhost"], ids=["of nobody", "with a wrong password"])
async def test_a_certificate_is_not_enough(start, connect, user):
    users = f"accounts {{ A {{ users: [ {{ user: {user}, password: secret }} ] }} }}"
    server = await start(f"tls {{ {FILES}, verify_and_map: true }}\n{users}", ["no_jetstream"])
    wire = await connect(server)
    await wire.start_tls(client_context("client"))
    await wire.send(b'CONNECT {"verbose":false,"user":"b","pass":"b"}\r\nPING\r\n')
    assert await wire.rest() == b"-ERR 'Authorization Violation'\r\n"
