"""Pulling, acknowledging and delivering again, with the numbers that the consumer's info shows."""

import pytest

from jetlake.model.consumer_features import FEATURE_PREFIX, STRICT_ACKS

SECOND = 1_000_000_000


def test_a_pull_gets_the_next_message_on_its_own_subject(make_worker):
    worker = make_worker(messages=2)
    (frame,) = worker.pull()
    assert (frame.subject, frame.payload) == (b"s.0", b"m1")
    assert worker.of(frame) == (1, 1, 1, 1)
    assert worker.numbers() == ((1, 1), (0, 0), 1, 1, 0, 0)


def test_a_pull_that_came_first_gets_what_comes_later(make_worker, harness):
    worker = make_worker()
    assert worker.pull() == []
    assert worker.numbers()[5] == 1
    harness.publish("s.x", b"late")
    harness.turn()
    (frame,) = worker.taken()
    assert frame.payload == b"late"
    assert worker.numbers() == ((1, 1), (0, 0), 0, 1, 0, 0)


def test_the_walk_through_of_the_deep_dive_in_todays_numbers(make_worker, harness):
    worker = make_worker()
    assert worker.numbers() == ((0, 0), (0, 0), 0, 0, 0, 0)
    harness.store("s.a", b"order 4")
    (frame,) = worker.pull()
    worker.answer(frame)
    assert worker.numbers() == ((1, 1), (1, 1), 0, 0, 0, 0)
    harness.store("s.a", b"order 5")
    assert worker.of(*worker.pull())[:3] == (1, 2, 2)
    assert worker.numbers() == ((2, 2), (1, 1), 0, 1, 0, 0)
    for count in (2, 3):
        harness.advance(30.1)
        (frame,) = worker.pull()
        assert worker.of(frame)[:3] == (count, 2, count + 1)
    assert worker.numbers() == ((4, 2), (1, 1), 0, 1, 1, 0)
    worker.answer(frame, b"+ACK")
    assert worker.numbers() == ((4, 2), (4, 2), 0, 0, 0, 0)


def test_an_ack_of_an_older_delivery_counts(make_worker, harness):
    worker = make_worker(messages=1)
    (old,) = worker.pull()
    harness.advance(31)
    worker.pull()
    worker.answer(old)
    assert worker.numbers() == ((2, 1), (2, 1), 0, 0, 0, 0)


def test_ack_all_acknowledges_what_came_before(make_worker):
    worker = make_worker(messages=5, ack_policy="all")
    frames = worker.pull(b"4")
    worker.answer(frames[2])
    assert worker.numbers() == ((4, 4), (3, 3), 1, 1, 0, 0)
    assert len(worker.double_ack(frames[0])) == 1
    assert worker.numbers() == ((4, 4), (3, 3), 1, 1, 0, 0)


def test_without_acks_delivered_is_done(make_worker, harness):
    worker = make_worker(messages=3, ack_policy="none")
    frames = worker.pull(b"2")
    assert worker.numbers() == ((2, 2), (2, 2), 1, 0, 0, 0)
    (answer,) = worker.double_ack(frames[0])
    assert worker.statuses([answer]) == ["503"]
    harness.advance(60)
    assert worker.sequences(worker.pull(b"9")) == [3]


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+OK", b"-NAK", b"+WPI", b"+TERM", b"-NAK 5s", b"nonsense"])
def test_every_body_is_answered_when_asked(make_worker, body):
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    (answer,) = worker.double_ack(frame, body)
    assert (answer.subject, answer.header, answer.payload) == (b"_INBOX.acked", b"", b"")
    assert [frame.subject for frame in worker.double_ack(frame, body)] == [b"_INBOX.acked"]


@pytest.mark.parametrize("sequence", [b"0", b"2", b"99", b"x", b"-1"])
def test_an_ack_of_what_was_never_delivered_is_not_answered(make_worker, harness, sequence):
    worker = make_worker(messages=2)
    worker.pull()
    harness.publish(b"$JS.ACK.S.c.1.%b.1.1.1" % sequence, reply=b"_INBOX.acked")
    harness.turn()
    assert worker.taken() == []
    assert worker.numbers() == ((1, 1), (0, 0), 1, 1, 0, 0)


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.S.other.1.1.1.1.1",
        "$JS.ACK.T.c.1.1.1.1.1",
        "$JS.ACK.S.c.1.1.1.1",
        "$JS.ACK.S.c.1.1.1.1.1.1",
        "$JS.ACK._.wrong.S.c.1.1.1.1.1",
    ],
)
def test_an_ack_to_nobody_finds_no_responders(make_worker, harness, subject):
    worker = make_worker(messages=1)
    worker.pull()
    harness.publish(subject, reply=b"_INBOX.acked")
    harness.turn()
    assert worker.statuses(worker.taken()) == ["503"]
    assert worker.numbers()[3] == 1


