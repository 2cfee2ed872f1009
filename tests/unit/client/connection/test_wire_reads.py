"""Reads of one connection: into one buffer that grows with what comes, and nothing of them is lost or changed."""

import asyncio
from random import Random

import pytest

from jetlake.client.connection.wire_protocol import WireProtocol
from jetlake.client.messages.message import Message
from jetlake.client.messages.statistics import Traffic
from jetlake.protocol import encoder
from jetlake.protocol.frames import MessageRun


@pytest.fixture
async def wire():
    frames = []
    wire = WireProtocol(Message, frames.extend, lambda *_: None, Traffic())
    wire._is_welcome = True
    wire.transport = asyncio.Transport()
    wire.taken = frames
    return wire


def read(wire, data, size):
    """Let so many bytes come, or as many as there is room for; returns the rest."""
    buffer = wire.get_buffer(-1)
    size = min(size, len(buffer), len(data))
    buffer[:size] = data[:size]
    wire.buffer_updated(size)
    return data[size:]


def payloads(wire):
    for frame in wire.taken:
        yield from frame.payloads if isinstance(frame, MessageRun) else [frame.payload]


@pytest.mark.parametrize("seed", range(6))
async def test_messages_come_whole_whatever_the_reads_are(wire, seed):
    random = Random(seed)
    sent = [random.randbytes(random.choice((0, 128, 128, 5000, 300_000))) for _ in range(200)]
    data = b"".join(encoder.msg(b"s.1", b"7", b"r", payload) for payload in sent)
    while data:
        data = read(wire, data, random.choice((1, 100, 20_000, 1_000_000)))
    assert list(payloads(wire)) == sent
    assert wire._traffic.bytes_received == sum(len(encoder.msg(b"s.1", b"7", b"r", payload)) for payload in sent)


async def test_a_quiet_connection_has_a_small_buffer_and_a_busy_one_no_more_than_its_limit(wire):
    message = encoder.msg(b"s.1", b"7", b"r", bytes(100))
    for _ in range(100):
        read(wire, message, len(message))
    assert len(wire.get_buffer(-1)) == 16 * 1024
    data = message * 20_000
    while data:
        data = read(wire, data, len(data))
    assert len(wire.get_buffer(-1)) == 256 * 1024
    assert len(list(payloads(wire))) == 20_100
