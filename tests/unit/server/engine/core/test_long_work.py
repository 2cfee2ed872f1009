"""Long requests go in slices: others go first, and nobody sees a stream that is half done."""

import json

import pytest
from msgspec import Raw

from jetlake.model.encoding.codec import encode
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.files.disk import RealDisk
from jetlake.store.store_folder import StoreFolder
from jetlake.store.subject_filter import SubjectFilter

MESSAGES = 60


@pytest.fixture
def sliced(make_harness):
    """A harness whose long work takes one small step a turn, and a stream with messages on twenty subjects."""
    harness = make_harness()
    harness.create(name="OTHER", subjects=["other"])
    stream = harness.create(max_msgs_per_subject=10)
    stream.store.removals_per_step = 1
    for number in range(MESSAGES):
        harness.publish(f"s.{number % 20}.x", b"%d" % number)
    harness.turn()
    harness.engine.long_work.slice_ns = 0
    harness.client.take()
    return harness


def send(harness, verb, body=None, reply=b"_INBOX.a"):
    payload = json.dumps(body).encode() if body is not None else b""
    harness.publish(f"$JS.API.{verb}", payload, reply=reply)


def answers(harness):
    return {frame.subject: json.loads(frame.payload) for frame in harness.client.take() if frame.payload[:1] == b"{"}


def turns_to_answer(harness, reply=b"_INBOX.a"):
    """How many turns an answer takes, and the answer."""
    for turn in range(1, 1000):
        harness.engine.flush()
        found = answers(harness)
        if reply in found:
            assert "error" not in found[reply], found[reply]
            return turn, found[reply]
    raise AssertionError("no answer")


LAST = {"ack_policy": "explicit", "deliver_policy": "last_per_subject"}

LONG = {
    "a purge by filter": ("STREAM.PURGE.S", {"filter": "s.*.x"}),
    "a purge that keeps some": ("STREAM.PURGE.S", {"keep": 10}),
    "a purge below a sequence": ("STREAM.PURGE.S", {"seq": 40}),
    "the list of streams": ("STREAM.LIST", None),
    "the list of consumers": ("CONSUMER.LIST.S", None),
    "the deletion of a stream with consumers": ("STREAM.DELETE.S", None),
}


@pytest.mark.parametrize("name", LONG)
def test_others_are_answered_before_a_long_request(sliced, name):
    verb, body = LONG[name]
    for number in range(5):
        sliced.create(name=f"MORE{number}", subjects=[f"more.{number}"])
        sliced.api(f"CONSUMER.CREATE.S.c{number}", {"stream_name": "S", "config": {"name": f"c{number}"}})
    send(sliced, verb, body, reply=b"_INBOX.long")
    send(sliced, "STREAM.INFO.OTHER", reply=b"_INBOX.short")
    sliced.engine.flush()
    assert answers(sliced).keys() == {b"_INBOX.short"}
    turns, _ = turns_to_answer(sliced, b"_INBOX.long")
    assert turns >= 3


def test_sources_are_added_to_a_stream_with_many_messages_in_steps(make_harness, tmp_path):
    sliced = make_harness(FolderStorage(StoreFolder(RealDisk(), tmp_path), print))
    sliced.create(name="OTHER", subjects=["other"])
    stream = sliced.create()
    sliced.engine.long_work.slice_ns = 0
    header = b"NATS/1.0\r\nNats-Stream-Source: O 7 > > s.1.x\r\n\r\n"
    stream.store.append_run([(b"s.1.x", b"", header, b"")], 1)
    stream.store.append_run([(b"s.1.x", b"", b"", b"")] * 3000, 1)
    stream.store.flush()
    config = {**sliced.api("STREAM.INFO.S")["config"], "sources": [{"name": "O"}]}
    send(sliced, "STREAM.UPDATE.S", config, reply=b"_INBOX.long")
    send(sliced, "STREAM.INFO.OTHER", reply=b"_INBOX.short")
    sliced.engine.flush()
    assert answers(sliced).keys() == {b"_INBOX.short"}
    turns = 0
    while sliced.engine.long_work.waiting:
        sliced.engine.flush()
        turns += 1
    assert turns >= 3
    sliced.turn()
    assert "error" not in answers(sliced)[b"_INBOX.long"]
    assert sliced.api("STREAM.INFO.S")["sources"][0]["name"] == "O"
    assert stream.copying.info(0)[1][0].seq == 7


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("STREAM.INFO.S", {"subjects_filter": "s.*.x"}),
        ("STREAM.MSG.GET.S", {"last_by_subj": "s.*.x"}),
        ("STREAM.MSG.GET.S", {"seq": 1, "next_by_subj": "s.*.x"}),
        ("CONSUMER.CREATE.S", {"stream_name": "S", "config": {**LAST, "filter_subject": "s.>"}}),
        ("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"ack_policy": "explicit", "filter_subject": "s.*.x"}}),
    ],
)
def test_many_subjects_are_looked_at_in_steps(sliced, verb, body):
    sliced.engine.long_work.slice_ns = 1
    for number in range(10_000):
        sliced.publish(f"s.many.{number}.x")
    sliced.engine.long_work.slice_ns = 0
    sliced.engine.flush()
    send(sliced, verb, body)
    turns, _ = turns_to_answer(sliced)
    assert turns >= 5


