"""The account and stream API: answers, errors and paging, without a socket."""

import json
from itertools import combinations
from random import Random

import pytest

from jetlake.model.account import AccountLimits
from jetlake.protocol.subjects import overlaps


def error_of(answer):
    return answer["error"]["code"], answer["error"]["err_code"], answer["error"]["description"]


def test_create_fills_in_the_defaults_and_is_idempotent(harness):
    answer = harness.api("STREAM.CREATE.S", {"name": "S"})
    assert answer["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert answer["did_create"] is True
    assert answer["config"]["subjects"] == ["S"]
    assert answer["config"]["max_msgs"] == -1
    assert answer["config"]["metadata"] == {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1"}
    assert "cluster" not in answer
    again = harness.api("STREAM.CREATE.S", {"name": "S", "metadata": {"_nats.ver": "1.0"}})
    assert again["did_create"] is True and again["created"] == answer["created"]
    assert error_of(harness.api("STREAM.CREATE.S", {"name": "S", "max_msgs": 5})) == (
        400,
        10058,
        "stream name already in use with a different configuration",
    )


def test_streams_may_not_share_subjects(harness):
    harness.create("A", subjects=["a.>"])
    assert error_of(harness.api("STREAM.CREATE.B", {"name": "B", "subjects": ["a.b"]}))[:2] == (400, 10065)
    harness.create("B", subjects=["b"])
    assert error_of(harness.api("STREAM.UPDATE.B", {"name": "B", "subjects": ["a.*"]}))[:2] == (400, 10065)
    assert harness.api("STREAM.UPDATE.B", {"name": "B", "subjects": ["c"]})["config"]["subjects"] == ["c"]


def test_an_update_replaces_the_whole_and_takes_effect_at_once(harness):
    harness.create(max_msgs=10)
    for _ in range(5):
        harness.store("s.a")
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["t.>"], "max_msgs": 2})
    assert harness.state()["messages"] == 2
    assert harness.request("s.a")[0].header.startswith(b"NATS/1.0 503")
    assert harness.store("t.a") == {"stream": "S", "seq": 6}
    assert harness.api("STREAM.UPDATE.S", {"name": "S"})["config"]["max_msgs"] == -1


def test_a_deleted_stream_is_gone(harness):
    harness.create()
    harness.store("s.a")
    assert harness.api("STREAM.DELETE.S", b" { } ") == {
        "type": "io.nats.jetstream.api.v1.stream_delete_response",
        "success": True,
    }
    assert error_of(harness.api("STREAM.INFO.S"))[:2] == (404, 10059)
    assert harness.request("s.a")[0].header.startswith(b"NATS/1.0 503")
    assert harness.api("INFO")["storage"] == 0
    assert error_of(harness.api("STREAM.DELETE.S", b"x"))[:2] == (400, 10038)


def test_names_and_lists_come_in_pages(harness):
    for number in range(300):
        harness.create(f"S{number:03}", subjects=[f"s.{number}"])
    page = harness.api("STREAM.LIST")
    assert (page["total"], page["offset"], page["limit"], len(page["streams"])) == (300, 0, 256, 256)
    page = harness.api("STREAM.LIST", {"offset": 256})
    assert [info["config"]["name"] for info in page["streams"]][:2] == ["S256", "S257"]
    assert "_nats.ver" not in page["streams"][0]["config"]["metadata"]
    page = harness.api("STREAM.NAMES", {"offset": 299})
    assert (page["offset"], page["limit"], page["streams"]) == (299, 1024, ["S299"])
    page = harness.api("STREAM.NAMES", {"offset": 999})
    assert (page["offset"], page["streams"]) == (300, None)


