"""Stored messages: got, deleted, purged, and read directly; every answer of ours is that of nats-server."""

import asyncio

import pytest

from tests.support.pair import Pair

LONG_AGO = "2020-01-01T00:00:00Z"
FAR_AHEAD = "2090-01-01T00:00:00Z"


@pytest.fixture
async def pair():
    """Two streams of six messages on three subjects, of which the second was deleted."""
    async with Pair() as pair:
        for name, storage in (("A", "file"), ("M", "memory")):
            config = {"name": name, "subjects": [f"{name}.*"], "allow_direct": True, "storage": storage}
            await pair.api(f"STREAM.CREATE.{name}", config)
            for number in range(6):
                await pair.store(f"{name}.{'xyz'[number % 3]}", b"v" * number, {"k": "v" * 5} if number == 2 else b"")
            await pair.api(f"STREAM.MSG.DELETE.{name}", {"seq": 2})
        yield pair


GETS = (
    {"seq": 1},
    {"seq": 2},
    {"seq": 3},
    {"seq": 3, "no_hdr": True},
    {"seq": 7},
    {"seq": 0},
    {"seq": -1},
    {"seq": 2**64},
    {"seq": "1"},
    {"last_by_subj": "NAME.x"},
    {"last_by_subj": "NAME.*"},
    {"last_by_subj": ">"},
    {"last_by_subj": "zz"},
    {"last_by_subj": "a..b"},
    {"next_by_subj": "NAME.y"},
    {"next_by_subj": "NAME.*", "seq": 2},
    {"next_by_subj": "NAME.z", "seq": 4},
    {"next_by_subj": "NAME.x", "seq": 9},
    {"next_by_subj": "zz"},
    {"start_time": LONG_AGO},
    {"start_time": FAR_AHEAD},
    {"start_time": "bad"},
    {"start_time": LONG_AGO, "next_by_subj": "NAME.y"},
    {"start_time": FAR_AHEAD, "next_by_subj": "NAME.y"},
    {"start_time": LONG_AGO, "seq": 1},
    {"start_time": LONG_AGO, "last_by_subj": "NAME.x"},
    {"last_by_subj": "NAME.x", "seq": 1},
    {"last_by_subj": "NAME.x", "next_by_subj": "NAME.x"},
    {"seq": 1, "batch": 2},
    {"seq": 1, "max_bytes": 2},
    {"batch": 2},
    {"multi_last": ["NAME.x"]},
    {"seq": 1, "up_to_seq": 2},
    {},
    b"",
    b"{",
    {"seq": 1, "bogus": 2},
)

BATCHES = (
    {"seq": 1, "batch": 2},
    {"seq": 2, "batch": 2},
    {"seq": 1, "batch": 20},
    {"seq": 7, "batch": 2},
    {"seq": 1, "batch": -1},
    {"seq": 1, "batch": 3, "no_hdr": True},
    {"batch": 3},
    {"next_by_subj": "NAME.x", "batch": 9},
    {"next_by_subj": "NAME.x", "seq": 2, "batch": 9},
    {"next_by_subj": "zz", "batch": 9},
    {"start_time": LONG_AGO, "batch": 2},
    {"start_time": LONG_AGO, "next_by_subj": "NAME.z", "batch": 2},
    {"start_time": FAR_AHEAD, "batch": 2},
    {"last_by_subj": "NAME.x", "batch": 1},
    {"seq": 1, "batch": 9, "max_bytes": 1},
    {"seq": 1, "batch": 9, "max_bytes": 5},
    {"seq": 1, "batch": 9, "max_bytes": 25},
    {"seq": 1, "max_bytes": 5},
    {"seq": 1, "up_to_seq": 3, "batch": 9},
    {"multi_last": ["NAME.>"]},
    {"multi_last": ["NAME.x", "NAME.z"]},
    {"multi_last": ["NAME.>", "NAME.x"]},
    {"multi_last": ["zz"]},
    {"multi_last": ["a..b"]},
    {"multi_last": []},
    {"multi_last": ["NAME.>"], "batch": 2},
    {"multi_last": ["NAME.>"], "batch": -1},
    {"multi_last": ["NAME.>"], "seq": 5},
    {"multi_last": ["NAME.>"], "seq": 9},
    {"multi_last": ["NAME.>"], "up_to_seq": 4},
    {"multi_last": ["NAME.>"], "up_to_seq": 2},
    {"multi_last": ["NAME.>"], "up_to_seq": 99},
    {"multi_last": ["NAME.>"], "up_to_time": FAR_AHEAD},
    {"multi_last": ["NAME.>"], "up_to_time": LONG_AGO},
    {"multi_last": ["NAME.>"], "up_to_seq": 4, "up_to_time": FAR_AHEAD},
    {"multi_last": ["NAME.>"], "last_by_subj": "NAME.x"},
    {"multi_last": ["NAME.>"], "next_by_subj": "NAME.x"},
    {"multi_last": ["NAME.>"], "start_time": LONG_AGO},
    {"multi_last": ["NAME.>"], "max_bytes": 6},
    {"multi_last": ["NAME.>"], "no_hdr": True},
)


