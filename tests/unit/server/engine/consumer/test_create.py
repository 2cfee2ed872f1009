"""Making, finding, changing and removing consumers through the API."""

import pytest

SECOND = 1_000_000_000


@pytest.fixture
def api(harness):
    harness.create()
    return harness.api


def create(api, name, form="CONSUMER.CREATE.S.{}", **more):
    config = more.pop("config", {})
    return api(form.format(name), {"stream_name": "S", "config": config, **more})


def test_the_form_of_old_ephemerals(api, harness):
    answer = api("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"deliver_policy": "all"}})
    assert len(answer["name"]) == 8
    assert "name" not in answer["config"]
    assert answer["config"]["inactive_threshold"] == 5 * SECOND
    assert answer["config"]["ack_policy"] == "none"
    assert harness.jetstream.streams["S"].consumers[answer["name"]].name == answer["name"]


def test_the_form_of_old_durables(api):
    answer = create(api, "d", "CONSUMER.DURABLE.CREATE.S.{}", config={"durable_name": "d", "ack_policy": "explicit"})
    assert (answer["name"], answer["config"]["durable_name"]) == ("d", "d")
    assert "inactive_threshold" not in answer["config"]


def test_the_current_form_with_a_filter_in_the_subject(api):
    config = {"filter_subject": "s.a.*", "ack_policy": "explicit"}
    answer = api("CONSUMER.CREATE.S.f.s.a.*", {"stream_name": "S", "config": config})
    assert answer["config"]["filter_subject"] == "s.a.*"
    answer = api("CONSUMER.CREATE.S.g.s.b", {"stream_name": "S", "config": config})
    assert answer["error"]["err_code"] == 10131


def test_create_returns_the_state_before_delivery(api, harness):
    harness.store("s.a")
    harness.store("s.b")
    answer = create(api, "c", config={"ack_policy": "explicit", "filter_subject": "s.b"})
    assert answer["type"] == "io.nats.jetstream.api.v1.consumer_create_response"
    assert (answer["num_pending"], answer["delivered"], answer["ack_floor"]) == (
        1,
        {"consumer_seq": 0, "stream_seq": 0},
        {"consumer_seq": 0, "stream_seq": 0},
    )


@pytest.mark.parametrize(
    ("action", "exists", "changed", "code"),
    [
        ("create", False, False, None),
        ("create", True, False, None),
        ("create", True, True, 10148),
        ("update", False, False, 10149),
        ("update", True, True, None),
        ("", True, True, None),
        ("", False, False, None),
        ("upsert", False, False, 10025),
    ],
)
def test_actions(api, action, exists, changed, code):
    if exists:
        create(api, "c", config={"durable_name": "c", "ack_policy": "explicit", "metadata": {"a": "b"}})
    config = {"durable_name": "c", "ack_policy": "explicit", "metadata": {"a": "c" if changed else "b"}}
    answer = create(api, "c", config=config, action=action)
    assert answer.get("error", {}).get("err_code") == code
    if code is None:
        assert answer["config"]["metadata"]["a"] == config["metadata"]["a"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"max_deliver": 7, "description": "x", "sample_freq": "10", "headers_only": True}, None),
        ({"ack_wait": 5 * SECOND, "max_ack_pending": 5, "max_batch": 5, "inactive_threshold": SECOND}, None),
        ({"deliver_policy": "new"}, 10012),
        ({"ack_policy": "all"}, 10012),
        ({"replay_policy": "original"}, 10012),
        ({"max_waiting": 7}, 10012),
        ({"deliver_subject": "d"}, 10012),
    ],
)
def test_what_may_change(api, harness, change, code):
    base = {"durable_name": "c", "ack_policy": "explicit"}
    create(api, "c", config=base)
    answer = create(api, "c", config={**base, **change})
    assert answer.get("error", {}).get("err_code") == code
    if code is None:
        shown = harness.api("CONSUMER.INFO.S.c")["config"]
        assert {key: shown[key] for key in change} == change