def test_a_consumer_counts_what_is_stored_and_removed_while_it_is_created(sliced):
    stream = sliced.jetstream.streams["S"]
    for number in range(10_000):
        sliced.publish(f"s.many.{number}.{number % 2}")
    sliced.turn()
    config = {"name": "c", "ack_policy": "explicit", "filter_subject": "s.many.*.1"}
    sliced.engine.long_work.slice_ns = 0
    send(sliced, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    turns, found = 0, {}
    while b"_INBOX.a" not in found:
        sliced.publish("s.many.1.1")
        sliced.publish("s.many.new.1")
        sliced.engine.flush()
        stream.store.remove(MESSAGES + 2 + 400 * turns)
        turns += 1
        found = answers(sliced)
    assert turns >= 10
    assert sliced.api("CONSUMER.INFO.S.c")["num_pending"] == stream.store.count(0, SubjectFilter.of([b"s.many.*.1"]))


@pytest.mark.parametrize("pattern", ["s.many.*.1", "s.many.*.*", "s.many.3.1", "s.>"])
def test_a_consumer_counts_what_is_stored_and_removed_while_its_filter_is_changed(sliced, pattern):
    stream = sliced.jetstream.streams["S"]
    for number in range(6000):
        sliced.publish(f"s.many.{number}.{number % 2}")
    sliced.turn()
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.*.x"}
    sliced.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":7}', reply=b"_INBOX.n")
    sliced.turn()
    consumer = stream.consumers["c"]
    sliced.engine.long_work.slice_ns = 0
    config["filter_subject"] = pattern
    send(sliced, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5}', reply=b"_INBOX.n")
    turns, found = 0, {}
    while b"_INBOX.a" not in found:
        sliced.publish("s.many.1.1")
        sliced.publish("s.many.new.1")
        sliced.engine.flush()
        stream.store.remove(MESSAGES + 2 + 300 * turns)
        turns += 1
        found = answers(sliced)
    assert turns >= (3 if "*" in pattern else 1)
    for _ in range(10):
        sliced.turn()
    position = consumer.cursor.position
    assert position > 12
    assert consumer.cursor.pending == stream.store.count(position, SubjectFilter.of([pattern.encode()]))
    assert len(consumer.ack_tracker.oldest(100)) == (8 if pattern == "s.many.3.1" else 12)


def test_a_consumer_that_goes_while_its_filter_is_changed_is_not_found(sliced):
    stream = sliced.jetstream.streams["S"]
    for number in range(6000):
        sliced.publish(f"s.many.{number}")
    config = {"durable_name": "c", "ack_policy": "explicit"}
    sliced.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    sliced.engine.long_work.slice_ns = 0
    send(sliced, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {**config, "filter_subject": "s.*.*"}})
    sliced.engine.flush()
    assert not answers(sliced)
    stream.consumers["c"].close(deleted=True)
    found = {}
    while b"_INBOX.a" not in found:
        sliced.engine.flush()
        found = answers(sliced)
    assert found[b"_INBOX.a"]["error"]["err_code"] == 10014
    assert not stream.consumers


