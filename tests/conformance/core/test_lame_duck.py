"""Leaving in order: lame duck mode, and a clean stop."""

import asyncio
import json

import pytest


async def test_lame_duck_tells_clients_and_takes_no_more(start, connect):
    server = await start(flags=["no_jetstream"], process=True)
    wire = await (await connect(server)).hello()
    old = await (await connect(server)).hello(protocol=0)
    server.enter_lame_duck()
    info = json.loads((await wire.line()).removeprefix(b"INFO "))
    assert info["ldm"] is True
    assert await old.ping() == b""  # such a client would not know what to do with it
    with pytest.raises(OSError):
        while True:
            _, writer = await asyncio.open_connection(server.host, server.port)
            writer.close()
            await asyncio.sleep(0)
    await wire.send(b"SUB a 1\r\nPUB a 0\r\n\r\n")
    assert await wire.ping() == b"MSG a 1 0\r\n\r\n"
    await server.kill()  # it would wait for its grace period


async def test_lame_duck_without_clients_ends_the_server(start):
    server = await start(flags=["no_jetstream"], process=True)
    server.enter_lame_duck()
    status = await asyncio.get_running_loop().run_in_executor(None, server.process.wait, 10)
    assert status == 0
    assert "Entering lame duck mode" in server.log


async def test_a_clean_stop_ends_connections_and_frees_the_port(start, connect):
    server = await start(flags=["no_jetstream"], process=True)
    wire = await (await connect(server)).hello()
    port = server.port
    await server.restart()
    assert await wire.rest() == b""
    assert server.port == port
    await (await connect(server)).hello()


async def test_a_killed_server_can_be_followed_at_once(start, connect):
    server = await start(flags=["no_jetstream"], process=True)
    wires = [await (await connect(server)).hello() for _ in range(5)]
    port = server.port
    await server.kill()
    await server.start()
    assert server.port == port
    await (await connect(server)).hello()
    assert await wires[0].rest() == b""