def test_version_2_of_the_ack_subject_is_understood(make_worker, harness):
    worker = make_worker(messages=2)
    worker.pull(b"2")
    harness.publish(b"$JS.ACK._.szMpdrwD.S.c.1.1.1.1.1")
    harness.publish(b"$JS.ACK._.szMpdrwD.S.c.1.2.2.1.1.more.tokens")
    harness.turn()
    assert worker.numbers()[3] == 0


def test_version_2_of_the_ack_subject_is_sent_on_demand(make_worker, make_harness):
    worker = make_worker(messages=1, on=make_harness(ack_subject_v2=True))
    (frame,) = worker.pull()
    assert frame.reply.startswith(b"$JS.ACK._.szMpdrwD.S.c.1.1.1.")
    worker.answer(frame)
    assert worker.numbers()[3] == 0


def test_a_nak_comes_back_before_anything_new(make_worker):
    worker = make_worker(messages=3)
    (first, second) = worker.pull(b"2")
    worker.answer(second, b"-NAK")
    worker.answer(first, b"-NAK")
    assert [worker.of(frame)[:2] for frame in worker.pull(b"3")] == [(2, 2), (2, 1), (1, 3)]


@pytest.mark.parametrize("body", [b"-NAK 5s", b'-NAK {"delay": 5000000000}'])
def test_a_delayed_nak_comes_back_later(make_worker, harness, body):
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    worker.answer(frame, body)
    worker.ask({"batch": 1, "expires": 60 * SECOND})
    harness.advance(4.9)
    assert worker.taken() == []
    harness.advance(0.2)
    assert worker.sequences(worker.taken()) == [1]


def test_progress_gives_another_ack_wait(make_worker, harness):
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    harness.advance(20)
    worker.answer(frame, b"+WPI")
    worker.ask({"batch": 1, "expires": 60 * SECOND})
    harness.advance(29)
    assert worker.taken() == []
    harness.advance(2)
    assert [worker.of(frame)[0] for frame in worker.taken()] == [2]