def named(request, name):
    """The request for the stream of that name."""
    if isinstance(request, dict):
        return {key: named(value, name) for key, value in request.items()}
    if isinstance(request, list):
        return [named(value, name) for value in request]
    return request.replace("NAME", name) if isinstance(request, str) else request


def is_end(message):
    """A status, or the answer to a request for one message."""
    return message.status is not None or "Nats-Num-Pending" not in message.headers


@pytest.mark.parametrize("name", ["A", "M"])
async def test_get(pair, name):
    for request in GETS:
        await pair.api(f"STREAM.MSG.GET.{name}", named(request, name))


@pytest.mark.parametrize("name", ["A", "M"])
async def test_direct_get_of_one(pair, name):
    for request in GETS:
        if isinstance(request, bytes) or "batch" not in request:
            end = is_end if isinstance(request, bytes) or "multi_last" not in request else has_ended
            await pair.exchange(f"$JS.API.DIRECT.GET.{name}", named(request, name), until=end)


def has_ended(message):
    return message.status is not None


@pytest.mark.parametrize("name", ["A", "M"])
async def test_direct_get_of_many(pair, name):
    for request in BATCHES:
        single = "batch" not in request and not request.get("multi_last")
        await pair.exchange(f"$JS.API.DIRECT.GET.{name}", named(request, name), until=is_end if single else has_ended)


@pytest.mark.parametrize(
    "request_", [b"", {}, {"no_hdr": True}, {"seq": 1}, {"batch": 2}, {"last_by_subj": "A.x"}, b"{"]
)
async def test_direct_get_by_subject(pair, request_):
    for subject in ("A.x", "A.*", "A.q", "zz"):
        await pair.exchange(f"$JS.API.DIRECT.GET.A.{subject}", request_, until=lambda _: True)


async def test_direct_get_of_too_many_subjects(pair):
    for wire in pair._wires:
        await wire.send(b"".join(b"PUB A.%d 0\r\n\r\n" % number for number in range(1021)))
    await pair.store("A.x", b"")
    answers = await pair.exchange("$JS.API.DIRECT.GET.A", {"multi_last": ["A.>"], "batch": 2}, until=has_ended)
    assert len(answers) == 3
    await pair.store("A.one-more", b"")
    await pair.exchange("$JS.API.DIRECT.GET.A", {"multi_last": ["A.>"], "batch": 2}, until=has_ended)


async def test_direct_get_has_to_be_allowed(pair):
    await pair.api("STREAM.CREATE.N", {"name": "N"})
    await pair.request("$JS.API.DIRECT.GET.N", b'{"seq":1}')
    await pair.request("$JS.API.DIRECT.GET.N.N")
    await pair.api("STREAM.UPDATE.N", {"name": "N", "allow_direct": True})
    await pair.request("$JS.API.DIRECT.GET.N", b'{"seq":1}')
    await pair.api("STREAM.UPDATE.N", {"name": "N"})
    await pair.request("$JS.API.DIRECT.GET.N", b'{"seq":1}')


