"""The publish path: every check in the server's order, on a clock that stands still."""

import json
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.model.account import AccountLimits
from jetlake.server.engine.core.commit import sync


def error_of(answer):
    error = answer["error"]
    assert answer["seq"] == 0
    return error["code"], error["err_code"], error["description"]


def test_messages_get_sequences_in_their_order_and_acks_byte_for_byte(harness):
    harness.create()
    for number in range(3):
        harness.publish("s.a", b"%d" % number, reply=b"_INBOX.x.%d" % number)
    assert harness.client.take() == []
    harness.turn()
    frames = harness.client.take()
    assert [frame.payload for frame in frames] == [b'{"stream":"S","seq":%d}' % seq for seq in (1, 2, 3)]
    assert [frame.subject for frame in frames] == [b"_INBOX.x.%d" % number for number in range(3)]
    assert all(frame.header == b"" for frame in frames)


def test_without_a_reply_the_message_is_stored_and_nothing_said(harness):
    harness.create()
    harness.publish("s.a", b"hi")
    harness.turn()
    assert harness.client.take() == []
    assert harness.state()["messages"] == 1


def test_a_stream_without_acks_says_nothing(harness):
    harness.create(no_ack=True)
    assert harness.request("s.a", b"hi") == []
    assert harness.state()["messages"] == 1


def test_an_ack_names_the_domain(make_harness):
    harness = make_harness(domain="hub")
    harness.create()
    (frame,) = harness.request("s.a")
    assert frame.payload == b'{"stream":"S","domain":"hub","seq":1}'
    assert harness.api("INFO")["domain"] == "hub"


def test_a_name_with_a_percent_sign_is_nothing_special(harness):
    harness.create("50%d")
    (frame,) = harness.request("s.a")
    assert frame.payload == b'{"stream":"50%d","seq":1}'


def test_subscribers_still_get_their_copy(harness):
    harness.create()
    harness.account.subscribe(b"s.*", b"9", harness.client)
    frames = harness.request("s.a", b"hi")
    assert [(frame.sid, frame.payload) for frame in frames] == [(b"9", b"hi"), (b"1", b'{"stream":"S","seq":1}')]


# Deduplication


def test_a_known_id_gives_the_first_sequence_and_stores_nothing(harness):
    harness.create()
    assert harness.store("s.a", b"1", {"Nats-Msg-Id": "x"}) == {"stream": "S", "seq": 1}
    (frame,) = harness.request("s.b", b"2", {"Nats-Msg-Id": "x"})
    assert frame.payload == b'{"stream":"S","seq":1,"duplicate": true}'
    assert harness.state()["messages"] == 1
    assert harness.store("s.a", b"3", {"nats-msg-id": "x"}) == {"stream": "S", "seq": 2}


ID_SPELLINGS = {
    b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n": True,
    b"NATS/1.0\r\nNats-Msg-Id:%b\r\n\r\n": True,
    b"NATS/1.0\r\nNats-Msg-Id:   %b\r\n\r\n": True,
    b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: %b\r\n\r\n": True,
    b"NATS/1.0\r\nNats-Msg-Id: %b\r\nA: b\r\n\r\n": True,
    b"NATS/1.0\r\nX-Nats-Msg-Id: %b\r\n\r\n": False,
}


