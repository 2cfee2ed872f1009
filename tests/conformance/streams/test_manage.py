"""Streams made, changed, listed and deleted: each answer of ours is that of nats-server."""

import json

import pytest

from tests.support.pair import Pair


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


async def test_account_info(pair):
    await pair.api("INFO")
    await pair.api("STREAM.CREATE.A", {"name": "A", "max_bytes": 1000})
    await pair.api("STREAM.CREATE.B", {"name": "B", "storage": "memory", "max_bytes": 500})
    await pair.store("A", b"hello")
    await pair.store("B", b"hello")
    await pair.api("STREAM.INFO.ZZ")
    await pair.api("INFO", b"anything")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"subjects": ["s.>", "t"]},
        {"storage": "memory"},
        {"description": "free text <&>", "metadata": {"a": "b", "_nats.ver": "0", "_nats.other": "1"}},
        {"max_msgs": 10, "max_bytes": 1000, "max_msgs_per_subject": 2, "max_msg_size": 100, "max_consumers": 3},
        {"max_msgs": -5, "max_bytes": 0, "max_msg_size": -9},
        {"max_age": 60_000_000_000},
        {"duplicate_window": 1_000_000_000},
        {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"retention": "interest"},
        {"retention": "workqueue"},
        {"no_ack": True},
        {"first_seq": 1},
        {"first_seq": 100},
        {"allow_direct": True, "allow_rollup_hdrs": True, "deny_delete": True},
        {"deny_purge": True},
        {"consumer_limits": {"inactive_threshold": 5_000_000_000, "max_ack_pending": 10}},
        {"subject_transform": {"src": "S.*", "dest": "t.$1"}},
        {"republish": {"src": ">", "dest": "again.>"}},
        {"republish": {"dest": "again.>", "headers_only": True}},
        {"placement": {"cluster": "c", "tags": ["x"]}},
        {"placement": {}},
        {"persist_mode": "async"},
        {"compression": "s2"},
        {"subjects": None},
        {"num_replicas": 1},
    ],
    ids=lambda config: ",".join(config) or "nothing",
)
async def test_a_created_stream_is_described_alike(pair, config):
    await pair.api("STREAM.CREATE.S", {"name": "S", **config})
    await pair.api("STREAM.CREATE.S", {"name": "S", **config})
    await pair.api("STREAM.INFO.S")
    await pair.api("STREAM.LIST")
    await pair.api("STREAM.UPDATE.S", {"name": "S", **config})
    await pair.restart()
    await pair.api("STREAM.INFO.S")
    await pair.api("STREAM.CREATE.S", {"name": "S", **config})


