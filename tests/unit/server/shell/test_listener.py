"""The listener over TLS, with sockets: handshakes that stall, fail or end with the first data."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from jetlake.server.config.options import TlsOptions
from jetlake.server.shell.access.tls import server_context
from jetlake.server.shell.listener import TcpListener
from jetlake.server.shell.tls_socket import TlsListening

CERTIFICATES = Path(__file__).parents[3] / "conformance/certificates"


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def client_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(CERTIFICATES / "ca.pem")
    return context


@pytest.fixture
async def listener():
    listener = TcpListener()
    options = TlsOptions(cert_file=str(CERTIFICATES / "server.pem"), key_file=str(CERTIFICATES / "server-key.pem"))
    tls = TlsListening(server_context(options), 60.0, lambda: len(listener.handshakes) < 3)
    await listener.start("127.0.0.1", 0, Echo, tls)
    yield listener
    listener.close()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def test_handshakes_that_stall_are_counted_and_replaced_when_they_end(listener):
    stalled = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
    await until(lambda: len(listener.handshakes) == 3)
    refused, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    with suppress(ConnectionResetError):
        assert not await refused.read()
    writer.close()
    stalled.pop()[1].close()
    await until(lambda: len(listener.handshakes) == 2)
    stalled[0][1].write(b"no TLS at all\r\n")
    await until(lambda: len(listener.handshakes) == 1)
    tls = {"ssl": client_context(), "server_hostname": "x"}
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, **tls)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    assert len(listener.handshakes) == 1, "a connection is no handshake any more"
    listener.close()
    await until(lambda: not listener.handshakes)
    assert not await stalled[1][0].read()
    writer.write(b"again")
    assert await reader.readexactly(5) == b"again", "connections stay open"
    writer.transport.abort()
    for _, each in stalled:
        each.close()


async def test_data_that_comes_with_the_end_of_the_handshake_is_not_lost(listener):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="x")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65536))
    client.write(b"one")
    client.write(b"two")
    writer.write(outgoing.read())  # the client's last message of the handshake, and these
    received = b""
    while len(received) < 6:
        incoming.write(await reader.read(65536))
        try:
            received += client.read()
        except ssl.SSLWantReadError:
            continue
    assert received == b"onetwo"
    writer.transport.abort()