def test_runs_with_ids_are_answered_as_message_by_message(harness):
    harness.create()
    random = Random(1)
    known, expected, found = {}, [], []
    sequence = 0
    for _ in range(300):
        # Most runs have ids of one spelling, which is the quick way.
        spellings = random.choice([sorted(ID_SPELLINGS), [next(iter(ID_SPELLINGS))]])
        for _ in range(random.randrange(1, 9)):
            # Number 0 is an empty id, which is none.
            number = random.randrange(800)
            message_id = b"%d" % number if number else b""
            spelling = random.choice(spellings)
            reply = b"_INBOX.x.%d" % random.choice((1, 1, number))
            harness.publish("s.a", b"", spelling % message_id, reply=reply)
            is_id = bool(message_id) and ID_SPELLINGS[spelling]
            if is_id and message_id in known:
                expected.append((reply, b'{"stream":"S","seq":%d,"duplicate": true}' % known[message_id]))
                continue
            sequence += 1
            expected.append((reply, b'{"stream":"S","seq":%d}' % sequence))
            if is_id:
                known[message_id] = sequence
        harness.turn()
        found += [(frame.subject, frame.payload) for frame in harness.client.take()]
    # Within a turn, duplicates are answered behind what is stored.
    assert sorted(found) == sorted(expected)
    assert harness.state()["messages"] == sequence


def test_a_run_whose_ids_have_expired_but_are_still_in_memory_is_stored(harness):
    stream = harness.create(duplicate_window=1_000_000_000)
    ids = [b"%d" % number for number in range(10_000)]
    stream.ids.remember_run({message_id: at for at, message_id in enumerate(ids, 1)}, harness.engine.clock.now_ns())
    harness.clock.advance(3)
    for message_id in ids[-3:]:
        harness.publish("s.a", b"", {"Nats-Msg-Id": message_id.decode()}, reply=b"_INBOX.x.1")
    harness.turn()
    assert len(stream.ids.window) > 3
    assert [frame.payload for frame in harness.client.take()] == [b'{"stream":"S","seq":%d}' % at for at in (1, 2, 3)]


@pytest.mark.parametrize("reply", [b"_INBOX.x.1", b"lone"])
def test_messages_with_one_reply_are_acknowledged_each(harness, reply):
    harness.create()
    harness.account.subscribe(b"lone", b"2", harness.client)
    for _ in range(12):
        harness.publish("s.a", b"", reply=reply)
    harness.turn()
    frames = harness.client.take()
    assert [frame.payload for frame in frames] == [b'{"stream":"S","seq":%d}' % sequence for sequence in range(1, 13)]
    assert {frame.subject for frame in frames} == {reply}


@pytest.mark.parametrize("seed", range(4))
def test_stretches_of_messages_with_one_reply_are_acknowledged_in_their_order(harness, seed):
    harness.create()
    harness.account.subscribe(b"lone", b"2", harness.client)
    random = Random(seed)
    replies = []
    for _ in range(12):
        reply = random.choice([b"_INBOX.x.1", b"_INBOX.x.2", b"_INBOX.y%d.1", b"lone", b""])
        replies += [reply] * random.choice([1, 2, 63, 150, 400])
    for reply in replies:
        harness.publish("s.a", b"", reply=reply)
    harness.turn()
    expected = [(reply, b'{"stream":"S","seq":%d}' % sequence) for sequence, reply in enumerate(replies, 1) if reply]
    assert [(frame.subject, frame.payload) for frame in harness.client.take()] == expected
    assert harness.client.out_msgs == len(expected) + 1
    assert harness.client.out_bytes > sum(len(payload) for _, payload in expected)


def test_an_id_is_free_again_after_the_window(harness):
    harness.create(duplicate_window=1_000_000_000)
    harness.store("s.a", b"1", {"Nats-Msg-Id": "x"})
    harness.advance(0.9)
    assert harness.store("s.a", b"1", {"Nats-Msg-Id": "x"})["duplicate"] is True
    harness.advance(0.2)
    assert harness.store("s.a", b"1", {"Nats-Msg-Id": "x"}) == {"stream": "S", "seq": 2}


def test_ids_are_forgotten_by_themselves(harness):
    stream = harness.create(duplicate_window=1_000_000_000)
    harness.store("s.a", b"1", {"Nats-Msg-Id": "x"})
    assert len(stream.ids.window) == 1
    harness.advance(3)
    assert len(stream.ids.window) == 0


