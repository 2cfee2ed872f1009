"""The read buffer: what a server sends in small pieces is taken as one read."""

from __future__ import annotations

import socket

import pytest

from jetlake.client.connection.handshake import read_info
from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.settings.options import ConnectOptions
from jetlake.client.settings.server_address import ServerAddress
from jetlake.client.tables import read_buffer
from jetlake.client.tables.read_buffer import ReadBuffer


@pytest.fixture
def server():
    """The server's end of a connection, and the client's."""
    ours, theirs = socket.socketpair()
    theirs.sendall(b"PONG\r\n")  # for the flush with which a connection begins
    address = ServerAddress("127.0.0.1")
    connection = SocketConnection(ours, address, read_info(b"{}"), ConnectOptions(servers=(address,)))
    yield theirs, connection
    theirs.close()
    connection.close()


def let_server_act(monkeypatch, *steps):
    """Take each step of the server while the reader pauses for more."""
    steps = list(steps)
    monkeypatch.setattr(read_buffer.time, "sleep", lambda _: steps.pop(0)())
    return steps


def test_small_pieces_become_one_read(server, monkeypatch):
    theirs, connection = server
    send = theirs.sendall
    left = let_server_act(monkeypatch, lambda: send(b"b" * 30), lambda: send(b"c" * 30), lambda: send(b"d" * 30))
    send(b"a" * 30)
    buffer = ReadBuffer(1000)
    buffer.receive(connection, 5.0, expected=1)
    assert buffer.data[: buffer.fill] == b"a" * 30 + b"b" * 30 + b"c" * 30
    assert len(left) == 1


def test_a_read_ends_when_no_more_comes(server, monkeypatch):
    theirs, connection = server
    left = let_server_act(monkeypatch, lambda: theirs.sendall(b"b"), lambda: None, lambda: theirs.sendall(b"c"))
    theirs.sendall(b"a")
    buffer = ReadBuffer(1000)
    buffer.receive(connection, 5.0, expected=2)
    assert buffer.data[: buffer.fill] == b"ab"
    assert len(left) == 1


def test_a_full_buffer_and_a_closed_connection_end_a_read(server, monkeypatch):
    theirs, connection = server
    let_server_act(monkeypatch, lambda: theirs.sendall(b"b" * 9), theirs.close)
    theirs.sendall(b"a")
    buffer = ReadBuffer(8)
    buffer.receive(connection, 5.0, expected=2)
    assert buffer.data == b"abbbbbbb"
    buffer.discard(8)
    buffer.receive(connection, 5.0, expected=2)
    assert buffer.data[: buffer.fill] == b"bb"
    with pytest.raises(ConnectionError):
        buffer.receive(connection, 5.0)