@pytest.mark.parametrize("name", ["A", "M"])
async def test_delete(pair, name):
    for request in (
        {"seq": 2},
        {"seq": 7},
        {"seq": 0},
        {"seq": "x"},
        {},
        b"",
        b"null",
        {"seq": 3, "bogus": 1},
        {"seq": 3, "no_erase": True},
        {"seq": 4},
        {"seq": 4},
        {"seq": 1},
        {"seq": 6},
    ):
        await pair.api(f"STREAM.MSG.DELETE.{name}", request)
        await pair.api(f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"})
    await pair.restart()
    if name == "A":
        await pair.api("STREAM.INFO.A", {"deleted_details": True, "subjects_filter": ">"})
        await pair.store("A.x", b"the next sequence")


async def test_an_erased_message_is_gone_from_the_disk(start, connect):
    server = await start(process=True)
    wire = await (await connect(server)).hello()
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A"})
    for word in (b"kept-kept-kept", b"secret-secret-secret", b"also-kept-also"):
        await wire.request("A", word)
    await wire.request("$JS.API.STREAM.MSG.DELETE.A", {"seq": 2})
    await server.stop()
    stored = b"".join(
        path.read_bytes() for path in server.folder.rglob("*") if path.is_file() and path != server.log_file
    )
    assert b"secret-secret-secret" not in stored
    assert b"kept-kept-kept" in stored and b"also-kept-also" in stored


PURGES = (
    {},
    b"",
    {"filter": "NAME.x"},
    {"filter": "NAME.*"},
    {"filter": "zz"},
    {"filter": "a..b"},
    {"filter": "NAME.*", "keep": 1},
    {"filter": "NAME.*", "keep": 2},
    {"filter": "NAME.x", "seq": 4},
    {"filter": "NAME.x", "seq": 99},
    {"seq": 1},
    {"seq": 4},
    {"seq": 7},
    {"seq": 8},
    {"seq": 100},
    {"keep": 1},
    {"keep": 9},
    {"seq": 2, "keep": 1},
    {"filter": "NAME.x", "seq": 2, "keep": 1},
    {"bogus": 1},
)


@pytest.mark.parametrize("name", ["A", "M"])
@pytest.mark.parametrize("request_", PURGES, ids=str)
async def test_purge(pair, request_, name):
    await pair.api(f"STREAM.PURGE.{name}", named(request_, name))
    await pair.api(f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"})
    await pair.store(f"{name}.x", b"the next sequence")
    await pair.api(f"STREAM.PURGE.{name}", {"seq": 3})
    await pair.api(f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"})
    await pair.restart()
    if name == "A":
        await pair.api("STREAM.INFO.A", {"deleted_details": True, "subjects_filter": ">"})
        await pair.store("A.x", b"the next sequence")


async def test_what_is_denied(pair):
    await pair.api("STREAM.CREATE.D", {"name": "D", "deny_purge": True, "deny_delete": True})
    await pair.store("D", b"1")
    await pair.api("STREAM.PURGE.D")
    await pair.api("STREAM.PURGE.D", {"seq": 1, "keep": 1})
    await pair.api("STREAM.MSG.DELETE.D", {"seq": 1})
    await pair.api("STREAM.MSG.DELETE.D", {"seq": 9})
    await pair.api("STREAM.INFO.D")


async def test_streams_that_are_not_there(pair):
    for verb in ("INFO", "PURGE", "DELETE", "MSG.GET", "MSG.DELETE", "UPDATE"):
        for body in (b"", b"{}", b'{"seq":1}', b'{"seq":1,"keep":1}', b"x"):
            await pair.api(f"STREAM.{verb}.ZZ", body)


async def test_a_message_of_any_bytes_comes_back_as_it_was(wire):
    from base64 import b64decode

    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "allow_direct": True})
    payload = bytes(range(256)) * 3
    block = b"NATS/1.0\r\nk: \xff\xfe v\r\n\r\n"
    await wire.request("A", payload, block)
    message = (await wire.request("$JS.API.STREAM.MSG.GET.A", {"seq": 1})).json["message"]
    assert (b64decode(message["data"]), b64decode(message["hdrs"])) == (payload, block)
    direct = await wire.request("$JS.API.DIRECT.GET.A", {"seq": 1, "no_hdr": True})
    assert direct.payload == payload


async def test_concurrent_writers_see_one_order(start, connect):
    server = await start()
    wires = [await (await connect(server)).hello() for _ in range(4)]
    await wires[0].request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"]})

    async def write(number, wire):
        return [(await wire.request(f"a.{number}", b"%d" % turn)).json["seq"] for turn in range(50)]

    found = await asyncio.gather(*(write(number, wire) for number, wire in enumerate(wires)))
    assert sorted(sequence for sequences in found for sequence in sequences) == list(range(1, 201))
    assert all(sequences == sorted(sequences) for sequences in found)
