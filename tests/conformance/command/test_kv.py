"""`jetlake kv` on both servers."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE
from tests.support.command_shell import output_of


@pytest.fixture
async def prices(shell):
    await shell.run("kv add PRICES --history 5 --description 'what things cost'")
    return shell


async def test_buckets(prices):
    status = await prices.json("kv info PRICES")
    assert (status["bucket"], status["history"]) == ("PRICES", 5)
    await prices.run("kv edit PRICES --history 7 --ttl 1h --max-value-size 1KB --compress")
    config = (await prices.json("kv status PRICES"))["stream"]["config"]
    assert (config["max_msgs_per_subject"], config["max_age"], config["max_msg_size"]) == (7, 3600 * 10**9, 1024)
    assert config["compression"] == "s2"
    assert "History: 7" in await prices.run("kv info PRICES")
    assert "what things cost" in await prices.run("kv ls")
    await prices.run("kv add OTHER --storage memory --marker-ttl 1m --replicas 1")
    assert await prices.json("kv ls --names") == ["OTHER", "PRICES"]
    assert (await prices.json("kv ls"))[0]["bucket"] == "OTHER"
    assert "--force" in await prices.run("kv rm OTHER", status=EXIT_USAGE)
    assert await prices.run("kv del OTHER --force") == "Deleted bucket OTHER\n"
    assert "nothing to change" in await prices.run("kv edit PRICES", status=EXIT_USAGE)


async def test_keys(prices):
    assert await prices.run("kv put PRICES tea 42") == "Stored PRICES > tea as revision 1\n"
    assert (await prices.json("kv put PRICES tea 43"))["revision"] == 2
    await prices.run("kv put PRICES coffee.black", stdin="7")
    assert await prices.run("kv get PRICES tea --raw") == "43"
    assert await prices.run("kv get PRICES tea --revision 1 --raw") == "42"
    assert "PRICES > coffee.black revision 3 created " in await prices.run("kv get PRICES coffee.black")
    entry = await prices.json("kv get PRICES tea")
    assert (b64decode(entry["value"]), entry["revision"], entry["operation"]) == (b"43", 2, "put")
    assert "already has the key 'tea'" in await prices.run("kv create PRICES tea 1", status=EXIT_FAILED)
    assert "not at revision 1" in await prices.run("kv update PRICES tea 1 1", status=EXIT_FAILED)
    assert (await prices.json("kv update PRICES tea 44 2"))["revision"] == 4
    assert sorted(await prices.json("kv ls PRICES")) == ["coffee.black", "tea"]
    assert await prices.run("kv ls PRICES 'coffee.*'") == "coffee.black\n"
    assert "44" in await prices.run("kv ls PRICES --values")
    assert (await prices.json("kv revert PRICES tea 1 --force"))["revision"] == 5
    assert [one["revision"] for one in await prices.json("kv history PRICES tea")] == [1, 2, 4, 5]
    assert "History of PRICES > tea" in await prices.run("kv history PRICES tea")
    await prices.run("kv rm PRICES tea --force")
    assert "has no key 'tea'" in await prices.run("kv get PRICES tea", status=EXIT_FAILED)
    assert [one["operation"] for one in await prices.json("kv history PRICES tea")][-1] == "delete"
    await prices.run("kv purge PRICES tea --force")
    assert len(await prices.json("kv history PRICES tea")) == 1
    assert "--force" in await prices.run("kv compact PRICES --older-than 0", status=EXIT_USAGE)
    assert await prices.json("kv compact PRICES --older-than 0 --force") == {"keys": 1}
    assert "has no key" in await prices.run("kv history PRICES tea", status=EXIT_FAILED)


async def test_watch(prices):
    await prices.run("kv put PRICES tea 42")
    watching = await prices.start("kv watch PRICES --history --count 2 --json", b"Watching")
    await prices.run("kv rm PRICES tea --force")
    lines = [json.loads(line) for line in (await output_of(watching)).splitlines()]
    assert [(line["key"], line["operation"]) for line in lines] == [("tea", "put"), ("tea", "delete")]


async def test_keys_with_a_life_of_their_own(shell):
    await shell.run("kv add SESSIONS --marker-ttl 1m")
    assert (await shell.json("kv create SESSIONS joe x --ttl 1h"))["revision"] == 1


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("kv get NOPE tea", EXIT_FAILED, "bucket NOPE not found (10059). List them: jetlake kv ls"),
        ("kv put PRICES 'a b' x", EXIT_USAGE, "key"),
        ("kv add 'a b'", EXIT_USAGE, "bucket"),
        ("kv add X --history 65", EXIT_USAGE, "65 is not in the range"),
        ("kv watch PRICES --history --updates", EXIT_USAGE, "are mutually exclusive"),
        ("kv ls PRICES", 0, "No keys in PRICES"),
        ("kv ls PRICES 'a.*'", 0, "No keys in PRICES match a.*"),
        ("kv create PRICES a b --ttl 1h", EXIT_FAILED, "PRICES > a: per-message TTL is disabled (10166). Hint: "),
        ("kv revert PRICES a 7 --force", EXIT_FAILED, "has no revision 7. List revisions: jetlake kv history"),
    ],
)
async def test_bad_input_is_answered_in_one_line(prices, line, status, text):
    assert text in await prices.run(line, status=status)