@pytest.mark.parametrize(
    ("body", "payloads"),
    [
        ({"last_by_subj": "s.*.x"}, [b"59"]),
        ({"next_by_subj": "s.*.x"}, [b"0"]),
        ({"next_by_subj": "s.*.x", "batch": 2}, [b"0", b"1", b""]),
    ],
)
def test_messages_of_many_subjects_are_got_in_steps(sliced, body, payloads):
    sliced.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 10, "allow_direct": True})
    sliced.engine.long_work.slice_ns = 1
    for number in range(10_000):
        sliced.publish(f"s.many.{number}.x")
    sliced.turn()
    sliced.engine.long_work.slice_ns = 0
    send(sliced, "DIRECT.GET.S", body)
    turns = 0
    while not (got := sliced.client.take()):
        sliced.engine.flush()
        turns += 1
    assert turns >= 5
    assert [frame.payload for frame in got] == payloads


def test_the_newest_of_a_pattern_is_found_among_the_newest_of_all(sliced):
    """Whoever asks for the newest of many subjects mostly gets one of the newest messages."""
    for number in range(10_000):
        sliced.publish(f"s.many.{number}.x")
    sliced.turn()
    send(sliced, "STREAM.MSG.GET.S", {"last_by_subj": "s.many.*.x"})
    turns, answer = turns_to_answer(sliced)
    assert turns == 1
    assert answer["message"]["subject"] == "s.many.9999.x"


@pytest.mark.parametrize("end", ["later", "deleted", "reset"])
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_one_acknowledgement_releases_is_removed_in_steps(sliced, retention, end):
    """Before the consumer, which alone knows what was acknowledged, is deleted or begins anew, all is removed."""
    stream = sliced.create(name="Q", subjects=["q"], retention=retention)
    policy = "all" if retention == "interest" else "explicit"
    config = {"durable_name": "c", "ack_policy": policy, "max_ack_pending": 5000}
    sliced.api("CONSUMER.CREATE.Q.c", {"stream_name": "Q", "config": config})
    for _ in range(2000):
        sliced.publish("q")
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.Q.c", b'{"batch":1500}', reply=b"_INBOX.n")
    sliced.turn()
    consumer = stream.consumers["c"]
    sliced.engine.long_work.slice_ns = 0
    if retention == "interest":
        consumer.ack_handler.receive(1500, 1500, b"", b"", None)
    else:
        consumer.ack_handler.receive_run(list(range(1, 1501)), list(range(1, 1501)))
    assert not consumer.ack_tracker.pending
    assert stream.store.messages > 1500
    if end == "deleted":
        consumer.close(deleted=True)
        assert stream.store.messages == (500 if retention == "workqueue" else 0)
    elif end == "reset":
        consumer.reset(1400)
        assert stream.store.messages == 500
    turns = 0
    while sliced.engine.long_work.waiting:
        sliced.engine.flush()
        turns += 1
    assert turns >= (10 if end == "later" else 1)
    assert stream.store.messages == (0 if (end, retention) == ("deleted", "interest") else 500)
    assert not consumer._removals


MANY = [f"m.{number}" for number in range(1000)]


def answers_to(harness, *replies):
    found = {}
    while not set(replies) <= found.keys():
        harness.engine.flush()
        found.update(answers(harness))
    return [found[reply] for reply in replies]


@pytest.mark.parametrize("subject", ["m.0", "m.999"])
@pytest.mark.parametrize("meanwhile", ["checked", "compared", "captured"])
@pytest.mark.parametrize("verb", ["CREATE", "UPDATE"])
def test_no_two_streams_capture_a_subject_while_many_are_captured(sliced, verb, meanwhile, subject):
    """Another stream comes while the subjects are checked, compared with those of all streams, or captured."""
    name = "MORE" if verb == "CREATE" else "OTHER"
    send(sliced, f"STREAM.{verb}.{name}", {"name": name, "subjects": MANY}, reply=b"_INBOX.1")
    for _ in range(1 if meanwhile == "checked" else 500):
        sliced.engine.flush()
    while meanwhile == "captured" and not sliced.jetstream.capturing:
        sliced.engine.flush()
    assert not answers(sliced)
    send(sliced, "STREAM.CREATE.LATE", {"name": "LATE", "subjects": [subject]}, reply=b"_INBOX.2")
    outcomes = [answer.get("error", {}).get("err_code", 0) for answer in answers_to(sliced, b"_INBOX.1", b"_INBOX.2")]
    assert outcomes == ([0, 10065] if meanwhile == "captured" else [10065, 0])
    sliced.publish(subject)
    sliced.turn()
    assert sliced.jetstream.streams[name if meanwhile == "captured" else "LATE"].store.messages == 1