def test_many_ids_are_forgotten_by_themselves_in_steps(harness):
    stream = harness.create(duplicate_window=1_000_000_000)
    stream.ids.remember_run({b"%d" % number: number + 1 for number in range(10_000)}, harness.engine.clock.now_ns())
    harness.advance(3)
    assert 0 < len(stream.ids.window) < 10_000
    for _ in range(10):
        harness.advance(0.002)
    assert len(stream.ids.window) == 0


def test_an_id_outlives_purge_and_delete(harness):
    harness.create()
    harness.store("s.a", b"1", {"Nats-Msg-Id": "x"})
    harness.api("STREAM.PURGE.S")
    assert harness.store("s.a", b"1", {"Nats-Msg-Id": "x"})["duplicate"] is True


# Expectations


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Nats-Expected-Stream": "T"}, (400, 10060, "expected stream does not match")),
        ({"Nats-Expected-Last-Sequence": "1"}, (400, 10071, "wrong last sequence: 2")),
        ({"Nats-Expected-Last-Sequence": "junk"}, (400, 10071, "wrong last sequence: 2")),
        ({"Nats-Expected-Last-Subject-Sequence": "2"}, (400, 10071, "wrong last sequence: 1")),
        ({"Nats-Expected-Last-Subject-Sequence": "0"}, (400, 10071, "wrong last sequence: 1")),
        (
            {"Nats-Expected-Last-Subject-Sequence": "1", "Nats-Expected-Last-Subject-Sequence-Subject": "s.*"},
            (400, 10071, "wrong last sequence: 2"),
        ),
        (
            {"Nats-Expected-Last-Subject-Sequence-Subject": "s.b"},
            (400, 10193, "missing sequence for expected last sequence per subject"),
        ),
        ({"Nats-Expected-Last-Msg-Id": "y"}, (400, 10070, "wrong last msg ID: two")),
        ({"Nats-Rollup": "sub"}, (500, 10111, "rollup not permitted")),
        ({"Nats-TTL": "5s"}, (400, 10166, "per-message TTL is disabled")),
        ({"Nats-TTL": "junk"}, (400, 10165, "invalid per-message TTL")),
        ({"Nats-Incr": "1"}, (400, 10168, "message counters is disabled")),
        ({"Nats-Incr": "x"}, (400, 10171, "message counter increment is invalid")),
        ({"Nats-Schedule": "@every 1s"}, (400, 10188, "message schedules is disabled")),
        ({"Nats-Scheduler": "x"}, (400, 10212, "message schedules invalid scheduler")),
        ({"Nats-Stream-Source": "x"}, (400, 10227, "message stream source header is not allowed")),
        ({"Nats-Batch-Id": "x"}, (400, 10174, "atomic publish is disabled")),
        # The order: an expectation comes before the look for duplicates, the last id after it.
        ({"Nats-Msg-Id": "one", "Nats-Expected-Last-Sequence": "9"}, (400, 10071, "wrong last sequence: 2")),
    ],
)
def test_what_does_not_hold_is_refused_and_uses_no_sequence(harness, headers, expected):
    harness.create()
    harness.store("s.a", b"1", {"Nats-Msg-Id": "one"})
    harness.store("s.b", b"2", {"Nats-Msg-Id": "two"})
    assert error_of(harness.store("s.a", b"3", headers)) == expected
    assert harness.store("s.a", b"4") == {"stream": "S", "seq": 3}


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Expected-Stream": "S"},
        {"Nats-Expected-Last-Sequence": "2"},
        {"Nats-Expected-Last-Subject-Sequence": "1"},
        {"Nats-Expected-Last-Subject-Sequence": "2", "Nats-Expected-Last-Subject-Sequence-Subject": "s.*"},
        {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": "s.z"},
        {"Nats-Expected-Last-Msg-Id": "two"},
        {"Nats-Expected-Last-Sequence": ""},
        {"Nats-Expected-Last-Subject-Sequence": ""},
        {"Nats-Rollup": ""},
    ],
)
def test_what_holds_is_stored(harness, headers):
    harness.create()
    harness.store("s.a", b"1", {"Nats-Msg-Id": "one"})
    harness.store("s.b", b"2", {"Nats-Msg-Id": "two"})
    assert harness.store("s.a", b"3", headers) == {"stream": "S", "seq": 3}


