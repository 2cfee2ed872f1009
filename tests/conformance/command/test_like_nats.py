"""Commands, options and words of `nats` on both servers: sub, pub, req, reply, server check, context and bench."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE
from tests.support.command_shell import Shell, output_of

_SYSTEM = """
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
async def orders(shell):
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    await shell.run("pub 'orders.{{Count}}' 'order {{Count}}' --count 3 -J -H 'Number:{{Count}}'")
    return shell


async def test_sub_reads_streams(orders):
    out = await orders.run("sub --stream ORDERS --terminate-at-end")
    assert "[#1] Received JetStream message: stream: ORDERS seq 1 / subject: orders.1 / time: " in out
    assert "Number: 3\n\norder 3\n" in out
    assert await orders.run("sub orders.> --all -T --raw") == "order 1\norder 2\norder 3\n"
    assert await orders.run("sub orders.> --last --count 1 --raw") == "order 3\n"
    assert await orders.run("sub --stream ORDERS --start-sequence 2 -T --subjects-only") == "orders.2\norders.3\n"
    assert await orders.run("sub orders.> --since 1h -T --raw --ignore-subject orders.2") == "order 1\norder 3\n"
    assert await orders.run("sub orders.1 --last-per-subject -T --raw --translate 'tr a-z A-Z'") == "ORDER 1\n"
    assert "order 1" not in await orders.run("sub --stream ORDERS -T --headers-only")
    assert await orders.run("sub orders.* --durable D --count 1 --raw") == "order 1\n"
    assert await orders.run("sub orders.* --durable D -T --raw") == "order 2\norder 3\n"
    report = await orders.json("sub orders.> --all -T --report-subjects")
    assert report == {f"orders.{number}": {"messages": 1, "bytes": 7} for number in (1, 2, 3)}
    assert "3 messages" in await orders.run("sub orders.> --all -T --report-subscriptions --report-top 1")
    await orders.run("sub orders.> --new --wait 50ms --raw")
    assert await orders.run("sub orders.> --all --direct -T --raw") == "order 1\norder 2\norder 3\n"
    assert "stream: ORDERS seq 3 / subject: orders.3" in await orders.run("sub --stream ORDERS --last --direct -T")
    assert await orders.run("sub orders.2 --last-per-subject --direct -T --raw") == "order 2\n"
    assert await orders.run("sub orders.1 orders.3 --since 1h --direct -T --raw") == "order 1\norder 3\n"
    assert await orders.run("sub orders.> --start-sequence 2 --direct --count 1 --subjects-only") == "orders.2\n"
    assert await orders.run("sub orders.> --new --direct -T --raw") == ""


async def test_sub_dumps_messages(orders, tmp_path):
    await orders.run(f"sub --stream ORDERS -T --dump {tmp_path / 'out'}")
    assert json.loads((tmp_path / "out" / "2.json").read_text())["subject"] == "orders.2"
    texts = (await orders.run("sub --stream ORDERS -T --dump -")).split("\0")
    assert [json.loads(text)["headers"] for text in texts[:-1]] == [[["Number", str(n)]] for n in (1, 2, 3)]


async def test_what_others_named_writes_nothing_on_the_terminal_but_text(shell):
    await shell.run("stream add HOSTILE --subjects hostile.> --defaults")
    await shell.run("pub 'hostile.\x1b[31m' body -H 'Kind:\x1b[2J' -J")
    for line in (
        "stream get HOSTILE 1",
        "stream view HOSTILE",
        "stream subjects HOSTILE --names",
        "sub --stream HOSTILE -T",
    ):
        out = await shell.run(line)
        assert "\x1b" not in out and "hostile.\\x1b[31m" in out, line
    assert "Kind: \\x1b[2J\n" in await shell.run("sub --stream HOSTILE -T")
    assert await shell.run("sub --stream HOSTILE -T --subjects-only") == "hostile.\\x1b[31m\n"
    # Bytes that are no text.
    await shell.run("pub hostile.x body -H 'Kind:\udcff' -J")
    for line in ("stream get HOSTILE 2 --json", "stream view HOSTILE --id 2 --json", "sub --stream HOSTILE -T --json"):
        assert '"\\\\udcff"' in await shell.run(line), line


