"""A client of another family: nats.js on Node sees the same from both servers."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.support import exchange

PROGRAM = Path(__file__).parents[2] / "js" / "program.js"
TIMEOUT_S = 60


@pytest.fixture
def run(server):
    """A function that runs a part of the program and returns what it saw."""

    async def run(part):
        node = shutil.which("node")
        assert node, "these tests need Node; `make test` installs it"
        process = await asyncio.create_subprocess_exec(
            node, str(PROGRAM), server.url, part, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
        return json.loads(output)

    return run


async def test_core(run):
    assert await run("core") == {
        "message": ["words.one", "back", "1", ["b", "c"]],
        "reply": "cba",
        "nobody": "no responders: 'nobody'",
    }


async def test_streams(run):
    assert await run("streams") == {
        "acks": [1, 2, 3, 4],
        "once": [[5, False], [5, True]],
        "expected": "10071: wrong last sequence: 5",
        "nobody": "jetstream is not enabled",
        "direct": [[2, "s.1", "1"], [3, "s.0", "2"], [4, "s.1", "3"]],
        "batch": [1, 2, 3],
        "missing": None,
        "purged": 2,
        "state": [3, 2, 5, {"s.1": 3}],
        "updated": "other",
        "inUse": "10058: stream name already in use with a different configuration",
        "deleted": [True, "10059: stream not found"],
    }


async def test_consumers(run):
    """Messages as stream sequence, how often delivered, how many are left."""
    assert await run("consumers") == {
        "fetch": [[2, 1, 9], [4, 1, 8], [6, 1, 7]],
        "rest": [[4, 2], *([sequence, 1] for sequence in range(8, 21, 2))],
        "empty": None,
        "ordered": list(range(1, 20, 2)),
        "push": [18, 19, 20],
        "paused": True,
        "resumed": False,
        "info": [0, 20, 20],
        "names": ["pull", "push"],
        "deleted": [True, "10014: consumer not found"],
    }


async def test_mirrors_and_sources(run):
    assert await run("copies") == {
        "mirror": [5, 10, "s.1"],
        "source": ["copy.1", ["S", "10"]],
        "read": [2, 4, 6, 8, 10],
    }


async def test_batches(run):
    """Not to be seen before the commit, then all of it; and a fast batch."""
    assert await run("batches") == {"hidden": 0, "committed": [4, 4, 4], "ingested": [52, 56]}


async def test_schedules(run):
    assert await run("schedules") == {
        "fired": ["due.once", "tea", "s.once"],
        "left": {},
        "cancelled": {},
        "bad": "10189: message schedules pattern is invalid",
    }


async def test_key_value(run):
    assert await run("kv") == {
        "revisions": [1, 2, 3],
        "taken": "10071: wrong last sequence: 1",
        "late": "10071: wrong last sequence: 1",
        "got": [["b", "3", 3, "PUT"], ["b", "2", 2, "PUT"], None],
        "watched": [
            ["a", "1", 1, "PUT", False],
            ["b", "3", 3, "PUT", True],
            ["a", "", 4, "DEL", True],
            ["c", "5", 5, "PUT", True],
        ],
        "keys": ["c"],
        "history": [["a", "1", 1, "PUT"], ["a", "", 4, "DEL"]],
        "status": [4, 5, True],
    }


async def test_object_store(run):
    assert await run("objects") == {
        "info": [2097152, 16, "SHA-256=HgdcjUeK0hhE4z6DCmle8DpNJIi2nuJ1vYlHYYuxvh4=", "two megabytes"],
        "same": True,
        "linked": 2097152,
        "list": ["empty", "large", "link"],
        "gone": None,
        "sealed": True,
    }


async def test_our_client_and_theirs_read_each_other(run, js):
    store, bucket = await js.create_object_store("O"), await js.create_key_value("K")
    content = bytes(range(251)) * 3984 + b"end"
    content += bytes(1_000_003 - len(content))
    await store.put("ours", content, description="d", headers={"H": "1"}, metadata={"k": "v"})
    await store.put("gone", b"x")
    await store.add_link("near", "ours")
    await bucket.put("ours", b"value")
    assert await run("exchange") == [1_000_003, 8, "d", "1", {"k": "v"}, 1_000_003]
    assert await store.get("theirs") == await store.get("link") == content
    assert (await store.info("theirs")).description == "copied"
    assert sorted(info.name for info in await store.list()) == ["link", "near", "ours", "theirs"]
    assert (await bucket.get("theirs")).value == b"value!"


async def test_batches_and_schedules_of_one_are_read_by_the_other(run, js):
    await exchange.write(js)
    assert await run("publishing") == exchange.WRITTEN
    assert await exchange.read(js) == exchange.READ


async def test_services_of_each_are_found_and_called_by_the_other(run, server, clients):
    async with exchange.serving(await clients(server)):
        assert await run("services") == {
            "double": "42",
            "failed": ["nothing here", "404", "more"],
            "ping": ["ours", "1.2.3", {"k": "v"}],
            "info": ["sells", ["ours.double", "ours.fail", "ours.check"]],
            "stats": [["double", 1, 0], ["fail", 1, 1], ["check", 0, 0]],
            "check": exchange.FOUND,
        }