def test_a_duplicate_with_a_wrong_last_id_is_a_duplicate(harness):
    harness.create()
    harness.store("s.a", b"1", {"Nats-Msg-Id": "one"})
    answer = harness.store("s.a", b"1", {"Nats-Msg-Id": "one", "Nats-Expected-Last-Msg-Id": "other"})
    assert answer == {"stream": "S", "seq": 1, "duplicate": True}


def test_the_last_id_is_that_of_the_newest_message_even_in_one_batch(harness):
    harness.create()
    harness.publish("s.a", b"", {"Nats-Msg-Id": "one"})
    harness.publish("s.a", b"")
    harness.publish("s.a", b"", {"Nats-Expected-Last-Msg-Id": "one"}, reply=b"_INBOX.x.1")
    harness.turn()
    (frame,) = harness.client.take()
    assert json.loads(frame.payload)["error"]["description"] == "wrong last msg ID: "


def test_an_expectation_within_a_batch_sees_what_the_limits_leave(harness):
    harness.create(max_msgs=1)
    harness.publish("s.a", b"1")
    harness.publish("s.b", b"2")
    harness.publish("s.a", b"3", {"Nats-Expected-Last-Subject-Sequence": "0"}, reply=b"_INBOX.x.1")
    harness.turn()
    (frame,) = harness.client.take()
    assert frame.payload == b'{"stream":"S","seq":3}'


# Sizes


def test_headers_count_towards_the_size_of_a_message(harness):
    harness.create(max_msg_size=30)
    assert harness.store("s.a", b"x" * 30) == {"stream": "S", "seq": 1}
    assert error_of(harness.store("s.a", b"x" * 31)) == (400, 10054, "message size exceeds maximum allowed")
    block = b"NATS/1.0\r\na: b\r\n\r\n"
    assert harness.store("s.a", b"x" * (30 - len(block)), block) == {"stream": "S", "seq": 2}
    assert error_of(harness.store("s.a", b"x" * (31 - len(block)), block))[1] == 10054


def test_a_header_over_64k_is_refused(harness):
    harness.create()
    assert error_of(harness.store("s.a", b"", {"a": "x" * 65_536})) == (
        400,
        10097,
        "header size exceeds maximum allowed of 64k",
    )


def test_an_inline_status_is_not_stored(harness):
    stream = harness.create()
    harness.store("s.a", b"hi", b"NATS/1.0 503\r\n\r\n")
    harness.store("s.a", b"hi", b"NATS/1.0 100 Idle\r\na: b\r\n\r\n")
    harness.store("s.a", b"hi", b"NATS/1.0\r\n\r\n")
    assert [stream.store.get(sequence).header for sequence in (1, 2, 3)] == [
        b"",
        b"NATS/1.0\r\na: b\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ]


# Limits


def test_discard_old_keeps_the_newest(harness):
    harness.create(max_msgs=3)
    for _ in range(5):
        harness.store("s.a")
    state = harness.state()
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (3, 3, 5)


def test_a_message_larger_than_the_stream_is_acknowledged_and_gone(harness):
    harness.create(max_bytes=100)
    assert harness.store("s.a", b"x" * 200) == {"stream": "S", "seq": 1}
    state = harness.state()
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 2, 1)


