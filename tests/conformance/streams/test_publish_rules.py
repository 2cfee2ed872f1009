"""Publishing into streams: acknowledgements, expectations, deduplication, sizes, limits, rollups, on both servers."""

import asyncio
import json
from base64 import b64decode

import pytest

from tests.support.pair import Pair

BLOCK = b"NATS/1.0\r\n\r\n"


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


def headers(**pairs):
    return {f"Nats-{key.replace('_', '-')}": value for key, value in pairs.items()}


async def test_the_bytes_of_an_acknowledgement(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
    first = await wire.request("a", b"hello")
    assert (first.header, first.payload) == (b"", b'{"stream":"A","seq":1}')
    block = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
    assert (await wire.request("a", b"hello", block)).payload == b'{"stream":"A","seq":2}'
    assert (await wire.request("a", b"hello", block)).payload == b'{"stream":"A","seq":2,"duplicate": true}'


async def test_a_tab_before_a_value_belongs_to_it(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "allow_rollup_hdrs": True})
    found = []
    for line in (b"Msg-Id: x", b"Msg-Id: \tx", b"Msg-Id:  \tx", b"Expected-Stream: \tA", b"Rollup: \tsub"):
        answer = (await wire.request("a", b"", b"NATS/1.0\r\nNats-%b\r\n\r\n" % line)).json
        found.append(answer["error"]["err_code"] if "error" in answer else (answer["seq"], "duplicate" in answer))
    assert found == [(1, False), (2, False), (2, True), 10060, 10111]


async def test_a_message_without_reply_is_stored_and_not_answered(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
    await wire.subscribe("_INBOX.>", "9")
    await wire.publish("a", b"hello")
    answer = await wire.request("a", b"hello")
    assert answer.json["seq"] == 2


async def test_a_stream_without_acknowledgements(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "no_ack": True})
    await pair.silent("a", b"hello")
    await pair.api("STREAM.INFO.A")