async def test_sub_matches_replies_and_takes_several_subjects(shell):
    answering = await shell.start("reply 'greet.*' 'hi {{1}}, {{Request}}' --count 1", b"Listening")
    watching = await shell.start("sub 'greet.*' 'other.*' --match-replies --count 1", b"Subscribing")
    assert await shell.run("req greet.joe hello --raw") == "hi joe, hello\n"
    out = await output_of(watching)
    assert '[#1] Received on "greet.joe" with reply "_INBOX.' in out
    assert re.search(r'\[#1\] Matched reply on "_INBOX\.[^"]+"\nhi joe, hello\n', out)
    await output_of(answering)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("sub", "subject is missing"),
        ("sub a --inbox", "--inbox needs neither"),
        ("sub a --all --last", "use only one of"),
        ("sub a --all --queue q", "can not be combined"),
        ("sub a -T", "needs a stream"),
        ("sub a --direct", "--direct needs"),
        ("bench orders --pub 1 --sub 1", "jetlake bench pub orders"),
        ("pub a b --atomic --count 0", "--atomic needs an end"),
        ("req a --timeout 0s", "not a duration above zero"),
        ("req a --timeout soon", "is not a duration"),
        ('sub a --translate "\'"', "No closing quotation"),
        ("sub a --graph", "needs a terminal"),
    ],
)
async def test_contradictions_are_answered_in_one_line(shell, line, text):
    assert text in await shell.run(line, status=EXIT_USAGE)


async def test_templates(shell):
    await shell.run("stream add T --subjects t.> --defaults")
    await shell.run("pub t.1 '{{ Random 3 5 }}|{{Count}}|{{Unix}}|{{ID}}|{{nothing}}' -J")
    stored = await shell.run("sub t.1 --all -T --raw")
    assert re.fullmatch(r"[A-Za-z0-9]{3,5}\|1\|\d{10}\|[A-Za-z0-9]{22}\|\{\{nothing\}\}\n", stored)
    await shell.run("pub t.2 '{{Count}}' -J --no-templates")
    assert await shell.run("sub t.2 --all -T --raw") == "{{Count}}\n"
    assert await shell.run("pub t.3 x --quiet") == ""
    await shell.run("pub t.4 --send-on newline -J", stdin="one\ntwo\n")
    assert await shell.run("sub t.4 --all -T --raw") == "one\ntwo\n"
    await shell.run("pub t.5 ignored --force-stdin -J", stdin="typed")
    assert await shell.run("sub t.5 --all -T --raw") == "typed\n"
    await shell.run("stream edit T --allow-batch --force")
    out = await shell.json("pub t.6 '{{Count}}' --atomic --count 3")
    assert (out["stream"], out["messages"]) == ("T", 3)
    assert await shell.run("sub t.6 --all -T --raw") == "1\n2\n3\n"


async def test_req_and_reply(shell):
    answering = await shell.start("reply 'echo.>' --count 2", b"Listening")
    out = await shell.run("req echo.a.b hello -H Key:value --timeout 2s")
    assert "Key: value\n" in out
    assert "NATS-Reply-Counter: 0\n" in out
    assert out.endswith("\n\nhello\n")
    assert "received 1 of 2 responses" in await shell.run(
        "req echo.a.b hello --replies 2 --reply-timeout 50ms", status=EXIT_FAILED
    )
    await output_of(answering)
    answering = await shell.start("reply 'run.*' --command 'printenv NATS_REQUEST_BODY' --count 1", b"Listening")
    assert await shell.run("req run.x body --raw --translate 'tr a-z A-Z'") == "BODY\n"
    await output_of(answering)


