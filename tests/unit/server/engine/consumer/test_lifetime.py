"""How long consumers stay when nobody uses them."""

import pytest

SECOND = 1_000_000_000


def pass_time(harness, seconds):
    for _ in range(int(seconds * 10)):
        harness.advance(0.1)


def test_a_durable_stays(make_worker, harness):
    worker = make_worker()
    harness.advance(1_000_000)
    assert worker.is_there


def test_a_durable_stays_where_the_stream_has_a_negative_threshold(make_worker, harness):
    harness.create("S", consumer_limits={"inactive_threshold": -1})
    worker = make_worker()
    pass_time(harness, 3)
    assert worker.is_there


def test_a_durable_with_a_threshold_goes(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.DELETED.>")
    worker = make_worker(inactive_threshold=SECOND)
    pass_time(harness, 1)
    assert worker.is_there
    pass_time(harness, 1.1)
    assert not worker.is_there
    assert len(ear()) == 1


def test_an_ephemeral_goes_after_five_seconds_and_a_little(make_worker, harness):
    worker = make_worker(durable_name="")
    pass_time(harness, 5)
    assert worker.is_there
    pass_time(harness, 1.1)
    assert not worker.is_there


def test_pulls_and_acks_keep_it(make_worker, harness):
    worker = make_worker(messages=20, inactive_threshold=SECOND)
    for _ in range(4):
        pass_time(harness, 0.9)
        (frame,) = worker.pull()
        pass_time(harness, 0.9)
        worker.answer(frame)
    assert worker.is_there


def test_a_waiting_request_keeps_it_until_it_ends(make_worker, harness):
    worker = make_worker(inactive_threshold=SECOND)
    worker.pull({"batch": 1, "expires": 4 * SECOND})
    pass_time(harness, 5)
    assert worker.is_there
    pass_time(harness, 1.1)
    assert not worker.is_there


def test_unacknowledged_messages_keep_it_for_the_ack_wait(make_worker, harness):
    worker = make_worker(messages=1, inactive_threshold=SECOND, ack_wait=5 * SECOND)
    worker.pull()
    pass_time(harness, 5)
    assert worker.is_there
    pass_time(harness, 2.2)
    assert not worker.is_there


def test_a_push_consumer_lives_as_long_as_its_subscriber(make_worker, harness):
    client = type(harness.client)()
    subscription = harness.account.subscribe(b"deliver", b"1", client)
    worker = make_worker(durable_name="", deliver_subject="deliver", inactive_threshold=2 * SECOND)
    pass_time(harness, 60)
    assert worker.is_there
    harness.account.unsubscribe(subscription)
    pass_time(harness, 1.9)
    assert worker.is_there
    pass_time(harness, 0.2)
    assert not worker.is_there


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
def test_nothing_is_scheduled_for_a_consumer_that_is_gone(make_worker, harness, ack_policy):
    worker = make_worker(messages=3, ack_policy=ack_policy, inactive_threshold=SECOND)
    worker.pull({"batch": 9, "expires": 60 * SECOND, "idle_heartbeat": SECOND})
    harness.publish("$JS.API.CONSUMER.DELETE.S.c")
    harness.turn()
    worker.taken()
    harness.advance(120)
    assert worker.taken() == []
    assert len(harness.engine.timers) == 0