def test_a_changed_filter_counts_anew_from_where_it_stands(make_worker, harness):
    worker = make_worker(filter_subject="s.a")
    for subject in ("s.a", "s.b", "s.b", "s.a", "s.b"):
        harness.store(subject)
    worker.pull()
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.b"}
    harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert worker.numbers()[2] == 3
    assert worker.sequences(worker.pull(b"9")) == [2, 3, 5]


def test_a_changed_limit_lets_more_through(make_worker, harness):
    worker = make_worker(messages=3, max_ack_pending=1)
    assert worker.sequences(worker.pull(b"3")) == [1]
    config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 2}
    harness.publish(
        "$JS.API.CONSUMER.CREATE.S.c",
        b'{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit","max_ack_pending":2}}',
    )
    harness.turn()
    assert config["max_ack_pending"] == worker.info()["config"]["max_ack_pending"]
    assert worker.sequences(worker.taken()) == [2]


def test_names_and_lists_come_in_pages(api, harness):
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_consumers": 2000})
    for number in range(1030):
        create(api, f"c{number:04d}", config={"durable_name": f"c{number:04d}"})
    names = api("CONSUMER.NAMES.S", {"offset": 1000})
    assert (names["total"], names["offset"], names["limit"], len(names["consumers"])) == (1030, 1000, 1024, 30)
    infos = api("CONSUMER.LIST.S", {"offset": 5000})
    assert (infos["total"], infos["offset"], infos["limit"], infos["consumers"]) == (1030, 1030, 256, [])
    infos = api("CONSUMER.LIST.S")
    assert len(infos["consumers"]) == 256
    assert set(infos["consumers"][0]["config"]["metadata"]) == {"_nats.req.level"}


def test_the_thousand_and_first_consumer_is_refused(api):
    for number in range(1000):
        create(api, f"c{number}", config={"durable_name": f"c{number}"})
    assert create(api, "more")["error"]["err_code"] == 10026


def test_limits_of_stream_and_account(make_harness):
    from jetlake.model.account import AccountLimits

    harness = make_harness(limits=AccountLimits(max_consumers=1))
    harness.create("S", max_consumers=5)
    create(harness.api, "a")
    assert create(harness.api, "b")["error"]["err_code"] == 10026


@pytest.mark.parametrize("verb", ["INFO", "DELETE", "PAUSE", "RESET"])
def test_what_is_not_there(api, verb):
    body = b"" if verb != "PAUSE" else {"pause_until": "2099-01-01T00:00:00Z"}
    assert api(f"CONSUMER.{verb}.S.nobody", body)["error"]["err_code"] == 10014
    assert api(f"CONSUMER.{verb}.T.nobody", body)["error"]["err_code"] == 10059


def test_delete(api, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.>")
    create(api, "c")
    assert api("CONSUMER.DELETE.S.c") == {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response",
        "success": True,
    }
    assert api("CONSUMER.DELETE.S.c", b"{1}")["error"]["err_code"] == 10038
    assert [(subject, event["action"]) for subject, event in ear()] == [
        ("$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.c", "create"),
        ("$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c", "delete"),
    ]


# Start positions


def start_of(harness, **config):
    answer = create(harness.api, "start", config={"ack_policy": "explicit", **config})
    assert "error" not in answer, answer
    harness.api("CONSUMER.DELETE.S.start")
    return answer["delivered"]["stream_seq"], answer["num_pending"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"deliver_policy": "all"}, (0, 0)),
        ({"deliver_policy": "last"}, (0, 0)),
        ({"deliver_policy": "new"}, (0, 0)),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, (6, 0)),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2001-01-01T00:00:00Z"}, (0, 0)),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.a"}, (0, 0)),
    ],
)
def test_starts_in_an_empty_stream(harness, config, expected):
    harness.create()
    assert start_of(harness, **config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"deliver_policy": "all"}, (0, 6)),
        ({"deliver_policy": "last"}, (5, 1)),
        ({"deliver_policy": "new"}, (6, 0)),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, (3, 3)),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 100}, (99, 0)),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2001-01-01T00:00:00Z"}, (0, 6)),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2099-01-01T00:00:00Z"}, (6, 0)),
        ({"deliver_policy": "last", "filter_subject": "s.0"}, (3, 1)),
        ({"deliver_policy": "last", "filter_subjects": ["s.0", "s.1"]}, (4, 1)),
        ({"deliver_policy": "last", "filter_subject": "s.none"}, (0, 0)),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.none"}, (5, 0)),
        ({"deliver_policy": "last_per_subject", "filter_subjects": ["s.0", "s.2"]}, (3, 2)),
        ({"deliver_policy": "all", "filter_subject": "s.1"}, (0, 2)),
    ],
)
def test_starts_in_a_stream_of_three_subjects(harness, config, expected):
    harness.create()
    for number in range(6):
        harness.store(f"s.{number % 3}")
    assert start_of(harness, **config) == expected


