"""Delivery to a subject: interest, groups, heartbeats, flow control, rate, replay."""

from itertools import pairwise

import pytest

SECOND = 1_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def subscribe(harness):
    """A function that subscribes a client of its own to the deliver subject."""

    def subscribe(subject=b"deliver", queue=b""):
        client = type(harness.client)()
        client.subscription = harness.account.subscribe(subject, b"9", client, queue)
        return client

    return subscribe


@pytest.fixture
def make_push(make_worker):
    def make(**config):
        return make_worker(**{"deliver_subject": "deliver", **config})

    return make


def test_delivery_begins_with_interest(make_push, harness, subscribe):
    worker = make_push(messages=2)
    assert "push_bound" not in worker.info()
    client = subscribe()
    harness.turn()
    frames = client.take()
    assert [(frame.subject, frame.sid) for frame in frames] == [(b"s.0", b"9"), (b"s.1", b"9")]
    assert worker.sequences(frames) == [1, 2]
    assert worker.info()["push_bound"] is True
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(client.take()) == [3]


def test_a_subscriber_that_was_there_first_gets_everything_at_once(make_push, harness, subscribe):
    client = subscribe()
    worker = make_push(messages=2)
    assert worker.sequences(client.take()) == [1, 2]


def test_lost_interest_stops_delivery_and_its_return_resumes_it(make_push, harness, subscribe):
    client = subscribe()
    worker = make_push(messages=1)
    client.take()
    harness.account.unsubscribe(client.subscription)
    harness.store("s.x")
    assert worker.numbers()[:4] == ((1, 1), (0, 0), 1, 1)
    harness.advance(31)
    again = subscribe()
    harness.turn()
    assert [worker.of(frame)[:2] for frame in again.take()] == [(2, 1), (1, 2)]


def test_a_limited_subscription_gets_no_more_than_its_number(make_push, harness, subscribe):
    client = subscribe()
    harness.account.unsubscribe(client.subscription, max=2)
    worker = make_push(messages=5)
    assert worker.sequences(client.take()) == [1, 2]
    assert worker.numbers()[:3] == ((2, 2), (0, 0), 3)
    assert worker.sequences(subscribe().take() or []) == []
    harness.turn()


def test_a_group_counts_only_its_own_members(make_push, harness, subscribe):
    plain = subscribe()
    worker = make_push(messages=4, deliver_group="g")
    assert plain.take() == []
    assert "push_bound" not in worker.info()
    members = [subscribe(queue=b"g") for _ in range(2)]
    harness.turn()
    taken = [worker.sequences(member.take()) for member in members]
    assert sorted(taken[0] + taken[1]) == [1, 2, 3, 4]
    assert worker.sequences(plain.take()) == [1, 2, 3, 4]


def test_acks_and_max_ack_pending(make_push, harness, subscribe):
    client = subscribe()
    worker = make_push(messages=4, max_ack_pending=2)
    frames = client.take()
    assert worker.sequences(frames) == [1, 2]
    worker.answer(frames[0])
    assert worker.sequences(client.take()) == [3]
    harness.advance(31)
    assert worker.sequences(client.take()) == [2, 3]


def test_a_congested_subscriber_is_waited_for(make_push, harness, subscribe):
    client = subscribe()
    client.congested = True
    worker = make_push(messages=2)
    assert client.take() == []
    client.congested = False
    harness.engine.wake_congested()
    harness.turn()
    assert worker.sequences(client.take()) == [1, 2]


def test_pulling_from_it_is_refused(make_push):
    worker = make_push()
    assert worker.statuses(worker.pull()) == ["409 Consumer is push based"]


def test_heartbeats_only_while_somebody_listens(make_push, harness, subscribe):
    worker = make_push(idle_heartbeat=SECOND)
    harness.advance(5)
    client = subscribe()
    harness.turn()
    harness.advance(0.9)
    assert client.take() == []
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(client.take()) == [1]
    harness.advance(0.9)
    assert client.take() == []
    harness.advance(0.1)
    (beat,) = client.take()
    assert (beat.subject, beat.reply) == (b"deliver", b"")
    assert beat.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    harness.account.unsubscribe(client.subscription)
    harness.advance(5)
    assert client.take() == []


def test_a_deleted_consumer_says_nothing(make_push, harness, subscribe):
    client = subscribe()
    make_push(messages=1, idle_heartbeat=SECOND)
    client.take()
    harness.api("CONSUMER.DELETE.S.c")
    harness.advance(60)
    assert client.take() == []


def test_the_deliver_subject_may_move_when_nobody_listens(make_push, harness, subscribe):
    old = subscribe()
    worker = make_push(messages=2)
    old.take()
    config = {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "elsewhere"}
    body = {"stream_name": "S", "config": config}
    assert harness.api("CONSUMER.CREATE.S.c", body)["error"]["err_code"] == 10013
    harness.account.unsubscribe(old.subscription)
    new = subscribe(b"elsewhere")
    assert harness.api("CONSUMER.CREATE.S.c", body)["config"]["deliver_subject"] == "elsewhere"
    assert [worker.of(frame)[:2] for frame in new.take()] == [(2, 1), (2, 2)]
    assert worker.info()["push_bound"] is True