BAD_CONFIGS = {
    "another name": {"name": "T"},
    "no name": {"name": ""},
    "null": {"name": None},
    "description too long": {"description": "x" * 4097},
    "metadata too long": {"metadata": {"a": "x" * (128 * 1024)}},
    "invalid subject": {"subjects": ["a..b"]},
    "blank in a subject": {"subjects": ["a b"]},
    "overlap": {"subjects": ["a.*", "a.b"]},
    "overlap the other way": {"subjects": ["a.b", "a.*"]},
    "the same twice": {"subjects": ["a", "a"]},
    "everything with acks": {"subjects": [">"]},
    "the api": {"subjects": ["$JS.API.>"]},
    "the api by wildcard": {"subjects": ["*.x"]},
    # Not all events: nats-server may store its advisory about this stream before it answers.
    "events are free": {"subjects": ["$JS.EVENT.METRIC.>"]},
    "the system": {"subjects": ["$SYS.>"]},
    "negative age": {"max_age": -1},
    "short age": {"max_age": 1000},
    "negative window": {"duplicate_window": -1},
    "short window": {"duplicate_window": 1000},
    "window over age": {"duplicate_window": 60_000_000_000, "max_age": 1_000_000_000},
    "per subject without new": {"discard_new_per_subject": True},
    "per subject without limit": {"discard_new_per_subject": True, "discard": "new"},
    "replicas": {"num_replicas": 3},
    "too many replicas": {"num_replicas": 6},
    "negative replicas": {"num_replicas": -1},
    "sealed": {"sealed": True},
    "mirror direct": {"mirror_direct": True},
    "rollup without purge": {"allow_rollup_hdrs": True, "deny_purge": True},
    "preferred": {"placement": {"preferred": "x"}},
    "cycle": {"subjects": ["a.>"], "republish": {"src": ">", "dest": "a.b"}},
    "bad republish": {"subjects": ["a.>"], "republish": {"src": "a.*", "dest": "r.$2"}},
    "bad transform source": {"subject_transform": {"src": "a..b", "dest": "c"}},
    "bad transform": {"subject_transform": {"src": "a.*", "dest": "c.$2"}},
    "unknown function": {"subject_transform": {"src": "a.*", "dest": "c.{{nope(1)}}"}},
    "mirror with subjects": {"mirror": {"name": "X"}, "subjects": ["a"]},
    "mirror with sources": {"mirror": {"name": "X"}, "sources": [{"name": "Y"}]},
    "mirror with first": {"mirror": {"name": "X"}, "first_seq": 5},
    "unknown field": {"bogus": 1},
    "unknown inner field": {"consumer_limits": {"bogus": 1}},
    "bad retention": {"retention": "never"},
    "bad storage": {"storage": "tape"},
    "bad discard": {"discard": "all"},
    "bad compression": {"compression": "zip"},
    "number as text": {"max_msgs": "5"},
    "text as number": {"description": 5},
    "subjects as text": {"subjects": "a"},
    "too large a number": {"max_msgs": 2**70},
    "pedantic limits": {"max_msgs": -2, "pedantic": True},
    "pedantic window": {"max_age": 1_000_000_000, "pedantic": True},
    "counter": {"allow_msg_counter": True, "discard": "new"},
    "schedules": {"allow_msg_schedules": True, "discard": "new"},
    "short markers": {"subject_delete_marker_ttl": 5},
    "async in memory": {"persist_mode": "async", "storage": "memory"},
}


@pytest.mark.parametrize("config", BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
async def test_a_bad_configuration_is_refused_alike(pair, config):
    await pair.api("STREAM.CREATE.S", {"name": "S", **config})
    await pair.api("STREAM.CREATE.G", {"name": "G", "subjects": ["g"]})
    await pair.api("STREAM.UPDATE.G", {"name": "G", **config})
    await pair.api("STREAM.NAMES")


@pytest.mark.parametrize("name", ["a/b", "a\\b", "x" * 256, "x" * 255, "ä", "a-b_c=d", "~"])
async def test_names(pair, name):
    await pair.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["n"]})
    await pair.api("STREAM.NAMES")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"x", b"null", b'""', b'{"name":', b" {} "])
async def test_bodies_that_say_little(pair, body):
    await pair.api("STREAM.CREATE.G", {"name": "G", "subjects": ["g"]})
    await pair.store("g", b"one")
    for verb in ("CREATE.S", "UPDATE.G", "INFO.G", "NAMES", "LIST", "MSG.GET.G", "MSG.DELETE.G", "PURGE.G", "DELETE.G"):
        await pair.api(f"STREAM.{verb}", body)


UPDATES = {
    "name": ({}, {"name": "T"}),
    "storage": ({}, {"storage": "memory"}),
    "to workqueue": ({}, {"retention": "workqueue"}),
    "from workqueue": ({"retention": "workqueue"}, {}),
    "to interest": ({}, {"retention": "interest"}),
    "seal": ({"max_age": 10_000_000_000}, {"sealed": True}),
    "deny delete": ({"deny_delete": True}, {}),
    "deny purge": ({"deny_purge": True}, {}),
    "allow": ({}, {"deny_delete": True, "deny_purge": True, "allow_direct": True}),
    "persist mode": ({}, {"persist_mode": "async"}),
    "limits": ({"max_msgs": 10}, {"max_msgs": 2}),
    "bytes": ({"max_bytes": 1000}, {"max_bytes": 70}),
    "per subject": ({}, {"max_msgs_per_subject": 1}),
    "subjects": ({}, {"subjects": ["other.>"]}),
    "window": ({}, {"duplicate_window": 1_000_000_000}),
    "overlap": ({}, {"subjects": ["g"]}),
    "metadata": ({"metadata": {"a": "b"}}, {"metadata": {"c": "d"}}),
}