def test_by_time(harness, make_worker):
    from jetlake.model.encoding.times import format_time

    harness.create()
    for _ in range(3):
        harness.store("s.x")
        harness.advance(60)
    time = format_time(harness.clock.now_ns() - 120 * SECOND)
    worker = make_worker(deliver_policy="by_start_time", opt_start_time=time)
    assert worker.sequences(worker.pull(b"9")) == [2, 3]


def test_last_per_subject_then_everything_newer(harness, make_worker):
    harness.create()
    for subject in ("s.a", "s.b", "s.a", "s.c", "s.b"):
        harness.store(subject)
    worker = make_worker(deliver_policy="last_per_subject", filter_subject="s.>")
    harness.store("s.c")
    harness.store("s.a")
    assert worker.numbers()[2] == 5
    frames = worker.pull(b"9")
    assert worker.sequences(frames) == [3, 4, 5, 6, 7]
    assert [worker.of(frame)[3] for frame in frames] == [4, 3, 2, 1, 0]


def test_last_per_subject_skips_what_was_deleted_before_its_turn(harness, make_worker):
    harness.create()
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        harness.store(subject)
    worker = make_worker(deliver_policy="last_per_subject", filter_subject="s.>")
    harness.api("STREAM.MSG.DELETE.S", {"seq": 3})
    assert worker.numbers()[2] == 1
    assert worker.sequences(worker.pull(b"9")) == [4]
    assert worker.numbers()[2] == 0


def test_a_sequence_in_the_future_is_waited_for(harness, make_worker):
    worker = make_worker(deliver_policy="by_start_sequence", opt_start_seq=3)
    worker.pull(b"9")
    for _ in range(4):
        harness.publish("s.x")
        harness.turn()
    assert worker.sequences(worker.taken()) == [3, 4]
    assert worker.numbers()[:3] == ((2, 4), (0, 2), 0)


# Reset


def test_reset_begins_again_after_the_floor(make_worker, harness):
    worker = make_worker(messages=5)
    frames = worker.pull(b"3")
    worker.answer(frames[0])
    answer = harness.api("CONSUMER.RESET.S.c")
    assert (answer["reset_seq"], answer["num_pending"]) == (2, 4)
    assert worker.numbers() == ((0, 1), (0, 1), 4, 0, 0, 0)
    assert [worker.of(frame)[:3] for frame in worker.pull(b"2")] == [(1, 2, 1), (1, 3, 2)]


@pytest.mark.parametrize(
    ("config", "seq", "reason"),
    [
        ({}, 2, None),
        ({}, 100, None),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 2, "below start seq"),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 4, None),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2099-01-01T00:00:00Z"}, 2, "below start time"),
        ({"deliver_policy": "new"}, 2, "not allowed"),
        ({"deliver_policy": "last"}, 2, "not allowed"),
    ],
)
def test_reset_to_a_sequence(make_worker, harness, config, seq, reason):
    worker = make_worker(messages=5, **config)
    answer = harness.api("CONSUMER.RESET.S.c", {"seq": seq})
    if reason is None:
        assert (answer["reset_seq"], answer["delivered"]["stream_seq"]) == (seq, seq - 1)
        assert worker.sequences(worker.pull(b"9")) == list(range(seq, 6))
    else:
        assert (answer["error"]["err_code"], answer["error"]["description"]) == (10204, f"invalid reset: {reason}")