@pytest.mark.parametrize("is_one_run", [True, False])
def test_other_filters_count_from_the_last_delivered_message_on(make_push, harness, subscribe, is_one_run):
    worker = make_push(filter_subject="s.a")
    client = subscribe()
    for subject in ("s.a", "s.b", "s.b"):
        harness.publish(subject)
        if not is_one_run:
            harness.turn()
    harness.turn()
    assert worker.sequences(client.take()) == [1]
    config = {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "deliver"}
    assert harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})["num_pending"] == 2
    assert worker.sequences(client.take()) == [2, 3]


# Flow control


def fill(harness, count, size=100_000):
    for _ in range(count):
        harness.publish("s.x", b"x" * size)
    harness.turn()


@pytest.fixture
def controlled(make_push, harness, subscribe):
    """A subscriber under flow control, and its worker."""
    client = subscribe()
    return client, make_push(flow_control=True, idle_heartbeat=5 * SECOND)


def requests(frames):
    return [frame for frame in frames if frame.header.startswith(b"NATS/1.0 100 FlowControl Request")]


def test_half_a_window_asks_and_a_whole_one_stalls(controlled, harness):
    client, worker = controlled
    fill(harness, 40)
    frames = client.take()
    (request,) = requests(frames)
    assert (request.subject, request.payload) == (b"deliver", b"")
    assert request.reply.startswith(b"$JS.FC.S.c.")
    assert frames.index(request) == 11
    assert worker.sequences(frames) == list(range(1, 22))
    harness.publish(request.reply)
    harness.turn()
    frames = client.take()
    (second,) = requests(frames)
    assert second.reply != request.reply
    assert worker.sequences(frames)[-1] == 40


def test_a_stalled_consumer_says_so_in_its_heartbeats(controlled, harness):
    client, worker = controlled
    fill(harness, 30)
    (request,) = requests(client.take())
    harness.advance(5)
    (beat,) = client.take()
    assert b"Nats-Consumer-Stalled: %b\r\n" % request.reply in beat.header
    harness.publish(b"$JS.FC.S.c.xxxx")
    harness.turn()
    assert client.take() == []
    harness.publish(request.reply)
    harness.turn()
    assert worker.sequences(client.take()) != []
    harness.advance(5)
    assert b"Stalled" not in client.take()[-1].header
    # Stalled again, an answer that has been given is ignored.
    fill(harness, 60)
    assert len(requests(client.take())) > 0
    harness.publish(request.reply)
    harness.turn()
    assert client.take() == []


def test_answers_to_nobody_find_no_responders(controlled, harness, make_push):
    harness.publish(b"$JS.FC.S.other.xxxx", reply=b"_INBOX.fc")
    harness.turn()
    assert [frame.header[:12] for frame in harness.client.take()] == [b"NATS/1.0 503"]


def test_where_answers_are_the_acks(make_push, harness, subscribe):
    client = subscribe()
    config = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 3}
    worker = make_push(messages=5, **config)
    frames = client.take()
    assert worker.sequences(frames) == [1, 2, 3]
    (request,) = requests(frames)
    harness.publish(request.reply)
    harness.turn()
    frames = client.take()
    assert worker.sequences(frames) == [4, 5]
    assert worker.numbers()[:4] == ((5, 5), (3, 3), 0, 2)
    harness.advance(1)
    (request,) = requests(client.take())
    harness.publish(request.reply)
    harness.turn()
    assert worker.numbers()[:4] == ((5, 5), (5, 5), 0, 0)


# Rate and replay


def test_a_rate_limit_spreads_messages(make_worker, harness, subscribe):
    harness.create(max_msg_size=200)
    for _ in range(20):
        harness.store("s.x", b"x" * 100)
    client = subscribe()
    worker = make_worker(deliver_subject="deliver", rate_limit_bps=8000, ack_policy="none")
    assert worker.sequences(client.take()) == [1]
    times = [0.0]
    for step in range(1, 400):
        harness.advance(0.01)
        times += [step / 100] * len(worker.sequences(client.take()))
    # A message takes 152 bytes or so, and a second gives a thousand.
    assert len(times) == 20
    assert all(0.08 < later - earlier < 0.17 for earlier, later in pairwise(times))
    assert 2.5 < times[-1] < 3.1


def test_replay_keeps_the_original_distances(make_worker, harness, subscribe):
    harness.create()
    for _ in range(3):
        harness.store("s.x")
        harness.advance(10)
    client = subscribe()
    worker = make_worker(deliver_subject="deliver", replay_policy="original", ack_policy="none")
    assert worker.sequences(client.take()) == [1]
    harness.advance(9.9)
    assert client.take() == []
    harness.advance(0.1)
    assert worker.sequences(client.take()) == [2]
    harness.advance(10)
    assert worker.sequences(client.take()) == [3]
    harness.store("s.x")
    assert worker.sequences(client.take()) == [4]


def test_a_paused_push_consumer(make_push, harness, subscribe):
    client = subscribe()
    worker = make_push(messages=1, pause_until="2099-01-01T00:00:00Z", idle_heartbeat=SECOND)
    assert client.take() == []
    harness.advance(1)
    assert worker.statuses(client.take()) == ["100 Idle Heartbeat"]
    harness.api("CONSUMER.PAUSE.S.c")
    assert worker.sequences(client.take()) == [1]
