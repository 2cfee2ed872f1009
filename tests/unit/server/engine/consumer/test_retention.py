"""What interest and work queue streams keep, while consumers come, acknowledge and go."""

import pytest


@pytest.fixture
def interest(harness):
    harness.create(retention="interest")
    return harness


@pytest.fixture
def work_queue(harness):
    harness.create(retention="workqueue")
    return harness


def stored(harness):
    return [seq for seq in range(1, 100) if harness.jetstream.streams["S"].store.has(seq)]


def test_interest_keeps_a_message_until_all_have_acknowledged(interest, make_worker):
    a, b = make_worker("a"), make_worker("b", filter_subject="s.0")
    for number in range(2):
        interest.store(f"s.{number}")
    (first, second) = a.pull(b"2")
    a.answer(second)
    assert stored(interest) == [1]
    a.answer(first)
    assert stored(interest) == [1]
    b.answer(*b.pull())
    assert stored(interest) == []
    assert a.numbers() == ((2, 2), (2, 2), 0, 0, 0, 0)


def test_interest_drops_what_nobody_wants(interest, make_worker):
    assert interest.store("s.x")["seq"] == 1
    make_worker(filter_subject="s.a")
    interest.store("s.a")
    interest.store("s.b")
    assert stored(interest) == [2]
    assert interest.state()["last_seq"] == 3


def test_interest_goes_with_its_consumer(interest, make_worker):
    make_worker("a", filter_subject="s.a")
    make_worker("b")
    interest.store("s.a")
    interest.store("s.b")
    interest.api("CONSUMER.DELETE.S.b")
    assert stored(interest) == [1]
    interest.api("CONSUMER.DELETE.S.a")
    assert stored(interest) == []


def test_interest_and_a_term(interest, make_worker):
    worker = make_worker()
    interest.store("s.x")
    worker.answer(worker.pull()[0], b"+TERM")
    assert stored(interest) == []


def test_interest_with_ack_all_and_none(interest, make_worker):
    everything, nothing = make_worker("a", ack_policy="all"), make_worker("n", ack_policy="none")
    for _ in range(3):
        interest.store("s.x")
    frames = everything.pull(b"3")
    everything.answer(frames[1])
    assert stored(interest) == [1, 2, 3]
    nothing.pull(b"1")
    assert stored(interest) == [2, 3]
    nothing.pull(b"2")
    assert stored(interest) == [3]


def test_interest_keeps_exhausted_messages_until_a_late_ack(interest, make_worker):
    worker, other = make_worker(max_deliver=1), make_worker("other")
    interest.store("s.x")
    (frame,) = worker.pull()
    interest.advance(31)
    other.answer(*other.pull())
    assert stored(interest) == [1]
    worker.answer(frame)
    assert stored(interest) == []


def test_deleting_one_exhausted_message_keeps_the_others_of_an_ack_all_consumer(interest, make_worker):
    worker, other = make_worker(ack_policy="all", max_deliver=1), make_worker("other")
    for _ in range(3):
        interest.store("s.x")
    frames = worker.pull(b"3")
    interest.advance(31)
    interest.api("STREAM.MSG.DELETE.S", {"seq": 1})
    for frame in other.pull(b"3"):
        other.answer(frame)
    assert stored(interest) == [2, 3]
    worker.answer(frames[2])
    assert stored(interest) == []


def test_a_changed_filter_lets_go(interest, make_worker):
    make_worker(filter_subject="s.a")
    interest.store("s.a")
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.b"}
    interest.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert stored(interest) == []


def test_what_last_per_subject_leaves_out_goes_with_the_last_consumer_that_wants_it(interest, make_worker):
    make_worker("old")
    for subject in ("s.b", "s.a", "s.a"):
        interest.store(subject)
    make_worker("new", deliver_policy="last_per_subject", filter_subject="s.>")
    interest.api("CONSUMER.DELETE.S.old")
    assert stored(interest) == [1, 3]


def test_a_stream_that_becomes_interest_lets_go_of_what_is_done(harness, make_worker):
    worker = make_worker(messages=3)
    worker.answer(worker.pull()[0])
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})
    assert stored(harness) == [2, 3]


