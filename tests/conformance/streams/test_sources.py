"""Sources: messages of other streams, each once, in the order of each origin, on both servers."""

import asyncio
import json

import pytest

from tests.support.copying import Streams
from tests.support.pair import Pair

SECOND = 1_000_000_000


@pytest.fixture
async def streams(server):
    streams = await Streams.open(server)
    yield streams
    await streams.close()


CONSUMER = {"name": "c", "deliver_subject": "d"}
BAD = [
    [{"name": "a.b"}],
    [{"name": ""}],
    [{"name": "O"}, {"name": "O"}],
    [{"name": "O"}, {"name": "O", "filter_subject": ">"}],
    [{"name": "O", "filter_subject": "o.1", "subject_transforms": [{"src": "o.2", "dest": "x"}]}],
    [{"name": "O", "subject_transforms": [{"src": "o..2", "dest": "x"}]}],
    [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "x.$2"}]}],
    [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "x.$1"}, {"src": "o.1", "dest": "y"}]}],
    [{"name": "O", "consumer": CONSUMER, "opt_start_seq": 1}],
    [{"name": "O", "consumer": CONSUMER}, {"name": "O", "consumer": {**CONSUMER, "deliver_subject": "e"}}],
    [{"name": "O", "external": {"api": "$JS.hub.API", "deliver": "d.*"}}],
    [{"name": "O", "external": {"api": "$JS.*.API"}}],
    [{"name": "O", "external": {"api": "$JS.API"}}],
    [{"name": "S"}],
    [{"name": "L"}],
    [{"name": "M"}],
    [{"name": "S", "filter_subject": "s.1"}],
]


async def test_bad_sources_are_refused_alike():
    async with Pair() as pair:
        await pair.api("STREAM.CREATE.O", {"name": "O", "subjects": ["o.>"], "max_msg_size": 100})
        await pair.api("STREAM.CREATE.L", {"name": "L", "subjects": ["l"], "sources": [{"name": "S"}]})
        await pair.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
        for sources in BAD:
            answer = await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "sources": sources})
            assert "error" in answer, sources
        for more in ({"allow_msg_schedules": True}, {"max_msg_size": 10}):
            answer = await pair.api("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "O"}], **more})
            assert "error" in answer, more
        # A stream may source from itself what it does not capture.
        answer = await pair.api(
            "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "sources": [{"name": "S", "filter_subject": "x"}]}
        )
        assert "error" not in answer
        await pair.store("s.1", b"one", b"NATS/1.0\r\nNats-Stream-Source: O 1 > > o.1 abc\r\n\r\n")


# What a stream copies from an origin twice, over its mirrors: nats-server visits breadth first, and the order decides.
TWICE = [
    (["M1", "M2"], True),
    (["M2", "M1"], True),
    (["M1", "O"], True),
    (["O", "M1"], False),
    (["O", "M1", "M2"], False),
    (["M1", "M2", "O"], True),
    (["M1", "MM"], False),  # a mirror, and a mirror of it
    (["MM", "M1"], True),
    (["MM", "O"], False),
    (["M1", "A"], True),  # a stream that sources from the origin
    (["A", "M1"], True),
    (["A", "B"], False),  # B sources from A
    (["B", "A"], True),
]


async def test_copies_of_one_origin_are_refused_by_their_order(streams):
    async def accepts(name, **config):
        answer = (await streams.wire.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, **config})).json
        assert answer.get("error", {}).get("description") in (None, "detected cycle")
        return "error" not in answer

    await accepts("O", subjects=["o.>"])
    for mirror, origin in (("M1", "O"), ("M2", "O"), ("MM", "M1")):
        assert await accepts(mirror, mirror={"name": origin})
    for name, origin in (("A", "O"), ("B", "A")):
        assert await accepts(name, sources=[{"name": origin}])
    found = []
    for names, _ in TWICE:
        found.append((names, await accepts("S", subjects=["s.>"], sources=[{"name": name} for name in names])))
        await streams.wire.request("$JS.API.STREAM.DELETE.S")
    assert found == TWICE