@pytest.mark.parametrize("seed", range(3))
def test_a_list_shows_what_each_info_shows(harness, seed):
    random = Random(seed)
    harness.create("ORIGIN", subjects=["o"])
    configs = {name: {"name": name, "subjects": [f"{name}.>"]} for name in "ABC"}
    configs["MIRROR"] = {"name": "MIRROR", "mirror": {"name": "ORIGIN"}}
    for name, config in configs.items():
        harness.api(f"STREAM.CREATE.{name}", config)

    def update(name):
        more = {"description": "é" * random.randrange(5), "metadata": {"k": str(random.random())}}
        configs[name] |= {**more, "max_msgs": random.randrange(2, 9)}
        harness.api(f"STREAM.UPDATE.{name}", configs[name])

    def store(name):
        harness.request(f"{name}.{random.randrange(3)}" if name != "MIRROR" else "o", b"x" * random.randrange(9))

    def add_consumer(name):
        consumer = f"c{random.randrange(4)}"
        config = {"name": consumer, "ack_policy": "none", "deliver_subject": f"d.{name}.{consumer}"}
        config["direct"] = random.random() < 0.3
        harness.api(f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})

    def delete_consumer(name):
        harness.api(f"CONSUMER.DELETE.{name}.c{random.randrange(4)}", b"")

    def delete_message(name):
        harness.api(f"STREAM.MSG.DELETE.{name}", {"seq": random.randrange(1, 9)})

    for _ in range(60):
        random.choice([update, store, store, add_consumer, delete_consumer, delete_message])(
            random.choice(list(configs))
        )
        listed = harness.api("STREAM.LIST")["streams"]
        assert [entry["config"]["name"] for entry in listed] == ["A", "B", "C", "MIRROR", "ORIGIN"]
        for entry in listed:
            name = entry["config"]["name"]
            info = harness.api(f"STREAM.INFO.{name}")
            for key in ("type", "total", "offset", "limit", "cluster"):
                del info[key]
            for key in ("_nats.ver", "_nats.level"):
                del info["config"]["metadata"][key]
            assert json.dumps(entry) == json.dumps(info)
            consumers = harness.api(f"CONSUMER.NAMES.{name}")["consumers"]
            assert entry["state"]["consumer_count"] == len(consumers)


def test_names_by_subject_are_those_that_could_hold_it(harness):
    harness.create("A", subjects=["a.*"])
    harness.create("B", subjects=["b.>"])
    assert harness.api("STREAM.NAMES", {"subject": "*.x"})["streams"] == ["A", "B"]
    assert harness.api("STREAM.NAMES", {"subject": "a.b.c"})["streams"] is None
    assert harness.api("STREAM.LIST", {"subject": "zz"})["streams"] == []


def test_info_tells_of_subjects_and_deleted_messages_when_asked(harness):
    harness.create()
    for subject in ("s.a", "s.b", "s.a"):
        harness.store(subject)
    harness.api("STREAM.MSG.DELETE.S", {"seq": 2})
    plain = harness.api("STREAM.INFO.S")
    assert (plain["total"], plain["limit"]) == (0, 0)
    assert plain["cluster"] == {"leader": "jetlake"}
    assert plain["state"]["num_deleted"] == 1 and "deleted" not in plain["state"]
    asked = harness.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": "s.*"})
    assert asked["state"]["deleted"] == [2] and asked["state"]["subjects"] == {"s.a": 2}
    assert (asked["total"], asked["offset"], asked["limit"]) == (1, 0, 100_000)


def test_a_subject_that_a_transform_makes_too_long_is_refused(harness):
    transform = {"src": "s.*", "dest": "t" * 65_531 + ".{{wildcard(1)}}"}
    harness.create(subjects=["s.*"], subject_transform=transform)
    assert harness.store("s.abc")["seq"] == 1
    assert harness.store("s.abcd")["error"]["description"] == "message too large"
    assert harness.store("s.abc")["seq"] == 2


