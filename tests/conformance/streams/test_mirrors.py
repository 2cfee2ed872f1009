"""Mirrors: the same messages under the same sequences and times, on both servers."""

import asyncio

import pytest

from tests.support.copying import Streams
from tests.support.pair import Pair
from tests.support.wire import Wire

SECOND = 1_000_000_000


@pytest.fixture
async def streams(server):
    streams = await Streams.open(server)
    yield streams
    await streams.close()


BAD = [
    {"first_seq": 5},
    {"subjects": ["a"]},
    {"sources": [{"name": "O"}]},
    {"allow_msg_counter": True},
    {"allow_atomic": True},
    {"allow_batched": True},
    {"allow_msg_schedules": True},
    {"subject_delete_marker_ttl": 2 * SECOND},
    {"max_msg_size": 10},
    {"mirror_direct": True, "pedantic": True},
]
BAD_MIRRORS = [
    {"name": "O", "consumer": {"name": "a b", "deliver_subject": "d"}},
    {"name": "O", "consumer": {"name": "c", "deliver_subject": "d.*"}},
    {"name": "O", "consumer": {"name": "c", "deliver_subject": "d"}, "opt_start_seq": 2},
    {"name": "O", "consumer": {"name": "c", "deliver_subject": "d"}, "filter_subject": "o.1"},
    {"name": "O", "filter_subject": "o.1", "subject_transforms": [{"src": "o.2", "dest": "x"}]},
    {"name": "O", "subject_transforms": [{"src": "o..0", "dest": "x"}]},
    {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "x.$2"}]},
    {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "x.$1"}, {"src": "o.1", "dest": "y"}]},
    {"name": "O.x"},
    {"name": ""},
    {"name": "M"},
    {"name": "L"},
    {"name": "O", "external": {"api": "$JS.hub.API", "deliver": "d.*"}},
    {"name": "O", "external": {"api": "$JS.*.API"}},
    {"name": "O", "external": {"api": "$JS.API"}},
]


async def test_bad_mirrors_are_refused_alike():
    async with Pair() as pair:
        await pair.api("STREAM.CREATE.O", {"name": "O", "subjects": ["o.>"], "max_msg_size": 100})
        await pair.api("STREAM.CREATE.L", {"name": "L", "mirror": {"name": "M"}})
        for more in BAD:
            answer = await pair.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, **more})
            assert "error" in answer, more
        for mirror in BAD_MIRRORS:
            answer = await pair.api("STREAM.CREATE.M", {"name": "M", "mirror": mirror})
            assert "error" in answer, mirror
        await pair.api("STREAM.CREATE.N", {"name": "N", "subjects": ["n"]})
        for name, change in (
            ("N", {"mirror": {"name": "O"}}),
            ("N", {"subjects": ["n"], "mirror": {"name": "O"}}),
            ("L", {"mirror": {"name": "O"}}),
            ("L", {"mirror": {"name": "M"}, "subjects": ["l"]}),
        ):
            assert "error" in await pair.api(f"STREAM.UPDATE.{name}", {"name": name, **change}), change


async def test_a_mirror_has_the_messages_sequences_and_times_of_its_origin(streams):
    await streams.origin(count=4)
    await streams.api("STREAM.MSG.DELETE.O", {"seq": 2})
    created = await streams.create("M", mirror={"name": "O"})
    assert created["mirror"] == {"name": "O", "lag": 0, "active": -1}
    assert not {"subjects", "duplicate_window"} & created["config"].keys()
    await streams.reaches("M", (3, 1, 4))
    header = (
        b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Expected-Last-Sequence: 4\r\nOwn: kept\r\nNats-Expected-Stream: O\r\n\r\n"
    )
    await streams.store("o.2", b"five", header)
    await streams.store("o.2", b"six", b"NATS/1.0\r\nNats-Expected-Stream: O\r\n\r\n")
    await streams.reaches("M", (5, 1, 6))
    copies, originals = await streams.messages("M"), await streams.messages("O")
    assert [message._replace(header=b"") for message in copies] == [
        message._replace(header=b"") for message in originals
    ]
    assert copies[3].header == b"NATS/1.0\r\nNats-Msg-Id: a\r\nOwn: kept\r\n\r\n"
    assert copies[4].header == b""
    info = await streams.info("M")
    assert info["state"]["num_deleted"] == 1
    assert info["mirror"]["active"] >= 0 and "seq" not in info["mirror"]
    assert (await streams.info("O"))["state"]["consumer_count"] == 0

    # What happens to the origin or to the mirror later stays there.
    await streams.api("STREAM.PURGE.O")
    await streams.api("STREAM.MSG.DELETE.M", {"seq": 6})
    await streams.store("o.1", b"seven")
    await streams.reaches("M", (5, 1, 7))