@pytest.mark.parametrize("copies", ["sources", "mirror"])
@pytest.mark.parametrize("first", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("turns_between", [0, 1, 3, 200])
def test_two_streams_that_are_checked_at_once_do_not_copy_from_each_other(sliced, first, copies, turns_between):
    """Each is checked while the other one is not there yet."""
    sliced.create(name="THIRD", subjects=["third"], sources=[{"name": "LATE"}])
    name = "MORE" if first == "CREATE" else "OTHER"
    config = {"name": name, "subjects": MANY, "sources": [{"name": "THIRD"}]}
    send(sliced, f"STREAM.{first}.{name}", config, reply=b"_INBOX.1")
    for _ in range(turns_between):
        sliced.engine.flush()
    assert not answers(sliced)
    late = {"sources": [{"name": name}], "subjects": ["late"]} if copies == "sources" else {"mirror": {"name": name}}
    send(sliced, "STREAM.CREATE.LATE", {"name": "LATE", **late}, reply=b"_INBOX.2")
    one, two = answers_to(sliced, b"_INBOX.1", b"_INBOX.2")
    refused = [answer["error"]["description"] for answer in (one, two) if "error" in answer]
    assert refused == ["detected cycle"]


def test_a_deleted_stream_receives_nothing_while_its_subjects_are_released(sliced):
    sliced.engine.long_work.slice_ns = 1
    sliced.create(name="MORE", subjects=MANY)
    assert sliced.store("m.999")["seq"] == 1
    sliced.engine.long_work.slice_ns = 0
    send(sliced, "STREAM.DELETE.MORE", reply=b"_INBOX.1")
    sliced.engine.flush()
    assert not sliced.client.take()
    assert sliced.account.route(b"m.999").recipients == 0
    send(sliced, "STREAM.CREATE.LATE", {"name": "LATE", "subjects": ["m.999"]}, reply=b"_INBOX.2")
    deleted, refused = answers_to(sliced, b"_INBOX.1", b"_INBOX.2")
    assert deleted["success"]
    assert refused["error"]["err_code"] == 10065
    assert sliced.create(name="LATE", subjects=["m.>"])
    assert sliced.store("m.999")["stream"] == "LATE"


@pytest.mark.parametrize("outcome", ["answered", "deleted"])
def test_the_newest_of_many_subjects_are_got_in_steps(sliced, outcome):
    sliced.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 10, "allow_direct": True})
    send(sliced, "DIRECT.GET.S", {"multi_last": ["s.*.x"]}, reply=b"_INBOX.long")
    send(sliced, "STREAM.INFO.OTHER", reply=b"_INBOX.short")
    sliced.engine.flush()
    frames = sliced.client.take()
    assert [frame.subject for frame in frames] == [b"_INBOX.short"]
    if outcome == "deleted":
        send(sliced, "STREAM.DELETE.S")
    turns = 0
    while not (got := [frame for frame in sliced.client.take() if frame.subject == b"_INBOX.long"]):
        sliced.engine.flush()
        turns += 1
    assert turns >= 1
    if outcome == "deleted":
        assert [frame.header for frame in got] == [b"NATS/1.0 404 No Results\r\n\r\n"]
    else:
        assert turns >= 10
        assert [frame.payload for frame in got[:-1]] == [b"%d" % number for number in range(40, 60)]
        assert got[-1].header.startswith(b"NATS/1.0 204 EOB")


@pytest.mark.parametrize(
    "verb", ["STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.S", "CONSUMER.LIST.S"], ids=lambda verb: verb[:-2]
)
def test_names_are_sorted_in_steps(sliced, monkeypatch, verb):
    monkeypatch.setattr("jetlake.store.steps._RUN", 2)
    for name in "fbdace":
        sliced.create(name=name, subjects=[name])
        sliced.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {"name": name}})
    send(sliced, verb)
    turns, answer = turns_to_answer(sliced)
    listed = answer[verb.partition(".")[0].lower() + "s"]
    names = [entry if isinstance(entry, str) else entry.get("name") or entry["config"]["name"] for entry in listed]
    assert names == sorted({*"abcdef", "OTHER", "S"} if "STREAM" in verb else "abcdef")
    assert turns >= 6