@pytest.mark.parametrize(
    ("request_", "left", "purged"),
    [
        ({}, [], 4),
        ({"filter": "s.a"}, [2, 4], 2),
        ({"filter": "s.*", "keep": 1}, [4], 3),
        ({"filter": "s.a", "seq": 3}, [2, 3, 4], 1),
        ({"seq": 3}, [3, 4], 2),
        ({"keep": 3}, [2, 3, 4], 1),
        ({"seq": 1}, [1, 2, 3, 4], 0),
    ],
)
def test_purge_removes_what_it_says(harness, request_, left, purged):
    stream = harness.create()
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        harness.store(subject)
    assert harness.api("STREAM.PURGE.S", request_) == {
        "type": "io.nats.jetstream.api.v1.stream_purge_response",
        "success": True,
        "purged": purged,
    }
    assert [sequence for sequence in range(1, 5) if stream.store.get(sequence)] == left
    assert harness.state()["last_seq"] == 4


def test_purge_beyond_the_end_moves_the_end(harness):
    harness.create()
    harness.store("s.a")
    harness.api("STREAM.PURGE.S", {"seq": 100})
    state = harness.state()
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 100, 99)
    assert harness.store("s.a") == {"stream": "S", "seq": 100}


def test_purge_and_delete_can_be_denied(harness):
    harness.create(deny_purge=True, deny_delete=True)
    harness.store("s.a")
    answer = harness.api("STREAM.PURGE.S")
    assert error_of(answer) == (500, 10110, "stream purge not permitted") and answer["purged"] == 0
    assert error_of(harness.api("STREAM.MSG.DELETE.S", {"seq": 1})) == (500, 10057, "message delete not permitted")
    harness.create("T", subjects=["t"])
    harness.api("STREAM.UPDATE.T", {"name": "T", "subjects": ["t"], "sealed": True})
    assert error_of(harness.api("STREAM.PURGE.T"))[:2] == (400, 10109)
    assert error_of(harness.api("STREAM.MSG.DELETE.T", {"seq": 1}))[:2] == (400, 10109)
    assert error_of(harness.api("STREAM.PURGE.S", {"seq": 1, "keep": 1}))[1] == 10003


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"seq": 2}, (400, 10043, "sequence 2 not found")),
        ({"seq": 9}, (500, 10057, "stream store EOF")),
        ({"seq": 0}, (500, 10057, "no message found")),
        ({}, (400, 10003, "bad request")),
        (b"", (400, 10003, "bad request")),
    ],
)
def test_what_cannot_be_deleted_says_why(harness, request_, expected):
    harness.create()
    for _ in range(3):
        harness.store("s.a")
    assert harness.api("STREAM.MSG.DELETE.S", {"seq": 2})["success"] is True
    assert error_of(harness.api("STREAM.MSG.DELETE.S", request_)) == expected


@pytest.mark.parametrize(
    ("request_", "sequence"),
    [
        ({"seq": 2}, 2),
        ({"last_by_subj": "s.a"}, 3),
        ({"last_by_subj": "s.*"}, 4),
        ({"next_by_subj": "s.b"}, 2),
        ({"next_by_subj": "s.b", "seq": 3}, 4),
        ({"start_time": "2020-01-01T00:00:00Z"}, 1),
        ({"start_time": "2020-01-01T00:00:00Z", "next_by_subj": "s.b"}, 2),
        ({"seq": 1, "up_to_seq": 1}, 1),
        ({"seq": 9}, 10037),
        ({"last_by_subj": "s.z"}, 10037),
        ({"start_time": "2090-01-01T00:00:00Z"}, 10037),
        ({"seq": 1, "last_by_subj": "s.a"}, 10003),
        ({"seq": 1, "start_time": "2020-01-01T00:00:00Z"}, 10003),
        ({"last_by_subj": "s.a", "next_by_subj": "s.a"}, 10003),
        ({"seq": 1, "batch": 2}, 10003),
        ({"seq": 1, "max_bytes": 2}, 10003),
        ({}, 10003),
        (b"", 10003),
        ({"multi_last": ["s.a"]}, 10003),
        ({"start_time": "2026-02-30T00:00:00Z"}, 10025),
        ({"seq": -1}, 10025),
        ({"bogus": 1}, 10025),
        (b"{", 10025),
    ],
)
def test_get_finds_one_message_or_says_why_not(harness, request_, sequence):
    harness.create()
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        harness.store(subject, b"data", {"k": "v"})
    answer = harness.api("STREAM.MSG.GET.S", request_)
    if sequence < 10_000:
        assert answer["message"]["seq"] == sequence
        assert answer["message"]["data"] == "ZGF0YQ=="
        assert answer["message"]["hdrs"] == "TkFUUy8xLjANCms6IHYNCg0K"
    else:
        assert answer["error"]["err_code"] == sequence