async def test_sequences_follow_the_order_on_a_connection(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"]})
    await wire.subscribe("_INBOX.order.*", "9")
    count = 5000
    await wire.send(
        b"".join(b"PUB a.%d _INBOX.order.%d 4\r\n%04d\r\n" % (number % 7, number, number) for number in range(count))
    )
    for number in range(count):
        message = await wire.message()
        assert message.subject == f"_INBOX.order.{number}"
        assert message.json == {"stream": "A", "seq": number + 1}


async def test_ids_in_a_burst(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"]})
    await wire.subscribe("_INBOX.burst.*", "9")
    plain = [b"Nats-Msg-Id: %d" % number for number in range(40)]
    odd = [
        b"nats-msg-id: 1",
        b"NATS-MSG-ID: 1",
        b"Nats-Msg-Id:2",
        b"Nats-Msg-Id:   3",
        b"Nats-Msg-Id: 4 ",
        b"Nats-Msg-Id: ",
        b"Nats-Msg-Id: ",
        b"Nats-Msg-Id: 5\r\nNats-Msg-Id: new",
        b"A: b\r\nNats-Msg-Id: 6",
        b"Nats-Msg-Id: \xff\xfe",
        b"Nats-Msg-Id: \xff\xfe",
        b"Nats-Msg-Id: " + b"long" * 300,
        b"Nats-Msg-Id: " + b"long" * 300,
    ]
    blocks = [*plain, *plain[7:9], *odd, b"Nats-Msg-Id: x", *plain, b"Nats-Msg-Id: x"]
    frames = []
    for number, lines in enumerate(blocks):
        header = b"NATS/1.0\r\n%b\r\n\r\n" % lines
        sizes = (len(header), len(header) + 64)
        frames.append(b"HPUB a.1 _INBOX.burst.%d %d %d\r\n%b%064d\r\n" % (number, *sizes, header, number))
    await wire.send(b"".join(frames))
    messages = await wire.messages(len(frames))
    assert [message.subject for message in messages] == [f"_INBOX.burst.{number}" for number in range(len(frames))]
    found = [(message.json["seq"], "duplicate" in message.json) for message in messages]
    fresh = [(number, False) for number in range(1, 41)]
    known = [(number, True) for number in range(1, 41)]
    among = [(41, False), (42, False), *known[2:4], (43, False), (44, False), (45, False), *known[5:7]]
    twice = [(46, False), (46, True), (47, False), (47, True)]
    assert found == [*fresh, *known[7:9], *among, *twice, (48, False), *known, (48, True)]


async def test_subscribers_get_their_copy_of_what_a_stream_stores(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})

    async def act(wire):
        await wire.request("a.b", b"hello")

    await pair.heard("a.*", act, 1)


WISHES = {
    "stream": headers(Expected_Stream="A"),
    "other stream": headers(Expected_Stream="B"),
    "last sequence": headers(Expected_Last_Sequence="3"),
    "wrong last sequence": headers(Expected_Last_Sequence="2"),
    "zero last sequence": headers(Expected_Last_Sequence="0"),
    "junk last sequence": headers(Expected_Last_Sequence="junk"),
    "negative last sequence": headers(Expected_Last_Sequence="-1"),
    "empty last sequence": headers(Expected_Last_Sequence=""),
    "subject sequence": headers(Expected_Last_Subject_Sequence="3"),
    "wrong subject sequence": headers(Expected_Last_Subject_Sequence="2"),
    "no message on the subject": headers(Expected_Last_Subject_Sequence="0"),
    "junk subject sequence": headers(Expected_Last_Subject_Sequence="junk"),
    "empty subject sequence": headers(Expected_Last_Subject_Sequence=""),
    "sequence of another subject": headers(
        Expected_Last_Subject_Sequence="2", Expected_Last_Subject_Sequence_Subject="a.y"
    ),
    "sequence of a pattern": headers(Expected_Last_Subject_Sequence="3", Expected_Last_Subject_Sequence_Subject="a.*"),
    "wrong sequence of a pattern": headers(
        Expected_Last_Subject_Sequence="2", Expected_Last_Subject_Sequence_Subject="a.>"
    ),
    "subject without sequence": headers(Expected_Last_Subject_Sequence_Subject="a.y"),
    "last id": headers(Expected_Last_Msg_Id="three"),
    "wrong last id": headers(Expected_Last_Msg_Id="two"),
    "empty last id": headers(Expected_Last_Msg_Id=""),
    "duplicate": headers(Msg_Id="one"),
    "duplicate with a wrong sequence": headers(Msg_Id="one", Expected_Last_Sequence="9"),
    "duplicate with a wrong last id": headers(Msg_Id="one", Expected_Last_Msg_Id="zz"),
    "duplicate with a rollup": headers(Msg_Id="one", Rollup="zz"),
    "empty id": headers(Msg_Id=""),
    "both wrong": headers(Expected_Last_Sequence="1", Expected_Last_Subject_Sequence="1"),
    "stream before sequence": headers(Expected_Stream="B", Expected_Last_Sequence="1"),
    "rollup": headers(Rollup="sub"),
    "empty rollup": headers(Rollup=""),
    "life": headers(TTL="5s"),
    "life in seconds": headers(TTL="5"),
    "no end of life": headers(TTL="never"),
    "no end of life in capitals": headers(TTL="NEVER"),
    "junk life": headers(TTL="junk"),
    "short life": headers(TTL="5ms"),
    "zero life": headers(TTL="0"),
    "empty life": headers(TTL=""),
    "increment": headers(Incr="1"),
    "signed increment": headers(Incr="-12"),
    "junk increment": headers(Incr="x"),
    "schedule": headers(Schedule="@every 1s"),
    "schedule target": headers(Schedule_Target="x"),
    "schedule zone": headers(Schedule_Time_Zone="x"),
    "scheduler": headers(Scheduler="x"),
    "schedule next": headers(Schedule_Next="purge"),
    "source": headers(Stream_Source="x"),
    "batch": headers(Batch_Id="x"),
    "batch sequence": headers(Batch_Sequence="1"),
    "api level": headers(Required_Api_Level="9"),
    "key in another case": {"nats-expected-stream": "B", "NATS-Msg-Id": "one"},
    "first of two": b"NATS/1.0\r\nNats-Expected-Stream: A\r\nNats-Expected-Stream: B\r\n\r\n",
    "no blank": b"NATS/1.0\r\nNats-Expected-Stream:B\r\n\r\n",
    "several blanks": b"NATS/1.0\r\nNats-Expected-Stream:   A\r\n\r\n",
    "blank after": b"NATS/1.0\r\nNats-Expected-Stream: A \r\n\r\n",
    "status": b"NATS/1.0 503\r\n\r\n",
    "status and keys": b"NATS/1.0 100 Idle Heartbeat\r\na: b\r\n\r\n",
    "bare": BLOCK,
    "not a header": b"garbage",
    "no end": b"NATS/1.0\r\nNats-Expected-Stream: B",
}


async def test_what_must_stay_stays_where_others_grow_too_old(pair):
    config = {"name": "A", "subjects": ["a.>"], "allow_msg_ttl": True, "max_age": 100_000_000}
    await pair.api("STREAM.CREATE.A", config)
    for number, life in enumerate(("never", "60", "Never"), 1):
        await pair.store(f"a.{number}", b"", headers(TTL=life))
    await pair.store("a.4", b"")
    for wire in pair._wires:
        while (await wire.request("$JS.API.STREAM.INFO.A")).json["state"]["messages"] > 2:
            await asyncio.sleep(0.02)
    for sequence in range(1, 5):
        await pair.api("STREAM.MSG.GET.A", {"seq": sequence})
    await pair.api("STREAM.INFO.A")


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
async def test_what_headers_ask_for(pair, wish):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    await pair.store("a.x", b"1", headers(Msg_Id="one"))
    await pair.store("a.y", b"2", headers(Msg_Id="two"))
    await pair.store("a.x", b"3", headers(Msg_Id="three"))
    answer = await pair.store("a.x", b"4", wish)
    if "error" not in answer:
        await pair.api("STREAM.MSG.GET.A", {"seq": answer["seq"]})
    await pair.store("a.z", b"5", headers(Expected_Last_Subject_Sequence="0"))
    await pair.api("STREAM.INFO.A")


async def test_expectations_of_an_empty_stream(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    for wish in (
        headers(Expected_Last_Sequence="1"),
        headers(Expected_Last_Msg_Id="x"),
        headers(Expected_Last_Subject_Sequence="1"),
        headers(Expected_Last_Sequence="0"),
        headers(Expected_Last_Sequence="0"),
    ):
        await pair.store("a.x", b"", wish)
    await pair.api("STREAM.PURGE.A")
    await pair.store("a.x", b"", headers(Expected_Last_Sequence="0"))
    await pair.store("a.x", b"", headers(Expected_Last_Subject_Sequence="0"))


async def test_the_window_of_message_ids(pair):
    default = await pair.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b"]})
    assert default["config"]["duplicate_window"] == 120 * 1_000_000_000
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], "duplicate_window": 1_000_000_000})
    await pair.store("a.x", b"1", headers(Msg_Id="x"))
    await pair.store("a.y", b"2", headers(Msg_Id="x"))
    for wire in pair._wires:
        while (await pair._request(wire, "a.x", b"3", headers(Msg_Id="x"))).json.get("duplicate"):
            await asyncio.sleep(0.05)
    await pair.api("STREAM.MSG.GET.A", {"seq": 2})