@pytest.mark.parametrize("kind", ["STREAM.LIST", "CONSUMER.LIST.S"])
def test_a_page_of_infos_is_encoded_one_by_one(sliced, monkeypatch, kind):
    """The step that sends the answer has only bytes left to copy."""
    encoded = []
    for module in ("api", "stream_api", "consumer_api"):
        name = f"jetlake.server.engine.api.{module}.encode"
        monkeypatch.setattr(name, lambda value: encoded.append(value) or encode(value))
    sliced.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c"}})
    encoded.clear()
    send(sliced, kind)
    turns_to_answer(sliced)
    *infos, page = encoded
    assert infos
    assert all(isinstance(entry, Raw) for entry in getattr(page, kind.partition(".")[0].lower() + "s"))


def test_a_purge_is_whole_for_all_who_ask_after_it(sliced):
    send(sliced, "STREAM.PURGE.S", {"filter": "s.*.x"}, reply=b"_INBOX.1")
    send(sliced, "STREAM.INFO.S", reply=b"_INBOX.2")
    send(sliced, "STREAM.MSG.GET.S", {"last_by_subj": "s.19.x"}, reply=b"_INBOX.3")
    seen = []
    while len(seen) < 3:
        sliced.engine.flush()
        seen += answers(sliced).items()
    assert [reply for reply, _ in seen] == [b"_INBOX.1", b"_INBOX.2", b"_INBOX.3"]
    assert seen[0][1]["purged"] == MESSAGES
    assert seen[1][1]["state"]["messages"] == 0
    assert seen[2][1]["error"]["err_code"] == 10037


@pytest.mark.parametrize("body", [{"filter": "s.>"}, {"filter": "s.*.x"}, {"keep": 5}, {"seq": 1000}, {"seq": 55}])
def test_what_is_published_during_a_purge_stays(sliced, body):
    at_once = {"keep": 55, "seq": 54}.get(next(iter(body)), MESSAGES) if body != {"seq": 1000} else MESSAGES
    send(sliced, "STREAM.PURGE.S", body)
    sliced.engine.flush()
    sliced.publish("s.1.x", b"new")
    sliced.publish("s.new.x", b"new")
    _, answer = turns_to_answer(sliced)
    assert answer["purged"] in (at_once, at_once + (2 if body == {"seq": 1000} else 0))
    state = sliced.state()
    if body == {"seq": 1000}:
        assert state["first_seq"] == 1000  # the end moves there, past all there is
    else:
        assert state["last_seq"] == MESSAGES + 2
        assert state["messages"] == MESSAGES - at_once + 2


def test_consumers_wait_for_a_purge_and_go_on_behind_it(sliced):
    sliced.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "ack_policy": "explicit"}})
    send(sliced, "STREAM.PURGE.S", {"keep": 7})
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":100}', reply=b"_INBOX.pull")
    sliced.engine.flush()
    assert not sliced.client.take()
    sliced.turn()
    delivered = [frame.payload for frame in sliced.client.take() if frame.reply]
    assert delivered == [b"%d" % number for number in range(MESSAGES - 7, MESSAGES)]
    info = sliced.api("CONSUMER.INFO.S.c")
    assert (info["num_pending"], info["num_ack_pending"]) == (0, 7)


@pytest.mark.parametrize("subjects_per_step", [1024, 2])
def test_consumers_recount_one_after_the_other_behind_a_purge(sliced, monkeypatch, subjects_per_step):
    monkeypatch.setattr("jetlake.store.index.running_count._SUBJECTS_PER_STEP", subjects_per_step)
    monkeypatch.setattr("jetlake.store.index.running_count._ROWS_PER_STEP", subjects_per_step)
    sliced.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": MESSAGES})
    for number in range(30):
        config = {"name": f"c{number}", "ack_policy": "explicit", "filter_subject": "s.*.x"}
        sliced.api(f"CONSUMER.CREATE.S.c{number}", {"stream_name": "S", "config": config})
    stream = sliced.jetstream.streams["S"]
    send(sliced, "STREAM.PURGE.S", {"seq": 20})
    turns = 0
    while sliced.engine.long_work.waiting:
        # Each of these may push the oldest message out, before or after a consumer has counted it.
        for number in range(3):
            sliced.publish(f"s.{number}.x")
        sliced.publish("s.passed.by")
        sliced.engine.flush()
        turns += 1
    assert turns >= (30 if subjects_per_step > 2 else 100)
    sliced.turn()
    pending = stream.store.count(0, SubjectFilter.of([b"s.*.x"]))
    assert stream.store.first_sequence > 20
    assert {consumer.info().num_pending for consumer in stream.consumers.values()} == {pending}