async def test_where_a_mirror_begins_and_what_it_takes(streams):
    await streams.origin(count=10)
    await streams.create("START", mirror={"name": "O", "opt_start_seq": 6})
    await streams.create("LATER", mirror={"name": "O", "opt_start_seq": 20})
    time = (await streams.get("O", 9)).time
    await streams.create("TIME", mirror={"name": "O", "opt_start_time": time})
    await streams.create("BOTH", mirror={"name": "O", "opt_start_seq": 8, "opt_start_time": time})
    await streams.create("FILTER", mirror={"name": "O", "filter_subject": "o.0"})
    await streams.create("NONE", mirror={"name": "O", "filter_subject": "o.none"})
    transforms = [{"src": "o.0", "dest": "even"}, {"src": "o.1", "dest": "odd.x"}]
    await streams.create("NAMES", mirror={"name": "O", "subject_transforms": transforms})
    own = {"src": "even", "dest": "very.even"}
    await streams.create("OWN", mirror={"name": "O", "subject_transforms": transforms[:1]}, subject_transform=own)
    await streams.create("NEW", mirror={"name": "O"}, discard="new", max_msgs=4)
    await streams.create("OLD", mirror={"name": "O"}, max_msgs=4)
    await streams.create("INTEREST", mirror={"name": "O"}, retention="interest")
    await streams.create("MEMORY", mirror={"name": "O"}, storage="memory")
    for name, state in {
        "START": (5, 6, 10),
        "LATER": (0, 20, 19),
        "TIME": (2, 9, 10),
        "BOTH": (3, 8, 10),
        "FILTER": (5, 1, 9),
        "NONE": (0, 0, 0),
        "NAMES": (10, 1, 10),
        "OWN": (5, 1, 9),
        "NEW": (4, 1, 4),
        "OLD": (4, 7, 10),
        "INTEREST": (0, 11, 10),
        "MEMORY": (10, 1, 10),
    }.items():
        await streams.reaches(name, state)
    assert [message.subject for message in await streams.messages("NAMES")] == ["even", "odd.x"] * 5
    assert {message.subject for message in await streams.messages("OWN")} == {"very.even"}

    async def lag_and_error():
        mirror = (await streams.info("NEW"))["mirror"]
        return mirror["lag"], mirror.get("error")

    await streams.until(lag_and_error, (4, None))
    assert (await streams.info("FILTER"))["mirror"]["filter_subject"] == "o.0"
    assert (await streams.info("NAMES"))["mirror"]["subject_transforms"] == transforms