def test_get_can_leave_headers_out(harness):
    harness.create()
    harness.store("s.a", b"", {"k": "v"})
    assert set(harness.api("STREAM.MSG.GET.S", {"seq": 1, "no_hdr": True})["message"]) == {"subject", "seq", "time"}


# The envelope


def test_unknown_fields_are_named_unless_the_server_is_lenient(harness, make_harness):
    text = 'invalid JSON: json: unknown field "bogus"'
    assert error_of(harness.api("STREAM.CREATE.S", {"name": "S", "bogus": 1})) == (400, 10025, text)
    lenient = make_harness(strict=False)
    assert lenient.api("STREAM.CREATE.S", {"name": "S", "bogus": 1})["did_create"] is True


def test_an_unknown_subject_is_met_with_silence_not_with_503(harness):
    for verb in ("BOGUS", "STREAM.INFO", "STREAM.INFO.A.B", "META.LEADER.STEPDOWN", "STREAM.TEMPLATE.NAMES"):
        assert harness.request("$JS.API." + verb) == []


@pytest.mark.parametrize(
    "verb", ["STREAM.LEADER.STEPDOWN.S", "STREAM.PEER.REMOVE.S", "STREAM.CANCEL_MOVE.S", "CONSUMER.LEADER.STEPDOWN.S.C"]
)
def test_what_needs_a_cluster_says_so(harness, verb):
    assert error_of(harness.api(verb)) == (503, 10010, "JetStream clustering support required")


@pytest.mark.parametrize(("level", "refused"), [("5", False), ("6", True), ("x", True), ("-1", False), ("", False)])
def test_a_request_may_require_an_api_level(harness, level, refused):
    harness.create()
    answer = harness.api("STREAM.INFO.S", b"", {"Nats-Required-Api-Level": level})
    assert ("error" in answer) is refused
    if refused:
        assert error_of(answer) == (412, 10185, "JetStream minimum api level required")


def test_the_domain_is_another_way_in(make_harness):
    harness = make_harness(domain="hub")
    (frame,) = harness.request("$JS.hub.API.INFO")
    assert json.loads(frame.payload)["domain"] == "hub"
    assert harness.request("$JS.other.API.INFO")[0].header.startswith(b"NATS/1.0 503")


def test_without_a_reply_a_request_is_done_and_nothing_said(harness):
    harness.publish("$JS.API.STREAM.CREATE.S", b'{"name":"S"}')
    harness.turn()
    assert "S" in harness.jetstream.streams
    assert harness.client.take() == []


def test_requests_are_counted(harness):
    assert harness.api("INFO")["api"] == {"level": 5, "total": 0, "errors": 0}
    harness.api("STREAM.INFO.S")
    assert harness.api("INFO")["api"] == {"level": 5, "total": 2, "errors": 1}


