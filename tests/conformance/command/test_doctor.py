"""`jetlake doctor`: what it finds on this machine and on both servers, and what it says when something is missing."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import metadata

import pytest

import jetlake

# Names for several extras, and for working on jetlake itself.
LEFT_OUT = {"extra all", "extra dev", "extra docs"}


async def test_all_is_well(shell):
    report = {line["check"]: line for line in json.loads(await shell.run("doctor --json"))}
    assert {line["state"] for name, line in report.items() if not name.startswith(("extra", "Java", "sync"))} == {"ok"}
    extras = metadata.metadata("jetlake").get_all("Provides-Extra")
    assert {name for name in report if name.startswith("extra ")} == {f"extra {name}" for name in extras} - LEFT_OUT
    assert "median" in report["sync"]["found"]
    assert report["server"]["found"].endswith("0 streams")


async def test_a_store_in_use_and_one_with_a_stream_that_has_no_configuration(shell, tmp_path):
    folder = tmp_path / "store"
    async with jetlake.Server(folder) as server, jetlake.connect(server.url) as client:
        await client.jetstream().create_stream("S")
        report = json.loads(await shell.run(f"doctor --json --store-dir {folder}"))
        assert f"1 stream in {folder}, in use by a server" in [line["found"] for line in report]
    (meta,) = folder.glob("jetstream/*/streams/*/meta.json")
    meta.unlink()
    # The server reads the copy.
    assert "no configuration" not in await shell.run(f"doctor --store-dir {folder}")
    meta.with_name("meta.copy.json").unlink()
    assert "no configuration: S" in await shell.run(f"doctor --store-dir {folder}", status=1)


@pytest.mark.parametrize("hidden", [".", "jetstream", "jetstream/$G/streams", "jetstream/$G/streams/S/meta.json"])
async def test_a_store_of_another_user(hidden, shell, tmp_path, monkeypatch):
    async with jetlake.Server(tmp_path / "store") as server, jetlake.connect(server.url) as client:
        await client.jetstream().create_stream("S")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    (tmp_path / "store" / hidden).chmod(0)
    monkeypatch.chdir(tmp_path)  # What is above may belong to root alone.
    monkeypatch.setenv("XDG_CONFIG_HOME", "none")
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        report = await shell.run("doctor --json --store-dir store", status=1)
    finally:
        os.seteuid(user)
        (tmp_path / "store" / hidden).chmod(0o755)
    (found,) = [line["found"] for line in json.loads(report) if line["check"] == "store"]
    assert found.endswith("Permission denied")


async def test_no_server_and_no_store(shell, tmp_path):
    shown = await shell.run(f"doctor -s nats://127.0.0.1:1 --store-dir {tmp_path / 'missing'}")
    assert "start one with `jetlake serve`" in shown
    assert f"no store in {tmp_path / 'missing'}" in shown


def test_a_narrow_terminal_has_each_text_below_its_beginning(tmp_path):
    ours, theirs = os.openpty()
    environment = {**os.environ, "COLUMNS": "60", "XDG_CONFIG_HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "jetlake", "doctor", "-s", "nats://127.0.0.1:1"]
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # as Linux ends what a terminal says
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
    assert process.returncode == 0
    first, *lines = shown.decode().splitlines()
    indent = first.index(jetlake.__version__)
    for line in lines:
        assert len(line) <= 60 or " " not in line[indent:], line  # A path alone may be longer.
        assert line[indent - 1] == " " and line[indent] != " ", line
    assert sum(line[:indent].isspace() for line in lines) > 5