async def test_ids_outlive_purge_delete_and_restart(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    for name in ("one", "two", "three"):
        await pair.store("a.x", b"", headers(Msg_Id=name))
    await pair.store("a.x", b"")
    await pair.api("STREAM.MSG.DELETE.A", {"seq": 2})
    await pair.store("a.x", b"", headers(Msg_Id="two"))
    await pair.restart()
    await pair.store("a.x", b"", headers(Msg_Id="one"))
    await pair.store("a.x", b"", headers(Msg_Id="three"))
    await pair.store("a.x", b"", headers(Expected_Last_Msg_Id=""))
    await pair.store("a.x", b"", headers(Msg_Id="last"))
    await pair.api("STREAM.PURGE.A")
    await pair.store("a.x", b"", headers(Msg_Id="one"))
    await pair.store("a.x", b"", headers(Expected_Last_Msg_Id="last"))


async def test_the_last_id_is_known_after_a_restart(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    await pair.store("a.x", b"", headers(Msg_Id="last"))
    await pair.restart()
    await pair.store("a.x", b"", headers(Expected_Last_Msg_Id="other"))
    await pair.store("a.x", b"", headers(Expected_Last_Msg_Id="last"))


async def test_sizes(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "max_msg_size": 20})
    for size in (0, 19, 20, 21):
        await pair.store("a", b"x" * size)
    for size in (7, 8, 9):
        await pair.store("a", b"x" * size, BLOCK)
    await pair.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b"]})
    for size in (65_535 - 17, 65_535 - 16, 65_536):
        await pair.store("b", b"", {"a": "x" * size})
    await pair.api("STREAM.INFO.B")


async def test_a_message_that_is_too_large_is_refused_for_its_size_whatever_its_headers_ask(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], "max_msg_size": 100})
    await pair.store("a.x", b"", headers(Msg_Id="one"))
    answers = [
        await pair.store("a.x", b"x" * 100, wish)
        for wish in (
            headers(Msg_Id="one"),
            headers(Expected_Stream="B"),
            headers(Expected_Last_Sequence="9"),
            headers(Expected_Last_Subject_Sequence="9"),
            headers(Expected_Last_Msg_Id="zz"),
            headers(Rollup="sub"),
            headers(TTL="1h"),
            headers(Incr="1"),
            headers(Schedule="@every 1h"),
            headers(Stream_Source="x"),
        )
    ]
    assert {answer["error"]["err_code"] for answer in answers} == {10054}


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_bytes_are_counted_by_the_formula_of_the_storage(pair, storage):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["test", "ORDERS.*"], "storage": storage})
    await pair.store("test", b"hello")
    answer = await pair.api("STREAM.INFO.A")
    assert answer["state"]["bytes"] == (39 if storage == "file" else 25)
    await pair.store("ORDERS.processed", b"order 4")
    await pair.store("test", b"hello", {"a": "b"})
    await pair.api("STREAM.INFO.A")


