"""The wire: how it ends, and what importing it costs, and saves, a program."""

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from jetlake.client.connection.wire_protocol import WireProtocol
from jetlake.client.messages.message import Message
from jetlake.client.messages.statistics import Traffic

READS = 1000
PROGRAM = f"""
import resource, socket
import jetlake.client.connection.wire_protocol

ours, theirs = socket.socketpair()

def read():
    theirs.send(b"x")
    ours.recv(256 * 1024)  # As asyncio does.

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(10):
    read()
before = faults()
for _ in range({READS}):
    read()
print(faults() - before)
"""


def test_reads_take_no_new_memory_from_the_system():
    faults = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert int(faults) < READS / 10


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_server_that_reads_no_more_is_cut_off(clock, is_read):
    ours, theirs = socket.socketpair()
    lost = []
    connection = SimpleNamespace(message_type=Message, receive=lambda frames: None, traffic=Traffic())
    wire = WireProtocol(connection, lambda wire, error: lost.append(error))
    await clock.create_connection(lambda: wire, sock=ours)
    wire.start()
    wire.write(bytes(4 * 1024 * 1024))
    wire.close()
    written = asyncio.create_task(wire.written())
    await clock.settle()
    assert not lost
    assert not written.done()
    received = 0
    if is_read:
        while received < 4 * 1024 * 1024:
            received += len(theirs.recv(1024 * 1024))
            await clock.settle()
    await clock.advance(2)
    assert await written == is_read
    await clock.advance(28)
    assert lost == [None]
    assert not [handle for handle in clock._scheduled if not handle.cancelled()]
    theirs.close()


async def test_who_waits_for_a_full_socket_goes_on_when_the_server_reads(clock):
    ours, theirs = socket.socketpair()
    connection = SimpleNamespace(message_type=Message, receive=lambda frames: None, traffic=Traffic())
    wire = WireProtocol(connection, lambda wire, error: None)
    await clock.create_connection(lambda: wire, sock=ours)
    wire.start()
    wire.write(bytes(4 * 1024 * 1024))
    waiting = [asyncio.create_task(wire.writable()) for _ in range(2)]
    await clock.settle()
    assert wire.is_congested and not any(task.done() for task in waiting)
    received = 0
    while received < 4 * 1024 * 1024:
        received += len(theirs.recv(1024 * 1024))
        await clock.settle()
    assert not wire.is_congested and all(task.done() for task in waiting)
    wire.close()
    theirs.close()