def test_discard_new_refuses_beyond_each_limit(harness):
    harness.create("M", subjects=["m.>"], max_msgs=2, discard="new")
    harness.create("B", subjects=["b.>"], max_bytes=60, discard="new", storage="memory")
    harness.create("P", subjects=["p.>"], max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    for subject, text in (
        ("m.a", "maximum messages exceeded"),
        ("b.a", "maximum bytes exceeded"),
        ("p.a", "maximum messages per subject exceeded"),
    ):
        answers = [harness.store(subject, b"x" * 10) for _ in range(3)]
        assert error_of(answers[-1]) == (503, 10077, text)
    assert harness.store("p.b") == {"stream": "P", "seq": 2}


def test_discard_new_counts_within_a_batch(harness):
    harness.create(max_msgs=2, discard="new")
    for number in range(4):
        harness.publish("s.a", b"", reply=b"_INBOX.x.%d" % number)
    harness.turn()
    answers = [json.loads(frame.payload) for frame in harness.client.take()]
    assert [answer["seq"] for answer in answers] == [1, 2, 0, 0]


def test_a_message_that_displaces_one_of_its_subject_fits_a_full_stream(harness):
    harness.create(max_msgs=2, max_msgs_per_subject=1, discard="new")
    harness.store("s.a")
    harness.store("s.b")
    assert harness.store("s.a") == {"stream": "S", "seq": 3}
    assert error_of(harness.store("s.c"))[2] == "maximum messages exceeded"
    assert harness.state()["messages"] == 2


def test_messages_grow_old(harness):
    harness.create(max_age=1_000_000_000)
    harness.store("s.a")
    harness.advance(0.5)
    harness.store("s.b")
    harness.advance(0.6)
    assert harness.state()["messages"] == 1
    harness.advance(0.5)
    state = harness.state()
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 3, 2)


def test_a_shorter_age_applies_to_what_is_there(harness):
    harness.create(max_age=3_600_000_000_000)
    harness.store("s.a")
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_age": 1_000_000_000})
    harness.advance(1.1)
    assert harness.state()["messages"] == 0


def test_a_sealed_stream_takes_nothing(harness):
    harness.create()
    harness.store("s.a")
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "sealed": True})
    assert error_of(harness.store("s.a")) == (400, 10109, "invalid operation on sealed stream")


# Rollups