LIMITS = {
    "messages": {"max_msgs": 3},
    "bytes": {"max_bytes": 120},
    "per subject": {"max_msgs_per_subject": 1},
    "per subject and messages": {"max_msgs_per_subject": 2, "max_msgs": 3},
    "new messages": {"max_msgs": 3, "discard": "new"},
    "new bytes": {"max_bytes": 120, "discard": "new"},
    "new per subject": {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
    "displace per subject": {"max_msgs_per_subject": 1, "discard": "new", "max_msgs": 2},
    "displace per subject by bytes": {"max_msgs_per_subject": 1, "discard": "new", "max_bytes": 80},
    "tiny": {"max_bytes": 10},
}


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
async def test_limits(pair, limits, storage):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"], "storage": storage, **limits})
    for number, subject in enumerate(("x", "y", "x", "x", "y", "z", "x")):
        await pair.store(f"a.{subject}", b"v" * number)
    for size in (0, 1, 5, 30, 100):
        await pair.store("a.x", b"v" * size)
    await pair.api("STREAM.INFO.A", {"subjects_filter": ">", "deleted_details": True})
    await pair.restart()
    await pair.api("STREAM.INFO.A", {"subjects_filter": ">", "deleted_details": True})


async def test_lower_limits_remove_nothing_where_new_messages_are_discarded(pair):
    config = {"name": "A", "subjects": ["a.*"], "discard": "new"}
    await pair.api("STREAM.CREATE.A", config)
    for number in range(12):
        await pair.store(f"a.{number % 3}", b"v" * 30)
    for limits in ({"max_msgs": 5}, {"max_bytes": 300}, {"max_msgs_per_subject": 2, "max_msgs": 5}):
        await pair.api("STREAM.UPDATE.A", {**config, **limits})
        await pair.store("a.0", b"")
        await pair.api("STREAM.INFO.A", {"subjects_filter": ">"})


async def test_messages_grow_old(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"], "max_age": 200_000_000})
    await pair.store("a.x", b"1")
    await pair.store("a.y", b"2")
    for wire in pair._wires:
        while (await wire.request("$JS.API.STREAM.INFO.A")).json["state"]["messages"]:
            await asyncio.sleep(0.02)
    await pair.api("STREAM.INFO.A")
    await pair.store("a.x", b"3", headers(Expected_Last_Subject_Sequence="0"))


async def test_a_wildcard_in_a_published_subject_is_a_letter(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"]})
    await pair.store("a.*", b"1")
    await pair.store("a.b.>", b"2")
    await pair.api("STREAM.MSG.GET.A", {"seq": 1})
    await pair.api("STREAM.INFO.A", {"subjects_filter": ">"})


@pytest.mark.parametrize("value", ["sub", "all", "SUB", "All", "zz"])
async def test_rollups(pair, value):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"], "allow_rollup_hdrs": True})
    for subject in ("x", "y", "x", "z"):
        await pair.store(f"a.{subject}", b"1")
    await pair.store("a.x", b"sum", headers(Rollup=value))
    await pair.api("STREAM.INFO.A", {"subjects_filter": ">", "deleted_details": True})


@pytest.mark.parametrize("value", ["sub", "all"])
async def test_a_rollup_that_no_consumer_wants_removes_what_it_rolls_up(pair, value):
    config = {"name": "A", "subjects": ["a.>"], "retention": "interest", "allow_rollup_hdrs": True}
    await pair.api("STREAM.CREATE.A", config)
    consumer = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "a.x"}
    await pair.api("CONSUMER.CREATE.A.c", {"stream_name": "A", "config": consumer})
    for subject in ("a.x", "a.y", "a.x"):
        await pair.store(subject, b"1")
    await pair.store("a.y", b"2", headers(Rollup=value))
    await pair.store("a.x", b"3", headers(Expected_Last_Subject_Sequence="3" if value == "sub" else "0"))
    await pair.api("STREAM.INFO.A", {"deleted_details": True, "subjects_filter": ">"})
    await pair.restart()
    await pair.api("STREAM.INFO.A", {"deleted_details": True, "subjects_filter": ">"})


async def test_a_rollup_replaces_what_discard_new_would_refuse(pair):
    config = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True, "allow_rollup_hdrs": True}
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"], **config})
    await pair.store("a.x", b"1")
    await pair.store("a.x", b"2")
    await pair.store("a.x", b"3", headers(Rollup="sub"))
    await pair.api("STREAM.INFO.A", {"subjects_filter": ">"})


async def test_transforms(pair):
    transform = {"src": "a.*.*", "dest": "b.$2.{{partition(3,1)}}.{{left(1,2)}}"}
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], "subject_transform": transform})
    for subject in ("a.one.two", "a.three.four", "a.x"):
        answer = await pair.store(subject, b"")
        await pair.api("STREAM.MSG.GET.A", {"seq": answer["seq"]})
    await pair.store("a.one.two", b"", headers(Expected_Last_Subject_Sequence="1"))