def test_whoever_listens_hears_of_requests_and_streams(harness):
    harness.account.subscribe(b"$JS.EVENT.>", b"5", harness.client)
    frames = harness.request("$JS.API.STREAM.CREATE.S", {"name": "S"})
    created, answer, audit = frames
    assert created.subject == b"$JS.EVENT.ADVISORY.STREAM.CREATED.S"
    assert json.loads(created.payload)["action"] == "create"
    event = json.loads(audit.payload)
    assert event["type"] == "io.nats.jetstream.advisory.v1.api_audit"
    assert event["subject"] == "$JS.API.STREAM.CREATE.S"
    assert event["response"] == answer.payload.decode()
    updated = harness.request("$JS.API.STREAM.UPDATE.S", {"name": "S"})[0]
    assert updated.subject == b"$JS.EVENT.ADVISORY.STREAM.UPDATED.S"
    assert harness.request("$JS.API.STREAM.DELETE.S")[0].subject == b"$JS.EVENT.ADVISORY.STREAM.DELETED.S"


# Limits of account and server


def test_an_account_has_so_many_streams(make_harness):
    harness = make_harness(limits=AccountLimits(max_streams=1))
    harness.create()
    assert error_of(harness.api("STREAM.CREATE.T", {"name": "T"})) == (400, 10027, "maximum number of streams reached")
    assert harness.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})["did_create"] is True


def test_bytes_are_set_aside_for_streams(make_harness):
    harness = make_harness(limits=AccountLimits(max_storage=700, max_memory=500), max_storage=2000, max_memory=1000)
    storage = (500, 10047, "insufficient storage resources available")
    memory = (500, 10028, "insufficient memory resources available")
    assert error_of(harness.api("STREAM.CREATE.S", {"name": "S", "max_bytes": 701})) == storage
    harness.create(max_bytes=700)
    assert harness.api("INFO")["reserved_storage"] == 700
    assert error_of(harness.api("STREAM.CREATE.T", {"name": "T"})) == storage
    answer = harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_bytes": 800})
    assert error_of(answer) == storage
    answer = harness.api("STREAM.CREATE.M", {"name": "M", "storage": "memory", "max_bytes": 501})
    assert error_of(answer) == memory
    assert harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_bytes": 300})["config"]
    assert harness.api("INFO")["reserved_storage"] == 300
    harness.create("T", subjects=["t"], max_bytes=400)
    harness.api("STREAM.DELETE.S")
    assert harness.api("INFO")["reserved_storage"] == 400
    harness.api("STREAM.UPDATE.T", {"name": "T", "subjects": ["t"]})
    assert harness.api("INFO")["reserved_storage"] == 0


# Direct get


def direct(harness, request, by_subject=""):
    frames = harness.request("$JS.API.DIRECT.GET.S" + by_subject, request)
    return [frame.header.split(b"\r\n")[0] if frame.header[8:9] == b" " else frame for frame in frames]


def test_direct_get_wants_to_be_allowed(harness):
    harness.create()
    assert direct(harness, {"seq": 1}) == [b"NATS/1.0 503"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"", b"408 Empty Request"),
        ({}, b"408 Empty Request"),
        ({"batch": 2}, b"408 Empty Request"),
        ({"seq": 0}, b"408 Empty Request"),
        (b"x", b"408 Malformed Request"),
        ({"start_time": "2026-02-30T00:00:00Z"}, b"408 Malformed Request"),
        ({"last_by_subj": "s.a", "seq": 1}, b"408 Bad Request"),
        ({"last_by_subj": "s.a", "batch": 1}, b"408 Bad Request"),
        ({"start_time": "2020-01-01T00:00:00Z", "seq": 1}, b"408 Bad Request"),
        ({"multi_last": ["s.a"], "next_by_subj": "s.a"}, b"408 Bad Request"),
        ({"multi_last": ["s.a"], "up_to_seq": 1, "up_to_time": "2020-01-01T00:00:00Z"}, b"408 Bad Request"),
        ({"seq": 9}, b"404 Message Not Found"),
        ({"seq": 9, "batch": 2}, b"404 Message Not Found"),
        ({"next_by_subj": "s.z"}, b"404 Message Not Found"),
        ({"multi_last": ["s.z"]}, b"404 No Results"),
        ({"multi_last": ["s.>"], "up_to_seq": 9}, b"404 No Results"),
        ({"multi_last": ["s.>"], "up_to_time": "2000-01-01T00:00:00Z"}, b"404 No Results"),
    ],
)
def test_direct_get_says_what_is_wrong(harness, request_, status):
    harness.create(allow_direct=True)
    harness.store("s.a")
    assert direct(harness, request_) == [b"NATS/1.0 " + status]