def test_a_terminated_message_never_comes_back(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    worker.answer(frame, b"+TERM   poison ")
    harness.advance(60)
    assert worker.pull({"batch": 1, "no_wait": True})[0].header.startswith(b"NATS/1.0 404")
    ((subject, event),) = ear()
    assert subject == "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c"
    assert (event["stream_seq"], event["consumer_seq"], event["deliveries"]) == (1, 1, 1)
    assert event["reason"] == "poison"


@pytest.mark.parametrize(("body", "count"), [(b"+NXT", 1), (b"+NXT 2", 2), (b'+NXT {"batch": 3}', 3)])
def test_next_acknowledges_and_asks(make_worker, body, count):
    worker = make_worker(messages=5)
    (frame,) = worker.pull()
    worker.answer(frame, body, b"_INBOX.next")
    frames = worker.taken()
    assert worker.sequences(frames) == list(range(2, 2 + count))
    assert worker.numbers()[3] == count


def test_next_without_a_reply_is_an_ack(make_worker):
    worker = make_worker(messages=2)
    (frame,) = worker.pull()
    worker.answer(frame, b"+NXT 5")
    assert (worker.taken(), worker.numbers()) == ([], ((1, 1), (1, 1), 1, 0, 0, 0))


def test_backoff_sets_the_distances(make_worker, harness):
    worker = make_worker(messages=1, backoff=[SECOND // 5, SECOND * 3 // 5])
    assert worker.info()["config"]["ack_wait"] == SECOND // 5
    worker.ask({"batch": 9, "expires": 60 * SECOND})
    harness.turn()
    assert worker.sequences(worker.taken()) == [1]
    for wait in (0.2, 0.6, 0.6):
        harness.advance(wait)
        assert worker.taken() == []
        harness.advance(0.001)
        assert worker.sequences(worker.taken()) == [1]


def test_after_the_last_delivery_a_message_is_let_go_when_somebody_asks_again(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    worker = make_worker(messages=1, max_deliver=2)
    worker.pull()
    harness.advance(31)
    worker.pull()
    harness.advance(31)
    assert worker.numbers() == ((2, 1), (0, 0), 0, 1, 1, 0)
    assert ear() == []
    worker.pull({"batch": 1, "no_wait": True})
    assert worker.numbers() == ((2, 1), (0, 0), 0, 0, 1, 0)
    ((subject, event),) = ear()
    assert subject == "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c"
    assert (event["stream_seq"], event["deliveries"]) == (1, 2)
    harness.advance(31)
    worker.pull({"batch": 1, "no_wait": True})
    assert ear() == []


def test_a_message_is_let_go_for_a_request_that_waits_and_not_after_the_last_one(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    worker = make_worker(messages=2, max_deliver=2)
    frames = worker.pull(b"2")
    worker.answer(frames[1], b"-NAK")
    assert worker.sequences(worker.pull()) == [2]
    worker.answer(frames[0], b"-NAK")
    worker.answer(frames[1], b"-NAK")
    assert worker.sequences(worker.pull()) == [1]
    assert ear() == []
    assert worker.numbers()[3] == 2
    worker.pull({"batch": 1, "no_wait": True})
    assert [event["stream_seq"] for _, event in ear()] == [2]


def test_a_nak_with_a_delay_gives_up_the_place_in_the_queue(make_worker, harness):
    worker = make_worker(messages=2)
    first, second = worker.pull(b"2")
    worker.answer(first, b"-NAK")
    worker.answer(first, b"-NAK 1s")
    worker.answer(second, b"-NAK")
    harness.advance(2)
    assert worker.sequences(worker.pull(b"2")) == [2, 1]


def test_a_single_delivery_is_let_go_when_its_wait_is_over(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    worker = make_worker(messages=1, max_deliver=1)
    worker.pull()
    harness.advance(31)
    assert worker.numbers() == ((1, 1), (0, 0), 0, 0, 0, 0)
    assert len(ear()) == 1


def test_samples_of_acks(make_worker, harness, heard):
    ear = heard("$JS.EVENT.METRIC.>")
    worker = make_worker(messages=3, sample_freq="100%")
    (first, second, third) = worker.pull(b"3")
    harness.advance(2)
    worker.answer(first)
    worker.answer(first)
    worker.answer(second, b"+TERM")
    worker.answer(third, b"-NAK")
    ((subject, event),) = ear()
    assert subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.c"
    assert event["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (event["stream_seq"], event["consumer_seq"], event["deliveries"]) == (1, 1, 1)
    assert event["ack_time"] == 2 * SECOND


def test_acks_of_all_messages_up_to_one_are_sampled_as_one(make_worker, harness, heard):
    ear = heard("$JS.EVENT.METRIC.>")
    worker = make_worker(messages=3, sample_freq="100", ack_policy="all")
    frames = worker.pull(b"3")
    harness.advance(2)
    worker.answer(frames[1])
    worker.answer(frames[0])
    ((_, event),) = ear()
    assert (event["stream_seq"], event["deliveries"], event["ack_time"]) == (2, 1, 2 * SECOND)


def test_some_of_the_acks_are_sampled(make_worker, heard):
    ear = heard("$JS.EVENT.METRIC.>")
    worker = make_worker(messages=100, sample_freq="30")
    for frame in worker.pull(b"100"):
        worker.answer(frame)
    assert 15 < len(ear()) < 45


def test_a_nak_is_told(make_worker, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.>")
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    worker.answer(frame, b"-NAK")
    worker.answer(worker.pull()[0])
    worker.answer(frame, b"-NAK")
    ((_, event),) = ear()
    assert (event["type"], event["stream_seq"]) == ("io.nats.jetstream.advisory.v1.nak", 1)


def test_deleting_a_pending_message_ends_it(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    worker = make_worker(messages=3)
    worker.pull(b"2")
    harness.api("STREAM.MSG.DELETE.S", {"seq": 1})
    assert worker.numbers() == ((2, 2), (1, 1), 1, 1, 0, 0)
    assert [event["reason"] for _, event in ear()] == ["Unacknowledged message was deleted"]
    harness.api("STREAM.MSG.DELETE.S", {"seq": 3})
    assert worker.numbers() == ((2, 2), (1, 1), 0, 1, 0, 0)


def test_a_purge_moves_consumers_behind_it(make_worker, harness):
    worker = make_worker(messages=6)
    worker.pull(b"4")
    harness.api("STREAM.PURGE.S")
    assert worker.numbers() == ((4, 6), (4, 6), 0, 0, 0, 0)
    harness.store("s.x", b"new")
    assert worker.sequences(worker.pull()) == [7]


def test_a_filtered_purge_leaves_what_it_did_not_match(make_worker, harness):
    worker = make_worker(messages=4)
    worker.pull(b"2")
    harness.api("STREAM.PURGE.S", {"filter": "s.1"})
    harness.api("STREAM.PURGE.S", {"filter": "s.3"})
    assert worker.numbers()[2:4] == (1, 1)
    assert worker.sequences(worker.pull(b"9")) == [3]


# Acknowledgements that come in one read


@pytest.mark.parametrize("body", [b"", b"+ACK"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 3], [0, 0, 1], [3, 1, 3, 1], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_a_run_of_acks_does_what_its_acks_do(make_worker, harness, policy, order, body):
    together, alone = (make_worker(name, messages=6 * (name == "a"), ack_policy=policy) for name in "ab")
    frames = together.pull(b"6")
    together.answer_run([frames[index] for index in order], body)
    frames = alone.pull(b"6")
    for index in order:
        alone.answer(frames[index], body)
    assert together.numbers() == alone.numbers()
    assert together.consumer.ack_handler.last_ns == harness.clock.now_ns()
    harness.advance(31)
    assert together.sequences(together.pull(b"6")) == alone.sequences(alone.pull(b"6"))


def test_a_run_of_acks_ends_redeliveries_and_lets_a_full_consumer_go_on(make_worker, harness):
    worker = make_worker(messages=6, max_ack_pending=3)
    frames = worker.pull(b"6")
    assert worker.sequences(frames) == [1, 2, 3]
    worker.answer(frames[1], b"-NAK")
    again = worker.taken()
    assert worker.sequences(again) == [2]
    worker.answer_run([frames[0], again[0], frames[2], frames[0]])
    assert worker.sequences(worker.taken()) == [4, 5]
    assert worker.numbers() == ((6, 5), (4, 3), 1, 2, 0, 0)


def test_a_run_with_acks_of_exhausted_and_unknown_messages(make_worker, harness):
    worker = make_worker(messages=4, max_deliver=1)
    frames = worker.pull(b"2")
    harness.advance(31)
    frames += worker.pull(b"2")
    worker.answer_run(frames)
    assert worker.numbers() == ((4, 4), (4, 4), 0, 0, 0, 0)
    made_up = [frame.__class__(b"", b"", frame.reply.replace(b"S.c.1.", b"S.c.1.9"), b"", b"") for frame in frames]
    worker.answer_run(made_up)
    assert worker.numbers() == ((4, 4), (4, 4), 0, 0, 0, 0)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_run_of_acks_removes_what_retention_no_longer_keeps(make_worker, harness, retention):
    harness.create("Q", subjects=["s.>"], retention=retention)
    worker = make_worker(stream="Q")
    for number in range(5):
        harness.store(f"s.{number}", b"m")
    worker.answer_run(worker.pull(b"4"))
    state = harness.api("STREAM.INFO.Q")["state"]
    assert (state["messages"], state["first_seq"]) == (1, 5)


def test_a_run_of_acks_is_sampled_one_by_one(make_worker, heard):
    samples = heard("$JS.EVENT.METRIC.CONSUMER.ACK.S.c")
    worker = make_worker(messages=3, sample_freq="100")
    worker.answer_run(worker.pull(b"3"))
    assert [sample["stream_seq"] for _, sample in samples()] == [1, 2, 3]


def test_a_run_of_late_acks_settles_no_redelivery_of_a_strict_consumer(make_worker, harness):
    worker = make_worker(messages=4, metadata={FEATURE_PREFIX + STRICT_ACKS: "true"})
    frames = worker.pull(b"4")
    worker.answer(frames[1], b"-NAK")
    again = worker.pull(b"1")
    worker.answer_run(frames)
    assert worker.numbers() == ((5, 4), (1, 1), 0, 1, 1, 0)
    worker.answer_run([frames[0], *again])
    assert worker.numbers() == ((5, 4), (5, 4), 0, 0, 0, 0)


def test_a_run_of_acks_to_nobody_or_to_a_consumer_without_acks_does_nothing(make_worker, harness):
    worker = make_worker(messages=3)
    frames = worker.pull(b"3")
    harness.api("CONSUMER.DELETE.S.c")
    worker.answer_run(frames)
    other = make_worker("n", ack_policy="none")
    other.answer_run(other.pull(b"3"))
    assert other.numbers() == ((3, 3), (3, 3), 0, 0, 0, 0)


def test_who_listens_hears_every_ack_of_a_run(make_worker, harness):
    worker = make_worker(messages=3)
    frames = worker.pull(b"3")
    harness.account.subscribe(b"$JS.ACK.>", b"9", harness.client)
    worker.answer_run(frames, b"+ACK")
    assert [(frame.subject, frame.payload) for frame in worker.taken()] == [(frame.reply, b"+ACK") for frame in frames]
    assert worker.numbers() == ((3, 3), (3, 3), 0, 0, 0, 0)
