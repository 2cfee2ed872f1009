"""The dashboard in a real browser."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from axe_playwright_python.async_playwright import Axe

from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.testing import fill, make_stream

pytestmark = pytest.mark.browser


async def text(page, selector):
    return await page.locator(selector).first.inner_text()


async def until(page, expression, argument=None):
    await page.wait_for_function(expression, arg=argument)


async def samples(page):
    return await page.evaluate("Number(document.body.dataset.samples)")


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


async def test_an_address_that_names_no_page_shows_the_streams(js, open_page):
    await js.create_stream("ORDERS")
    for address in ("#/constructor", "#/toString/x", "#/nothing"):
        page = await open_page(address)
        await page.get_by_text("ORDERS").first.wait_for()


async def test_streams_are_filtered_and_sorted_and_the_cursor_stays(js, open_page):
    for name, messages in (("APPLES", 1), ("PEARS", 3), ("PLUMS", 2)):
        await make_stream(js, name, messages=messages)
    page = await open_page()
    await until(page, SEES, "PLUMS")
    await page.get_by_role("button", name="Messages").click()
    first_cells = "[...document.querySelectorAll('tbody td:first-child')].map(cell => cell.textContent).join()"
    await until(page, f"() => {first_cells} === 'PEARS,PLUMS,APPLES'")
    await page.get_by_role("button", name="Messages").click()
    await until(page, f"() => {first_cells} === 'APPLES,PLUMS,PEARS'")
    await page.get_by_label("Filter").press_sequentially("pl", delay=150)
    await until(page, "() => document.querySelectorAll('tbody tr').length === 2")
    assert await page.evaluate("document.activeElement.id") == "filter-streams"


async def test_messages_are_browsed_and_markup_stays_text(js, open_page):
    stream = await make_stream(js, "ORDERS")
    await js.publish("ORDERS.html", b"<script>document.title = 'owned'</script><img src=x onerror=alert(1)>")
    await js.publish("ORDERS.json", b'{"id": 7}', headers={"Kind": "<b>bold</b>"})
    await js.publish("ORDERS.bytes", bytes(range(8, 24)))
    page = await open_page(f"#/streams/{stream.name}/messages")
    await until(page, "() => document.querySelectorAll('.message').length === 3")
    for summary in await page.locator(".message summary").all():
        await summary.click()
    shown = await page.locator(".message").all_inner_texts()
    assert "<script>document.title = 'owned'</script>" in shown[2]
    assert '"id": 7' in shown[1]
    assert "<b>bold</b>" in shown[1]
    assert "08 09 0a" in shown[0]
    assert await page.title() == "Messages of ORDERS · jetlake"
    await page.get_by_label("Subject", exact=True).fill("ORDERS.json")
    await page.get_by_role("button", name="Show").click()
    await until(page, "() => document.querySelectorAll('.message').length === 1")
    await page.get_by_label("Subject", exact=True).fill("")
    await page.get_by_label("From sequence").first.fill("2")
    await page.get_by_role("button", name="Show").click()
    await until(page, "() => document.querySelectorAll('.message').length === 2")


async def test_live_tail_shows_what_is_published(js, open_page):
    await make_stream(js, "ORDERS", messages=1)
    page = await open_page("#/streams/ORDERS/messages")
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
    assert await page.locator(".charts .plot").count() == 4


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
    page = await open_page("#/events")
    await make_stream(js, "SEEN")
    await until(page, SEES, "stream created")
    await client.publish("$JS.EVENT.METRIC.CONSUMER.ACK.ORDERS.made-up", b'{"ack_time": 1}')
    await until(page, SEES, "Dropped events and reports: 1 of unknown consumers.")
    await page.get_by_role("link", name="Connections", exact=True).click()
    await until(page, SEES, "jetlake dashboard")
    await page.get_by_role("link", name="Pipelines", exact=True).click()
    await until(page, SEES, "jetlake pipeline archive")
    report = (
        b'{"id": "archive-1", "name": "archive ORDERS", "state": "running", "batch": 7, "rows_total": 4321, "lag": 9}'
    )
    await client.publish("jetlake.pipeline.progress.archive-1", report)
    await until(page, SEES, "4,321")
    assert "archive ORDERS" in await text(page, "tbody tr")


async def test_what_is_stuck_is_told_first_and_until_it_moves(js, open_page, monkeypatch):
    monkeypatch.setattr("jetlake.dashboard.watching.attention.STUCK_S", 0.0)
    stream = await make_stream(js, "ORDERS", messages=3)
    worker = await stream.create_consumer("worker")
    page = await open_page()
    await until(page, SEES, "Needs attention (1)")
    await page.get_by_role("link", name="ORDERS > worker").click()
    await until(page, SEES, "no pull requests, 3 messages pending")
    await page.get_by_role("link", name="Consumers", exact=True).click()
    await until(page, "() => document.querySelector('td .bad')?.textContent === 'stuck'")
    for message in await worker.fetch(3):
        await message.ack()
    await page.get_by_role("link", name="Streams", exact=True).click()
    await until(page, SEES, "No consumer is stuck")


async def test_what_was_sent_for_the_page_before_is_not_drawn(js, open_page):
    await (await make_stream(js, "ORDERS", messages=3)).create_consumer("worker")
    page = await open_page()
    # The pages change at every moment after the question: before, while and after the answer comes.
    await page.evaluate("""async () => {
        for (let wait = 0; wait < 60; wait += 1) {
            location.hash = wait % 2 ? "#/streams/ORDERS/consumers/worker" : "#/consumers";
            await new Promise((done) => setTimeout(done, wait));
        }
    }""")
    await until(page, SEES, "Ack floor")


async def test_a_server_that_is_away_is_told_with_the_time_of_the_numbers(js, client, open_page):
    stream = await make_stream(js, "ORDERS", messages=3)
    collector = Collector(ServerApi(client))
    await collector.sample()
    assert collector.summary()["server"]["connected"]
    seen = collector.summary()["server"]["seen"]
    await client.close()
    await collector.sample()
    away = {"board": collector.summary(), "page": collector.board.streams(Listing(), seen)}
    assert (away["board"]["server"]["connected"], away["board"]["server"]["seen"]) == (False, seen)
    assert [one["name"] for one in away["page"]["rows"]] == [stream.name]
    page = await open_page()

    async def answer(shown):
        body = "data: " + json.dumps(shown) + "\n\n"
        await page.unroute("**/api/live*")
        await page.route("**/api/live*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        await page.reload()

    await answer(away)
    await until(page, SEES, "does not respond. The data shown is from")
    await until(page, SEES, "ORDERS")
    # A server that never answered has not no streams: nobody knows.
    board = {**away["board"], "server": {**away["board"]["server"], "seen": 0}}
    await answer({"board": board, "page": {"rows": [], "total": 0, "found": 0, "offset": 0}})
    await until(page, SEES, "Not known: the server does not respond")
    assert "No streams yet" not in await text(page, "main")
    assert await page.locator(".tiles").count() == 0


async def test_it_works_with_the_keyboard(js, open_page):
    await make_stream(js, "ORDERS", messages=1)
    page = await open_page()
    await until(page, SEES, "ORDERS")
    await page.get_by_role("link", name="ORDERS").focus()
    await page.keyboard.press("Enter")
    await until(page, "() => document.querySelector('h1').textContent === 'ORDERS'")
    # New numbers leave the focus where it is, and the link that skips the sections skips them.
    await page.get_by_role("link", name="Skip to content").focus()
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    await page.get_by_role("button", name="1 hour").focus()
    await until(page, "seen => Number(document.body.dataset.samples) > seen + 1", await samples(page))
    assert await page.evaluate("document.activeElement.textContent") == "1 hour"
    assert await page.evaluate("document.querySelector('h1').textContent") == "ORDERS"


async def test_what_is_chosen_is_in_the_link(js, open_page):
    for name in ("ORDERS", "INVOICES"):
        await make_stream(js, name, messages=1)
    page = await open_page("#/")
    await page.locator("#filter-streams").fill("ord")
    await page.get_by_role("button", name="Messages").click()
    await page.get_by_role("button", name="1 hour").click()
    await until(page, "() => document.querySelectorAll('#table-streams tbody tr').length === 1")
    link = await page.evaluate("location.hash")
    assert link == "#/?range=1h&filter=ord&sort=messages&descending=1"
    other = await open_page(link)
    await until(other, "document.querySelectorAll('#table-streams tbody tr').length === 1")
    assert await other.locator("#filter-streams").input_value() == "ord"
    assert await other.get_by_role("button", name="1 hour").get_attribute("aria-pressed") == "true"
    # A page without such choices has none of them in its link.
    await other.evaluate("location.hash = '#/streams/INVOICES'")
    await until(other, SEES, "Messages held")
    assert await other.evaluate("location.hash") == "#/streams/INVOICES"


async def test_a_link_leads_to_a_message_and_to_a_key(js, open_page):
    await make_stream(js, "ORDERS", messages=3)
    await (await js.create_key_value("SETTINGS")).put("colour", b"red")
    page = await open_page("#/streams/ORDERS/messages?open=2")
    await page.locator("details[open] pre").wait_for()
    assert await page.locator("details[open] summary b").inner_text() == "#2"
    assert await page.evaluate("location.hash") == "#/streams/ORDERS/messages?open=2"
    await page.get_by_label("Subject").fill("ORDERS.>")
    await page.get_by_role("button", name="Show").click()
    await until(page, "() => location.hash === '#/streams/ORDERS/messages?subject=ORDERS.%3E'")
    await page.evaluate("location.hash = '#/streams/ORDERS/messages?open=9'")
    await until(page, SEES, "The stream does not hold message 9.")
    await page.evaluate("location.hash = '#/kv/SETTINGS?key=colour'")
    await page.locator("#history").get_by_text("red").wait_for()
    await page.locator("#history").get_by_role("button", name="Close").click()
    await until(page, "() => location.hash === '#/kv/SETTINGS'")
    assert await page.locator("#history").count() == 0


async def test_keys_lead_to_the_sections(js, open_page):
    page = await open_page("#/")
    await page.keyboard.press("?")
    await until(page, SEES, "read single values of the chart")
    await page.keyboard.press("g")  # a dialog has the keyboard to itself
    await page.keyboard.press("c")
    await page.keyboard.press("Escape")
    assert await page.evaluate("location.hash") == "#/"
    for key, title in (("c", "Consumers"), ("k", "Key-value buckets"), ("s", "Streams")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await until(page, "wanted => document.querySelector('h1')?.textContent === wanted", title)


async def test_numbers_do_not_wrap_on_a_phone(js, open_page):
    stream = await make_stream(js, "ORDERS", messages=1)
    await stream.create_consumer("worker")
    page = await open_page("#/streams/ORDERS/consumers/worker", viewport={"width": 390, "height": 800})
    await until(page, SEES, "Ack floor")
    await page.evaluate("for (const one of document.querySelectorAll('dd .whole')) one.textContent = '33,949,640,123'")
    heights = await page.evaluate("[...document.querySelectorAll('dd .whole')].map(one => one.getClientRects().length)")
    assert len(heights) == 4 and set(heights) == {1}
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessibility(js, open_page, scheme, monkeypatch):
    monkeypatch.setattr("jetlake.dashboard.watching.attention.STUCK_S", 0.0)
    stream = await make_stream(js, "ORDERS", messages=3)
    await stream.create_consumer("worker")
    for path, wanted in (
        ("", "Needs attention"),
        ("#/consumers", "stuck"),
        ("#/streams/ORDERS", "Published"),
        ("#/streams/ORDERS/messages", "#3"),
        ("#/streams/ORDERS/consumers/worker", "no pull requests"),
    ):
        page = await open_page(path, color_scheme=scheme)
        await until(page, SEES, wanted)
        found = (await Axe().run(page)).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], path
        await page.close()


async def test_phone_width_needs_no_sideways_scrolling(js, open_page):
    stream = await make_stream(js, "ORDERS", messages=3)
    await stream.create_consumer("worker")
    paths = (
        ("", "ORDERS"),
        ("#/consumers", "worker"),
        ("#/streams/ORDERS", "Published"),
        ("#/streams/ORDERS/messages", "#3"),
    )
    for path, wanted in paths:
        page = await open_page(path, viewport={"width": 390, "height": 800})
        await until(page, SEES, wanted)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.close()


async def test_long_names_leave_room_for_the_numbers(client, js, open_page):
    name = "N" * 200
    stream = await js.create_stream(name, subjects=["s" * 150])
    await stream.create_consumer("c" * 200)
    report = {"id": "a", "name": "p" * 200, "state": "failed", "error": "no such column"}
    for width in (1440, 1024, 390):
        page = await open_page(viewport={"width": width, "height": 800})
        await client.publish("jetlake.pipeline.progress.a", json.dumps(report).encode())
        for path, wanted in (
            ("#/", "1\u20131 of 1"),
            ("#/consumers", "1\u20131 of 1"),
            (f"#/streams/{name}/messages", "No messages yet"),
            ("#/pipelines", "no such column"),
        ):
            await page.evaluate("path => { location.hash = path; }", path)
            await until(page, SEES, wanted)
            wide = "[...document.querySelectorAll('html, .table')].map(one => one.scrollWidth - one.clientWidth)"
            assert set(await page.evaluate(wide)) == {0}, (width, path)
        await page.close()


async def test_ten_thousand_streams_are_pages_that_are_filtered_and_sorted_by_the_server(js, open_page):
    for number in range(300):
        await js.create_stream(f"S{number:03}", storage="memory")
    page = await open_page()
    await until(page, "() => document.querySelectorAll('tbody tr').length === 50")
    await until(page, SEES, "1\u201350 of 300")
    await page.get_by_label("Next page").click()
    await until(page, SEES, "51\u2013100 of 300")
    await page.get_by_role("button", name="Stream", exact=True).click()
    await until(page, SEES, "1\u201350 of 300")
    await page.get_by_role("button", name="Stream", exact=True).click()
    await until(page, "() => document.querySelector('tbody td').textContent === 'S299'")
    await page.get_by_label("Filter").fill("S29")
    await until(page, "() => document.querySelectorAll('tbody tr').length === 10")


async def test_charts_have_ranges_axes_and_values_to_point_at(js, open_page):
    await make_stream(js, "ORDERS", messages=5)
    page = await open_page("#/streams/ORDERS")
    plot = page.locator("#chart-messages .plot")
    await until(page, "() => document.querySelector('#chart-messages .line') !== null")
    assert await page.locator("#chart-messages .ticks text").count() >= 2
    await plot.focus()
    await page.keyboard.press("ArrowRight")
    await until(page, "() => / · (5|not sampled)/.test(document.querySelector('#chart-messages b').textContent)")
    await plot.hover(position={"x": 5, "y": 20})
    await until(page, "() => document.querySelector('#chart-messages b').textContent.endsWith('not sampled')")
    async with page.expect_request(re.compile("range=7d")):
        await page.get_by_role("button", name="7 days").click()
    await until(page, "() => document.querySelector('[aria-pressed=true]').textContent === '7 days'")


async def test_messages_are_paged_both_ways_searched_and_downloaded(js, open_page):
    stream = await make_stream(js, "ORDERS", messages=120)
    await js.publish("ORDERS.odd", b"a needle in hay", headers={"Kind": "rare"})
    for sequence in range(30, 90):
        await stream.delete_message(sequence)
    page = await open_page("#/streams/ORDERS/messages")
    first = "() => document.querySelector('.message b')?.textContent === '{}'"
    await until(page, first.format("#121"))
    await page.get_by_role("button", name="Older").first.click()
    await until(page, first.format("#11"))
    await page.get_by_role("button", name="Newer").first.click()
    await until(page, first.format("#121"))
    await page.get_by_label("Search in payloads").fill("NEEDLE")
    await page.get_by_role("button", name="Search").click()
    await until(page, SEES, "61 messages read: 1 found.")
    await page.get_by_label("Search in payloads").fill("kind: rare")
    await page.get_by_role("button", name="Search").click()
    await until(page, "() => document.querySelectorAll('.message').length === 1")
    await page.locator(".message summary").click()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download").click()
    assert (await (await download.value).path()).read_bytes() == b"a needle in hay"
