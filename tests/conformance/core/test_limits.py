"""Limits and liveness: what a client may send and hold, and how long it may be silent."""

import asyncio
import json
from urllib.request import urlopen


async def test_max_payload_of_the_configuration(start, connect):
    server = await start("max_payload: 100", ["no_jetstream"])
    wire = await (await connect(server)).hello()
    assert wire.info["max_payload"] == 100
    await wire.send(b"SUB a 1\r\nPUB a 100\r\n" + b"x" * 100 + b"\r\n")
    assert len((await wire.message()).payload) == 100
    await wire.send(b"PUB a 101\r\n" + b"x" * 101 + b"\r\n")
    assert await wire.rest() == b"-ERR 'Maximum Payload Violation'\r\n"


async def test_max_payload_counts_the_header(start, connect):
    server = await start("max_payload: 100", ["no_jetstream"])
    wire = await (await connect(server)).hello()
    await wire.send(b"HPUB a 12 101\r\n")
    assert await wire.rest() == b"-ERR 'Maximum Payload Violation'\r\n"


async def test_max_control_line_of_the_configuration(start, connect):
    server = await start("max_control_line: 256", ["no_jetstream"])
    wire = await (await connect(server)).hello()
    await wire.send(b"SUB " + b"a" * 240 + b" 1\r\n")
    assert await wire.ping() == b""
    await wire.send(b"SUB " + b"a" * 300 + b" 1\r\n")
    assert await wire.rest() == b"-ERR 'maximum control line exceeded'\r\n"


async def test_max_subscriptions(start, connect):
    server = await start("max_subscriptions: 2", ["no_jetstream"])
    wire = await (await connect(server)).hello()
    await wire.send(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nUNSUB 1\r\nSUB d 4\r\nPUB c 0\r\n\r\nPUB d 0\r\n\r\n")
    assert await wire.ping() == b"-ERR 'maximum subscriptions exceeded'\r\nMSG d 4 0\r\n\r\n"


async def test_max_connections(start, connect):
    server = await start("max_connections: 2", ["no_jetstream"])
    first = await (await connect(server)).hello()
    await (await connect(server)).hello()
    refused = await connect(server)
    assert await refused.rest() == b"-ERR 'maximum connections exceeded'\r\n"
    await first.close()
    for _ in range(200):
        wire = await connect(server)
        await wire.send(b"PING\r\n")
        if await wire.line() == b"PONG":
            return
    raise AssertionError("a place that was given back is still taken")


async def test_stale_connection(start, connect, clock):
    # A second is the least that both servers take.
    server = await start('ping_interval: "1s"\nping_max: 1', ["no_jetstream"])
    wire = await connect(server)
    clock.advance(1)
    assert await wire.any_line() == b"PING"
    clock.advance(1)
    assert await wire.rest() == b"-ERR 'Stale Connection'\r\n"


async def test_answered_pings_keep_the_connection(start, connect, clock):
    server = await start('ping_interval: "2s"\nping_max: 1', ["no_jetstream"])
    wire = await connect(server)
    for _ in range(2):
        clock.advance(2)
        assert await wire.any_line() == b"PING"
        await wire.send(b"PONG\r\n")
        assert await wire.ping() == b""


async def test_slow_consumer_is_cut_off_without_a_word(start, connect):
    server = await start("max_pending: 2MB\nmax_payload: 1MB", ["no_jetstream"])
    slow = await (await connect(server)).hello()
    await slow.subscribe("flood", 1)
    await slow.ping()
    writer = await (await connect(server)).hello()
    payload = b"PUB flood 500000\r\n" + b"x" * 500_000 + b"\r\n"
    for _ in range(400):
        await writer.send(payload)
        await writer.ping()
        if (await _varz(server))["slow_consumers"]:
            break
    received = await slow.rest()
    assert b"-ERR" not in received
    assert len(received) < 400 * 500_000
    assert await writer.ping() == b""


async def _varz(server):
    def fetch():
        with urlopen(f"http://127.0.0.1:{server.monitor_port}/varz", timeout=10) as response:
            return json.load(response)

    return await asyncio.get_running_loop().run_in_executor(None, fetch)