@pytest.mark.parametrize(("value", "left"), [("sub", [2, 4]), ("SUB", [2, 4]), ("all", [4])])
def test_a_rollup_replaces_what_is_older(harness, value, left):
    stream = harness.create(allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b", "s.a"):
        harness.publish(subject)
    assert harness.store("s.a", b"sum", {"Nats-Rollup": value}) == {"stream": "S", "seq": 4}
    assert [sequence for sequence in range(1, 5) if stream.store.get(sequence)] == left


def test_a_rollup_of_an_unknown_kind_is_refused(harness):
    harness.create(allow_rollup_hdrs=True)
    assert error_of(harness.store("s.a", b"", {"Nats-Rollup": "zz"})) == (500, 10111, 'rollup value invalid: "zz"')


# Transform and republish


def test_a_transformed_subject_is_the_one_that_is_stored(harness):
    stream = harness.create(subject_transform={"src": "s.*", "dest": "t.$1"})
    harness.store("s.a")
    harness.store("s.a.b")
    assert [stream.store.get(sequence).subject for sequence in (1, 2)] == [b"t.a", b"s.a.b"]


def test_what_is_stored_is_published_again(harness):
    harness.create(republish={"src": "s.*", "dest": "again.$1"})
    harness.account.subscribe(b"again.>", b"7", harness.client)
    harness.publish("s.a", b"one", {"x": "y"})
    harness.publish("s.a", b"two")
    harness.publish("s.a.b", b"not covered")
    harness.turn()
    first, second = harness.client.take()
    assert (first.subject, first.payload) == (b"again.a", b"one")
    assert first.header.startswith(b"NATS/1.0\r\nx: y\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: 1\r\n")
    assert first.header.endswith(b"\r\nNats-Last-Sequence: 0\r\n\r\n")
    assert second.header.endswith(b"\r\nNats-Last-Sequence: 1\r\n\r\n")


def test_streams_that_feed_each_other_do_not_hang_the_engine(harness):
    harness.create("A", subjects=["a"], republish={"src": "a", "dest": "b"}, max_msgs=10)
    harness.create("B", subjects=["b"], republish={"src": "b", "dest": "a"}, max_msgs=10)
    harness.publish("a", b"round and round")
    for _ in range(5):
        harness.engine.flush()
    assert harness.engine.has_ready()


# Room


def test_an_account_stays_within_its_storage(make_harness):
    harness = make_harness(limits=AccountLimits(max_memory=500))
    harness.create(storage="memory")
    answers = [harness.store("s.a", b"x" * 71) for _ in range(6)]
    assert [answer["seq"] for answer in answers] == [1, 2, 3, 4, 5, 0]
    assert error_of(answers[-1]) == (400, 10002, "resource limits exceeded for account")
    assert harness.store("s.a", b"x" * 10)["seq"] == 6, "what still fits is taken"
    harness.api("STREAM.PURGE.S")
    assert harness.store("s.a", b"x" * 71)["seq"] == 7


def test_a_full_server_refuses(make_harness):
    harness = make_harness(max_memory=1000)
    reports = []
    harness.engine.report = reports.append
    harness.create(storage="memory")
    answers = [harness.store("s.a", b"x" * 71) for _ in range(14)]
    assert error_of(answers[-1]) == (503, 10023, "insufficient resources")
    assert answers[11]["seq"] == 12
    full = (
        "JetStream - max_memory_store of 1,000 bytes is full, messages are refused: "
        "raise it, or purge or delete streams"
    )
    assert reports == [full]
    harness.api("STREAM.PURGE.S")
    for _ in range(13):
        harness.store("s.a", b"x" * 71)
    assert reports == [full, full]


# Durability


def test_acks_and_visibility_wait_for_the_sync(durable):
    stream = durable.create()
    durable.publish("s.a", b"1", reply=b"_INBOX.x.1")
    durable.engine.flush()
    assert durable.client.take() == []
    assert (stream.store.last_sequence, stream.visible_sequence) == (1, 0)
    syncing = durable.engine.commit.begin()
    durable.publish("s.a", b"2", reply=b"_INBOX.x.2")
    durable.engine.flush()
    for syncable in syncing:
        syncable.sync()
    durable.engine.commit.finish(dict.fromkeys(syncing))
    assert [frame.payload for frame in durable.client.take()] == [b'{"stream":"S","seq":1}']
    assert stream.visible_sequence == 1
    durable.turn()
    assert [frame.payload for frame in durable.client.take()] == [b'{"stream":"S","seq":2}']
    assert stream.visible_sequence == 2


@pytest.mark.parametrize(
    ("config", "headers"), [({"max_msgs_per_subject": 1}, None), ({"allow_rollup_hdrs": True}, {"Nats-Rollup": "sub"})]
)
def test_a_watcher_that_kept_up_gets_a_message_before_its_successor_takes_its_place(durable, config, headers):
    durable.create(**config)
    durable.account.subscribe(b"push", b"2", durable.client)
    push = {"deliver_subject": "push", "ack_policy": "none"}
    durable.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": push})
    durable.publish("s.a", b"1")
    durable.engine.flush()
    syncing = durable.engine.commit.begin()
    durable.engine.commit.finish({syncable: sync(syncable) for syncable in syncing})
    durable.publish("s.a", b"2", headers)  # From a publisher that had the acknowledgement of the first.
    durable.turn()
    assert [frame.payload for frame in durable.client.take()] == [b"1", b"2"]


def test_one_flush_and_one_sync_for_a_whole_batch(durable):
    stream = durable.create()
    for number in range(500):
        durable.publish("s.a", b"", reply=b"_INBOX.x.%d" % number)
    durable.turn()
    assert len(durable.client.take()) == 500
    assert (stream.store.flushes, stream.store.syncs) == (1, 1)


def test_a_duplicate_of_a_message_under_way_is_told_when_that_is_durable(durable):
    durable.create()
    durable.publish("s.a", b"1", {"Nats-Msg-Id": "x"})
    durable.engine.flush()
    syncing = durable.engine.commit.begin()
    durable.publish("s.a", b"1", {"Nats-Msg-Id": "x"}, reply=b"_INBOX.x.1")
    durable.engine.flush()
    assert durable.client.take() == []
    durable.engine.commit.finish(dict.fromkeys(syncing))
    assert [frame.payload for frame in durable.client.take()] == [b'{"stream":"S","seq":1,"duplicate": true}']


def test_an_answer_about_the_stream_waits_for_what_it_shows(durable):
    durable.create()
    durable.publish("s.a", b"1")
    durable.publish("$JS.API.STREAM.INFO.S", b"", reply=b"_INBOX.x.1")
    durable.engine.flush()
    assert durable.client.take() == []
    durable.turn()
    (frame,) = durable.client.take()
    assert json.loads(frame.payload)["state"]["messages"] == 1


def test_async_persistence_waits_for_nothing(durable):
    stream = durable.create(persist_mode="async")
    durable.publish("s.a", b"1", reply=b"_INBOX.x.1")
    durable.engine.flush()
    assert [frame.payload for frame in durable.client.take()] == [b'{"stream":"S","seq":1}']
    assert stream.visible_sequence == 1
    assert stream.store.flushes == 1


def test_a_refused_write_refuses_the_batch_and_the_server_goes_on(durable):
    stream = durable.create()
    durable.store("s.a", b"kept")
    stream.store.flush_error = StoreError("write", "no space left on device")
    durable.publish("s.a", b"", reply=b"_INBOX.x.1")
    durable.publish("s.a", b"", {"Nats-Msg-Id": "x"}, reply=b"_INBOX.x.2")
    durable.turn()
    for frame in durable.client.take():
        assert error_of(json.loads(frame.payload)) == (503, 10077, "cannot write: no space left on device")
    assert stream.visible_sequence == 1
    assert durable.api("STREAM.MSG.GET.S", {"seq": 1})["message"]["data"] == "a2VwdA=="


def test_a_failed_sync_acknowledges_nothing(durable):
    stream = durable.create()
    stream.store.sync_error = StoreError("sync", "input/output error")
    answer = durable.store("s.a")
    assert error_of(answer) == (503, 10077, "cannot sync: input/output error")
    assert stream.visible_sequence == 0


def test_a_store_that_takes_nothing_more_refuses_each_publish(durable):
    stream = durable.create()

    def refuse(*arguments):
        raise StoreError("append", "an earlier sync failed")

    stream.store.append = stream.store.append_run = refuse
    assert error_of(durable.store("s.a")) == (503, 10077, "cannot append: an earlier sync failed")
    assert error_of(durable.store("s.a", b"", {"a": "b"}))[1] == 10077


def test_a_flood_beyond_what_may_wait_is_refused(durable, monkeypatch):
    monkeypatch.setattr("jetlake.server.engine.stream.publish.WAITING_MAX", 3)
    durable.create()
    for number in range(5):
        durable.publish("s.a", b"", reply=b"_INBOX.x.%d" % number)
    durable.engine.flush()
    durable.publish("s.a", b"", reply=b"_INBOX.x.9")
    durable.engine.flush()
    (frame,) = durable.client.take()
    assert frame.header == b"NATS/1.0 429 Too Many Requests\r\n\r\n"
    assert error_of(json.loads(frame.payload)) == (429, 10167, "too many requests")
    durable.turn()
    assert len(durable.client.take()) == 5
    assert durable.store("s.a")["seq"] == 6