@pytest.mark.parametrize("pattern", ["s.*.x", ">"])
def test_a_consumer_looks_in_steps_for_its_chosen_messages_behind_a_purge(sliced, monkeypatch, pattern):
    monkeypatch.setattr("jetlake.server.engine.consumer.feed._CHOSEN_PER_STEP", 1)
    config = {**LAST, "name": "c", "filter_subject": pattern}
    sliced.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    stream = sliced.jetstream.streams["S"]
    send(sliced, "STREAM.PURGE.S", {"filter": "s.1.x"})
    turns = 0
    while sliced.engine.long_work.waiting:
        sliced.publish("s.1.x")
        if stream._is_recounting:
            stream.store.remove(MESSAGES - turns % 20)  # one that was looked for already, or not yet
        sliced.engine.flush()
        turns += 1
    sliced.turn()
    assert turns >= 20
    left = {message.sequence for message in stream.store.read(1, None, 1000, 10**6).messages}
    expected = len([sequence for sequence in left if sequence > MESSAGES - 20])
    assert sliced.api("CONSUMER.INFO.S.c")["num_pending"] == expected
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1000,"no_wait":true}', reply=b"_INBOX.pull")
    sliced.turn()
    assert len([frame for frame in sliced.client.take() if frame.reply]) == expected


def test_consumers_of_a_deleted_stream_deliver_nothing_while_they_wait_to_be_closed(sliced):
    for number in range(3):
        config = {"name": f"c{number}", "ack_policy": "explicit"}
        sliced.api(f"CONSUMER.CREATE.S.c{number}", {"stream_name": "S", "config": config})
    for number in range(3):
        sliced.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.c{number}", b'{"batch":1}', reply=b"_INBOX.pull.%d" % number)
    send(sliced, "STREAM.DELETE.S")
    send(sliced, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]}, reply=b"_INBOX.new")
    frames = []
    for _ in range(20):
        sliced.engine.flush()
        frames += sliced.client.take()
    replies = [frame.subject for frame in frames]
    assert sorted(replies) == [b"_INBOX.a", b"_INBOX.new", *(b"_INBOX.pull.%d" % number for number in range(3))]
    assert replies.index(b"_INBOX.a") < replies.index(b"_INBOX.new")
    assert all(b"Consumer Deleted" in frame.header for frame in frames if b"pull" in frame.subject)
    assert sliced.state()["messages"] == 0


def test_a_message_that_goes_while_a_consumer_chooses_is_not_waited_for(sliced):
    stream = sliced.jetstream.streams["S"]
    config = {**LAST, "durable_name": "c", "filter_subject": "s.>"}
    send(sliced, "CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": config})
    sliced.engine.flush()
    assert "c" not in stream.consumers
    stream.store.remove(MESSAGES)
    stream.store.remove(MESSAGES - 5)
    turns_to_answer(sliced)
    sliced.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":100,"no_wait":true}', reply=b"_INBOX.pull")
    sliced.turn()
    assert len([frame for frame in sliced.client.take() if frame.reply]) == 18
    assert sliced.api("CONSUMER.INFO.S.c")["num_pending"] == 0


def test_a_stop_finishes_what_is_under_way(sliced):
    send(sliced, "STREAM.PURGE.S", {"filter": "s.*.x"})
    store = sliced.jetstream.streams["S"].store
    assert store.messages
    sliced.engine.close()
    assert not store.messages


def test_a_defect_does_not_keep_those_behind_waiting(sliced, monkeypatch):
    send(sliced, "STREAM.PURGE.S", {"filter": "s.*.x"}, reply=b"_INBOX.1")
    send(sliced, "STREAM.INFO.S", reply=b"_INBOX.2")
    monkeypatch.setattr(sliced.jetstream.streams["S"].store._remover, "_remove_many", None)
    with pytest.raises(TypeError):
        sliced.turn()
    _, answer = turns_to_answer(sliced, b"_INBOX.2")
    assert answer["state"]["messages"] == MESSAGES


