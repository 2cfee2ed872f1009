"""`jetlake serve` listens before it loads what only a running server needs."""

import subprocess
import sys

import pytest

from jetlake.server.config.options import Options
from jetlake.server.shell.sockets import listen_all

AT_LISTEN = """
import sys
import jetlake.server.shell.sockets as sockets
def listen(host, port):
    if port > 0:
        print("port", port)  # a listener beside the one for clients
        return []
    print(*sys.modules)
    raise SystemExit(0)
sockets.listen = listen
from jetlake.cli.main import main
main(["serve", *sys.argv[1:]])
"""

AT_READY = """
import os, sys
from jetlake.server.shell.log import LineLog
def info(self, text):
    if text == "Server is ready":
        print(*sys.modules, flush=True)
        os._exit(0)
LineLog.info = info
from jetlake.cli.main import main
main(["serve", *sys.argv[1:]])
"""

PREPARED = """
import sys
import jetlake.server.run as run
steps = sum(1 for step in run._steps_to_prepare())
before = set(sys.modules)
import jetlake.server.engine.api.api, jetlake.server.engine.api.direct_get, jetlake.server.engine.stream.stream
import jetlake.server.engine.consumer.consumer, jetlake.server.engine.sourcing.sourcing, jetlake.store.file_store
import jetlake.server.engine.storage.folder_stream_storage
print(steps, "|", *sorted(set(sys.modules) - before))
"""

EMBEDDED = """
import asyncio, sys
import jetlake
from jetlake.server import Server
async def main():
    async with Server() as server, jetlake.connect(server.url) as client:
        js = client.jetstream()
        before = {name for name in sys.modules if name.startswith("jetlake.server") or name.startswith("jetlake.store")}
        stream = await js.create_stream("S")
        await js.publish("S", b"")
        await (await stream.create_consumer("c")).fetch(1)
        print(*sorted({name for name in sys.modules if ".server." in name or ".store." in name} - before))
asyncio.run(main())
"""


def modules(program, *arguments):
    command = [sys.executable, "-c", program, "-a", "127.0.0.1", "-p", "-1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("flags", [["-sd"], ["--no_jetstream", "-sd"]])
@pytest.mark.parametrize("config", ["", "websocket { port: 1, no_tls: true }\nhttp_port: 2\n"], ids=["flags", "file"])
def test_little_is_loaded_before_all_ports_listen(tmp_path, config, flags):
    """The port for clients is the last: whoever finds it open finds WebSocket and monitoring open too."""
    file = tmp_path / "server.conf"
    file.write_text(config)
    loaded = modules(AT_LISTEN, *(["-c", file] if config else []), *flags, tmp_path / "store")
    assert ({"1", "2"} if config else set()) <= loaded
    assert "jetlake.server.config.options" in loaded
    for name in ("asyncio", "ssl", "logging", "uvloop", "jetlake.server.shell.server", "jetlake.server.engine"):
        assert name not in loaded
    assert len([name for name in loaded if name.startswith("jetlake")]) < (45 if config else 30)


def test_a_server_with_something_to_recover_listens_when_it_has_recovered(tmp_path):
    (tmp_path / "jetstream" / "$G").mkdir(parents=True)
    assert "jetlake.server.engine.engine" in modules(AT_LISTEN, "-sd", tmp_path)


def test_a_server_without_jetstream_loads_no_engine(tmp_path):
    loaded = modules(AT_READY, "--no_jetstream")
    for name in (
        "jetlake.server.engine.engine",
        "jetlake.store.log",
        "jetlake.server.shell.monitoring.http",
        "jetlake.server.shell.monitoring.server_report",
        "jetlake.server.shell.system.answers",
        "jetlake.server.shell.websocket",
        "jetlake.dashboard",
        "jetlake.client",
        "websockets",
        "click",
    ):
        assert name not in loaded


def test_a_server_without_streams_is_ready_before_it_loads_what_handles_them(tmp_path):
    loaded = modules(AT_READY, "-sd", tmp_path)
    assert "jetlake.server.engine.engine" in loaded
    for name in ("stream.stream", "consumer.consumer", "sourcing", "schedule", "batch"):
        assert f"jetlake.server.engine.{name}" not in loaded
    for name in ("jetlake.store.file_store", "jetlake.store.log.log", "jetlake.store.redo.replay", "hashlib", "shutil"):
        assert name not in loaded


def test_what_the_first_stream_needs_is_loaded_in_short_steps_after_the_start():
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, timeout=60, check=True)
    steps, more = done.stdout.split("|")
    assert int(steps) > 20
    assert more.split() == [], "the first request would load these at once"


def test_an_embedded_server_loads_nothing_in_the_programs_loop():
    done = subprocess.run([sys.executable, "-c", EMBEDDED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_every_address_of_the_options_is_listened_on():
    opened = (*listen_all(Options(port=0, http_port=0).with_websocket(0)), *listen_all(Options(port=0)))
    assert [sockets is not None for sockets in opened] == [True, True, False, True, False, False, False, True]
    for sockets in opened:
        for each in sockets or ():
            each.close()