@pytest.mark.parametrize("headers_only", [False, True])
async def test_republish(pair, headers_only):
    directive = {"src": "a.*", "dest": "again.$1", "headers_only": headers_only}
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>"], "republish": directive})

    async def act(wire):
        await wire.request("a.x", b"one", b"NATS/1.0\r\nk: v\r\n\r\n")
        await wire.request("a.x", b"two")
        await wire.request("a.y.z", b"not covered")
        await wire.request("a.y", b"three")

    messages = await pair.heard("again.*", act, 3)
    assert [message.headers["Nats-Last-Sequence"] for message in messages] == ["0", "1", "0"]


CONFIG = """
jetstream { store_dir: "STORE_DIR", max_mem: 4000, max_file: 4000 }
no_auth_user: a
accounts {
  A { users: [{user: a, password: a}], jetstream: {max_mem: 500, max_file: 700, max_streams: 3, max_consumers: 2} }
  B { users: [{user: b, password: b}], jetstream: enabled }
  C { users: [{user: c, password: c}], jetstream: {max_file: 500, max_stream_bytes: true, store_max_stream_bytes: 100} }
  D { users: [{user: d, password: d}] }
}
"""


async def test_what_an_account_may_use():
    async with Pair(CONFIG) as pair:
        await pair.api("INFO")
        await pair.api("STREAM.CREATE.S", {"name": "S", "max_bytes": 701})
        await pair.api("STREAM.CREATE.S", {"name": "S", "max_bytes": 600})
        await pair.api("STREAM.CREATE.S", {"name": "S", "max_bytes": 600})
        await pair.api("STREAM.CREATE.T", {"name": "T", "max_bytes": 101})
        await pair.api("STREAM.UPDATE.S", {"name": "S", "max_bytes": 800})
        await pair.api("STREAM.CREATE.M", {"name": "M", "storage": "memory"})
        await pair.api("STREAM.CREATE.T", {"name": "T"})
        await pair.api("STREAM.CREATE.U", {"name": "U"})
        await pair.api("STREAM.CREATE.S", {"name": "S", "max_bytes": 600})
        for number in range(8):
            await pair.store("M", b"x" * (60 + number))
            await pair.store("T", b"x" * (80 + number))
        await pair.store("M", b"")
        await pair.api("INFO")
        await pair.api("STREAM.PURGE.M")
        await pair.store("M", b"x" * 60)
        await pair.api("INFO")
        await pair.restart()
        await pair.api("INFO")


