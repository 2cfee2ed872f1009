"""A WebSocket without a socket: times, bounds and back-pressure."""

import asyncio
import zlib
from itertools import count

import pytest
from websockets.frames import Frame, Opcode

from jetlake.server.config.options import WebSocketOptions
from jetlake.server.shell.websocket import listener
from jetlake.server.shell.websocket.listener import WebSocketListener

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n'
COMPRESSED = 0x40


def masked(data, opcode=Opcode.BINARY):
    return Frame(opcode, data).serialize(mask=True)


@pytest.fixture
def open_socket(make_server, connect):
    """A function that opens a socket of a listener with these options, over a transport that only remembers."""

    def open_socket(upgrade=UPGRADE, *, max_payload=1000, **options):
        server = make_server(websocket=WebSocketOptions(no_tls=True, **options), max_payload=max_payload)
        server.websocket = WebSocketListener(server._services, server.make_connection, server._connection_table)
        transport = type(connect(server).transport)()
        protocol = server.websocket._make_protocol()
        protocol.connection_made(transport)
        if upgrade:
            protocol.data_received(upgrade + b"\r\n")
        return server, protocol, transport

    return open_socket


async def written(transport):
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    data = b"".join(transport.written)
    transport.written.clear()
    return data


async def until(condition):
    """Give the loop its turns: a busy server unpacks what it has received when the client's turn comes."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def test_an_upgrade_that_takes_too_long_is_dropped(open_socket, clock):
    server, protocol, transport = open_socket(b"", handshake_timeout_s=3)
    protocol.data_received(UPGRADE)
    clock.advance(2.9)
    assert not transport.aborted
    clock.advance(0.2)
    assert transport.aborted
    assert len(server.connections) == 1  # that of the fixture


async def test_after_the_upgrade_the_time_is_the_clients_own(open_socket, clock):
    _, protocol, transport = open_socket()
    protocol.data_received(masked(HELLO))
    clock.advance(60)
    assert not transport.aborted
    assert b"PONG" in await written(transport)


async def test_the_frames_of_the_upgrades_own_read_are_not_lost(open_socket):
    _, protocol, transport = open_socket(b"")
    protocol.data_received(UPGRADE + b"\r\n" + masked(HELLO))
    assert b"PONG" in await written(transport)


async def test_a_stopping_server_drops_sockets_in_their_upgrade(open_socket):
    server, _, transport = open_socket(b"")
    server.websocket.close()
    assert transport.aborted


async def test_sockets_in_their_upgrade_are_counted(open_socket, monkeypatch):
    monkeypatch.setattr(listener, "_BEGINNING_MAX", 2)
    server, _, first = open_socket(b"")
    others = [type(first)() for _ in range(2)]
    for transport in others:
        server.websocket._make_protocol().connection_made(transport)
    assert [transport.aborted for transport in (first, *others)] == [False, False, True]


async def test_sockets_in_their_upgrade_leave_the_store_its_files(open_socket):
    server, _, first = open_socket(b"")
    server._connection_table.limit_to(4)  # clients, and one that is told that there is no room
    others = [type(first)() for _ in range(5)]  # beside the client of the fixture
    for transport in others:
        server.websocket._make_protocol().connection_made(transport)
    assert [transport.aborted for transport in (first, *others)] == [False] * 4 + [True] * 2


async def test_a_message_beyond_the_limit_is_refused_by_its_first_bytes(open_socket):
    _, protocol, transport = open_socket()
    await written(transport)
    head = masked(bytes(2 * 1024 * 1024))[:14]
    protocol.data_received(head)
    data = await written(transport)
    assert data[:4] == b"\x88" + data[1:2] + (1009).to_bytes(2)
    assert transport.closed


async def test_fragments_count_together(open_socket):
    _, protocol, transport = open_socket()
    await written(transport)
    fragment = Frame(Opcode.CONT, bytes(500_000), fin=False).serialize(mask=True)
    # Part of a payload that is never complete, so that the connection only keeps it.
    protocol.data_received(Frame(Opcode.BINARY, b"PUB a 1048000\r\n", fin=False).serialize(mask=True))
    for _ in range(3):
        protocol.data_received(fragment)
    await until(lambda: transport.closed)


async def test_a_compression_bomb_inflates_to_no_more_than_the_limit(open_socket):
    _, protocol, transport = open_socket(UPGRADE + DEFLATE, compression=True)
    await written(transport)
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = (bomb.compress(bytes(50 * 1024 * 1024)) + bomb.flush(zlib.Z_SYNC_FLUSH))[:-4]
    frame = bytearray(Frame(Opcode.BINARY, packed).serialize(mask=True))
    frame[0] |= COMPRESSED
    protocol.data_received(bytes(frame))
    await until(lambda: transport.closed)
    data = await written(transport)
    assert (1009).to_bytes(2) in data
    assert transport.closed


async def test_many_small_bombs_wait_for_the_client_to_read(open_socket):
    """Each is within the limit; together they would be far beyond it if the connection did not hold them back."""
    _, protocol, transport = open_socket(UPGRADE + DEFLATE, compression=True)
    received = []
    client = protocol._client
    handle = client.data_received

    def receive(data):
        received.append(len(data))
        if len(data) > 100_000:
            protocol.set_reading(False)
        else:
            handle(data)

    client.data_received = receive
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = (packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
    frame = bytearray(Frame(Opcode.BINARY, packed).serialize(mask=True))
    frame[0] |= COMPRESSED
    protocol.data_received(bytes(frame) * 200)
    await asyncio.sleep(0)
    assert sum(received) < 5_000_000
    assert not transport.is_reading
    before = sum(received)
    protocol.set_reading(True)
    await asyncio.sleep(0)
    assert before < sum(received) < before + 10_000_000


async def test_a_flood_of_pings_leaves_the_loop_to_others(open_socket):
    server, protocol, transport = open_socket()
    await written(transport)
    server.engine_loop.ticks = count(1, 0.0001).__next__
    flood = masked(b"", Opcode.PING) * 40_000
    protocol.data_received(flood)
    assert not transport.is_reading
    first = sum(map(len, transport.written))
    assert 0 < first < 2 * 40_000
    await until(lambda: transport.is_reading)
    assert sum(map(len, transport.written)) == 2 * 40_000


async def test_a_client_that_takes_no_pongs_is_not_read_from(open_socket):
    _, protocol, transport = open_socket()
    await written(transport)
    protocol.pause_writing()
    protocol.data_received(masked(b"x", Opcode.PING))
    assert (transport.written, transport.is_reading) == ([], False)
    protocol.resume_writing()
    await until(lambda: transport.is_reading)
    assert transport.written == [b"\x8a\x01x"]


async def test_many_busy_sockets_share_a_turn(open_socket):
    server, *first = open_socket()
    sockets = [first]
    for _ in range(19):
        protocol, transport = server.websocket._make_protocol(), type(first[1])()
        protocol.connection_made(transport)
        protocol.data_received(UPGRADE + b"\r\n")
        sockets.append([protocol, transport])
    for _, transport in sockets:
        await written(transport)
    server.engine_loop.ticks = count(1, 0.0002).__next__
    for protocol, _ in sockets:
        protocol.data_received(masked(b"", Opcode.PING) * 10_000)
    assert sum(bool(transport.written) for _, transport in sockets) < 5, "the turn has no time for all of them"
    assert not any(transport.is_reading for _, transport in sockets)
    pongs = [0]
    while sum(pongs) < 20 * 2 * 10_000:
        before = sum(pongs)
        await asyncio.sleep(0)
        pongs = [sum(map(len, transport.written)) for _, transport in sockets]
        assert sum(pongs) - before < 20_000, "a turn is bounded, however many wait"
        assert max(pongs) - min(pongs) < 20_000, "and they take turns"


async def test_a_defect_ends_its_own_socket(open_socket, monkeypatch):
    server, protocol, transport = open_socket()
    monkeypatch.setattr(protocol._core, "receive", lambda _piece: 1 / 0)
    protocol.data_received(masked(HELLO))
    assert transport.aborted
    assert server.defects == 1


async def test_a_slow_consumer_is_cut_off(open_socket, clock):
    server, protocol, transport = open_socket()
    protocol.pause_writing()
    clock.advance(10.1)
    assert transport.aborted
    assert server.statistics.slow_consumers == 1


async def test_what_comes_after_the_end_is_ignored(open_socket):
    server, protocol, transport = open_socket()
    protocol.data_received(masked(HELLO))
    protocol.data_received(masked(b"", Opcode.CLOSE) + masked(b"PUB a 1\r\nx\r\n"))
    await until(lambda: transport.closed)
    protocol.data_received(masked(HELLO))
    protocol.connection_lost(None)
    assert protocol not in server.websocket.upgrading
    assert server.defects == 0


@pytest.mark.parametrize(
    ("given", "address"), [(b"10.1.2.3", "10.1.2.3"), (b"fe80::1", "fe80::1"), (b"::1%\xff any text", ""), (b"x", "")]
)
async def test_only_an_address_is_forwarded(open_socket, given, address):
    server, _, _ = open_socket(UPGRADE + b"X-Forwarded-For: " + given + b"\r\n")
    connection = list(server.connections.values())[-1]
    assert str(connection).startswith(f"{address}/" if address else "127.0.0.1:")
