"""`jetlake stream` and `jetlake consumer`: looking through, comparing, copying, sealing, and their questions."""

from __future__ import annotations

import pytest

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE


@pytest.fixture
async def orders(shell):
    await shell.run("stream add ORDERS --subjects 'orders.>' --allow-direct")
    return shell


async def test_view_goes_through_a_stream(orders):
    await orders.run("stream add WORK --subjects 'work.>' --retention work")
    await orders.run("pub work.a 'job {{Count}}' -J --count 3 -H Kind:test")
    await orders.run("pub work.b other -J")
    await orders.run("consumer add WORK worker --pull")
    out = await orders.run("stream view WORK 2")
    assert "[1] Subject: work.a Received: " in out
    assert "Kind: test\n\njob 2\n" in out
    assert "job 3" not in out
    assert await orders.run("stream view WORK --id 3 --raw") == "job 3\nother\n"
    assert await orders.run("stream view WORK --since 1h --subject work.b --raw") == "other\n"
    assert [one["seq"] for one in await orders.json("stream view WORK")] == [1, 2, 3, 4]
    assert await orders.json("stream view ORDERS --since 1h") == []
    assert "No messages in WORK on work.c" in await orders.run("stream view WORK --subject work.c")
    assert "are mutually exclusive" in await orders.run("stream view WORK --id 1 --since 1h", status=EXIT_USAGE)


async def test_view_goes_page_by_page_on_a_terminal(orders):
    await orders.run("pub orders.new 'order {{Count}}' -J --count 7")
    shown, asked = await orders.answer("stream view ORDERS 2", "y", "n", screen=True)
    assert [f"order {number}" in shown for number in range(1, 7)] == [True, True, True, True, False, False]
    assert asked.count("Next page?") == 2
    _, said = await orders.answer("stream add", "\x04", status=EXIT_FAILED)
    assert said.endswith("Aborted!\n")


async def test_find_and_report(orders):
    await orders.run("stream add EMPTY --subjects empty --storage memory")
    await orders.run("pub orders.new x -J --count 3")
    await orders.run("consumer add ORDERS worker --pull")
    for line, names in {
        "--empty": ["EMPTY"],
        "--empty --invert": ["ORDERS"],
        "--subject orders.new": ["ORDERS"],
        "--created 0s --consumers 0": ["EMPTY"],
        "--created 1h": [],
        "--idle 1h": [],
        "--replicas 1 --idle 0": ["EMPTY", "ORDERS"],
        "--mirrored": [],
        "--sourced": [],
        "--leader nobody": [],
    }.items():
        assert sorted(await orders.json(f"stream find {line} --names")) == names, line
    assert "EMPTY" in await orders.run("stream find --empty")
    assert "No consumers on EMPTY" in await orders.run("consumer report EMPTY")
    assert "No matching streams" in await orders.run("stream find --idle 1h")
    assert "no condition given" in await orders.run("stream find", status=EXIT_USAGE)
    assert (await orders.json("stream report"))[0]["config"]["name"] == "ORDERS"
    assert "2 streams, " in await orders.run("stream report")
    await orders.run("consumer add ORDERS done --pull --ack none --deliver new")
    assert [one["name"] for one in await orders.json("consumer report ORDERS")] == ["worker", "done"]
    assert "ORDERS > worker" in await orders.run("consumer report ORDERS")


async def test_report_shows_mirrors_and_sources(orders):
    await orders.run("stream add COPY --mirror ORDERS")
    assert "Copied from" in await orders.run("stream report")


async def test_copy_edit_and_seal(orders):
    said = await orders.run("stream copy ORDERS OTHER", status=EXIT_FAILED)
    assert said == "jetlake: subjects overlap with an existing stream (10065): 'orders.>' with ORDERS\n"
    assert "another name" in await orders.run("stream copy ORDERS ORDERS", status=EXIT_USAGE)
    await orders.run("stream copy ORDERS OTHER --subjects 'other.>' --max-msgs 7")
    config = (await orders.json("stream info OTHER"))["config"]
    assert (config["subjects"], config["max_msgs"], config["allow_direct"]) == (["other.>"], 7, True)
    assert await orders.run("stream edit OTHER --max-msgs 8 --dry-run") == "max_msgs: 7 -> 8\n"
    assert await orders.json("stream edit OTHER --max-msgs 8 --dry-run") == {"max_msgs": {"from": 7, "to": 8}}
    assert (await orders.json("stream info OTHER"))["config"]["max_msgs"] == 7
    assert await orders.run("stream edit OTHER --subjects o --dry-run") == "subjects: other.> -> o\n"
    overlapping = await orders.run("stream edit OTHER --subjects orders.new", status=EXIT_FAILED)
    assert "'orders.new' with ORDERS" in overlapping
    await orders.run("pub other.a x -J")
    assert "--force" in await orders.run("stream seal OTHER", status=EXIT_USAGE)
    assert "Sealed: true" in await orders.run("stream seal OTHER --force")
    assert "sealed" in await orders.run("pub other.a x -J", status=EXIT_FAILED)


async def test_a_terminal_is_asked(shell):
    out, asked = await shell.answer("stream add --json", "ASKED", "asked.>", "memory", *[""] * 9)
    assert '"storage": "memory"' in out
    assert "Subjects to capture, separated by commas [ASKED]: " in asked
    _, asked = await shell.answer("stream add PLAIN --defaults")
    assert asked == ""
    assert (await shell.json("stream info PLAIN"))["config"]["subjects"] == ["PLAIN"]
    _, asked = await shell.answer("stream edit PLAIN --max-msgs 5", "n", status=EXIT_FAILED)
    assert "max_msgs: unlimited -> 5\nApply these changes to stream PLAIN?" in asked
    assert (await shell.json("stream info PLAIN"))["config"]["max_msgs"] == -1


async def test_a_terminal_is_asked_for_a_consumer(orders):
    answers = ("ORDERS", "worker", "", "new", "", "orders.a, orders.b", "10s", "5", "")
    await orders.answer("consumer add", *answers)
    config = (await orders.json("consumer info ORDERS worker"))["config"]
    assert config["durable_name"] == "worker"
    assert config["filter_subjects"] == ["orders.a", "orders.b"]
    assert (config["ack_wait"], config["max_deliver"], config["deliver_policy"]) == (10 * 10**9, 5, "new")