def origins(messages):
    """Origin and sequence in the header of each copy."""
    lines = [message.header.split(b"Nats-Stream-Source: ")[1].split(b"\r\n")[0].decode() for message in messages]
    return [tuple(line.split(" ")[:2]) for line in lines]


async def test_copies_name_their_origin(streams):
    await streams.origin("A", 3)
    await streams.origin("B", 2)
    transforms = [{"src": "b.*", "dest": "moved.{{wildcard(1)}}"}]
    created = await streams.create("D", sources=[{"name": "A"}, {"name": "B", "subject_transforms": transforms}])
    assert not {"subjects", "duplicate_window"} & created["config"].keys()
    await streams.reaches("D", (5, 1, 5))
    inherited = b"NATS/1.0\r\nOwn: kept\r\nNats-Expected-Stream: A\r\nNats-Msg-Id: x\r\n\r\n"
    await streams.store("a.0", b"late", inherited)
    await streams.reaches("D", (6, 1, 6))
    copies = await streams.messages("D")
    from_a = [message for message in copies if message.subject.startswith("a.")]
    from_b = [message for message in copies if message.subject.startswith("moved.")]
    assert [message.payload for message in from_a] == [b"m1", b"m2", b"m3", b"late"]
    assert origins(from_a) == [("A", "1"), ("A", "2"), ("A", "3"), ("A", "4")]
    assert [message.subject for message in from_b] == ["moved.0", "moved.1"]
    line = from_b[1].header.decode()
    assert line.startswith("NATS/1.0\r\nNats-Stream-Source: B 2 b.* moved.{{wildcard(1)}} b.1 ")
    kept, source = from_a[3].header.decode().split("Nats-Stream-Source: ")
    assert kept == "NATS/1.0\r\nOwn: kept\r\nNats-Msg-Id: x\r\n"
    assert source.startswith("A 4 > > a.0 ")
    infos = {info["name"]: info for info in (await streams.info("D"))["sources"]}
    assert {name: info["seq"] for name, info in infos.items()} == {"A": 4, "B": 2}
    assert infos["B"]["subject_transforms"] == transforms

    # A source of the copies names the stream between, and drops what that had noted.
    await streams.create("E", sources=[{"name": "D", "filter_subject": "moved.>"}])
    await streams.reaches("E", (2, 1, 2))
    again = await streams.messages("E")
    assert {origin for origin, _ in origins(again)} == {"D"}
    assert all(message.header.count(b"Nats-Stream-Source") == 1 for message in again)


