"""`jetlake object`, `micro`, `schedule`, `reply`, `events` and `server` on both servers."""

from __future__ import annotations

import asyncio

import pytest
from click.shell_completion import ShellComplete

from jetlake.cli.app import app
from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE
from tests.support.command_shell import Shell, output_of


@pytest.fixture
async def files(shell):
    await shell.run("object add FILES --description papers --storage memory --metadata k=v")
    return shell


async def test_objects(files, tmp_path):
    file = tmp_path / "report.txt"
    file.write_bytes(b"content" * 100)
    out = await files.run(f"object put FILES {file} -H Kind:text --metadata by=me --chunk-size 300")
    assert out.startswith("Stored FILES > report.txt")
    await files.run("object put FILES - --name typed", stdin="by hand")
    info = await files.json("object info FILES report.txt")
    assert (info["size"], info["chunks"], info["headers"], info["metadata"]) == (
        700,
        3,
        {"Kind": ["text"]},
        {"by": "me"},
    )
    assert await files.json("object ls FILES --names") == ["report.txt", "typed"]
    assert "2 objects in FILES" in await files.run("object ls FILES")
    assert "papers" in await files.run("object ls")
    assert (await files.json("object ls"))[0]["bucket"] == "FILES"
    assert await files.run("object get FILES typed -O -") == "by hand"
    copy = tmp_path / "copy"
    assert await files.run(f"object get FILES report.txt -O {copy}") == (f"Wrote FILES > report.txt to {copy}: 700 B\n")
    assert copy.read_bytes() == file.read_bytes()
    assert "--force" in await files.run(f"object get FILES typed -O {copy}", status=EXIT_USAGE)
    assert "is a directory" in await files.run(f"object get FILES typed -O {tmp_path} --force", status=EXIT_USAGE)
    await files.run("object rm FILES typed --force")
    await files.run("object seal FILES --force")
    assert "Sealed: yes" in await files.run("object info FILES")
    assert "sealed" in await files.run("object put FILES - --name more", stdin="x", status=EXIT_FAILED)
    await files.run("object del FILES --force")
    assert "No object stores" in await files.run("object ls")


async def test_watched_objects(files):
    await files.run("object put FILES - --name a", stdin="x")
    watching = await files.start("object watch FILES --count 1", b"Watching")
    assert "PUT FILES > a: 1 B in 1 chunk" in await output_of(watching)


async def test_services(shell, server, clients):
    client = await clients(server)
    async with client.service("shop", "1.2.3", description="sells tea") as shop:
        shop.add_endpoint("price", lambda request: b"42")
        await client.flush()
        await client.services().request("price")
        assert "sells tea" in await shell.run("micro ls")
        assert "price: price, queue q" in await shell.run("micro info shop")
        assert (await shell.json(f"micro stats shop {shop.id}"))[0]["endpoints"][0]["num_requests"] == 1


async def test_schedules(shell):
    await shell.run("stream add JOBS --subjects 'jobs.>' --allow-schedules --allow-msg-ttl --allow-direct")
    out = await shell.run("schedule add jobs.plan.clean clean --target jobs.run --every 1h -H K:V")
    assert out == "Stored schedule jobs.plan.clean in JOBS as sequence 1\n"
    await shell.run("schedule add jobs.plan.once x --target jobs.run --in 1h --ttl 1m")
    await shell.json("schedule add jobs.plan.mail x --target jobs.run --cron '0 0 7 * * *' --tz Europe/Berlin")
    await shell.run("pub jobs.run 'not a schedule' -J")
    listed = {one["subject"]: one for one in await shell.json("schedule ls JOBS")}
    assert listed.keys() == {"jobs.plan.clean", "jobs.plan.once", "jobs.plan.mail"}
    assert (listed["jobs.plan.mail"]["schedule"], listed["jobs.plan.mail"]["time_zone"]) == (
        "0 0 7 * * *",
        "Europe/Berlin",
    )
    assert "@every 1h" in await shell.run("schedule ls JOBS --filter jobs.plan.clean")
    said = await shell.run("schedule add jobs.plan.x x --target elsewhere --every 1h", status=EXIT_FAILED)
    assert "jobs.plan.x: message schedules target is invalid (10190). Hint: the target is another subject" in said
    assert "Deleted schedule" in await shell.run("schedule rm JOBS jobs.plan.clean --force")
    assert "has no schedule on jobs.run" in await shell.run("schedule rm JOBS jobs.run --force", status=EXIT_FAILED)
    assert len(await shell.json("schedule ls JOBS")) == 2


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("object get NOPE x", EXIT_FAILED, "object store NOPE not found (10059). List them: jetlake object ls"),
        ("object info FILES nope", EXIT_FAILED, "has no object 'nope'"),
        ("object put FILES -", EXIT_USAGE, "--name"),
        ("object put FILES /nowhere/at/all", EXIT_FAILED, "No such file"),
        ("object get FILES a -O /nowhere/at/all", EXIT_FAILED, "directory /nowhere/at does not exist"),
        ("schedule add a b --target c --every 1h", EXIT_FAILED, "no responders on 'a'"),
        ("object ls FILES", 0, "No objects in FILES"),
        ("micro info nope", EXIT_FAILED, "service nope not found"),
        ("micro ls", 0, "No services found"),
        ("micro ping", 0, "No services found"),
        ("micro stats", 0, "No services found"),
        ("schedule add a b --target c", EXIT_USAGE, "use exactly one of"),
        ("schedule add a b --target c --every 1ms", EXIT_USAGE, "at least one second"),
        ("schedule ls OBJ_FILES", 0, "No schedules"),
        ("reply a b --echo", EXIT_USAGE, "use only one of"),
        ("reply a --command ''", EXIT_USAGE, "--command is empty"),
        ("""reply a --command "'" """, EXIT_USAGE, "No closing quotation"),
        ("events --no-js-advisory", EXIT_USAGE, "no events selected"),
        ("events --filter '('", EXIT_USAGE, "--filter ("),
    ],
)
async def test_bad_input_is_answered_in_one_line(files, line, status, text):
    assert text in await files.run(line, status=status)