def test_too_many_that_wait_are_refused(sliced, monkeypatch):
    monkeypatch.setattr("jetlake.server.engine.api.api._WAITING_MAX", 3)
    send(sliced, "STREAM.PURGE.S", {"filter": "s.*.x"}, reply=b"_INBOX.p")
    for number in range(5):
        send(sliced, "STREAM.INFO.S", reply=b"_INBOX.%d" % number)
    sliced.turn()
    found = answers(sliced)
    refused = {reply for reply, answer in found.items() if "error" in answer}
    assert refused == {b"_INBOX.3", b"_INBOX.4"}
    assert found[b"_INBOX.4"]["error"]["err_code"] == 10008


class Slow:
    """A consumer whose delivery takes a millisecond and never ends."""

    def __init__(self, clock):
        self.runs = 0
        self._clock = clock

    def deliver(self, now_ns):
        self.runs += 1
        self._clock.advance(0.001)
        return True


def test_a_cycle_delivers_for_a_while_and_lets_each_have_its_turn(harness):
    consumers = [Slow(harness.clock) for _ in range(10)]
    for consumer in consumers:
        harness.engine.deliveries.make_ready(consumer)
    harness.engine.flush()
    assert [consumer.runs for consumer in consumers] == [1] * 3 + [0] * 7
    for _ in range(9):
        harness.engine.flush()
    assert {consumer.runs for consumer in consumers} == {3}


@pytest.fixture
def interested(make_harness, monkeypatch):
    """A harness with a thousand messages on two subjects that only the consumer `all` needs; `one` is done with its."""
    monkeypatch.setattr("jetlake.server.engine.stream.retention._SWEEP_MESSAGES", 10)
    harness = make_harness()
    stream = harness.create(retention="interest")
    stream.store.removals_per_step = 100
    for name, pattern, policy in (("all", "s.>", "explicit"), ("one", "s.1", "none")):
        config = {"name": name, "filter_subject": pattern, "ack_policy": policy}
        harness.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    for number in range(1000):
        harness.publish(f"s.{number % 2}")
    harness.turn()
    harness.publish("$JS.API.CONSUMER.MSG.NEXT.S.one", b'{"batch":1000,"no_wait":true}', reply=b"_INBOX.n")
    for _ in range(20):
        harness.turn()
    assert stream.store.messages == 1000
    harness.engine.long_work.slice_ns = 0
    harness.client.take()
    return harness


def test_what_no_consumer_needs_goes_in_steps(interested):
    send(interested, "CONSUMER.DELETE.S.all")
    send(interested, "STREAM.INFO.S", reply=b"_INBOX.info")
    turns, _ = turns_to_answer(interested)
    assert turns >= 50  # half a thousand unwanted messages, a hundred a step, and as many that are done, ten a step
    _, info = turns_to_answer(interested, b"_INBOX.info")
    assert info["state"]["messages"] == 0


def test_a_consumer_that_is_added_during_a_sweep_gets_what_is_left(interested):
    stream = interested.jetstream.streams["S"]
    stream.consumers["all"].close(deleted=True)
    while stream.store.messages == 1000:
        interested.engine.flush()
    left = stream.store.messages
    assert 500 < left < 1000
    config = {"name": "new", "filter_subject": "s.0", "ack_policy": "explicit"}
    send(interested, "CONSUMER.CREATE.S.new", {"stream_name": "S", "config": config})
    _, info = turns_to_answer(interested)
    assert info["num_pending"] == left - 500
    while interested.engine.long_work.waiting:
        interested.engine.flush()
    assert stream.store.messages == left - 500
    assert {message.subject for message in stream.store.read(1, None, 1000, 10**6).messages} == {b"s.0"}


def test_a_sweep_ends_with_its_stream(interested):
    interested.jetstream.streams["S"].consumers["all"].close(deleted=True)
    interested.engine.flush()
    assert interested.engine.long_work.waiting
    send(interested, "STREAM.DELETE.S")
    turns_to_answer(interested)
    while interested.engine.long_work.waiting:
        interested.engine.flush()


