"""Pages and searches of a stream's messages, on a real server: what they find, and how much they ask for it."""

from __future__ import annotations

import pytest

import jetlake
from jetlake.client.streams.stream import Stream
from jetlake.dashboard import messages as messages_module
from jetlake.dashboard.messages import HITS_MAX, MessagePages, Search, search
from jetlake.testing import fill


@pytest.fixture
async def js(server):
    async with await jetlake.connect(server.url, connect_timeout=20) as client:
        yield client.jetstream()


async def sparse(js, **options):
    """A stream of 5,000 messages, with three of a rare subject."""
    await js.create_stream("S", subjects=["s.>"], storage="memory", **options)
    for rare, many in ((1, 100), (1, 4000), (1, 897)):
        for _ in range(rare):
            await js.publish("s.rare", b"a Needle in hay", headers={"Kind": "rare"})
        await fill(js, "s.many", many)
    return await js.stream("S")


def sequences(messages):
    return [message.sequence for message in messages]


async def test_pages_of_a_rare_subject_need_few_requests(js, monkeypatch):
    stream = await sparse(js)
    asked = 0
    get = Stream.get

    async def counted(self, *arguments, **options):
        nonlocal asked
        asked += 1
        return await get(self, *arguments, **options)

    monkeypatch.setattr(Stream, "get", counted)
    pages = MessagePages(stream, "s.rare")
    assert sequences(await pages.before(5001, 10, 1)) == [1, 102, 4103]
    assert asked < 100
    asked = 0
    # Dense before a long stretch of nothing: windows that became wide become narrow again.
    many = MessagePages(stream, "s.many")
    assert sequences(await many.before(5001, 10, 1)) == list(range(4991, 5001))
    assert asked < 100
    assert sequences(await many.before(103, 3, 1)) == [99, 100, 101]
    assert sequences(await pages.onwards(2, 10)) == [102, 4103]
    assert await pages.before(1, 10, 1) == []


async def test_a_wide_window_that_holds_too_much_becomes_narrow(js):
    await js.create_stream("S", subjects=["s.>"], storage="memory")
    await fill(js, "s.a", 300)
    await fill(js, "s.b", 3000)
    pages = MessagePages(await js.stream("S"), "s.a")
    assert sequences(await pages.before(3301, 5, 1)) == [296, 297, 298, 299, 300]


@pytest.mark.parametrize("direct", [False, True])
async def test_a_search_finds_payloads_and_headers_and_tells_its_progress(js, direct, monkeypatch):
    monkeypatch.setattr(messages_module, "_TELL_S", 0.0)
    stream = await sparse(js, allow_direct=direct)
    reports = [report async for report in search(stream, Search("NEEDLE", "", 1, 10**9))]
    assert [hit["seq"] for report in reports for hit in report["hits"]] == [1, 102, 4103]
    done = [report["done"] for report in reports]
    assert len(done) > 10 and done == sorted(done) and done[-1] == reports[-1]["total"] == 5000
    assert reports[-1]["ended"] and not reports[-1]["more"]
    for wanted, found in (
        (Search("kind: RARE", "", 2, 4102), [102]),
        (Search("needle", "s.rare", 1, 10**9), [1, 102, 4103]),
        (Search("needle", "s.many", 1, 10**9), []),
        (Search("no such word", "", 1, 100), []),
        (Search("needle", "", 5001, 10**9), []),
    ):
        reports = [report async for report in search(stream, wanted)]
        assert [hit["seq"] for report in reports for hit in report["hits"]] == found, wanted


@pytest.mark.parametrize("direct", [False, True])
async def test_a_search_with_many_hits_ends_and_can_go_on(js, direct):
    stream = await sparse(js, allow_direct=direct)
    reports = [report async for report in search(stream, Search("", "", 10, 10**9))]
    assert sum(len(report["hits"]) for report in reports) == HITS_MAX
    assert reports[-1]["more"] and reports[-1]["next"] == 10 + HITS_MAX


async def test_a_search_that_is_given_up_asks_no_more(js, monkeypatch):
    monkeypatch.setattr(messages_module, "_TELL_S", 0.0)
    searching = search(await sparse(js), Search("needle", "", 1, 10**9))
    first = await anext(searching)
    await searching.aclose()
    assert first["done"] < 200


async def test_a_search_jumps_over_what_was_deleted(js):
    stream = await sparse(js)
    await stream.purge(before=4000)
    stream = await js.stream("S")
    reports = [report async for report in search(stream, Search("needle", "", 1, 10**9))]
    assert [hit["seq"] for report in reports for hit in report["hits"]] == [4103]
    assert reports[-1]["scanned"] == 1001