async def test_reply(shell):
    answering = await shell.start("reply 'greet.*' '{{1}} said {{Request}}, {{Count}}' --count 1 -H K:V", b"Listening")
    assert "K: V\n\njoe said hello, 1\n" in await shell.run("req greet.joe hello")
    assert await output_of(answering) == '[#1] Received on "greet.joe": 5 bytes\n'
    answering = await shell.start("reply 'up.*' --command 'tr a-z {{1}}' --count 2", b"Listening")
    assert await shell.run("req up.A-Z hello --raw") == "HELLO\n"
    assert "Nats-Service-Error: tr exited with status 1" in await shell.run("req up.z-a hello")
    await output_of(answering)


async def test_events(shell):
    listening = await shell.start("events --filter ORDERS --count 1", b"Listening")
    await shell.run("stream add OTHER --subjects other")
    await shell.run("stream add ORDERS --subjects orders")
    assert "stream_action: stream ORDERS, action create" in await output_of(listening)


async def test_a_reader_stays_while_its_server_restarts(start, clients):
    server = await start(process=True)
    listening = await Shell(server.url).start("sub orders --count 1", b"Subscribing")
    await server.kill()
    await server.start()
    client = await clients(server)
    printed = asyncio.create_task(output_of(listening))
    while not printed.done():
        await client.publish("orders", b"hello")
        await asyncio.sleep(0.02)
    assert "hello" in printed.result()


async def test_reports_of_the_system_account(start):
    server = await start(
        """
        server_name: one
        jetstream { store_dir: "STORE_DIR", max_file_store: 1GB }
        accounts { SYS { users: [ { user: sys, password: sys } ] } }
        system_account: SYS
        """
    )
    shell, login = Shell(server.url), "--user sys --password sys"
    await shell.run("stream add ORDERS --subjects orders")
    assert "of 1.0 GiB" in await shell.run(f"server report jetstream {login}")
    (data,) = await shell.json(f"server report jetstream {login}")
    assert (data["server"], data["streams"]) == ("one", 1)
    assert "jetlake command" in await shell.run(f"server report connections {login}")
    assert (await shell.json(f"server report connections --top 1 {login}"))[0]["server"] == "one"
    refused = await shell.run(f"server report connections --top {2**63} {login}", status=EXIT_FAILED)
    assert refused.startswith("jetlake: one: ")
    assert "limit" in refused
    assert "a user of the system account" in await shell.run("server report jetstream", status=EXIT_FAILED)


async def test_a_hashed_password_opens_the_server(start):
    nowhere = Shell("nats://127.0.0.1:9")
    hashed = (await nowhere.run("server passwd --cost 4", stdin="secret word\n")).strip()
    server = await start(f'authorization {{ user: me, password: "{hashed}" }}')
    assert "JetStream: on" in await Shell(server.url).run("server info --user me --password 'secret word'")
    made = await nowhere.json("server passwd --generate --cost 4")
    assert made["hash"].startswith("$2a$04$")
    assert "1 to 72 bytes" in await nowhere.run("server passwd", stdin="x" * 73, status=EXIT_USAGE)


async def test_names_that_a_shell_completes(files, server, clients):
    await files.run("kv add PRICES --storage memory")
    await files.run("kv put PRICES tea.green 42")
    await files.run("object put FILES - --name report", stdin="x")
    client = await clients(server)
    async with client.service("shop", "1.2.3") as shop:
        shop.add_endpoint("price", lambda request: b"42")
        await client.flush()
        for line, names in {
            "kv get P": ["PRICES"],
            "kv get PRICES te": ["tea.green"],
            "object ls F": ["FILES"],
            "object get FILES re": ["report"],
            "micro info s": ["shop"],
            "schedule ls KV": ["KV_PRICES"],
        }.items():
            *words, incomplete = line.split()
            completion = ShellComplete(app, {}, "jetlake", "_JETLAKE_COMPLETE")
            words = ["-s", server.url, "--timeout", "60", *words]
            found = await asyncio.to_thread(completion.get_completions, words, incomplete)
            assert [one.value for one in found] == names, line


@pytest.mark.parametrize(
    ("line", "subject"),
    [("pub a x", "a"), ("req a x", "a"), ("micro ls", "$SRV.INFO"), ("events --count 1", "$JS.EVENT.ADVISORY.>")],
)
async def test_a_permission_that_is_missing_is_a_failure(start, line, subject):
    user = 'user: weak, password: p, permissions: { publish: b, subscribe: "_INBOX.>" }'
    server = await start(f"authorization {{ users: [ {{ {user} }} ] }}")
    weak = Shell(server.url.replace("nats://", "nats://weak:p@"))
    assert f'to "{subject}"' in await weak.run(f"{line} --timeout 0.5", status=EXIT_FAILED)
    assert "Published" not in await weak.run("pub a x", status=EXIT_FAILED)
