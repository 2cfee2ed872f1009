"""The command line on both servers: the deep dive's commands as written, and every command's good and bad input."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import PIPE
from base64 import b64decode
from pathlib import Path

import pytest
from click.testing import CliRunner

from jetlake.cli.app import app
from jetlake.cli.session import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE
from tests.support.clients import until
from tests.support.command_shell import Shell, output_of


@pytest.fixture
async def orders(shell):
    await shell.run("stream add ORDERS --subjects ORDERS.*")
    return shell


async def test_deduplication_of_the_deep_dive(orders):
    for number in range(1, 5):
        await orders.run(f"req -H Nats-Msg-Id:1 ORDERS.new hello{number}")
    info = await orders.json("stream info ORDERS")
    assert info["state"]["messages"] == 1
    out = await orders.run("stream info ORDERS")
    assert "State:\n\n" in out
    assert "Messages: 1\n" in out
    # By the deep dive's own formula: 34 bytes of numbers, 10 of the subject, 28 of the header, 6 of the payload.
    assert "Bytes: 78 B\n" in out


async def test_acknowledgement_walk_of_the_deep_dive(orders):
    await orders.run("consumer add ORDERS DISPATCH --pull --filter ORDERS.processed --ack explicit --wait 200ms")

    async def state():
        info = await orders.json("consumer info ORDERS DISPATCH")
        delivered, floor = info["delivered"], info["ack_floor"]
        return (
            (delivered["consumer_seq"], delivered["stream_seq"]),
            (floor["consumer_seq"], floor["stream_seq"]),
            info["num_ack_pending"],
            info["num_redelivered"],
        )

    assert await state() == ((0, 0), (0, 0), 0, 0)
    out = await orders.run("stream info ORDERS")
    assert "First Sequence: 0\n" in out
    assert "Last Sequence: 0\n" in out
    out = await orders.run("consumer info ORDERS DISPATCH")
    assert "State:\n\n" in out
    assert "Last Delivered Message: Consumer sequence: 0 Stream sequence: 0\n" in out
    assert "Acknowledgment Floor: Consumer sequence: 0 Stream sequence: 0\n" in out
    assert "Waiting Pulls: 0 of maximum 512\n" in out
    assert await orders.run("pub ORDERS.processed 'order 4'") == "Published 7 bytes to ORDERS.processed\n"

    async def is_stored():
        return (await orders.json("stream info ORDERS"))["state"]["messages"] == 1

    await until(is_stored)
    assert (await orders.json("stream info ORDERS"))["state"]["bytes"] == 53
    out = await orders.run("consumer next ORDERS DISPATCH")
    assert re.search(
        r"^\[\d\d:\d\d:\d\d\] subj: ORDERS.processed / tries: 1 / cons seq: 1 / str seq: 1 / pending: 0\n\n"
        r"order 4\n\nAcknowledged message\n\n$",
        out,
    )
    assert re.search(r"First Sequence: 1 @ \d{4}-", await orders.run("stream info ORDERS"))
    assert await state() == ((1, 1), (1, 1), 0, 0)
    await orders.run("pub ORDERS.processed 'order 5' -J")
    out = await orders.run("consumer next ORDERS DISPATCH --no-ack")
    assert "order 5" in out
    assert "Acknowledged" not in out
    assert await state() == ((2, 2), (1, 1), 1, 0)
    await orders.run("consumer next ORDERS DISPATCH --no-ack")
    assert await state() == ((3, 2), (1, 1), 1, 1)
    await orders.run("con next ORDERS DISPATCH")
    assert await state() == ((4, 2), (4, 2), 0, 0)
    # The document's short names, and others of the `nats` command.
    out = await orders.run("con info ORDERS DISPATCH")
    assert "Outstanding Acks: 0 out of maximum 1,000\n" in out
    assert re.search(r"Last Delivered Message: Consumer sequence: 4 Stream sequence: 2 Last delivery: \S+ ago\n", out)
    assert re.search(r"Acknowledgment Floor: Consumer sequence: 4 Stream sequence: 2 Last Ack: \S+ ago\n", out)
    for words in ("str info ORDERS", "s nfo ORDERS", "st i ORDERS"):
        assert "ORDERS" in await orders.run(words)
    assert "ORDERS" in await orders.run("str list")
    assert "DISPATCH" in await orders.run("c l ORDERS")
    await orders.run("con create ORDERS EXTRA --pull --defaults")
    await orders.run("obs del ORDERS EXTRA --force")
    assert "EXTRA" not in await orders.run("con ls ORDERS")


async def test_starting_positions_of_the_deep_dive(orders):
    await orders.run("pub ORDERS.processed 'order {{Count}}' --count 100 -J")
    for name, deliver, first in (("ALL", "all", 1), ("LAST", "last", 100), ("TEN", "10", 10), ("2MIN", "2m", 1)):
        await orders.run(
            f"consumer add ORDERS {name} --pull --filter ORDERS.processed --ack none --replay instant "
            f"--deliver {deliver}"
        )
        out = await orders.run(f"consumer next ORDERS {name}")
        assert f"order {first}\n\nAcknowledged message\n" in out
    await orders.run("consumer add ORDERS NEW --pull --ack none --deliver new --sample 80")
    assert "no message from consumer" in await orders.run("consumer next ORDERS NEW --wait 100ms", status=EXIT_FAILED)
    assert "Sampling Rate: 80" in await orders.run("consumer info ORDERS NEW")


async def test_ephemeral_monitor_and_replay_of_the_deep_dive(orders):
    await orders.run("pub ORDERS.processed 'order 1' -J")
    monitor = await orders.start("sub my.monitor --count 1", b"Subscribing")
    await orders.run(
        "consumer add ORDERS --filter '' --ack none --target my.monitor --deliver last --replay instant --ephemeral"
    )
    assert "order 1\n" in await output_of(monitor)
    await orders.run(
        "consumer add ORDERS REPLAY --target out.original --filter ORDERS.processed --ack none --deliver all "
        "--sample 100 --replay original"
    )
    out = await orders.run("consumer info ORDERS REPLAY")
    assert "Replay Policy: Original" in out
    assert "Active Interest: No interest\n" in out
    assert "Outstanding Acks" not in out
    assert "order 1" in await orders.run("consumer sub ORDERS REPLAY --count 1")


async def test_stream_commands(shell):
    out = await shell.run(
        "stream add S --subjects 'a.>,b' --max-age 7d --max-bytes 1GB --storage memory --metadata k=v --dupe-window 30s"
    )
    assert "Subjects: a.>, b" in out
    titles = [line for line in (await shell.run("stream info S")).splitlines() if line[:1].strip()]
    assert titles.pop(0).startswith("Information for Stream S created 20")
    assert titles == ["Options:", "Limits:", "Metadata:", "State:"]
    config = (await shell.json("stream info S"))["config"]
    assert config["subjects"] == ["a.>", "b"]
    assert config["max_age"] == 7 * 86_400 * 10**9
    assert config["max_bytes"] == 1024**3
    assert config["storage"] == "memory"
    assert config["duplicate_window"] == 30 * 10**9
    assert config["metadata"]["k"] == "v"
    await shell.run("stream edit S --max-msgs 1000 --force")
    assert (await shell.json("stream info S"))["config"]["max_msgs"] == 1000
    await shell.run("pub a.1 one -H K:V -J")
    await shell.run("pub b two -J")
    await shell.run("pub a.1 three -J")
    assert await shell.json("stream subjects S") == {"a.1": 2, "b": 1}
    assert "K: V\n\none" in await shell.run("stream get S 1")
    assert "three" in await shell.run("stream get S --last-for a.1")
    assert "two" in await shell.run("stream get S --next-for b")
    await shell.run("stream rmm S 2 --force")
    assert "no message found" in await shell.run("stream get S 2", status=EXIT_FAILED)
    assert (await shell.json("stream purge S --subject a.1 --keep 1 --force"))["purged"] == 1
    assert "S " in await shell.run("stream ls")
    assert await shell.json("stream ls --names") == ["S"]
    assert [one["config"]["name"] for one in await shell.json("stream ls --subject a.x")] == ["S"]
    await shell.run("stream rm S --force")
    assert "No streams" in await shell.run("stream ls")


async def test_stream_from_a_file(shell, tmp_path):
    file = tmp_path / "stream.json"
    file.write_text('{"name": "ignored", "subjects": ["f.>"], "max_msgs": 5}')
    await shell.run(f"stream add F --config {file} --max-msgs 6")
    config = (await shell.json("stream info F"))["config"]
    assert (config["name"], config["subjects"], config["max_msgs"]) == ("F", ["f.>"], 6)
    file.write_text('{"subject": "typo"}')
    said = await shell.run(f"stream add G --config {file}", status=EXIT_USAGE)
    assert said.endswith("""stream.json: json: unknown field "subject"; did you mean 'subjects'?\n""")
    assert "No such file" in await shell.run("stream add G --config /nowhere/at/all", status=EXIT_USAGE)


async def test_consumer_commands(orders):
    await orders.run("consumer add ORDERS C --filter ORDERS.a --filter ORDERS.b --max-deliver 3 --backoff 1s,5s")
    config = (await orders.json("consumer info ORDERS C"))["config"]
    assert config["filter_subjects"] == ["ORDERS.a", "ORDERS.b"]
    assert config["backoff"] == [10**9, 5 * 10**9]
    for filters, expected in (
        ("--filter ORDERS.a", {"filter_subject": "ORDERS.a"}),
        ("--filter ORDERS.b --filter ORDERS.c", {"filter_subjects": ["ORDERS.b", "ORDERS.c"]}),
        ("--filter ''", {}),
    ):
        config = (await orders.json(f"consumer edit ORDERS C {filters}"))["config"]
        assert {key: value for key, value in config.items() if key.startswith("filter_")} == expected
    await orders.run("consumer edit ORDERS C --description changed --max-pending 7 --max-pull-bytes 1MB --replicas 1")
    config = (await orders.json("consumer info ORDERS C"))["config"]
    assert (config["description"], config["max_ack_pending"], config["max_deliver"]) == ("changed", 7, 3)
    assert (config["max_bytes"], config["num_replicas"]) == (1024**2, 1)
    await orders.run("consumer copy ORDERS C D --max-deliver 5")
    copy = (await orders.json("consumer info ORDERS D"))["config"]
    own = {"name": "D", "durable_name": "D", "max_deliver": 5, "metadata": copy["metadata"]}
    assert copy == {**config, **own}
    await orders.run("consumer rm ORDERS D --force")
    assert await orders.json("consumer ls ORDERS --names") == ["C"]
    assert "explicit" in await orders.run("consumer ls ORDERS")
    assert (await orders.json("consumer pause ORDERS C 1h"))["paused"] is True
    assert "remaining)" in await orders.run("consumer info ORDERS C")
    assert (await orders.json("consumer resume ORDERS C"))["paused"] is False
    await orders.run("pub ORDERS.a x --count 3 -J")
    await orders.run("consumer next ORDERS C --count 2 --raw")
    await orders.run("consumer next ORDERS C --nak")
    assert (await orders.json("consumer reset ORDERS C --seq 1 --force"))["reset_seq"] == 1
    assert "x" in await orders.run("consumer sub ORDERS C --count 1 --raw")
    # What was not printed was not delivered either.
    assert (await orders.json("consumer info ORDERS C"))["delivered"]["stream_seq"] == 1
    await orders.run("consumer rm ORDERS C --force")
    assert "No consumers" in await orders.run("consumer ls ORDERS")


async def test_a_push_consumer_with_flow_control(orders):
    await orders.run(f"pub ORDERS.new {'x' * 40_000} --count 150 -J")
    await orders.run(
        "consumer add ORDERS PUSH --target push.here --ack none --flow-control --heartbeat 1s --deliver all"
    )
    out = await orders.run("consumer sub ORDERS PUSH --count 150 --json")
    assert [json.loads(line)["stream_seq"] for line in out.splitlines()] == list(range(1, 151))


async def test_repeated_headers_and_many_answers(orders, server, clients):
    await orders.run("pub ORDERS.new x -J -H K:1 -H K:2")
    assert "K: 1\nK: 2\n\nx" in await orders.run("stream get ORDERS 1")
    client = await clients(server)

    async def answer_twice(message):
        await client.publish(message.reply, b"one")
        await client.publish(message.reply, b"two")

    await client.subscribe("twice", answer_twice)
    await client.flush()
    assert await orders.run("req twice x --replies 2 --raw") == "one\ntwo\n"
    answer = await orders.json("req ORDERS.new z")
    assert json.loads(b64decode(answer["data"]))["seq"] == 2
    assert await orders.json("pub ORDERS.new x -J") == {
        "subject": "ORDERS.new",
        "messages": 1,
        "stream": "ORDERS",
        "seq": 3,
        "duplicate": False,
    }
    await orders.run("consumer add ORDERS C --pull")
    assert (await orders.json("consumer next ORDERS C"))["tries"] == 1
    assert await orders.json("consumer rm ORDERS C --force") == {"stream": "ORDERS", "removed": "C"}
    assert await orders.json("stream rm ORDERS --force") == {"removed": "ORDERS"}


async def test_priority_groups(orders):
    await orders.run("consumer add ORDERS P --pinned-groups jobs --pinned-ttl 30s")
    assert "Priority Policy: Pinned Client" in await orders.run("consumer info ORDERS P")
    await orders.run("pub ORDERS.a job")
    assert "job" in await orders.run("consumer sub ORDERS P --group jobs --count 1")
    assert "Priority Groups: jobs: pinned " in await orders.run("consumer info ORDERS P")
    assert "Unpinned the client" in await orders.run("consumer unpin ORDERS P --force")
    await orders.run("consumer add ORDERS PLAIN")
    assert "no priority group" in await orders.run("consumer unpin ORDERS PLAIN --force", status=EXIT_USAGE)


async def test_messages_by_hand(orders):
    listening = await orders.start("sub 'greet.*' --count 2", b"Subscribing")
    await orders.run("pub greet.joe hello -H K:V")
    await orders.run("pub greet.sue", stdin="from standard input")
    out = await output_of(listening)
    assert '[#1] Received on "greet.joe"\nK: V\n\nhello' in out
    assert "from standard input" in out
    timed = await orders.start("sub greet.joe -t --count 1", b"Subscribing")
    await orders.run("pub greet.joe hello")
    moment = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\.\d{6}"
    assert re.search(rf'^\[#1\] @ {moment} Received on "greet.joe"\nhello', await output_of(timed), re.MULTILINE)
    assert "Stored in ORDERS as sequence 1" in await orders.run("pub ORDERS.new -J one -H Nats-Msg-Id:7")
    assert "(duplicate)" in await orders.run("pub ORDERS.new -J one -H Nats-Msg-Id:7")
    assert '{"stream":"ORDERS","seq":2}' in await orders.run("req ORDERS.new two")


@pytest.mark.parametrize("line", ["pub ORDERS.new --count 2 -J", "req ORDERS.new --count 2"])
async def test_standard_input_is_the_body_of_every_message(orders, line):
    await orders.run(line, stdin="typed {{Count}}")
    stored = await orders.json("stream view ORDERS")
    assert [b64decode(message["data"]) for message in stored] == [b"typed {{Count}}"] * 2


async def test_a_terminal_is_told_that_its_input_is_read(orders):
    out, said = await orders.answer("pub ORDERS.new -J", "typed", "\x04")
    assert ("press Ctrl-D to end" in said, out) == (True, "Stored in ORDERS as sequence 1\n")


async def test_ack_watch(orders):
    await orders.run("consumer add ORDERS C --sample 100")
    watching = await orders.start("ack-watch ORDERS C --count 1", b"Waiting")
    await orders.run("pub ORDERS.a x")
    await orders.run("consumer next ORDERS C")
    assert "sequence 1: acknowledged after" in await output_of(watching)


async def test_account_and_server(orders, kind):
    await orders.run("pub ORDERS.a x --count 4 -J")
    # Behind the messages, so that all of them are counted as pending at once.
    await orders.run("consumer add ORDERS C")
    assert (await orders.json("account info"))["streams"] == 1
    assert "Streams: 1 of unlimited" in await orders.run("account info")
    (measured,) = await orders.json("rtt --count 3")
    assert 0 < measured["min"] <= measured["median"] <= measured["max"]
    assert measured["server"] in await orders.run("rtt --count 1")
    assert (await orders.json("server info"))["jetstream"] is True
    said = await orders.run("server info")
    assert "JetStream: on" in said
    assert ("compatible with nats-server 2.15.1" in said) == (kind == "embedded")

    async def has_counted():
        report = await orders.json("server report")
        assert report["streams"][0]["state"]["messages"] == 4
        return report["consumers"][0]["num_pending"] == 4

    await until(has_counted)
    assert "ORDERS > C" in await orders.run("server report")


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("stream info NOPE", EXIT_FAILED, "stream NOPE not found (10059). List them: jetlake stream ls"),
        ("stream add 'a b'", EXIT_USAGE, "stream"),
        ("stream add X --max-age soon", EXIT_USAGE, "is not a duration"),
        ("stream add X --max-msg-size 3GB", EXIT_USAGE, "max_msg_size"),
        ("consumer add ORDERS C --bps -5", EXIT_USAGE, "rate_limit_bps"),
        ("stream add X --subjects 'a..b'", EXIT_FAILED, "invalid subject"),
        ("stream add X --subjects 'free,ORDERS.new'", EXIT_FAILED, "(10065): 'ORDERS.new' with ORDERS"),
        ("stream add", EXIT_USAGE, "stream name is missing"),
        ("consumer add", EXIT_USAGE, "stream name is missing"),
        ("stream get ORDERS 99", EXIT_FAILED, "stream ORDERS: no message found"),
        ("consumer add ORDERS C --max-deliver 1 --backoff 1s,2s", EXIT_FAILED, "consumer ORDERS > C: "),
        ("pub ORDERS.new x -J -H Nats-Expected-Stream:OTHER", EXIT_FAILED, "ORDERS.new: expected stream"),
        ("stream add X --retention maybe", EXIT_USAGE, "maybe"),
        ("stream edit NOPE --max-msgs 1", EXIT_FAILED, "stream NOPE not found"),
        ("stream edit ORDERS", EXIT_USAGE, "nothing to change"),
        ("stream get ORDERS", EXIT_USAGE, "message is missing"),
        ("stream get ORDERS 1 --last-for ORDERS.new", EXIT_USAGE, "--last-for"),
        ("stream get ORDERS --next-for ORDERS.new --last-for ORDERS.new", EXIT_USAGE, "--last-for"),
        ("stream purge ORDERS", EXIT_USAGE, "--force"),
        ("stream purge ORDERS --seq 1 --keep 1 --force", EXIT_USAGE, "not both"),
        ("stream rmm ORDERS 99 --force", EXIT_FAILED, "(100"),
        ("consumer add ORDERS C --pull --target x", EXIT_USAGE, "are mutually exclusive"),
        ("consumer add ORDERS C --deliver sometime", EXIT_USAGE, "start position"),
        ("consumer add ORDERS C --overflow-groups a --pinned-groups b", EXIT_USAGE, "are mutually exclusive"),
        ("consumer next ORDERS C --nak --term", EXIT_USAGE, "are mutually exclusive"),
        ("stream ls --tlskey /no/such.pem", EXIT_USAGE, "/no/such.pem needs its certificate"),
        ("stream ls --tlsca /no/such.pem", EXIT_USAGE, "/no/such.pem: "),
        ("consumer add NOPE C", EXIT_FAILED, "stream NOPE not found"),
        ("consumer info ORDERS NOPE", EXIT_FAILED, "List them: jetlake consumer ls ORDERS"),
        ("consumer edit ORDERS NOPE --max-deliver 1", EXIT_FAILED, "consumer NOPE not found on stream ORDERS (10014)"),
        ("consumer next ORDERS NOPE", EXIT_FAILED, "consumer NOPE not found on stream ORDERS (10014)"),
        ("consumer pause ORDERS NOPE 1h", EXIT_FAILED, "consumer NOPE not found on stream ORDERS (10014)"),
        ("consumer rm ORDERS NOPE --force", EXIT_FAILED, "consumer NOPE not found on stream ORDERS (10014)"),
        ("pub 'a b' x", EXIT_USAGE, "subject"),
        ("pub a x -J --reply b", EXIT_USAGE, "are mutually exclusive"),
        ("pub a x --count -1", EXIT_USAGE, "-1 is not in the range"),
        ("bench pub x --msgs -1", EXIT_USAGE, "-1 is not in the range"),
        ("stream get ORDERS 0", EXIT_USAGE, "0 is not in the range"),
        ("req nobody.there x", EXIT_FAILED, "nobody"),
        ("pub a x -H nocolon", EXIT_USAGE, "KEY:VALUE"),
        ("ack-watch a.b", EXIT_USAGE, "name"),
        ("context select NOPE", EXIT_USAGE, "not found; saved: none"),
        ("dashboard --listen nonsense", EXIT_USAGE, "is not HOST:PORT"),
        ("nonsense", EXIT_USAGE, "No such command"),
        ("strem ls", EXIT_USAGE, "No such command 'strem'. Did you mean 'stream'?"),
    ],
)
async def test_bad_input_is_answered_in_one_line(orders, line, status, text):
    out = await orders.run(line, status=status)
    assert text in out


async def test_a_server_that_is_not_there():
    out = await Shell("nats://127.0.0.1:9").run("stream ls", status=EXIT_UNREACHABLE)
    assert out == ("jetlake: can't connect to nats://127.0.0.1:9 (Connection refused). Start one with: jetlake serve\n")


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [("tls", "offers no TLS, which the address or the option tls requires"), ("ws", "does not speak WebSocket: ")],
)
async def test_a_server_that_speaks_otherwise(server, scheme, reason):
    address = server.url.replace("nats://", f"{scheme}://")
    out = await Shell(address).run("stream ls", status=EXIT_UNREACHABLE)
    assert out.startswith(f"jetlake: can't connect to {address} ({reason}")
    assert out.endswith("Check the address: --server, --context or NATS_URL\n")


async def test_a_dashboard_where_something_listens_already(orders):
    taken = orders.url.removeprefix("nats://")
    out = await orders.run(f"dashboard --listen {taken}", status=EXIT_FAILED)
    assert out == (
        f"jetlake: can't listen on {taken}: Address already in use. Use another address: --listen HOST:PORT\n"
    )


async def test_no_names_are_no_lines(orders):
    assert await orders.run("stream ls -n --subject nothing.takes.this") == ""
    assert await orders.run("consumer ls ORDERS -n") == ""


async def test_the_server_may_stand_behind_the_command(orders):
    nowhere = Shell("nats://127.0.0.1:9")
    assert await nowhere.run(f"stream ls -n -s {orders.url}") == "ORDERS\n"
    assert await nowhere.run(f"stream -s {orders.url} ls -n") == "ORDERS\n"
    assert "Published 1 byte to" in await nowhere.run(f"pub ORDERS.new x --server {orders.url} --timeout 3")


async def test_a_reader_that_has_seen_enough_is_no_error(orders):
    await orders.run("pub ORDERS.new x --count 500 -J")
    await orders.run("consumer add ORDERS ALL --pull --ack none")
    reading = await orders.start("consumer sub ORDERS ALL", b"")
    await reading.stdout.readline()
    reading._transport.get_pipe_transport(1).close()
    await orders.run("pub ORDERS.new x")
    assert (await reading.stderr.read(), await reading.wait()) == (b"", 0)


async def test_contexts(shell):
    await shell.run("context save here --select")
    assert "here*" in await shell.run("context ls")
    assert await shell.json("context ls") == {"contexts": ["here"], "nats": [], "selected": "here"}
    await shell.run("context rm here --force")
    assert "No contexts" in await shell.run("context ls")


async def test_a_context_of_the_nats_command(shell, tmp_path):
    file = tmp_path / "nats" / "context" / "prod.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"url": shell.url, "inbox_prefix": "_INBOX.team", "description": "mine"}))
    nowhere = CliRunner()
    result = await asyncio.to_thread(nowhere.invoke, app, ["account", "info", "--context", "prod"])
    assert "Address: context prod" in result.output
    assert "prod  mine" in await shell.run("context ls")
    assert "nats context rm prod" in await shell.run("context rm prod --force", status=EXIT_USAGE)


async def test_a_context_that_is_gone_or_broken_can_be_mended(shell, tmp_path):
    await shell.run("context save here --select")
    (tmp_path / "jetlake" / "contexts" / "here.json").write_text("{")
    assert "jetlake context rm here" in await shell.run("stream ls", status=EXIT_USAGE)
    assert "here*" in await shell.run("context ls")
    await shell.run("context rm here --force")
    (tmp_path / "jetlake" / "context").write_text("lost")
    assert "jetlake context select" in await shell.run("stream ls", status=EXIT_USAGE)
    assert "No contexts" in await shell.run("context ls")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
async def test_completion(name):
    out = await Shell("nats://127.0.0.1:9").run(f"completion {name}")
    assert "_JETLAKE_COMPLETE" in out


async def test_bash_completes_commands_and_the_names_that_the_server_has(orders):
    await orders.run("consumer add ORDERS WORKER --pull")
    await orders.run("context save home")
    script = await orders.run("completion bash")
    lines = {
        "jetlake strea": ["stream"],
        "jetlake stream add X --stor": ["--storage"],
        f"jetlake --timeout 60 -s {orders.url} stream info O": ["ORDERS"],
        f"jetlake consumer --timeout 60 -s {orders.url} info ORDERS ''": ["WORKER"],
        "jetlake -s nats://127.0.0.1:9 stream info O": [],
        "jetlake --context ''": ["home"],
    }
    asked = [
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); "
        '_jetlake_completion jetlake; echo "${COMPREPLY[@]}"'
        for line in lines
    ]
    folder = str(Path(sys.executable).parent)
    bash = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        "\n".join([script, *asked]),
        stdout=PIPE,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )
    out, _ = await bash.communicate()
    assert [line.split() for line in out.decode().splitlines()] == list(lines.values())


async def test_backup_and_restore(shell, tmp_path):
    await shell.run("stream add ORDERS --subjects 'orders.>'")
    for number in range(3):
        await shell.run(f"pub orders.{number} hello -J")
    await shell.run("consumer add ORDERS worker --pull --defaults")
    said = await shell.run(f"stream backup ORDERS {tmp_path}/a")
    assert said.startswith(f"Backed up stream ORDERS to {tmp_path}/a: 3 messages, ")
    assert "already" in await shell.run(f"stream backup ORDERS {tmp_path}/a", status=EXIT_USAGE)
    assert "cannot restore" in await shell.run(f"stream restore {tmp_path}/a", status=EXIT_FAILED)
    said = await shell.run(f"stream restore {tmp_path}/a --name COPY --subjects copy.a,copy.b")
    assert said == "Restored stream COPY: 3 messages, 1 consumer\n"
    assert (await shell.json("stream info COPY"))["config"]["subjects"] == ["copy.a", "copy.b"]
    assert "holds no backup" in await shell.run(f"stream restore {tmp_path}/b", status=EXIT_FAILED)
    assert (await shell.json(f"stream backup COPY {tmp_path}/c --no-consumers"))["messages"] == 3


async def test_a_restore_names_what_its_backup_lacks(shell, tmp_path):
    await shell.run("stream add ORDERS --subjects 'orders.>'")
    for number in range(3):
        await shell.run(f"pub orders.{number} hello -J")
    await shell.run(f"stream backup ORDERS {tmp_path}/all/ORDERS")
    meta = tmp_path / "all" / "ORDERS" / "backup.json"
    counted = json.loads(meta.read_text())
    counted["state"]["messages"] = 5
    meta.write_text(json.dumps(counted))
    for line in (f"stream restore {meta.parent}", f"account restore {tmp_path}/all"):
        await shell.run("stream rm ORDERS --force")
        said = await shell.run(line)
        assert "Restored " in said
        assert "warning: stream ORDERS was restored without 2 messages that the backup counts" in said


async def test_mirrors_and_sources(shell):
    await shell.run("stream add O --subjects o.*")
    await shell.run("pub o.1 hello")
    await shell.run("stream add M --mirror O")
    await shell.run("stream add S --source O --source LATER")
    async with asyncio.timeout(20):
        while (await shell.json("stream info M"))["state"]["messages"] < 1:
            await asyncio.sleep(0.05)
        while "stream not found" not in (said := await shell.run("stream info S")):
            await asyncio.sleep(0.05)
    _, copied = said.split("Source Information:")
    assert [line.strip() for line in copied.split("Stream Name: LATER")[1].splitlines()[1:4]] == [
        "Lag: 0",
        "Last Seen: never",
        "Error: stream not found",
    ]
    out = await shell.run("stream info M")
    assert "Mirror Information:\n" in out
    assert " ago\n" in out.split("Last Seen: ")[1]