async def test_rollup_and_lifetimes_are_obeyed_where_the_mirror_allows_them(streams):
    await streams.origin(allow_rollup_hdrs=True, allow_msg_ttl=True)
    await streams.create("PLAIN", mirror={"name": "O"})
    await streams.create("OBEYS", mirror={"name": "O"}, allow_rollup_hdrs=True, allow_msg_ttl=True)
    await streams.fill("O", 3)
    for name in ("PLAIN", "OBEYS"):
        await streams.reaches(name, (3, 1, 3))
    await streams.store("o.0", b"only", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")
    await streams.store("o.2", b"brief", b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n")
    await streams.reaches("PLAIN", (5, 1, 5))
    for name in ("O", "OBEYS"):
        await streams.reaches(name, (2, 2, 5))
    assert (await streams.get("PLAIN", 5)).header == b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n"


async def test_a_mirror_answers_direct_gets_for_its_origin(streams):
    await streams.origin(count=2, allow_direct=True)
    config = (await streams.create("M", mirror={"name": "O"}, mirror_direct=False))["config"]
    assert config["mirror_direct"]
    await streams.reaches("M", (2, 1, 2))
    async with asyncio.timeout(20):
        answered = set()
        while answered != {"O", "M"}:
            answer = await streams.wire.request("$JS.API.DIRECT.GET.O.o.0")
            assert (answer.payload, answer.headers["Nats-Sequence"]) == (b"m1", "1")
            answered.add(answer.headers["Nats-Stream"])
    assert (await streams.wire.request("$JS.API.DIRECT.GET.M", {"seq": 1})).status == 503
    await streams.api("STREAM.DELETE.O")
    answer = await streams.wire.request("$JS.API.DIRECT.GET.O", {"seq": 2})
    assert (answer.headers["Nats-Stream"], answer.payload) == ("M", b"m2")


async def test_an_origin_that_is_missing_is_told_and_found_later(streams):
    await streams.create("M", mirror={"name": "O"})

    async def error():
        return (await streams.info("M"))["mirror"].get("error")

    await streams.until(error, {"code": 404, "err_code": 10059, "description": "stream not found"})
    assert (await streams.info("M"))["mirror"]["active"] == -1


async def test_a_promoted_mirror_goes_on_by_itself(streams):
    await streams.origin(count=3)
    await streams.create("M", mirror={"name": "O"})
    await streams.reaches("M", (3, 1, 3))
    refused = await streams.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["o.>"]})
    assert refused["error"]["err_code"] == 10065
    config = (await streams.update("M"))["config"]
    assert (config["subjects"], config["duplicate_window"]) == (["M"], 120 * SECOND)
    assert (await streams.store("M", b"own"))["seq"] == 4
    await streams.store("o.0", b"not copied")
    info = await streams.info("M")
    assert info["state"]["last_seq"] == 4 and "mirror" not in info


async def test_a_mirror_goes_on_after_a_restart(server, streams):
    await streams.origin(count=3)
    await streams.create("M", mirror={"name": "O"})
    await streams.reaches("M", (3, 1, 3))
    await server.restart()
    again = await Streams.open(server)
    await again.fill("O", 2)
    await again.reaches("M", (5, 1, 5))
    await again.close()


ACCOUNTS = """
jetstream { store_dir: STORE_DIR }
accounts {
  HUB {
    jetstream: enabled
    users: [ { user: hub, password: hub } ]
    exports: [
      { service: "$JS.API.CONSUMER.>", response: stream }
      { service: "$JS.FC.>" }
      { stream: "copies.>" }
    ]
  }
  EDGE {
    jetstream: enabled
    users: [ { user: edge, password: edge } ]
    imports: [
      { service: { account: HUB, subject: "$JS.API.CONSUMER.>" }, to: "JS.hub.API.CONSUMER.>" }
      { service: { account: HUB, subject: "$JS.FC.>" } }
      { stream: { account: HUB, subject: "copies.>" } }
    ]
  }
}
no_auth_user: hub
"""


async def test_streams_of_another_account_are_copied(start):
    server = await start(ACCOUNTS)
    hub = await Streams.open(server)
    edge = Streams(await (await Wire.open(server.host, server.port)).hello(user="edge", **{"pass": "edge"}))
    await hub.origin(count=3)
    await hub.origin("W", count=2, retention="workqueue")
    external = {"api": "JS.hub.API", "deliver": "copies.edge"}
    await edge.create("M", mirror={"name": "O", "external": external})
    await edge.create("S", sources=[{"name": "O", "external": external}, {"name": "W", "external": external}])
    await edge.reaches("M", (3, 1, 3))
    await edge.reaches("S", (5, 1, 5))
    # Flow control crosses accounts too: what is stored leaves the work queue.
    await hub.reaches("W", (0, 3, 2))
    await hub.store("o.1", b"late")
    await edge.reaches("M", (4, 1, 4))
    await edge.reaches("S", (6, 1, 6))
    assert b"Nats-Stream-Source: O:" in (await edge.get("S", 6)).header
    assert (await edge.info("M"))["mirror"]["external"] == external
    for streams in (hub, edge):
        await streams.close()
