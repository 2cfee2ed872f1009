"""The whole of jetlake in processes that lack what CPython lacks on macOS and Windows."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EVERYWHERE = [
    "tests/conformance/client/test_backup.py",
    "tests/conformance/client/test_tables.py",
    "tests/conformance/dashboard",
    "tests/conformance/streams/test_compression.py",
    "tests/conformance/consumers/test_acks.py",
    "tests/conformance/consumers/test_restart.py",
]
OF_SYSTEM = {
    "macos": ["tests/platforms/test_full_sync.py", "tests/store/test_crash.py", "tests/store/test_disk_faults.py"],
    "windows": ["tests/platforms/test_windows_disk.py"],
}
PIPELINES = [
    "tests/spark/pipelines/test_archive.py::test_a_stream_goes_to_the_lake_and_back_each_message_once",
]
OF_PLATFORM_ALONE = re.compile(
    r"sys\.platform|os\.name\b|os\.fsync|fdatasync|os\.pread|os\.pwrite|import (fcntl|resource|msvcrt)\b"
)
IMPORTS = """
import importlib, pkgutil, sys, warnings
warnings.simplefilter("error")
import jetlake
for module in pkgutil.walk_packages(jetlake.__path__, "jetlake."):
    # The libraries of Celery and mcp ask for the system's name where a module decides; they are not ours to change.
    if not module.name.endswith("__main__") and not module.name.startswith(
        ("jetlake.integrations.celery", "jetlake.integrations.mcp.")
    ):
        importlib.import_module(module.name)
"""
PROGRAM = """
import asyncio, sys
import jetlake
from jetlake import blocking

async def main(folder):
    async with jetlake.Server(folder) as server, jetlake.connect(server.url) as nc:
        js = nc.jetstream()
        for name in ("ORDERS", "orders", "nul"):
            stream = await js.create_stream(name, subjects=[f"{name}.>"])
            await js.publish(f"{name}.new", name.encode())
            for consumer in ("W", "w", "con"):
                await stream.create_consumer(consumer)

asyncio.run(main(sys.argv[1]))
with blocking.Server(sys.argv[1]) as server, blocking.connect(server.url) as nc:
    js = nc.jetstream()
    for name in ("ORDERS", "orders", "nul"):
        for consumer in ("W", "w", "con"):
            (message,) = js.stream(name).consumer(consumer).fetch(1)
            assert message.data == name.encode()
            message.ack_sync()
        js.stream(name).delete()
    print(js.stream_names())
"""


TWO_SERVERS = """
import asyncio, sys
import jetlake

async def main(folder):
    async with jetlake.Server(folder):
        try:
            await jetlake.Server(folder).start()
        except jetlake.errors.JetlakeError as error:
            print(error)

asyncio.run(main(sys.argv[1]))
"""


def environment_of(system, **variables):
    path = os.pathsep.join([str(HERE / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "JETLAKE_SYSTEM": system, **variables}


def run(system, *arguments, **variables):
    """Run Python as if this were another system, and return what it printed."""
    environment = environment_of(system, **variables)
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("system", OF_SYSTEM)
def test_every_module_can_be_imported(system):
    run(system, "-c", IMPORTS)


@pytest.mark.parametrize("system", OF_SYSTEM)
def test_names_that_differ_in_case_or_are_devices(system, tmp_path):
    assert run(system, "-c", PROGRAM, str(tmp_path / "store")) == "[]\n"


def test_macos_empties_the_disks_cache_for_files_and_directories(tmp_path):
    run("macos", "-c", PROGRAM, str(tmp_path / "store"), JETLAKE_FULL_SYNCS=str(tmp_path / "synced"))
    synced = [Path(line) for line in (tmp_path / "synced").read_text().splitlines()]
    assert {"0000000001.seg", "msgs", "streams"} <= {path.name for path in synced}


def run_tests(system, *tests):
    options = ["-q", "-p", "no:cacheprovider", "-k", "not nats_server and not nats-server and not reference"]
    assert " passed" in run(system, "-m", "pytest", *options, *tests)


@pytest.mark.parametrize("system", OF_SYSTEM)
def test_the_suite_of_server_client_and_dashboard(system):
    run_tests(system, *EVERYWHERE, *OF_SYSTEM[system])


@pytest.mark.timeout(600)
def test_pipelines_on_macos():
    run_tests("macos", *PIPELINES)


@pytest.mark.parametrize("system", OF_SYSTEM)
def test_a_directory_has_one_server(system, tmp_path):
    assert "in use by" in run(system, "-c", TWO_SERVERS, str(tmp_path / "store"))


def test_no_other_module_asks_for_the_system():
    package = ROOT / "src" / "jetlake"
    others = [path for path in package.rglob("*.py") if path != package / "platform.py"]
    assert [str(path) for path in others if OF_PLATFORM_ALONE.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("system", OF_SYSTEM)
def test_the_command(system, tmp_path):
    serve = [sys.executable, "-m", "jetlake", "serve", "-p", "-1", "-js", "-sd", str(tmp_path), "--ports_file_dir"]
    with subprocess.Popen([*serve, str(tmp_path)], env=environment_of(system), cwd=ROOT) as server:
        try:
            while not (found := list(tmp_path.glob("*.ports"))) or not found[0].read_text():
                assert server.poll() is None
                time.sleep(0.05)
            command = ["-m", "jetlake", "-s", json.loads(found[0].read_text())["nats"][0]]
            run(system, *command, "stream", "add", "ORDERS", "--subjects", "orders.>", "--defaults")
            run(system, *command, "pub", "orders.new", "hello")
            assert "ORDERS" in run(system, *command, "stream", "ls")
            assert "hello" in run(system, *command, "stream", "get", "ORDERS", "1")
        finally:
            server.terminate()
