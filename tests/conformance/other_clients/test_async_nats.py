"""A client of another family: Rust's async-nats, as natsrpy offers it, sees the same from both servers."""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support import exchange

PROGRAM = Path(__file__).parent / "rust_program.py"
TIMEOUT_S = 60

# On a busy machine natsrpy 0.1.4 now and then drops a value in the wrong thread, which ends the program: with
# nats-server as with ours. Such a run tells nothing about the server.
PANIC = b"Cannot start a runtime from within a runtime"


@pytest.fixture
def run(server, start):
    """A function that runs a part of the program and returns what it saw."""

    async def run(part, prepare=None):
        """Run the part; after a panic again, on another server, or on the same one once it is prepared anew."""
        if prepare is not None:
            await prepare()
        status, output, errors = await run_once(server, part)
        if status != 0 and PANIC in errors:
            if prepare is not None:
                await prepare()
            status, output, errors = await run_once(server if prepare is not None else await start(), part)
        assert status == 0, errors.decode()
        return json.loads(output)

    async def run_once(server, part):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            server.url,
            part,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode, output, errors

    return run


async def test_core(run):
    assert await run("core") == {
        "message": ["words.one", "back", "1", {"Single": "a", "Many": ["b", "c"]}],
        "reply": ["cba", {"Kind": "answer"}],
        "nobody": "no responders: no responders",
    }


async def test_streams(run):
    assert await run("streams") == {
        "acks": [["S", sequence, False] for sequence in range(1, 7)],
        "once": [[7, False], [7, True]],
        "expected": "wrong last sequence: wrong last sequence: 7 (code 400, error code 10071)",
        "nobody": "no stream found for given subject",
        "direct": [[2, "s.1", "1"], [2, "s.1", "1"], [4, "s.1", "3"], [5, "s.0", "4"]],
        "missing": "message not found",
        "purged": [2, 1, 3],
        "state": [0, 8, 7],
        "in use": "jetstream error: stream name already in use with a different configuration"
        " (code 400, error code 10058)",
        "updated": "other",
        "deleted": [True, "jetstream error: stream not found (code 404, error code 10059)"],
    }


async def test_counters(run):
    assert await run("counters") == {"totals": [1, 6, 5], "entry": ["c.a", 5], "none": "message not found"}


async def test_consumers(run):
    """Messages as stream sequence, how often delivered, how many are left."""
    refused = "error while processing messages from the stream: "
    assert await run("consumers") == {
        "fetch": [[2, 1, 9], [4, 1, 8], [6, 1, 7]],
        "again": [[4, 2, 7], [8, 1, 6]],
        "too many": refused + '409, Some("Exceeded MaxRequestBatch of 5")',
        "beat": refused + '400, Some("Bad Request - heartbeat value too large")',
        "consume": [20, 1, 0],
        "last": [[19, 1, 1], [20, 1, 0]],
        "no group": refused + '400, Some("Bad Request - Priority Group missing")',
        "few": [],
        "enough": [[1, 1, 19]],
        "push": [20, 1, 0],
        "pause": [True, False],
        "names": ["group", "last", "pull", "push", "reader"],
        "kinds": ["PullConsumer"] * 4 + ["PushConsumer"],
        "deleted": [True, "consumer not found"],
    }


async def test_key_value(run):
    put, delete, purge = "KVOperation.Put", "KVOperation.Delete", "KVOperation.Purge"
    assert await run("kv") == {
        "revisions": [1, 2, 3],
        "taken": "key already exists",
        "late": "wrong last revision: wrong last sequence: wrong last sequence: 3 (code 400, error code 10071)",
        "got": ["3", None],
        "watched": [["a", "1", 1, put], ["b", "2", 2, put], ["b", "3", 3, put]],
        "live": [["a", "", 4, delete], ["c", "5", 5, put]],
        "old": [["b", "2", 2, put]],
        "history": [["a", "1", 1, put], ["a", "", 4, delete]],
        "purged": [["b", "", 6, purge]],
        "keys": ["c"],
    }


async def test_object_store(run):
    digest = "SHA-256=kdO-uIqbL3eKbEShxTtj08eZMYRamu-Es_tBRhC9GTg="
    sealed = "failed publishing object chunks: failed getting chunk ack: publish failed: "
    assert await run("objects") == {
        "same": True,
        "info": [2097152, 21, digest, "two megabytes", {"kind": "test"}],
        "linked": 2097152,
        "list": ["empty", "large", "link"],
        "gone": "object not found",
        "sealed": sealed + "invalid operation on sealed stream (code 400, error code 10109)",
    }


async def test_mirrors_and_sources(run):
    assert await run("copies") == {"mirror": ["O", 0], "copies": ["O"]}


async def test_our_client_and_theirs_read_each_other(run, js):
    store, bucket = await js.create_object_store("O"), await js.create_key_value("K")
    content = bytes(range(251)) * 3984 + b"end"
    content += bytes(1_000_003 - len(content))
    await store.put("ours", content, description="d", headers={"H": "1"}, metadata={"k": "v"})
    await store.put("gone", b"x")
    await store.add_link("near", "ours")
    await bucket.put("ours", b"value")
    assert await run("exchange") == [1_000_003, 8, "d", {"k": "v"}, 1_000_003]
    assert await store.get("theirs") == await store.get("link") == content
    assert (await store.info("theirs")).description == "copied"
    assert sorted(info.name for info in await store.list()) == ["link", "near", "ours", "theirs"]
    assert (await bucket.get("theirs")).value == b"value!"


async def test_batches_and_schedules_of_one_are_read_by_the_other(run, js):
    assert await run("publishing", partial(exchange.write, js)) == exchange.WRITTEN
    assert await exchange.read(js) == exchange.READ


async def test_services_of_each_are_found_and_called_by_the_other(run, server, clients):
    async with exchange.serving(await clients(server)) as service:
        assert await run("services", partial(asyncio.to_thread, service.reset)) == {
            "double": "42",
            "failed": ["nothing here", "404", "more"],
            "ping": ["ours", "1.2.3", {"k": "v"}],
            "info": ["sells", ["ours.double", "ours.fail", "ours.check"]],
            "stats": [["double", 1, 0], ["fail", 1, 1], ["check", 0, 0]],
            "check": exchange.FOUND,
        }
