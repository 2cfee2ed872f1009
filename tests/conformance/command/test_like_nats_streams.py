"""Streams and consumers with the commands and options of `nats`, on both servers."""

from __future__ import annotations

import json
import re

import pytest

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE


@pytest.fixture
async def orders(shell):
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    await shell.run("pub 'orders.{{Count}}' 'order {{Count}}' --count 5 -J")
    return shell


async def test_streams_are_added_with_the_options_of_nats(shell, tmp_path):
    await shell.run(
        "stream add S --subjects s.> --defaults --transform-source s.> --transform-destination t.> "
        "--republish-source t.> --republish-destination copy.> --republish-headers --retention workq "
        "--limit-consumer-inactive 1h --limit-consumer-max-pending 100 --discard-per-subject --max-msgs-per-subject 5 "
        "--allow-msg-ttl --subject-del-markers-ttl 1m --no-deny-delete --no-deny-purge --no-allow-counter"
    )
    config = (await shell.json("stream info S"))["config"]
    assert config["allow_direct"] is True
    assert config["subject_transform"] == {"src": "s.>", "dest": "t.>"}
    assert config["republish"] == {"src": "t.>", "dest": "copy.>", "headers_only": True}
    assert config["consumer_limits"] == {"inactive_threshold": 3_600_000_000_000, "max_ack_pending": 100}
    assert (config["retention"], config["discard"], config["discard_new_per_subject"]) == ("workqueue", "new", True)
    assert config["subject_delete_marker_ttl"] == 60_000_000_000
    await shell.run("stream edit S --no-republish --no-transform --force")
    config = (await shell.json("stream info S"))["config"]
    assert "republish" not in config
    assert "subject_transform" not in config
    assert (await shell.json("stream add PLAIN --subjects p --no-allow-direct --defaults"))["config"][
        "allow_direct"
    ] is False
    file = tmp_path / "new.json"
    await shell.run(f"stream add NEW --subjects new.> --max-age 1d --defaults --output {file}")
    assert json.loads(file.read_text())["max_age"] == 86_400 * 10**9
    assert await shell.run(f"stream add NEW --config {file} --validate --defaults") == "Configuration is valid\n"
    assert "stream name" in await shell.run("stream add a.b --subjects x --validate --defaults", status=EXIT_FAILED)
    assert "need each other" in await shell.run(
        "stream add X --subjects x --transform-source a --defaults", status=EXIT_USAGE
    )
    assert await shell.json("stream ls --names") == ["PLAIN", "S"]


async def test_streams_of_buckets_are_hidden(shell):
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    await shell.run("kv add B")
    assert await shell.run("stream ls -n") == "ORDERS\n"
    assert await shell.run("stream ls -n -a") == "KV_B\nORDERS\n"
    assert "KV_B" not in await shell.run("stream report")
    assert "KV_B" in await shell.run("stream report --all --name --leaders")


async def test_state_gaps_and_graph(orders):
    await orders.run("stream rmm ORDERS 2 --force")
    await orders.run("stream rmm ORDERS 3 --force")
    assert "Messages: 3" in await orders.run("stream state ORDERS")
    assert (await orders.json("stream state ORDERS"))["num_deleted"] == 2
    assert "Deleted Messages: 2" in await orders.run("stream info ORDERS --state")
    assert await orders.json("stream gaps ORDERS") == [[2, 3]]
    assert re.search(r"2 +3 +2\n", await orders.run("stream gaps ORDERS --force"))
    await orders.run("stream add EMPTY --subjects empty --defaults")
    assert "No deleted messages" in await orders.run("stream gaps EMPTY")
    sample = json.loads(await orders.run("stream graph ORDERS --count 1 --json"))
    assert sample["Messages Stored"] == 3
    assert "needs a terminal" in await orders.run("stream graph ORDERS", status=EXIT_USAGE)
    shown, _ = await orders.answer("stream graph ORDERS --count 1", screen=True)
    assert "Messages Stored: 3" in shown