async def test_an_account_that_wants_limits_and_one_without_jetstream():
    async with Pair(CONFIG) as pair:
        await pair.connect(user="c", **{"pass": "c"})
        await pair.api("INFO")
        for max_bytes in (0, 101, 100):
            await pair.api("STREAM.CREATE.S", {"name": "S", "max_bytes": max_bytes})
        await pair.connect(user="d", **{"pass": "d"})
        for verb in ("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.S", "CONSUMER.NAMES.S", "STREAM.PURGE.S"):
            await pair.api(verb)
        await pair.api("STREAM.CREATE.S", b"{")
        await pair.request("$JS.API.CONSUMER.MSG.NEXT.S.C")
        await pair.request("$JS.API.DIRECT.GET.S")


async def test_a_full_server():
    async with Pair(CONFIG) as pair:
        await pair.connect(user="b", **{"pass": "b"})
        await pair.api("STREAM.CREATE.M", {"name": "M", "storage": "memory"})
        await pair.api("STREAM.CREATE.S", {"name": "S"})
        for _ in range(5):
            await pair.store("M", b"x" * 983)
            await pair.store("S", b"x" * 969)
        await pair.store("S", b"", headers(Expected_Last_Sequence="99"))
        await pair.api("STREAM.CREATE.T", {"name": "T", "max_bytes": 4001})
        await pair.api("INFO")


async def test_a_message_may_be_the_largest_that_the_server_takes(wire):
    await wire.request("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
    largest = wire.info["max_payload"]
    assert largest == 1024 * 1024
    assert (await wire.request("a", b"x" * largest)).json == {"stream": "A", "seq": 1}
    answer = (await wire.request("$JS.API.STREAM.INFO.A")).json
    assert answer["state"]["bytes"] == largest + 31


async def test_an_acknowledgement_may_itself_be_stored(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
    await pair.api("STREAM.CREATE.ACKS", {"name": "ACKS", "subjects": ["acks.>"], "no_ack": True})
    for wire in pair._wires:
        await wire.publish("a", b"hello", reply="acks.1")
        while (await wire.request("$JS.API.STREAM.INFO.ACKS")).json["state"]["messages"] == 0:
            await asyncio.sleep(0.01)
    answer = await pair.api("STREAM.MSG.GET.ACKS", {"seq": 1})
    assert json.loads(b64decode(answer["message"]["data"])) == {"stream": "A", "seq": 1}
