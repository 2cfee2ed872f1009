"""The dashboard in a real browser."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from axe_playwright_python.async_playwright import Axe

from jetlake.dashboard.collector import Collector
from jetlake.testing import fill, make_stream

pytestmark = pytest.mark.browser


async def text(page, selector):
    return await page.locator(selector).first.inner_text()


async def until(page, expression, argument=None):
    await page.wait_for_function(expression, arg=argument)


SEES = "text => document.body.innerText.includes(text)"


async def test_overview_shows_streams_and_live_numbers(js, open_page):
    await make_stream(js, "ORDERS", messages=10)
    page = await open_page()
    await until(page, SEES, "ORDERS")
    assert "ORDERS.>" in await text(page, "tbody tr")
    publishing = asyncio.create_task(fill(js, "ORDERS.new", 500))
    await until(page, "() => [...document.querySelectorAll('td')].some(cell => cell.textContent === '510')")
    await publishing
    await until(page, "() => Number(document.body.dataset.samples) > 2")


async def test_streams_are_filtered_and_sorted_and_the_cursor_stays(js, open_page):
    for name, messages in (("APPLES", 1), ("PEARS", 3), ("PLUMS", 2)):
        await make_stream(js, name, messages=messages)
    page = await open_page()
    await until(page, SEES, "PLUMS")
    await page.get_by_role("button", name="Messages").click()
    first_cells = "[...document.querySelectorAll('tbody td:first-child')].map(cell => cell.textContent).join()"
    await until(page, f"() => {first_cells} === 'APPLES,PLUMS,PEARS'")
    await page.get_by_role("button", name="Messages").click()
    await until(page, f"() => {first_cells} === 'PEARS,PLUMS,APPLES'")
    await page.get_by_label("Filter").press_sequentially("pl", delay=150)
    await until(page, "() => document.querySelectorAll('tbody tr').length === 2")
    assert await page.evaluate("document.activeElement.id") == "filter-streams"


async def test_messages_are_browsed_and_markup_stays_text(js, open_page):
    stream = await make_stream(js, "ORDERS")
    await js.publish("ORDERS.html", b"<script>document.title = 'owned'</script><img src=x onerror=alert(1)>")
    await js.publish("ORDERS.json", b'{"id": 7}', headers={"Kind": "<b>bold</b>"})
    await js.publish("ORDERS.bytes", bytes(range(8, 24)))
    page = await open_page(f"#/streams/{stream.name}")
    await until(page, "() => document.querySelectorAll('.message').length === 3")
    for summary in await page.locator(".message summary").all():
        await summary.click()
    shown = await page.locator(".message").all_inner_texts()
    assert "<script>document.title = 'owned'</script>" in shown[2]
    assert '"id": 7' in shown[1]
    assert "Kind: <b>bold</b>" in shown[1]
    assert "08 09 0a" in shown[0]
    assert await page.title() == "jetlake"
    await page.get_by_label("Subject", exact=True).fill("ORDERS.json")
    await page.get_by_role("button", name="Show").click()
    await until(page, "() => document.querySelectorAll('.message').length === 1")
    await page.get_by_label("Subject", exact=True).fill("")
    await page.get_by_label("From sequence").fill("2")
    await page.get_by_role("button", name="Show").click()
    await until(page, "() => document.querySelectorAll('.message').length === 2")


async def test_live_tail_shows_what_is_published(js, open_page):
    await make_stream(js, "ORDERS", messages=1)
    page = await open_page("#/streams/ORDERS")
    await until(page, "() => document.querySelectorAll('.message').length === 1")
    async with page.expect_request(re.compile("/tail")):
        await page.get_by_role("button", name="Live tail").click()
    await until(page, "() => document.querySelector('[aria-pressed=true]') !== null")
    for number in range(50):
        await js.publish("ORDERS.new", b"tailed %d" % number)
        if await page.locator(".message").count() > 1:
            break
        await asyncio.sleep(0.1)
    await until(page, "() => document.querySelectorAll('.message').length > 1")


async def test_consumer_page_shows_pending_floor_and_ack_times(js, open_page):
    stream = await make_stream(js, "ORDERS", messages=20)
    consumer = await stream.create_consumer("worker", sample_freq="100")
    page = await open_page("#/streams/ORDERS/consumers/worker")
    await until(page, SEES, "No samples")
    for message in await consumer.fetch(5):
        await message.ack_sync()
    await until(page, SEES, "samples\n5")
    await until(page, SEES, "5 / 5")
    assert await page.locator(".charts svg").count() == 4


async def test_priority_group_and_pin(js, open_page):
    stream = await make_stream(js, "JOBS", messages=1)
    consumer = await stream.create_consumer("pinned", priority_policy="pinned_client", priority_groups=["jobs"])
    async with consumer.consume(group="jobs") as messages:
        message = await messages.next(10)
        pin = message.headers.get("Nats-Pin-Id")
        page = await open_page("#/streams/JOBS/consumers/pinned")
        await until(page, SEES, pin)


async def test_connections_advisories_and_pipelines(client, js, open_page):
    await make_stream(js, "ORDERS")
    page = await open_page("#/advisories")
    await make_stream(js, "SEEN")
    await until(page, SEES, "stream SEEN, action create")
    await page.get_by_role("link", name="Connections").click()
    await until(page, SEES, "jetlake dashboard")
    await page.get_by_role("link", name="Pipelines").click()
    await until(page, SEES, "jetlake pipeline archive")
    report = (
        b'{"id": "archive-1", "name": "archive ORDERS", "state": "running", "batch": 7, "rows_total": 4321, "lag": 9}'
    )
    await client.publish("jetlake.pipeline.progress.archive-1", report)
    await until(page, SEES, "4,321")
    assert "archive ORDERS" in await text(page, "tbody tr")


async def test_what_is_stuck_is_told_first_and_until_it_moves(js, open_page, monkeypatch):
    monkeypatch.setattr("jetlake.dashboard.attention.STUCK_S", 0.0)
    stream = await make_stream(js, "ORDERS", messages=3)
    worker = await stream.create_consumer("worker")
    page = await open_page()
    await until(page, SEES, "Needs attention (1)")
    await page.get_by_role("link", name="ORDERS > worker").click()
    await until(page, SEES, "nobody pulls from it, and 3 messages wait")
    await page.get_by_role("link", name="Consumers", exact=True).click()
    await until(page, "() => document.querySelector('td .bad')?.textContent === 'stuck'")
    for message in await worker.fetch(3):
        await message.ack()
    await page.get_by_role("link", name="Streams", exact=True).click()
    await until(page, SEES, "Nothing is stuck")


async def test_a_server_that_is_away_is_told_with_the_time_of_the_numbers(js, client, open_page):
    stream = await make_stream(js, "ORDERS", messages=3)
    collector = Collector(client, interval_s=0.01)
    await collector.start()
    assert collector.overview()["server"]["connected"]
    seen = collector.overview()["server"]["seen"]
    await client.close()
    await collector._sample()
    away = collector.overview()
    assert (away["server"]["connected"], away["server"]["seen"]) == (False, seen)
    assert [one["name"] for one in away["streams"]] == [stream.name]
    page = await open_page()
    await page.route(
        "**/api/live*",
        lambda route: route.fulfill(
            content_type="text/event-stream",
            body="data: " + json.dumps({"board": away, "can_act": False}) + "\n\n",
        ),
    )
    await page.reload()
    await until(page, SEES, "The server does not answer. What is shown here is of")
    await until(page, SEES, "ORDERS")


async def test_it_works_with_the_keyboard(js, open_page):
    await make_stream(js, "ORDERS", messages=1)
    page = await open_page()
    await until(page, SEES, "ORDERS")
    await page.get_by_role("link", name="ORDERS").focus()
    await page.keyboard.press("Enter")
    await until(page, "() => document.querySelector('h1').textContent === 'ORDERS'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessibility(js, open_page, scheme, monkeypatch):
    monkeypatch.setattr("jetlake.dashboard.attention.STUCK_S", 0.0)
    stream = await make_stream(js, "ORDERS", messages=3)
    await stream.create_consumer("worker")
    for path, wanted in (
        ("", "Needs attention"),
        ("#/consumers", "stuck"),
        ("#/streams/ORDERS", "#3"),
        ("#/streams/ORDERS/consumers/worker", "nobody pulls"),
    ):
        page = await open_page(path, color_scheme=scheme)
        await until(page, SEES, wanted)
        found = (await Axe().run(page)).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], path
        await page.close()


async def test_phone_width_needs_no_sideways_scrolling(js, open_page):
    stream = await make_stream(js, "ORDERS", messages=3)
    await stream.create_consumer("worker")
    for path, wanted in (("", "ORDERS"), ("#/consumers", "worker"), ("#/streams/ORDERS", "#3")):
        page = await open_page(path, viewport={"width": 390, "height": 800})
        await until(page, SEES, wanted)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.close()


async def test_five_hundred_streams_stay_readable(js, open_page):
    for number in range(500):
        await js.create_stream(f"S{number:03}", storage="memory")
    page = await open_page()
    await until(page, "() => document.querySelectorAll('tbody tr').length === 500")
    await page.get_by_label("Filter").fill("S49")
    await until(page, "() => document.querySelectorAll('tbody tr').length === 10")
    await page.get_by_label("Filter").fill("")
    await until(page, "() => document.querySelectorAll('tbody tr').length === 500")
    # Off-screen rows cost nothing to draw: the browser skips what it need not show.
    assert await page.evaluate("getComputedStyle(document.querySelector('tbody tr')).contentVisibility") == "auto"