async def test_reports_of_raw_numbers_and_graphs(orders, tmp_path):
    await orders.run("stream add COPY --mirror ORDERS --defaults")
    for _ in range(2):
        await orders.run("pub orders.new 'x' --count 1000")
    await orders.run("consumer add ORDERS W --pull --defaults")
    until = (await orders.json("stream state ORDERS"))["messages"]
    assert until > 1000
    out = await orders.run(f"stream report --raw --dot {tmp_path / 'graph.dot'}")
    assert re.search(rf"^ORDERS\t{until}\t\d+\t|ORDERS +{until} +\d+ ", out, re.MULTILINE)
    assert '  "ORDERS" -> "COPY" [label="mirror"];\n' in (tmp_path / "graph.dot").read_text()
    assert f"{until:,}" in await orders.run("consumer report ORDERS")
    assert f"{until:,}" not in await orders.run("consumer report ORDERS --raw")


async def test_find_by_expression(orders):
    await orders.run("stream add EMPTY --subjects empty --storage memory --defaults")

    async def found(expression, what="stream find -n"):
        return (await orders.run(f"{what} --expression '{expression}'")).split()

    assert await found("state.messages >= 5") == ["ORDERS"]
    assert await found('config.storage == "memory" && !(state.messages > 0)') == ["EMPTY"]
    assert await found('"orders.>" in config.subjects || false') == ["ORDERS"]
    assert await found('info.config.name startsWith "E" or info.config.name matches "^O"') == ["EMPTY", "ORDERS"]
    assert await found("len(config.subjects) == 1 and state.bytes / 2 > 0") == ["ORDERS"]
    for expression, reason in (
        ("state.messages >", "unexpected 'the end'"),
        ("state.messages", "must be true or false"),
        ("nothing > 1", "unknown name 'nothing'"),
        ("state.messages > 'x'", "not supported"),
        ("#", "unexpected '#'"),
    ):
        said = await orders.run(f'stream find --expression "{expression}"', status=EXIT_USAGE)
        assert reason in said
    await orders.run("consumer add ORDERS PULL --pull --defaults")
    await orders.run("consumer add ORDERS PUSH --target out --defaults")
    assert await orders.run("consumer find ORDERS --push -n") == "PUSH\n"
    assert await orders.run("consumer find ORDERS --pending 4 --invert -n") == "PULL\nPUSH\n"
    assert await found('info.num_pending == 5 && config.name == "PULL"', "consumer find ORDERS -n") == ["PULL"]
    assert "2 consumers of 2 on ORDERS" in await orders.run("consumer find ORDERS --idle 0s --created 0s")
    assert "No matching consumers" in await orders.run("consumer find ORDERS --bound --leader x")
    assert await orders.run("consumer find ORDERS --offline") == "No offline consumers on ORDERS\n"
    assert "can not be combined" in await orders.run("consumer find ORDERS --offline --pull", status=EXIT_USAGE)


async def test_subjects_get_and_view(orders):
    assert await orders.json("stream subjects ORDERS orders.1") == {"orders.1": 1}
    assert await orders.run("stream subjects ORDERS other.>") == "No subjects in ORDERS that match other.>\n"
    assert await orders.run("stream subjects ORDERS --sort name --reverse --names") == "".join(
        f"orders.{number}\n" for number in (5, 4, 3, 2, 1)
    )
    assert "ORDER 1" in await orders.run("stream get ORDERS 1 --translate 'tr a-z A-Z'")
    assert await orders.run("stream view ORDERS 2 --raw --translate 'tr a-z A-Z'") == "ORDER 1\nORDER 2\n"
    shown, _ = await orders.answer("stream view ORDERS 2", "", "q", screen=True)
    assert "order 4" in shown
    assert "order 5" not in shown