def test_direct_get_of_one_message(harness):
    harness.create(allow_direct=True)
    harness.store("s.a", b"data", {"k": "v"})
    (frame,) = direct(harness, {"seq": 1})
    assert frame.payload == b"data"
    assert frame.header.startswith(
        b"NATS/1.0\r\nk: v\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: 1\r\nNats-Time-Stamp: 20"
    )
    (frame,) = direct(harness, b"", ".s.a")
    assert frame.payload == b"data"
    (frame,) = direct(harness, {"last_by_subj": "s.*", "no_hdr": True})
    assert (frame.header, frame.payload) == (b"", b"data")
    assert direct(harness, {"seq": 1}, ".s.a") == [b"NATS/1.0 408 Bad Request"]


def numbers(frame, *keys):
    values = dict(line.split(b": ") for line in frame.header.split(b"\r\n")[1:-2])
    return tuple(int(values[key]) for key in keys)


def test_a_batch_counts_down_and_ends(harness):
    harness.create(allow_direct=True)
    for _ in range(5):
        harness.store("s.a", b"x" * 7)
    frames = harness.request("$JS.API.DIRECT.GET.S", {"seq": 2, "batch": 3})
    keys = (b"Nats-Sequence", b"Nats-Num-Pending", b"Nats-Last-Sequence")
    assert [numbers(frame, *keys) for frame in frames[:-1]] == [(2, 3, 0), (3, 2, 2), (4, 1, 3)]
    assert frames[-1].header == b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 4\r\n\r\n"
    assert len(harness.request("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 9, "max_bytes": 20})) == 3
    assert len(harness.request("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 9, "max_bytes": 21})) == 4
    assert len(harness.request("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 9, "max_bytes": 1})) == 2


def test_the_newest_of_each_subject(harness):
    harness.create(allow_direct=True)
    for subject in ("s.a", "s.b", "s.a", "s.c"):
        harness.store(subject)
    keys = (b"Nats-Sequence", b"Nats-Num-Pending")

    def newest(**request):
        frames = harness.request("$JS.API.DIRECT.GET.S", {"multi_last": ["s.>"], **request})
        return [numbers(frame, *keys) for frame in frames[:-1]], frames[-1].header.split(b"\r\n")[-3]

    assert newest() == ([(2, 2), (3, 1), (4, 0)], b"Nats-UpTo-Sequence: 4")
    assert newest(batch=1) == ([(2, 2)], b"Nats-UpTo-Sequence: 4")
    assert newest(up_to_seq=2) == ([(1, 1), (2, 0)], b"Nats-UpTo-Sequence: 2")
    assert newest(seq=3) == ([(3, 1), (4, 0)], b"Nats-UpTo-Sequence: 4")


def test_too_many_subjects_are_refused(harness):
    harness.create(allow_direct=True)
    for number in range(1025):
        harness.publish(f"s.{number}")
    harness.turn()
    assert direct(harness, {"multi_last": ["s.>"]}) == [b"NATS/1.0 413 Too Many Results"]


def test_a_long_batch_leaves_in_runs_and_waits_for_its_taker(harness):
    harness.create(allow_direct=True)
    for number in range(3000):
        harness.publish("s.a", b"%d" % number)
    harness.turn()
    harness.publish("$JS.API.DIRECT.GET.S", b'{"seq":1,"batch":2500}', reply=b"_INBOX.batch")
    harness.engine.flush()
    first = harness.client.take()
    assert 0 < len(first) < 2500 and harness.engine.has_ready()
    harness.client.congested = True
    harness.engine.flush()
    assert harness.client.take() == [] and not harness.engine.has_ready()
    harness.client.congested = False
    harness.publish("s.a", b"too late for the batch")
    harness.engine.wake_congested()
    rest = []
    while harness.engine.has_ready():
        harness.engine.flush()
        rest += harness.client.take()
    frames = first + rest
    assert [frame.payload for frame in frames[:-1]] == [b"%d" % number for number in range(2500)]
    assert frames[-1].header == b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 500\r\nNats-Last-Sequence: 2500\r\n\r\n"


def test_a_batch_ends_when_its_taker_goes(harness):
    harness.create(allow_direct=True)
    for _ in range(3000):
        harness.publish("s.a")
    harness.turn()
    subscription = harness.account.subscribe(b"elsewhere", b"8", harness.client)
    harness.publish("$JS.API.DIRECT.GET.S", b'{"seq":1,"batch":2500}', reply=b"elsewhere")
    harness.engine.flush()
    harness.account.unsubscribe(subscription)
    harness.engine.flush()
    assert not harness.engine.has_ready()


@pytest.mark.parametrize("seed", range(5))
def test_no_two_streams_ever_capture_the_same_subject(harness, seed):
    """Create, change and delete at random; what is refused is what overlaps, compared pair by pair."""
    random = Random(seed)
    patterns = ["a", "a.b", "a.*", "a.>", "a.*.c", "b.>", "b.c", "b.*.d", "b.c.d", "b.*.*", "c", "d.>"]
    expected = {}
    refused = 0
    for _ in range(120):
        name = random.choice("STUVW")
        subjects = random.sample(patterns, random.choice([1, 1, 2]))
        if any(overlaps(one.encode(), other.encode()) for one, other in combinations(subjects, 2)):
            continue
        verb = random.choice(["CREATE", "UPDATE", "UPDATE", "DELETE"])
        if (verb == "CREATE") == (name in expected):
            continue
        answer = harness.api(f"STREAM.{verb}.{name}", {"name": name, "subjects": subjects} if verb != "DELETE" else b"")
        if verb == "DELETE":
            del expected[name]
            continue
        taken = [subject for other, theirs in expected.items() if other != name for subject in theirs]
        if any(overlaps(one.encode(), other.encode()) for one in subjects for other in taken):
            assert error_of(answer)[1] == 10065, (subjects, expected)
            refused += 1
        else:
            assert answer["config"]["subjects"] == subjects, (answer, expected)
            expected[name] = subjects
    assert refused
    for name in list(expected):
        harness.api(f"STREAM.DELETE.{name}")
    assert not harness.jetstream.captured.root


def test_direct_gets_of_streams_that_do_not_exist_leave_nothing_behind(harness):
    harness.create(allow_direct=True)
    harness.store("s.a")
    for number in range(100):
        (frame,) = harness.request(f"$JS.API.DIRECT.GET.unknown-{number}", {"seq": 1})
        assert frame.header.startswith(b"NATS/1.0 503")
    assert b"Nats-Sequence: 1\r\n" in harness.request("$JS.API.DIRECT.GET.S", {"seq": 1})[0].header
    assert list(harness.jetstream._direct_readers) == [b"S"]


def test_the_list_of_deleted_sequences_is_bounded(harness):
    stream = harness.create()
    harness.store("s.a")
    stream.store.skip(2**50)
    harness.store("s.a")
    harness.store("s.b")
    turns = 0
    harness.engine.long_work.slice_ns = 0
    harness.client.take()
    harness.publish("$JS.API.STREAM.INFO.S", b'{"deleted_details":true,"subjects_filter":">"}', reply=b"_INBOX.info")
    while harness.engine.has_ready():
        harness.engine.flush()
        turns += 1
    (frame,) = harness.client.take()
    state = json.loads(frame.payload)["state"]
    assert (state["num_deleted"], state["deleted"]) == (2**50, list(range(2, 100_002)))
    assert state["subjects"] == {"s.a": 2, "s.b": 1}
    assert turns > 20
