"""Pages of what a server holds besides streams: buckets, objects, services, schedules, copies, dead letters."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import httpx2 as httpx
import pytest
from axe_playwright_python.async_playwright import Axe

import jetlake
from jetlake.dashboard.app import prepare
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import InvalidOptionError, KeyExistsError, WrongLastSequenceError
from jetlake.testing import make_stream


@pytest.fixture
async def ask(server):
    """A function that asks the dashboard, and gives what it answers."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.monitoring.port}", timeout=30) as client:

        async def ask(path, **query):
            answer = await client.get(path, params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        ask.client = client
        yield ask


@pytest.fixture
async def api(server):
    async with await jetlake.connect(server.url, connect_timeout=20) as client:
        yield ServerApi(client)


async def run(api, kind, **arguments):
    return await (await prepare(api, kind, arguments)).run()


async def give_up(js, stream, messages=2):
    """Let a handler fail for good, so that its messages become dead letters."""
    await js.create_stream("DEAD", subjects=["dead.>"])
    consumer = await (await js.stream(stream)).create_consumer("worker")

    async def fail(message):
        raise ValueError("no such customer")

    dead = await js.stream("DEAD")
    async with consumer.consume(fail, retries=0, dead_letter="dead.letters"), asyncio.timeout(60):
        while (await dead.info()).state.messages < messages:
            await asyncio.sleep(0.01)


async def test_keys_come_in_pages_with_their_newest_entry_and_their_history(ask, js):
    bucket = await js.create_key_value("SETTINGS", history=5)
    for number in range(60):
        await bucket.put(f"key.{number:02}", b"%d" % number)
    await bucket.put("key.01", b"again")
    await bucket.delete("key.02")
    page = await ask("/api/buckets/SETTINGS/keys")
    assert (len(page["rows"]), page["total"], page["status"]["history"]) == (50, 60, 5)
    assert [(row["key"], row["revision"], row["operation"]) for row in page["rows"][:3]] == [
        ("key.00", 1, "put"),
        ("key.01", 61, "put"),
        ("key.02", 62, "delete"),
    ]
    assert [row["key"] for row in (await ask("/api/buckets/SETTINGS/keys", filter="59"))["rows"]] == ["key.59"]
    history = await ask("/api/buckets/SETTINGS/history", key="key.01")
    assert [row["revision"] for row in history["rows"]] == [61, 2]
    assert [row["name"] for row in (await ask("/api/view", page="buckets"))["page"]["rows"]] == ["KV_SETTINGS"]


async def test_keys_are_put_and_deleted_and_never_over_what_was_not_seen(api):
    bucket = await api.jetstream.create_key_value("SETTINGS", history=5)
    value = b64encode("Grüße".encode()).decode()
    assert (await run(api, "key.put", bucket="SETTINGS", key="a", value=value)).text == "Stored a as revision 1."
    prepared = await prepare(api, "key.put", {"bucket": "SETTINGS", "key": "a", "value": ""})
    assert prepared.command == "jetlake kv update SETTINGS a '' 1"
    await bucket.put("a", b"by somebody else")
    with pytest.raises(WrongLastSequenceError):
        await prepared.run()
    new = await prepare(api, "key.put", {"bucket": "SETTINGS", "key": "b", "value": value})
    await bucket.put("b", b"by somebody else")
    with pytest.raises(KeyExistsError):
        await new.run()
    await run(api, "key.delete", bucket="SETTINGS", key="a")
    await run(api, "key.purge", bucket="SETTINGS", key="b")
    assert await bucket.keys() == []
    assert len(await bucket.history("a")) == 3
    assert len(await bucket.history("b")) == 1


async def test_objects_are_listed_downloaded_and_deleted(ask, js, api):
    store = await js.create_object_store("FILES")
    content = bytes(range(256)) * 2000
    await store.put("notes/größe.bin", content, description="a lot")
    (row,) = (await ask("/api/object-stores/FILES/objects"))["rows"]
    assert (row["name"], row["size"], row["description"]) == ("notes/größe.bin", len(content), "a lot")
    answer = await ask.client.get("/api/object-stores/FILES/content", params={"name": "notes/größe.bin"})
    assert answer.content == content
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe.bin"
    missing = await ask.client.get("/api/object-stores/FILES/content", params={"name": "none"})
    assert missing.status_code == 404 and missing.json()["error"]
    await run(api, "object.delete", bucket="FILES", name="notes/größe.bin")
    assert (await ask("/api/object-stores/FILES/objects"))["rows"] == []


async def test_services_and_schedules_are_found(ask, client, js):
    service = client.service("shop", "1.2.0")

    @service.endpoint("price")
    async def price(request):
        await request.respond(b"7")

    async with service:
        await client.request("price", b"")
        found = {"rows": []}
        async with asyncio.timeout(60):
            while not found["rows"]:  # who does not answer in time is not there
                found = await ask("/api/services")
        (row,) = found["rows"]
        assert (row["service"], row["endpoint"], row["requests"], row["errors"]) == ("shop", "price", 1, 0)
    await js.create_stream("JOBS", subjects=["jobs.>"], allow_msg_schedules=True)
    await js.schedule("jobs.plan", b"clean", target="jobs.run", every=3600)
    await js.publish("jobs.other", b"")
    found = {"rows": []}
    async with asyncio.timeout(60):
        while not found["rows"]:  # the stream is seen with the next sample
            found = await ask("/api/schedules")
    (row,) = found["rows"]
    assert (row["stream"], row["subject"], row["target"], found["is_whole"]) == ("JOBS", "jobs.plan", "jobs.run", True)


async def test_dead_letters_are_found_and_replayed_once(ask, js, api):
    orders = await make_stream(js, "ORDERS", messages=2)
    await give_up(js, "ORDERS")
    page = await ask("/api/dead-letters/DEAD")
    assert [(row["stream"], row["consumer"], row["reason"]) for row in page["rows"]] == [
        ("ORDERS", "worker", "failed")
    ] * 2
    assert "no such customer" in page["rows"][0]["description"] and "ValueError" in page["rows"][0]["traceback"]
    prepared = await prepare(api, "letters.replay", {"stream": "DEAD", "first": 1, "last": 1})
    assert prepared.command == "jetlake dead-letters replay DEAD --from-seq 1 --to-seq 1"
    assert (await prepared.run()).text == "1 published."
    state = (await orders.info()).state
    assert (state.messages, state.last_seq) == (3, 3)
    assert (await run(api, "letters.replay", stream="DEAD", first=1, last=2)).text == "1 published."
    assert (await (await js.stream("DEAD")).info()).state.messages == 0
    with pytest.raises(InvalidOptionError, match="has no dead letter in this range"):
        await prepare(api, "letters.replay", {"stream": "DEAD", "first": 1, "last": 2})
    with pytest.raises(InvalidOptionError, match="is not a dead letter"):
        await prepare(api, "letters.replay", {"stream": "ORDERS", "first": 1, "last": 2})


async def test_a_letter_that_is_refused_or_gone_holds_up_no_other(js, api):
    orders = await make_stream(js, "ORDERS", messages=1)
    await js.create_stream("DEAD", subjects=["dead"])
    for subject in ("elsewhere", "ORDERS.x", "ORDERS.y"):
        letter = {"Dead-Letter-Stream": "ORDERS", "Dead-Letter-Subject": subject}
        await js.publish("dead", b"x", headers=letter)
    prepared = await prepare(api, "letters.replay", {"stream": "DEAD", "first": 1, "last": 3})
    await run(api, "letters.replay", stream="DEAD", first=3, last=3)
    told = (await prepared.run()).text
    assert told.startswith("1 refused, left where they are, 1 published. First error: letter 1, elsewhere in ORDERS: ")
    assert [(await orders.get(sequence)).subject for sequence in (2, 3)] == ["ORDERS.y", "ORDERS.x"]
    assert (await (await js.stream("DEAD")).info()).state.messages == 1


async def test_letters_are_found_after_the_newest_was_replayed(ask, js, api):
    await make_stream(js, "ORDERS", messages=2)
    await give_up(js, "ORDERS")
    await run(api, "letters.replay", stream="DEAD", first=2, last=2)
    (row,) = (await ask("/api/dead-letters"))["rows"]
    assert (row["stream"], row["letters"]) == ("DEAD", 1)


async def test_every_page_is_shown_and_can_be_used_by_all(js, client, open_page):
    await make_stream(js, "ORDERS", messages=2)
    await give_up(js, "ORDERS")
    await (await js.create_key_value("SETTINGS")).put("colour", b"red")
    await (await js.create_object_store("FILES")).put("report", b"x")
    await js.create_stream("COPY", mirror={"name": "ORDERS"})
    await js.create_stream("ALL", sources=[{"name": "ORDERS"}, {"name": "MISSING"}])
    await js.create_stream("JOBS", subjects=["jobs.>"], allow_msg_schedules=True)
    await js.schedule("jobs.plan", b"clean", target="jobs.run", every=3600)
    page = await open_page("#/pipelines")
    report = b'{"id": "a", "name": "archive", "state": "failed", "error": "no such column"}'
    await client.publish("jetlake.pipeline.progress.a", report)
    wanted = (
        ("#/pipelines", "no such column"),
        ("#/kv", "SETTINGS"),
        ("#/kv/SETTINGS", "colour"),
        ("#/objects", "FILES"),
        ("#/objects/FILES", "Download"),
        ("#/schedules", "jobs.plan"),
        ("#/dead-letters", "DEAD"),
        ("#/dead-letters/DEAD", "no such customer"),
        ("#/copies", "stream not found"),
        ("#/services", "No services respond"),
        ("#/connections", "jetlake dashboard"),
        ("#/events", "create"),
        ("#/streams/COPY", "Mirror of"),
        ("#/streams/NOPE", "Stream NOPE not found"),
    )
    for path, text in wanted:
        await page.evaluate("path => { location.hash = path; }", path)
        await page.wait_for_function("text => document.getElementById('main').innerText.includes(text)", arg=text)
        found = (await Axe().run(page)).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], path
    await page.evaluate("() => { location.hash = '#/kv/SETTINGS'; }")
    await page.get_by_role("button", name="colour").click()
    await page.get_by_text("revision 1").wait_for()
    await page.get_by_role("button", name="Watch").click()
    async with asyncio.timeout(60):
        number = 0
        while "blue" not in await page.locator("tbody").inner_text():
            number += 1
            await (await js.key_value("SETTINGS")).put("colour", b"blue %d" % number)
            await asyncio.sleep(0.2)


async def test_a_bucket_that_could_not_be_read_is_asked_for_again(js, open_page):
    await (await js.create_key_value("SETTINGS")).put("colour", b"red")
    page = await open_page()
    await page.clock.install()
    refusal = {"error": "the server does not answer"}
    await page.route("**/api/buckets/**", lambda route: route.fulfill(json=refusal))
    await page.evaluate("() => { location.hash = '#/kv/SETTINGS'; }")
    await page.get_by_text("the server does not answer").wait_for()
    await page.unroute("**/api/buckets/**")
    await page.clock.fast_forward(10_000)
    await page.get_by_role("button", name="colour").wait_for()
