"""Streams of counters: increments, sums and refusals, the same on both servers."""

import pytest

from tests.support.pair import Pair


@pytest.fixture
async def pair():
    async with Pair() as pair:
        config = {"subjects": ["c.>"], "allow_msg_counter": True, "allow_direct": True, "allow_rollup_hdrs": True}
        transform = {"subject_transform": {"src": "c.from.*", "dest": "c.to.{{wildcard(1)}}"}}
        await pair.api("STREAM.CREATE.C", {"name": "C", **config, **transform})
        yield pair


async def add(pair, increment, subject="c.a", **headers):
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    return await pair.store(subject, b"", {"Nats-Incr": increment, **headers})


async def test_sums(pair):
    totals = [(await add(pair, text))["val"] for text in ("1", "+1", "-5", "0", "-0", "007", "9" * 40, "-" + "9" * 40)]
    assert totals == ["1", "2", "-3", "-3", "-3", "4", "1" + "0" * 39 + "3", "4"]
    assert (await add(pair, "1", "c.from.x"))["val"] == "1"
    assert (await add(pair, "1", "c.to.x"))["val"] == "2", "the sum is that of the subject under which it is stored"
    await pair.api("STREAM.MSG.GET.C", {"last_by_subj": "c.a"})
    assert (await pair.request("$JS.API.DIRECT.GET.C.c.to.x")).payload == b'{"val":"2"}'
    await pair.api("STREAM.MSG.DELETE.C", {"seq": 8})
    assert (await add(pair, "1"))["val"] == "1" + "0" * 39 + "4"
    await pair.api("STREAM.PURGE.C", {"filter": "c.a"})
    assert (await add(pair, "7"))["val"] == "7"
    await pair.api("STREAM.INFO.C", {"subjects_filter": ">"})


async def test_sums_survive_a_restart(pair):
    await add(pair, "5")
    await pair.restart()
    assert (await add(pair, "-2"))["val"] == "3"


async def test_duplicates_count_once(pair):
    acks = [await add(pair, "1", Nats_Msg_Id=name) for name in ("a", "a", "b")]
    assert [ack.get("val") for ack in acks] == ["1", None, "2"]


async def test_refusals(pair):
    for text in ("1.5", "abc", "", "3 ", "1_000", "0x10", "+-1", "--1"):
        assert "error" in await add(pair, text)
    for key, value in (
        ("Nats-Expected-Stream", "C"),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Expected-Last-Msg-Id", "1"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence-Subject", "c.a"),
        ("Nats-Rollup", "sub"),
        ("Nats-TTL", "5s"),
        ("Nats-Schedule", "@every 1s"),
        ("Nats-Batch-Id", "1"),
    ):
        assert "error" in await add(pair, "1", **{key: value})
    for payload, headers in ((b"x", {"Nats-Incr": "1"}), (b"{}", {}), (b"", {"A": "b"}), (b"", {"Nats-Rollup": "sub"})):
        assert "error" in await pair.store("c.a", payload, headers)
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    for text in ("1", "abc"):
        assert "error" in await add(pair, text, "s")
    await pair.api("STREAM.CREATE.L", {"name": "L", "subjects": ["l"], "allow_msg_counter": True, "max_msg_size": 40})
    acks = [await add(pair, text, "l") for text in ("9", "91", "900")]
    assert [ack.get("val") for ack in acks] == ["9", "100", None], "the sum counts for the size, not the increment"


async def test_increments_in_one_write(server, wire):
    await wire.request("$JS.API.STREAM.CREATE.C", {"name": "C", "subjects": ["c"], "allow_msg_counter": True})
    await wire.subscribe("in.*", "9")
    header = b"NATS/1.0\r\nNats-Incr: 2\r\n\r\n"
    frame = b"HPUB c in.%d %d %d\r\n%b\r\n"
    await wire.send(b"".join(frame % (number, len(header), len(header), header) for number in range(3)))
    assert [message.json["val"] for message in await wire.messages(3)] == ["2", "4", "6"]
