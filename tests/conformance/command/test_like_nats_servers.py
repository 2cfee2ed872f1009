"""`jetlake server …` with the commands and options of `nats`, on both servers."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE
from tests.support.command_shell import Shell, output_of

_CONFIG = """
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  A { jetstream: enabled, users: [ { user: a, password: a } ] }
}
no_auth_user: a
server_name: here
jetstream { store_dir: "STORE_DIR" }
"""
_AS_SYSTEM = "--user sys --password sys"


@pytest.fixture
async def system(start, tmp_path, monkeypatch):
    """A shell on a server with a system user, and the server."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    server = await start(_CONFIG)
    shell = Shell(server.url)
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    return shell, server


async def test_servers_are_listed_pinged_and_watched(system):
    shell, _ = system
    out = await shell.run(f"server ls {_AS_SYSTEM}")
    assert out.startswith("Server Overview: 1 server\n")
    assert re.search(r"here +.*yes", out)
    assert "a graph needs a terminal" in await shell.run(f"server ping --graph {_AS_SYSTEM}", status=EXIT_USAGE)
    listed = await shell.json(f"server list 1 --sort conns --reverse {_AS_SYSTEM}")
    assert (listed[0]["server"]["name"], listed[0]["rtt_s"] > 0) == ("here", True)
    assert re.search(
        r"here +rtt=\d+\.\d+ms\n\n---- ping statistics ----\n1 response", await shell.run(f"server ping {_AS_SYSTEM}")
    )
    for line in ("ls", "ping", "request varz", "report cpu", "watch servers"):
        assert "needs a user of the system account" in await shell.run(f"server {line}", status=EXIT_FAILED)
    for line, text in (
        ("servers", "Servers by conns"),
        ("jetstream --sort api", "JetStream by api"),
        ("accounts", "Account"),
    ):
        assert text in await shell.run(f"server watch {line} --count 1 {_AS_SYSTEM}")
    sample = json.loads(await shell.run(f"server graph here --count 1 --json {_AS_SYSTEM}"))
    assert sample["Connections"] >= 1
    sample = json.loads(await shell.run(f"server graph --jetstream --count 1 --json {_AS_SYSTEM}"))
    assert sample["API Requests / second"] == 0
    assert "does not answer" in await shell.run(f"server graph nope --count 1 --json {_AS_SYSTEM}", status=EXIT_FAILED)


async def test_requests_and_reports(system):
    shell, _ = system

    async def asked(line):
        return json.loads(await shell.run(f"server request {line} {_AS_SYSTEM}"))["data"]

    assert (await asked("varz"))["server_name"] == "here"
    assert (await asked("variables 1 --name her"))["server_name"] == "here"
    assert (await asked("connz --filter-state open --sort cid"))["num_connections"] >= 1
    assert "A" in (await asked("accountz"))["accounts"]
    assert (await asked("accounts --account A"))["account_detail"]["account_name"] == "A"
    assert (await asked("jsz --all"))["account_details"][0]["stream_detail"][0]["name"] == "ORDERS"
    assert (await asked("healthz --details"))["status"] == "ok"
    assert (await asked("subsz"))["num_subscriptions"] > 0
    for name in ("routez", "gateways", "leafz", "profile --kind heap"):
        await asked(name)
    assert "needs a user" in await shell.run(
        f"server request varz --name nobody {_AS_SYSTEM} --timeout 300ms", status=EXIT_FAILED
    )
    assert re.search(r"Account Overview|Accounts? Overview", await shell.run(f"server report accounts {_AS_SYSTEM}"))
    assert re.search(r"here: █* \d", await shell.run(f"server report mem {_AS_SYSTEM}"))
    assert "here" in await shell.json(f"server report cpu {_AS_SYSTEM}")
    assert "ok (200)" in await shell.run(f"server report health {_AS_SYSTEM}")
    for line in ("routes --sort subs", "gateways --filter-name x --sort name", "leafnodes --account A"):
        assert await shell.run(f"server report {line} {_AS_SYSTEM}") == f"No {line.split()[0]}\n"
    listed = 'server report connections --filter \'conns.name == "jetlake command" && server.name == "here"\''
    assert (await shell.json(f"{listed} {_AS_SYSTEM}"))[0]["name"] == "jetlake command"
    assert await shell.json(f"server report conns --sort in-msgs --filter 'conns.cid < 0' {_AS_SYSTEM}") == []
    assert await shell.run(f"server request connz --filter-user nobody --filter-empty {_AS_SYSTEM}") == ""
    report = f"server report jetstream {_AS_SYSTEM}"
    for options in ("--sort file", "--account A --sort streams", "--host her --sort api"):
        (row,) = await shell.json(f"{report} {options}")
        assert (row["server"], row["streams"]) == ("here", 1)
    assert (await shell.json(f"{report} --account $SYS"))[0]["streams"] == 0
    assert "Account information for account A" in await shell.run(f"server account info A {_AS_SYSTEM}")
    assert "does not exist" in await shell.run(f"server account info NOPE {_AS_SYSTEM}", status=EXIT_FAILED)


async def test_commands_to_a_server(system):
    shell, _ = system
    watching = await shell.start("sub x --count 1 --raw --connection-name victim -t", b"")
    found = {"data": {"connections": []}}
    while not (own := [one["cid"] for one in found["data"]["connections"] if one.get("name") == "victim"]):
        found = json.loads(await shell.run(f"server request connz {_AS_SYSTEM}"))
    await shell.run(f"server request kick {own[0]} {found['server']['id']} --force {_AS_SYSTEM}")
    printed = asyncio.create_task(output_of(watching))  # It has connected again.
    while not printed.done():
        await shell.run("pub x hello")
    assert printed.result() == "hello\n"
    await shell.run(f"server account purge A --force {_AS_SYSTEM}")
    assert await shell.run("stream ls -n") == ""
    assert "no server has the id or name nope" in await shell.run(
        f"server config reload nope --force {_AS_SYSTEM}", status=EXIT_FAILED
    )
    for line in ("step-down", "peer-remove x"):
        said = await shell.run(f"server cluster {line} --force {_AS_SYSTEM}", status=EXIT_FAILED)
        assert "server here" in said
        assert "is not part of a cluster" in said


async def test_mappings(shell):
    line = "server mappings 'orders.*.*' 'new.{{wildcard(2)}}.{{wildcard(1)}}'"
    assert await shell.run(f"{line} orders.a.b") == "new.b.a\n"
    assert "does not match" in await shell.run(f"{line} other", status=EXIT_FAILED)
    assert await shell.run(line, stdin="orders.1.2\nx\n") == "new.2.1\n'x' does not match 'orders.*.*'\n"
    assert "wildcard(9)" in await shell.run("server mapping 'a.*' 'b.{{wildcard(9)}}' a.b", status=EXIT_USAGE)


async def test_a_token_may_stand_for_the_user(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = Shell((await start('authorization { token: "word" }', ["no_jetstream"])).url)
    assert "Published" in await shell.run("pub a b --user word")
    assert "login" in await shell.run("pub a b --user other", status=EXIT_FAILED)
