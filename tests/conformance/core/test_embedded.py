"""The server inside a program: started, asked where it is, and stopped, many times over."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import jetlake
from jetlake.errors import ConfigError
from jetlake.server import Options
from jetlake.server.config.options import JetStreamOptions
from tests.support.clients import cancelled_in_first_turn, until
from tests.support.wire import Wire


async def open_wire(server):
    return await (await Wire.open("127.0.0.1", server.port)).hello()


async def test_a_server_in_two_lines():
    async with jetlake.Server() as server:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        async with await open_wire(server) as wire:
            assert wire.info["jetstream"] is True
            folder = server.jetstream_folder
            assert Path(folder).is_dir()
    assert not Path(folder).exists()


async def test_streams_stay_in_the_folder(tmp_path):
    for round_ in range(2):
        async with jetlake.Server(tmp_path) as server, await open_wire(server) as wire:
            created = (await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})).json
            assert "error" not in created
            assert (await wire.request("s", b"x")).json["seq"] == round_ + 1


async def test_a_stop_that_is_cancelled_goes_on_to_its_end(tmp_path):
    server = jetlake.Server(tmp_path)
    await server.start()
    client = await jetlake.connect(server.url, reconnect=False)
    await client.jetstream().create_stream("S", subjects=["s"])
    await cancelled_in_first_turn(server.stop())
    await asyncio.wait_for(server.wait_stopped(), 60)
    await until(lambda: client.is_closed)
    async with jetlake.Server(tmp_path) as again:  # The folder is released.
        assert again.running


async def test_many_in_one_process():
    servers = [jetlake.Server(jetstream=False) for _ in range(5)]
    await asyncio.gather(*(server.start() for server in servers))
    wires = [await open_wire(server) for server in servers]
    for wire in wires:
        await wire.subscribe("x", 1)
        await wire.ping()
    await wires[0].publish("x")
    assert await wires[0].ping() == b"MSG x 1 0\r\n\r\n"
    for wire in wires[1:]:
        assert await wire.ping() == b""
    await asyncio.gather(*(server.stop() for server in servers))
    for wire in wires:
        assert await wire.rest() == b""
        await wire.close()


async def test_arguments_win_over_options(tmp_path):
    options = Options(
        host="127.0.0.1", server_name="mine", jetstream=JetStreamOptions(store_dir="/nowhere", domain="hub")
    )
    async with jetlake.Server(tmp_path, options=options) as server, await open_wire(server) as wire:
        assert (wire.info["server_name"], wire.info["domain"]) == ("mine", "hub")
        assert server.jetstream_folder == str(tmp_path / "jetstream")


async def test_without_jetstream_unless_the_options_have_it():
    async with jetlake.Server(options=Options()) as server, await open_wire(server) as wire:
        assert "jetstream" not in wire.info


async def test_files_of_the_options(tmp_path):
    options = Options(
        pid_file=str(tmp_path / "pid"), ports_file_dir=str(tmp_path), log_file=str(tmp_path / "log"), http_port=-1
    )
    async with jetlake.Server(options=options) as server:
        assert (tmp_path / "pid").read_text() == str(os.getpid())
        (ports,) = tmp_path.glob("*.ports")
        assert json.loads(ports.read_text())["nats"] == [server.url]
        server.log.reopen()
    server.log.close()
    assert "Server is ready" in (tmp_path / "log").read_text()
    assert not ports.exists()


async def test_a_port_in_use_is_told_and_nothing_is_left_behind(tmp_path):
    async with jetlake.Server(jetstream=False) as first:
        second = jetlake.Server(tmp_path, port=first.port)
        with pytest.raises(ConfigError, match=r"(?i)address already in use"):
            await second.start()
        # The folder is free again.
        async with jetlake.Server(tmp_path):
            pass


async def test_a_folder_in_use_is_told(tmp_path):
    async with jetlake.Server(tmp_path):
        with pytest.raises(ConfigError, match="in use by another server"):
            await jetlake.Server(tmp_path).start()


async def test_a_server_runs_once():
    server = jetlake.Server(jetstream=False)
    await server.stop()
    async with server:
        await server.stop()
        await server.stop()
        await server.wait_stopped()
    with pytest.raises(ConfigError, match="already started"):
        await server.start()


async def test_options_that_make_no_sense(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="storage directory"):
        await jetlake.Server(file).start()
    with pytest.raises(ConfigError, match="listen"):
        await jetlake.Server(host="203.0.113.7", jetstream=False).start()
    with pytest.raises(ConfigError, match="port"):
        jetlake.Server(port=70_000)