async def test_previews_have_human_units(orders, tmp_path, monkeypatch):
    out = await orders.run("stream edit ORDERS --max-age 3d --max-bytes 1GB --max-msgs 1000000 --dry-run")
    assert out == "max_msgs: unlimited -> 1,000,000\nmax_bytes: unlimited -> 1.0 GiB\nmax_age: none -> 3d\n"
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/\\"max_msgs\\": -1/\\"max_msgs\\": 7/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.setenv("VISUAL", "")
    await orders.run("stream edit ORDERS --interactive --force")
    assert (await orders.json("stream info ORDERS"))["config"]["max_msgs"] == 7
    await orders.run("consumer add ORDERS W --pull --defaults")
    assert await orders.run("consumer edit ORDERS W --wait 1m --dry-run") == "ack_wait: 30s -> 1m\n"
    edit = "--backoff 1s,90s --max-deliver 5 --dry-run"
    assert (
        await orders.run(f"consumer edit ORDERS W {edit}")
        == "max_deliver: unlimited -> 5\nbackoff: none -> 1s, 1m30s\n"
    )
    limits = "stream edit ORDERS --republish-source 'orders.>' --republish-destination 'copy.>' --dry-run"
    assert await orders.run(limits) == "republish: none -> src orders.>, dest copy.>\n"
    await orders.run("consumer edit ORDERS W --max-outstanding 50 -f")
    assert (await orders.json("consumer info ORDERS W"))["config"]["max_ack_pending"] == 50


async def test_consumers_with_the_options_of_nats(orders, tmp_path):
    await orders.run(
        "consumer add ORDERS B --pull --backoff linear --backoff-steps 3 --backoff-min 1s --backoff-max 5s"
    )
    assert (await orders.json("consumer info ORDERS B"))["config"]["backoff"] == [n * 10**9 for n in (1, 3, 5)]
    said = await orders.run("consumer add ORDERS X --pull --backoff-steps 3", status=EXIT_USAGE)
    assert "need --backoff linear" in said
    await orders.run(f"consumer add ORDERS X --pull --defaults --output {tmp_path / 'x.json'}")
    assert json.loads((tmp_path / "x.json").read_text())["durable_name"] == "X"
    assert "valid" in await orders.run("consumer add ORDERS X --pull --defaults --validate")
    assert "Unprocessed Messages: 5" in await orders.run("consumer state ORDERS B")
    assert (await orders.json("consumer state ORDERS B"))["num_pending"] == 5
    assert json.loads(await orders.run("consumer graph ORDERS B --count 1 --json"))["Unprocessed Messages"] == 5
    await orders.run("consumer pause ORDERS B '2200-01-02 03:04:05' --force")
    assert (await orders.json("consumer state ORDERS B"))["paused"] is True
    await orders.run("consumer resume ORDERS B -f")
    assert "No leaders" in await orders.run("consumer report ORDERS --leaders")
    await orders.run("consumer next ORDERS B")
    assert "resumes at sequence 1" in await orders.run("consumer reset ORDERS B --sequence 1 --force")


async def test_commands_of_clusters_say_what_the_server_is(orders):
    await orders.run("consumer add ORDERS W --pull --defaults")
    for line in (
        "stream cluster step-down ORDERS",
        "stream cluster peer-remove ORDERS x --force",
        "stream cluster balance",
        "consumer cluster step-down ORDERS W",
        "consumer cluster balance ORDERS",
    ):
        assert "is not part of a cluster" in await orders.run(line, status=EXIT_FAILED)


async def test_a_name_is_picked_at_a_terminal(orders):
    await orders.run("stream add OTHER --subjects other --defaults")
    await orders.run("consumer add ORDERS W --pull --defaults")
    shown, asked = await orders.answer("stream state", "OR")
    assert "Select a stream" in asked
    assert "Messages: 5" in shown
    shown, asked = await orders.answer("consumer state", "1", "")
    assert "State for Consumer ORDERS > W" in shown
    for line in ("stream info", "consumer info ORDERS", "stream rm", "stream info --no-select"):
        assert "name is missing" in await orders.run(line, status=EXIT_USAGE)


async def test_a_backup_can_refuse_and_leave_out(orders, tmp_path):
    await orders.run("consumer add ORDERS W --pull --defaults")
    sizes = "--chunk-size 64KB --window-size 1MB"
    await orders.run(f"stream backup ORDERS {tmp_path / 'b'} --check --no-consumers --no-progress {sizes}")
    await orders.run("stream rm ORDERS --force")
    await orders.run(f"stream restore {tmp_path / 'b'} --replicas 1 --no-progress")
    assert (await orders.json("stream state ORDERS"))["consumer_count"] == 0