async def test_where_sources_begin_and_what_they_take(streams):
    await streams.origin(count=6)
    time = (await streams.get("O", 5)).time
    both = [{"name": "O", "filter_subject": "o.0"}, {"name": "O", "filter_subject": "o.1"}]
    overlapping = [{"name": "O"}, {"name": "O", "filter_subject": "o.1"}]
    await streams.create("BOTH", sources=both)
    await streams.create("TWICE", sources=overlapping)
    await streams.create("START", sources=[{"name": "O", "opt_start_seq": 4}])
    await streams.create("TIME", sources=[{"name": "O", "opt_start_time": time}])
    await streams.create("NEW", sources=[{"name": "O"}], discard="new", max_msgs=2)
    await streams.create("FIRST", sources=[{"name": "O"}], first_seq=100)
    await streams.create("OWN", subjects=["own"], sources=[{"name": "O"}])
    await streams.create("IDS", sources=[{"name": "O"}], duplicate_window=60 * SECOND)
    await streams.store("own", b"own")
    for name, state in {
        "BOTH": (6, 1, 6),
        "TWICE": (9, 1, 9),
        "START": (3, 1, 3),
        "TIME": (2, 1, 2),
        "NEW": (2, 1, 2),
        "FIRST": (6, 100, 105),
        "OWN": (7, 1, 7),
        "IDS": (6, 1, 6),
    }.items():
        await streams.reaches(name, state)
    (info,) = (await streams.info("NEW"))["sources"]
    assert (info["lag"], info["seq"], "error" in info) == (2, 2, False)

    # Ids are looked at only where a window was asked for.
    message_id = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    await streams.create("P", subjects=["p"], duplicate_window=SECOND // 10)
    await streams.store("p", b"1", message_id)
    while (await streams.store("p", b"2", message_id)).get("duplicate"):
        await asyncio.sleep(0.02)
    await streams.store("p", b"3")
    await streams.create("ONCE", sources=[{"name": "P"}], duplicate_window=60 * SECOND)
    await streams.create("EACH", sources=[{"name": "P"}])
    await streams.reaches("EACH", (3, 1, 3))
    await streams.reaches("ONCE", (2, 1, 2))


async def test_sources_removed_and_added_again_continue(streams):
    await streams.origin("A", 3)
    await streams.origin("B", 2)
    await streams.create("D", sources=[{"name": "A"}, {"name": "B"}])
    await streams.reaches("D", (5, 1, 5))
    await streams.update("D", sources=[{"name": "B"}])
    await streams.fill("A", 2)
    await streams.fill("B", 1)
    await streams.reaches("D", (6, 1, 6))
    await streams.update("D", sources=[{"name": "A"}, {"name": "B"}])
    await streams.reaches("D", (8, 1, 8))
    copies = origins(await streams.messages("D"))
    assert sorted(copies) == [("A", str(n)) for n in range(1, 6)] + [("B", str(n)) for n in range(1, 4)]


async def test_sources_continue_after_a_purge_and_a_restart(server, streams):
    await streams.origin("A", 3)
    await streams.create("D", sources=[{"name": "A"}])
    await streams.reaches("D", (3, 1, 3))
    await streams.api("STREAM.PURGE.D")
    await server.restart()
    again = await Streams.open(server)
    await again.fill("A", 1)
    await again.reaches("D", (1, 4, 4))
    assert origins(await again.messages("D")) == [("A", "4")]
    await again.close()


async def test_a_work_queue_is_emptied_by_what_is_stored(streams):
    await streams.origin("W", 3, retention="workqueue")
    await streams.create("D", sources=[{"name": "W"}])
    await streams.reaches("D", (3, 1, 3))
    await streams.reaches("W", (0, 4, 3))
    (name,) = (await streams.api("CONSUMER.NAMES.W"))["consumers"]
    assert name.startswith("JS_SRC_")
    await streams.fill("W", 2)
    await streams.reaches("D", (5, 1, 5))
    await streams.reaches("W", (0, 6, 5))
    await streams.update("D", subjects=["d"])
    await streams.until(lambda: consumers(streams, "W"), 0)


async def consumers(streams, name):
    return (await streams.info(name))["state"]["consumer_count"]


async def test_a_consumer_made_beforehand_is_read_through(streams):
    await streams.origin("W", 3, retention="workqueue")
    body = {"stream_name": "W", "config": {"durable_name": "c", "ack_policy": "flow_control", "deliver_subject": "d.c"}}
    await streams.api("CONSUMER.CREATE.W.c", body)
    await streams.create("D", sources=[{"name": "W", "consumer": {"name": "c", "deliver_subject": "d.c"}}])
    await streams.reaches("D", (3, 1, 3))
    await streams.reaches("W", (0, 4, 3))
    assert (await streams.get("D", 1)).header.startswith(b"NATS/1.0\r\nNats-Stream-Source: W:C=")
    await streams.origin("L", 2)
    body = {"stream_name": "L", "config": {"durable_name": "c", "ack_policy": "none", "deliver_subject": "d.l"}}
    await streams.api("CONSUMER.CREATE.L.c", body)
    await streams.create("E", sources=[{"name": "L", "consumer": {"name": "c", "deliver_subject": "d.l"}}])
    await streams.create("F", mirror={"name": "L", "consumer": {"name": "c", "deliver_subject": "d.l"}})

    async def errors():
        source, mirror = (await streams.info("E"))["sources"][0], (await streams.info("F"))["mirror"]
        return [info.get("error", {}).get("err_code") for info in (source, mirror)]

    await streams.until(errors, [10217, 10214])


async def test_counters_add_up(streams):
    async def add(subject, number):
        return (await streams.store(subject, header=b"NATS/1.0\r\nNats-Incr: %d\r\n\r\n" % number))["val"]

    async def total():
        found = (await streams.api("STREAM.MSG.GET.D", {"last_by_subj": "d.a"})).get("message")
        return found and await value(found["seq"])

    async def value(sequence):
        return json.loads((await streams.get("D", sequence)).payload)["val"]

    for name in ("A", "B"):
        await streams.origin(name, allow_msg_counter=True)
    await add("b.a", 4)
    await add("b.a", 6)
    sources = [
        {"name": name, "subject_transforms": [{"src": f"{name.lower()}.>", "dest": "d.>"}]} for name in ("A", "B")
    ]
    await streams.create("D", subjects=["d.>"], sources=sources, allow_msg_counter=True)
    await streams.until(total, "10")
    await add("a.a", 5)
    await streams.until(total, "15")
    assert await add("d.a", 100) == "115"
    await add("b.a", -3)
    await streams.until(total, "112")
    last = (await streams.messages("D"))[-1]
    assert last.header.endswith(b'\r\nNats-Counter-Sources: {"A":{"a.a":"5"},"B":{"b.a":"7"}}\r\n\r\n')
    assert b"Nats-Incr: -3\r\nNats-Stream-Source: B 3 b.> d.> b.a " in last.header
    await streams.create("PLAIN", sources=[{"name": "B"}])
    await streams.reaches("PLAIN", (3, 1, 3))
    assert (await streams.get("PLAIN", 3)).payload == b'{"val":"7"}'


# The hash in a consumer's name is of names alone.
CONSUMER_NAMES = {"M": "JS_MIRROR_ih8eMwqr", "F": "JS_MIRROR_yPu9rrl2", "S": "JS_SRC_N6lXlrSF", "T": "JS_SRC_z0QrXDOm"}


async def test_the_request_to_the_origin(server, streams):
    await streams.origin(count=2)
    listener = await Streams.open(server)
    for subject, sid in (("$JS.API.CONSUMER.>", "1"), ("$JSC.R.>", "2")):
        await listener.wire.subscribe(subject, sid)
    await listener.wire.ping()
    transforms = [{"src": "o.0", "dest": "x"}, {"src": "o.1", "dest": "y"}]
    for name, config in {
        "M": {"mirror": {"name": "O"}},
        "F": {"mirror": {"name": "O", "filter_subject": "o.*"}},
        "S": {"sources": [{"name": "O"}]},
        "T": {"sources": [{"name": "O", "subject_transforms": transforms}]},
    }.items():
        await streams.create(name, **config)
        # Which of the two the listener gets first is open.
        request, answer = sorted(await listener.wire.messages(2), key=lambda message: message.reply == "")
        body = request.json
        kind = "mirror" if "mirror" in config else "src"
        consumer = body["config"].pop("name")
        assert body["config"].pop("deliver_subject").startswith("$JS.M." if kind == "mirror" else "$JS.S.")
        filters = body["config"].pop("filter_subject", None), body["config"].pop("filter_subjects", None)
        assert body["stream_name"] == "O"
        assert body["config"] == {
            "deliver_policy": "all",
            "ack_policy": "none",
            "ack_wait": 79200 * SECOND,
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": SECOND,
            "inactive_threshold": 10 * SECOND,
            "num_replicas": 0,
            "direct": True,
            "sourcing": True,
            "metadata": {f"_nats.{kind}.acc": "$G", f"_nats.{kind}.stream": name},
        }
        assert consumer == CONSUMER_NAMES[name]
        if name == "F":
            assert (request.subject, filters) == (f"$JS.API.CONSUMER.CREATE.O.{consumer}.o.*", ("o.*", None))
        else:
            assert request.subject == "$JS.API.CONSUMER.CREATE.O"
            assert filters == (None, ["o.0", "o.1"] if name == "T" else None)
        level = {"Nats-Required-Api-Level": "4" if kind == "mirror" else "5"}
        assert {key: value.strip() for key, value in request.headers.items()} == (
            level if kind == "mirror" else {**level, "Nats-Stream-Identity": ""}
        )
        assert request.reply == answer.subject
    await listener.close()