async def test_checks(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = Shell((await start(_SYSTEM)).url)
    await shell.run("stream add ORDERS --subjects orders.> --defaults --metadata io.nats.monitor.msgs-critical=1")
    await shell.run("pub orders.new hello --count 3 -J")
    await shell.run("consumer add ORDERS W --pull --defaults")
    await shell.run("kv add B")
    await shell.run("kv put B tea 1")

    async def check(line, status=0):
        return await shell.run(f"server check {line}", status=status)

    assert (await check("connection --connect-warn 1m --connect-critical 1m")).startswith(
        "OK Connection OK:connected to"
    )
    assert "OK ORDERS OK:3 messages OK:1 subject | messages=3" in await check("stream --stream ORDERS")
    assert (await check("stream --stream ORDERS --msgs-critical 3", 2)).startswith("CRITICAL ORDERS Crit:3 messages")
    assert (await check("stream --stream ORDERS --msgs-warn 3", 1)).startswith("WARNING ORDERS Warn:3 messages")
    assert "Crit:1 peer of expected 3" in await check("stream --stream ORDERS --peer-expect 3", 2)
    assert "Crit:stream NOPE not found" in await check("stream --stream NOPE", 2)
    assert "Crit:0 sources of expected 1 to any" in await check("stream --stream ORDERS --min-sources 1", 2)
    assert "Crit:none.creds: No such file" in await check("credential --credential none.creds", 2)
    missing = await check(f"server --name NOPE {_AS_SYSTEM}", 2)
    assert "no answer from server NOPE; these answer: " in missing
    assert "OK:Unprocessed Messages: 3" in await check("consumer --stream ORDERS --consumer W")
    line = "consumer --stream ORDERS --consumer W --unprocessed-critical 3 --last-ack-critical 1m --pinned"
    out = await check(line, 2)
    for text in ("Crit:Unprocessed Messages: 3", "Crit:Last Ack: never", "no pinned client policy"):
        assert text in out
    assert "OK:message on orders.new is" in await check("message --stream ORDERS --age-critical 1h --content hello")
    assert "does not match" in await check("message --stream ORDERS --content ^bye", 2)
    assert "no message on x" in await check("message --stream ORDERS --subject x", 2)
    assert "all replicas are healthy" in await check("jetstream")
    assert "OK:key tea found" in await check("kv --bucket B --key tea")
    assert "Crit:key nope not found" in await check("kv --bucket B --key nope", 2)
    needs = await check("meta --expect 3 --lag-critical 1 --seen-critical 1s", 2)
    assert "needs a user of the system account" in needs
    meta = f"meta --expect 3 --lag-critical 1 --seen-critical 1s {_AS_SYSTEM}"
    assert "Crit:here is not part of a cluster" in await check(meta, 2)
    assert "OK:JetStream enabled" in await check(f"server --name here --js-required {_AS_SYSTEM}")
    assert "Crit:connections" in await check(f"server --name here --conn-critical 1 {_AS_SYSTEM}", 2)
    assert "Crit:TLS required: no" in await check(f"server --name here --tls-required {_AS_SYSTEM}", 2)
    found = json.loads(await check("--format json stream --stream ORDERS"))
    assert (found["status"], found["check_suite"], found["check_name"]) == ("OK", "stream", "ORDERS")
    await check(f"stream --stream ORDERS --format prometheus --namespace x --outfile {tmp_path / 'out.prom'}")
    assert 'x_stream_status_code{item="ORDERS",status="OK"} 0\n' in (tmp_path / "out.prom").read_text()
    assert "ORDERS: OK\n" in await check("stream --stream ORDERS --format text")


async def test_exporter(shell, tmp_path):
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    file = tmp_path / "checks.json"
    job = {"name": "few", "kind": "stream", "properties": {"stream": "ORDERS", "msgs-critical": 1}}
    file.write_text(json.dumps({"checks": [job]}))
    exporter = await asyncio.create_subprocess_exec(
        *shell.words(f"server check exporter --config {file} --port 0"), stderr=asyncio.subprocess.PIPE
    )
    try:
        told = (await exporter.stderr.readline()).decode()
        port = int(re.search(r":(\d+)/metrics", told)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
    finally:
        exporter.terminate()
        await exporter.communicate()
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert 'nats_server_check_stream_status_code{item="few",status="CRITICAL"} 2\n' in answer
    file.write_text(json.dumps({"checks": [{**job, "kind": "weather"}]}))
    assert "unknown kind 'weather'" in await shell.run(f"server check exporter --config {file}", status=EXIT_USAGE)
    file.write_text(json.dumps({"checks": [{**job, "properties": {"strem": "ORDERS"}}]}))
    assert "check few: No such option" in await shell.run(f"server check exporter --config {file}", status=EXIT_USAGE)


async def test_contexts(shell, monkeypatch, tmp_path):
    for variable in ("NATS_URL", "JETLAKE_URL", "NATS_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    await shell.run("context add first --description 'the first' --select")
    await shell.run("ctx copy first second --user me --password secret")
    assert "already exists" in await shell.run("context copy first second", status=EXIT_USAGE)
    out = await shell.run("context ls")
    assert re.search(r"first\* +the first\n +second +the first", out)
    assert await shell.run("context ls --names") == "first\nsecond\n"
    out = await shell.run("context info second")
    assert "Username: me" in out
    assert "secret" not in out
    assert (await shell.json("context info first --connect"))["connection"] == "OK"
    assert await shell.run("context select second") == "Switched to context second\n"
    assert await shell.run("context previous") == "Switched to context first\n"
    assert await shell.run("context validate first --connect") == "first: OK\n"
    await shell.run("context save third --creds /nowhere/at/all")
    assert "can't read /nowhere/at/all" in await shell.run("context validate", status=EXIT_FAILED)
    await shell.run("context unselect")
    assert "no context is selected" in await shell.run("context info", status=EXIT_USAGE)
    assert "context name is missing" in await shell.run("context select", status=EXIT_USAGE)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/the first/a better one/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.setenv("VISUAL", "")
    await shell.run("context edit first")
    assert "a better one" in await shell.run("context ls")
    editor.write_text('#!/bin/sh\necho "{" > "$1"\n')
    assert "first is unchanged" in await shell.run("context edit first", status=EXIT_FAILED)
    await shell.run("context rm second --force")


async def test_bench(shell, tmp_path):
    assert "Core NATS publisher stats:" in await shell.run("bench pub test --msgs 2000 --clients 2 --multisubject")
    stats = await shell.json(f"bench js pub async test --create --msgs 1000 --size 16 --csv {tmp_path / 'out.csv'}")
    assert (stats["messages"], stats["size"], stats["clients"]) == (1000, 16, 1)
    assert (tmp_path / "out.csv").read_text().startswith("client,messages,size,seconds,messages_per_second\n1,1000,16,")
    assert (await shell.json("stream info benchstream"))["state"]["messages"] == 1000
    for line in (
        "js pub sync test --msgs 20 --dedup",
        "js pub batch test --msgs 200 --batch 50",
        "js ordered --msgs 1000",
        "js consume --msgs 600 --clients 2 --batch 100",
        "js fetch --msgs 600 --clients 2 --batch 100 --doubleack",
        "js get sync --msgs 20",
        "js get batched --msgs 500 --batch 100",
        "kv put --msgs 20",
        "kv get --msgs 20 --randomize 10",
    ):
        assert "msgs/sec" in await shell.run(f"bench {line}")
    subscribed = await shell.start("bench sub test --msgs 50 --no-progress", b"Starting")
    done = asyncio.create_task(output_of(subscribed))
    while not done.done():
        await shell.run("bench pub test --msgs 50 --no-progress")
    assert "Core NATS subscriber stats:" in done.result()
    serving = await shell.start("bench service serve bench.requests", b"Listening")
    try:
        assert "msgs/sec" in await shell.run("bench service request bench.requests --msgs 20")
    finally:
        serving.terminate()
        await serving.communicate()


async def test_pub_takes_the_rows_of_a_file(shell, tmp_path):
    rows = tmp_path / "orders.jsonl"
    rows.write_text("".join(f'{{"id": {number}, "country": "de"}}\n' for number in range(5)))
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    assert await shell.run(f"pub 'orders.{{country}}' --from {rows} --key id") == f"Published 5 rows of {rows}\n"
    again = f"Published 5 rows of {rows}, 5 of them stored before\n"
    assert await shell.run(f"pub 'orders.{{country}}' --from {rows} --key id") == again
    assert '{"id":4,"country":"de"}' in await shell.run("sub --stream ORDERS -T --raw")
    for line, text in (
        (f"pub orders.a body --from {rows}", "leave out BODY"),
        ("pub orders.a --key id", "--key is a column of the file"),
        ("pub", "SUBJECT is missing"),
    ):
        assert text in await shell.run(line, status=EXIT_USAGE)
    assert "no column city" in await shell.run(f"pub 'orders.{{city}}' --from {rows}", status=EXIT_USAGE)