@pytest.mark.parametrize(("config", "change"), UPDATES.values(), ids=UPDATES.keys())
async def test_what_an_update_may_change(pair, config, change):
    await pair.api("STREAM.CREATE.G", {"name": "G", "subjects": ["g"]})
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
    for number in range(4):
        await pair.store(f"s.{number % 2}", b"hello")
    await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **change})
    await pair.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})


async def test_a_sealed_stream_stays_as_it_is(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await pair.store("s", b"one")
    await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sealed": True})
    await pair.store("s", b"two")
    await pair.api("STREAM.PURGE.S")
    await pair.api("STREAM.MSG.DELETE.S", {"seq": 1})
    await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"]})
    await pair.api("STREAM.MSG.GET.S", {"seq": 1})
    await pair.api("STREAM.DELETE.S")


async def test_overlap_with_another_stream(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.>", "x"]})
    for subjects in (["a.b"], ["b", "x"], ["a"], ["a.*.c"]):
        await pair.api("STREAM.CREATE.B", {"name": "B", "subjects": subjects})
        await pair.api("STREAM.DELETE.B")


async def test_paging(pair):
    await pair.api("STREAM.NAMES")
    await pair.api("STREAM.LIST")
    for number in range(260):
        await pair.api(f"STREAM.CREATE.S{number:03}", {"name": f"S{number:03}", "storage": "memory"})
    for request in ({}, {"offset": 255}, {"offset": 256}, {"offset": 260}, {"offset": 999}, {"offset": -1}):
        await pair.api("STREAM.LIST", request)
        await pair.api("STREAM.NAMES", request)


async def test_filter_by_subject(pair):
    await pair.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"]})
    await pair.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b.>", "c"]})
    for subject in ("a.b", "a.b.c", "*.x", ">", "c", "zz", "a..b", ""):
        await pair.api("STREAM.NAMES", {"subject": subject})
        await pair.api("STREAM.LIST", {"subject": subject})


async def test_info_with_details(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for subject in ("s.a", "s.b", "s.a", "s.c.d", "s.b"):
        await pair.store(subject, b"x")
    await pair.api("STREAM.MSG.DELETE.S", {"seq": 2})
    await pair.api("STREAM.MSG.DELETE.S", {"seq": 4})
    for request in (
        {"deleted_details": True},
        {"subjects_filter": ">"},
        {"subjects_filter": "s.*"},
        {"subjects_filter": "s.a"},
        {"subjects_filter": "zz"},
        {"subjects_filter": ">", "offset": 1},
        {"subjects_filter": ">", "offset": 9},
        {"subjects_filter": ">", "offset": -1},
    ):
        await pair.api("STREAM.INFO.S", request)


async def test_subjects_that_nobody_serves_get_no_answer(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S"})
    for verb in (
        "BOGUS",
        "STREAM.INFO",
        "STREAM.INFO.S.X",
        "STREAM.BOGUS.S",
        "META.LEADER.STEPDOWN",
        "STREAM.TEMPLATE.NAMES",
    ):
        await pair.silent(f"$JS.API.{verb}")


async def test_what_needs_a_cluster(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S"})
    for verb in ("STREAM.LEADER.STEPDOWN.S", "STREAM.PEER.REMOVE.S", "STREAM.PEER.EVACUATE.S", "STREAM.CANCEL_MOVE.S"):
        await pair.api(verb)
    await pair.api("CONSUMER.LEADER.STEPDOWN.S.C")


@pytest.mark.parametrize("level", ["5", "6", "x", "-1", ""])
async def test_required_api_level(pair, level):
    header = {"Nats-Required-Api-Level": level}
    await pair.api("INFO", b"", header)
    await pair.api("STREAM.CREATE.S", {"name": "S", "allow_direct": True}, header)
    await pair.api("STREAM.CREATE.S", {"name": "S", "allow_direct": True})
    await pair.request("$JS.API.DIRECT.GET.S", b'{"seq":1}', header)


async def test_nobody_home(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S"})
    for subject in ("nothing", "$JS.ACK.S.c.1.1.1.1.1", "$JS.FC.S.c.1", "$JS.other", "$JS.hub.API.INFO"):
        await pair.request(subject)
    await pair.request("$JS.API.DIRECT.GET.S", b'{"seq":1}')
    await pair.request("$JS.API.DIRECT.GET.ZZ", b'{"seq":1}')
    await pair.request("$JS.API.CONSUMER.MSG.NEXT.S.ZZ")


async def test_user_info(pair):
    answers = [(await wire.request("$SYS.REQ.USER.INFO")).json for wire in pair._wires]
    assert answers[0]["data"] == answers[1]["data"] == {"user": "", "account": "$G", "account_name": "$G"}
    assert set(answers[0]["server"]) <= set(answers[1]["server"])


async def test_advisories(pair):
    async def act(wire):
        await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S"})
        await wire.request("$JS.API.STREAM.UPDATE.S", {"name": "S", "max_msgs": 5})
        await wire.request("$JS.API.STREAM.DELETE.S")

    await pair.heard("$JS.EVENT.ADVISORY.STREAM.>", act, 3)


async def test_the_audit_tells_of_every_answer_but_those_with_messages(pair):
    async def act(wire):
        await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "allow_direct": True})
        await wire.request("S", b"x")
        await wire.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})
        await wire.request("$JS.API.DIRECT.GET.S", {"seq": 1})
        await wire.request("$JS.API.STREAM.MSG.GET.S", {"seq": 9})
        await wire.request("$JS.API.STREAM.INFO.ZZ")
        await wire.request("$JS.API.STREAM.PURGE.S")

    events = await pair.heard("$JS.EVENT.ADVISORY.API", act, 4, mask=without_client)
    assert [event.json["subject"] for event in events] == [
        "$JS.API.STREAM.CREATE.S",
        "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.STREAM.INFO.ZZ",
        "$JS.API.STREAM.PURGE.S",
    ]


def without_client(event):
    """What the audit tells of the connection differs by its number and times; of the answer, by the order of keys."""
    client = event.pop("client")
    response = json.loads(event.pop("response"))
    return event, set(client) - {"rtt"}, response


async def test_a_domain():
    async with Pair('jetstream { domain: "hub", store_dir: "STORE_DIR" }') as pair:
        await pair.api("INFO")
        await pair.request("$JS.hub.API.INFO")
        await pair.request("$JS.other.API.INFO")
        await pair.request("$JS.hub.API.STREAM.CREATE.S", b'{"name":"S"}')
        await pair.api("STREAM.INFO.S")
        await pair.api("STREAM.LIST")
        await pair.api("STREAM.UPDATE.S", {"name": "S"})
        await pair.request("S", b"hello")
        await pair.request("S", b"", {"Nats-Expected-Last-Sequence": "9"})


async def test_a_lenient_server():
    async with Pair('jetstream { strict: false, store_dir: "STORE_DIR" }') as pair:
        await pair.api("STREAM.CREATE.S", {"name": "S", "bogus": 1})


async def test_half_a_surrogate_pair_is_replaced(wire):
    """As Go reads JSON: the rest of the request is whole."""
    body = rb'{"name":"H","description":"x\ud800y \ud83d\ude00"}'
    answer = (await wire.request("$JS.API.STREAM.CREATE.H", body)).json
    assert answer["config"]["description"] == "x\ufffdy \U0001f600"