def test_a_work_queue_gives_each_message_once(work_queue, make_worker):
    for _ in range(3):
        work_queue.store("s.x")
    worker = make_worker()
    first, second = worker.pull(b"2")
    worker.answer(second)
    assert stored(work_queue) == [1, 3]
    worker.answer(first, b"+TERM")
    assert stored(work_queue) == [3]
    assert worker.numbers() == ((2, 2), (2, 2), 1, 0, 0, 0)


def test_a_work_queue_keeps_messages_without_consumers(work_queue, make_worker):
    work_queue.store("s.x")
    make_worker()
    work_queue.api("CONSUMER.DELETE.S.c")
    assert stored(work_queue) == [1]


def test_a_work_queue_keeps_exhausted_messages(work_queue, make_worker):
    work_queue.store("s.x")
    worker = make_worker(max_deliver=1)
    (frame,) = worker.pull()
    work_queue.advance(31)
    assert stored(work_queue) == [1]
    assert worker.numbers()[3] == 0
    worker.answer(frame)
    assert stored(work_queue) == []


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({}, {}, 10099),
        ({"filter_subject": "s.a"}, {"filter_subject": "s.*"}, 10100),
        ({"filter_subject": "s.a"}, {"filter_subject": "s.b"}, None),
        ({"filter_subject": "s.a"}, {"filter_subject": "s.b", "deliver_policy": "new"}, 10101),
        ({"filter_subject": "s.a"}, {"filter_subject": "s.b", "ack_policy": "none"}, 10084),
        ({"filter_subject": "s.a"}, {"filter_subject": "s.b", "ack_policy": "all"}, 10098),
    ],
)
def test_a_work_queue_wants_consumers_apart(work_queue, make_worker, first, second, code):
    make_worker("a", **first)
    config = {"durable_name": "b", "ack_policy": "explicit", **second}
    answer = work_queue.api("CONSUMER.CREATE.S.b", {"stream_name": "S", "config": config})
    assert answer.get("error", {}).get("err_code") == code
    if code is None:
        config["filter_subject"] = "s.>"
        answer = work_queue.api("CONSUMER.CREATE.S.b", {"stream_name": "S", "config": config})
        assert answer["error"]["err_code"] == 10100


def test_limits_apply_on_top(harness, make_worker):
    harness.create(retention="interest", max_msgs=2)
    worker = make_worker()
    for _ in range(2):
        harness.store("s.x")
    worker.pull(b"2")
    harness.store("s.x")
    assert stored(harness) == [2, 3]
    assert worker.numbers() == ((2, 2), (1, 1), 1, 1, 0, 0)


def test_what_is_stored_is_counted_by_the_filters_that_consumers_have_now(harness, make_worker):
    workers = [make_worker("all"), make_worker("c")]

    def pending_after(*subjects):
        for subject in subjects:
            harness.store(subject)
        return [worker.info()["num_pending"] for worker in workers]

    def filter_by(**filters):
        config = {"durable_name": "c", "ack_policy": "explicit", **filters}
        harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})

    assert pending_after("s.a", "s.b") == [2, 2]
    filter_by(filter_subject="s.a")
    assert pending_after("s.a", "s.b") == [4, 2]
    filter_by(filter_subjects=["s.b", "s.c"])
    assert pending_after("s.a", "s.b", "s.c") == [7, 4]
    filter_by()
    assert pending_after("s.d") == [8, 8]


def test_a_message_that_goes_is_pending_no_more_also_where_the_filter_has_changed(interest, make_worker):
    a, b = make_worker("a", filter_subject="s.a", max_ack_pending=1), make_worker("b")
    for subject in ("s.a", "s.b"):
        interest.store(subject)
    a.pull()
    (_, second) = (frames := b.pull(b"2"))
    make_worker("a", filter_subject="s.b", max_ack_pending=1)
    assert a.numbers() == ((1, 1), (0, 0), 1, 1, 0, 0)
    b.answer(frames[0])
    assert stored(interest) == [2]
    assert a.numbers() == ((1, 1), (1, 1), 1, 0, 0, 0)
    assert a.sequences(a.pull()) == [2], "nothing takes its room"
    b.answer(second)
    assert stored(interest) == [2]
