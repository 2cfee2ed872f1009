"""The command line: both servers are started, asked and signalled in the same way."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess

import pytest

import jetlake
from tests.support.servers import BIN, make_server

LINE = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(INF|WRN|ERR|FTL|DBG|TRC)\] .*")


def command(kind, *arguments):
    return [*([str(BIN / "jetlake"), "serve"] if kind == "embedded" else [str(BIN / "nats-server")]), *arguments]


def run(kind, *arguments):
    done = subprocess.run(command(kind, *arguments), capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_version(kind):
    for flag in ("-v", "--version"):
        done = run(kind, flag)
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "nats-server: v2.15.1")


def test_help(kind):
    done = run(kind, "--help")
    assert done.returncode == 0
    assert "--store_dir" in done.stdout


@pytest.mark.parametrize("arguments", [["--zz"], ["-p"], ["-p", "x"], ["start"], ["-c", "/nowhere/x.conf"]])
def test_bad_command_lines(kind, arguments):
    done = run(kind, *arguments)
    assert done.stderr.strip()
    assert done.returncode != 0 or kind == "nats-server"  # which counts showing its usage as a success


def test_a_taken_port_is_fatal(kind):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [] if kind == "nats-server" else ["--no_jetstream"]
        done = run(kind, "-a", "127.0.0.1", "-p", str(taken.getsockname()[1]), *flags)
    assert done.returncode != 0
    assert re.search(r"\[FTL\] .*address already in use", done.stderr, re.IGNORECASE)


async def test_log_lines(start):
    server = await start(flags=["no_jetstream"], process=True)
    assert f"[INF] Listening for client connections on 127.0.0.1:{server.port}\n" in server.log
    assert "[INF] Server is ready\n" in server.log
    assert re.search(rf"\[INF\] Starting http monitor on .*:{server.monitor_port}\n", server.log)
    if server.is_embedded:
        while "Dashboard" not in server.log:  # the line behind the one that the ports file waits for
            await asyncio.sleep(0.005)
        assert f"[INF] Dashboard: http://127.0.0.1:{server.monitor_port}/\n" in server.log
        assert f"Version:  {jetlake.__version__} (compatible with nats-server " in server.log
    await server.stop()
    assert "[INF] Initiating Shutdown...\n" in server.log
    assert all(LINE.fullmatch(line) for line in server.log.splitlines())


async def test_the_ports_file_goes_with_the_server(start):
    server = await start(flags=["no_jetstream"], process=True)
    (path,) = server.folder.glob("*.ports")
    assert re.fullmatch(rf"\w[\w-]*_{server.process.pid}\.ports", path.name)
    assert json.loads(path.read_text()) == {
        "nats": [f"nats://127.0.0.1:{server.port}"],
        "monitoring": [f"http://127.0.0.1:{server.monitor_port}"],
    }
    process = server.process
    process.terminate()
    assert await asyncio.get_running_loop().run_in_executor(None, process.wait, 10) in (0, 1)
    assert not path.exists()


async def test_pid_and_log_file(start, tmp_path):
    pid, log = tmp_path / "pid", tmp_path / "log"
    server = await start(flags=["no_jetstream", "-P", str(pid), "-l", str(log)], process=True)
    assert int(pid.read_text()) == server.process.pid
    assert "Server is ready" in log.read_text()
    log.rename(tmp_path / "old")
    server.process.send_signal(signal.SIGUSR1)
    while not log.exists():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_server(start, connect, number):
    server = await start(process=True)
    wire = await (await connect(server)).hello()
    server.process.send_signal(number)
    status = await asyncio.get_running_loop().run_in_executor(None, server.process.wait, 5)
    assert status in (0, 1)  # nats-server calls a termination a failure
    assert status == 0 or not server.is_embedded
    assert await wire.rest() == b""


async def test_waiting_pulls_are_told_of_a_stop(start, connect):
    server = await start(process=True)
    wire = await (await connect(server)).hello()
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    config = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}}
    await wire.request("$JS.API.CONSUMER.DURABLE.CREATE.S.C", config)
    await wire.subscribe("in", 1)
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", json.dumps({"batch": 5, "expires": 60_000_000_000}), reply="in")
    await wire.ping()
    server.process.terminate()
    message = await wire.message()
    assert (message.status, message.description) == (409, "Server Shutdown")
    assert message.headers["Nats-Pending-Messages"] == "5"


async def logged(server, *texts):
    """Wait until the server's log holds all of these texts."""
    while not all(text in server.log for text in texts):
        assert server.process.poll() is None
        await asyncio.sleep(0.005)


async def test_reload_without_a_file_is_an_error_in_the_log(start):
    server = await start(flags=["no_jetstream"], process=True)
    server.process.send_signal(signal.SIGHUP)
    while "Failed to reload server configuration" not in server.log:
        await asyncio.sleep(0.005)
    assert server.process.poll() is None


async def test_a_bad_file_does_not_replace_the_good_one(start, connect):
    # A listener for leaf nodes, as the launcher of nats.js asks for it from every server, keeps none from starting.
    config = 'max_payload: 100\nleafnodes { listen: "127.0.0.1:-1" }\n'
    server = await start(config, ["no_jetstream"], process=True)
    path = server.folder / "server.conf"
    if server.is_embedded:
        path.write_text(f"{config}trace_headers: true\n")
        server.process.send_signal(signal.SIGHUP)
        await logged(server, "[WRN] ", "trace_headers is ignored", "Reloaded server configuration")
    path.write_text("max_payload: = nonsense {")
    server.process.send_signal(signal.SIGHUP)
    while "Failed to reload server configuration" not in server.log:
        await asyncio.sleep(0.005)
    wire = await connect(server)
    assert wire.info["max_payload"] == 100


async def test_signals_by_command(start, tmp_path):
    pid = tmp_path / "pid"
    server = await start(flags=["no_jetstream", "-P", str(pid)], process=True)
    done = await asyncio.get_running_loop().run_in_executor(None, run, server.kind, "--signal", f"stop={pid}")
    assert done.returncode == 0
    await asyncio.get_running_loop().run_in_executor(None, server.process.wait, 10)


async def start_beside(server, store_dir):
    """Start a second server on that folder while the first one runs, and wait for its end."""
    arguments = ["-a", "127.0.0.1", "-p", "-1", "-sd", str(store_dir)]
    return await asyncio.get_running_loop().run_in_executor(None, run, "embedded", *arguments)


async def test_two_servers_do_not_share_a_folder(tmp_path):
    """Neither by the same name, nor by a link to the folder in it, nor when the file is gone that one has locked."""
    server = make_server("embedded", process=True)
    await server.start()
    try:
        store_dir = server.folder / "data"
        (tmp_path / "jetstream").symlink_to(store_dir / "jetstream")
        ended = [await start_beside(server, store_dir), await start_beside(server, tmp_path)]
        (store_dir / "jetstream.lock").unlink()
        ended.append(await start_beside(server, store_dir))
    finally:
        await server.discard()
    for done in ended:
        assert done.returncode == 1
        assert re.search(r"\[FTL\] .* is in use by another server", done.stderr)


def test_jetstream_is_on_by_default_in_the_current_folder(tmp_path):
    process = subprocess.Popen(
        command("embedded", "-a", "127.0.0.1", "-p", "-1"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    lines = []
    while not any("Server is ready" in line for line in lines):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.terminate()
    process.stderr.close()
    assert process.wait(10) == 0
    text = "".join(lines)
    assert f'Store Directory: "{tmp_path / "jetlake-data" / "jetstream"}"' in text
    assert (tmp_path / "jetlake-data" / "jetstream").is_dir()