@pytest.mark.parametrize("limit", [{"max_msgs": 100}, {"max_age": 10**9}], ids=["number", "age"])
def test_tighter_limits_remove_very_many_messages_in_steps(make_harness, limit):
    harness = make_harness()
    stream = harness.create()
    harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "ack_policy": "explicit"}})
    stream.store.removals_per_step = 10
    for number in range(2000):
        harness.publish(f"s.{number}")
    harness.turn()
    harness.clock.advance(5)
    for number in range(100):
        harness.publish(f"s.{number}")
    harness.turn()
    harness.engine.long_work.slice_ns = 0
    send(harness, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **limit})
    send(harness, "CONSUMER.INFO.S.c", reply=b"_INBOX.info")
    turns, answer = turns_to_answer(harness)
    assert turns >= 20
    assert (answer["state"]["messages"], answer["state"]["first_seq"]) == (100, 2001)
    _, info = turns_to_answer(harness, b"_INBOX.info")
    assert info["num_pending"] == 100
    harness.publish("s.new")
    harness.turn()
    assert stream.store.messages == (100 if "max_msgs" in limit else 101)


@pytest.mark.parametrize("limit", [{"max_bytes": 2000}, {"max_msgs_per_subject": 5}], ids=["bytes", "subject"])
def test_tighter_limits_of_bytes_and_subjects_go_in_steps(make_harness, limit):
    harness = make_harness()
    stream = harness.create()
    harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "ack_policy": "explicit"}})
    stream.store.removals_per_step = 10
    for number in range(2000):
        harness.publish(f"s.{number % 20:02}")
    harness.turn()
    size = stream.store.bytes // 2000
    harness.engine.long_work.slice_ns = 0
    send(harness, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **limit})
    harness.engine.flush()
    harness.publish("s.00", b"new")  # in between: it takes the place of another
    turns, answer = turns_to_answer(harness)
    assert turns >= 15
    left = 100 if "max_msgs_per_subject" in limit else 1 + (2000 - size - 3) // size
    assert answer["state"]["messages"] == left
    assert answer["state"]["last_seq"] == 2001
    assert stream.store.get(2001) is not None
    assert harness.api("CONSUMER.INFO.S.c")["num_pending"] == left


@pytest.mark.parametrize("has_consumer", [True, False])
def test_messages_that_grow_too_old_together_go_in_steps(make_harness, has_consumer):
    harness = make_harness()
    stream = harness.create(max_age=10**9)
    if has_consumer:
        config = {"name": "c", "ack_policy": "explicit", "filter_subject": "s.*.x"}
        harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    for number in range(10_000):
        harness.publish(f"s.{number}.x")
    harness.turn()
    harness.clock.advance(0.9)
    harness.publish("s.young.x")
    harness.turn()
    harness.clock.advance(0.2)
    steps = 0
    while stream.store.messages > 1:
        before = stream.store.messages
        harness.engine.run_timers()
        harness.turn()
        assert before - stream.store.messages <= 4096
        steps += 1
        if steps == 2:
            harness.publish("s.new.x")
            harness.turn()
            stream.store.remove(10_002)
    assert steps >= (5 if has_consumer else 2)
    assert stream.store.first_sequence == 10_001
    if has_consumer:
        assert harness.api("CONSUMER.INFO.S.c")["num_pending"] == 1


def test_a_stream_that_is_deleted_while_its_limits_are_tightened_stays_deleted(make_harness):
    harness = make_harness()
    stream = harness.create()
    stream.store.removals_per_step = 10
    for number in range(2000):
        harness.publish(f"s.{number}")
    harness.turn()
    harness.engine.long_work.slice_ns = 0
    send(harness, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_age": 10**9, "max_msgs": 1})
    harness.engine.flush()
    list(harness.jetstream.delete_stream(stream))
    while harness.engine.long_work.waiting:
        harness.engine.flush()
    assert not harness.jetstream.streams
    harness.clock.advance(5)
    harness.engine.run_timers()


def test_a_stop_ends_what_has_begun_and_refuses_what_waits(sliced):
    send(sliced, "STREAM.PURGE.S", {"filter": "s.1.x"}, reply=b"_INBOX.1")
    send(sliced, "STREAM.PURGE.S", {"filter": "s.2.x"}, reply=b"_INBOX.2")
    send(sliced, "STREAM.INFO.S", reply=b"_INBOX.3")
    sliced.engine.flush()
    assert not answers(sliced)
    sliced.engine.close()
    found = answers(sliced)
    assert found[b"_INBOX.1"]["purged"] == 3
    assert [found[reply]["error"]["err_code"] for reply in (b"_INBOX.2", b"_INBOX.3")] == [10008, 10008]
