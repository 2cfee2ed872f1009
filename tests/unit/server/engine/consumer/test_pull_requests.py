"""Every answer that a pull request can get, and how long it waits."""

import pytest

from jetlake.model.encoding.times import format_time

SECOND = 1_000_000_000


def test_a_batch_and_its_rest_later(make_worker, harness):
    worker = make_worker(messages=2)
    assert worker.sequences(worker.pull({"batch": 3})) == [1, 2]
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [3]
    assert worker.numbers()[5] == 0


def test_no_wait_with_nothing_there(make_worker):
    worker = make_worker()
    (frame,) = worker.pull({"batch": 1, "no_wait": True})
    assert (frame.subject, frame.header) == (b"_INBOX.w", b"NATS/1.0 404 No Messages\r\n\r\n")


def test_no_wait_takes_what_is_there_and_ends(make_worker):
    worker = make_worker(messages=2)
    frames = worker.pull({"batch": 5, "no_wait": True})
    assert (worker.sequences(frames), worker.statuses(frames)) == ([1, 2], ["404 No Messages"])
    assert worker.numbers()[5] == 0


def test_no_wait_that_is_filled_needs_no_status(make_worker):
    worker = make_worker(messages=2)
    assert worker.statuses(worker.pull({"batch": 2, "no_wait": True})) == []


def test_no_wait_with_expiry_waits_for_the_first(make_worker, harness):
    worker = make_worker()
    assert worker.pull({"batch": 5, "no_wait": True, "expires": 5 * SECOND}) == []
    harness.publish("s.x")
    harness.turn()
    frames = worker.taken()
    assert (worker.sequences(frames), worker.statuses(frames)) == ([1], ["404 No Messages"])


def test_no_wait_with_expiry_expires(make_worker, harness):
    worker = make_worker()
    worker.pull({"batch": 5, "no_wait": True, "expires": 5 * SECOND})
    harness.advance(5)
    assert worker.statuses(worker.taken()) == ["408 Request Timeout"]


def test_no_wait_sees_what_is_published_before_it_on_the_same_connection(make_worker, durable, harness):
    worker = make_worker(on=durable)
    durable.publish("s.x", b"just now")
    worker.ask({"batch": 5, "no_wait": True})
    durable.turn()
    frames = worker.taken()
    assert (worker.sequences(frames), worker.statuses(frames)) == ([1], ["404 No Messages"])


def test_expiry(make_worker, harness):
    worker = make_worker(messages=1)
    worker.pull({"batch": 3, "max_bytes": 1000, "expires": 2 * SECOND})
    harness.advance(1.9)
    assert worker.taken() == []
    harness.advance(0.1)
    (frame,) = worker.taken()
    assert frame.header.startswith(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 9")
    assert worker.numbers()[5] == 0


def test_a_negative_expiry_does_not_expire_as_adr_13_says(make_worker, harness):
    worker = make_worker()
    assert worker.pull({"batch": 1, "expires": -1}) == []
    harness.advance(3600)
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [1]


def test_heartbeats(make_worker, harness):
    worker = make_worker(messages=1)
    worker.pull({"batch": 5, "expires": 10 * SECOND, "idle_heartbeat": 2 * SECOND})
    harness.advance(2)
    (frame,) = worker.taken()
    assert frame.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    harness.advance(1)
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [2]
    harness.advance(1.5)
    assert worker.taken() == []
    harness.advance(0.5)
    assert worker.statuses(worker.taken()) == ["100 Idle Heartbeat"]
    for _ in range(5):
        harness.advance(1)
    assert worker.statuses(worker.taken()) == ["100 Idle Heartbeat", "100 Idle Heartbeat", "408 Request Timeout"]


def test_bytes_run_out(make_worker):
    worker = make_worker(messages=9)
    size = len(b"s.0" + b"m1") + len(worker.pull()[0].reply)
    frames = worker.pull({"batch": 5, "max_bytes": 2 * size + 10})
    assert (worker.sequences(frames), worker.statuses(frames)) == ([2, 3], ["409 Message Size Exceeds MaxBytes"])
    assert b"Nats-Pending-Messages: 3\r\nNats-Pending-Bytes: 10\r\n" in frames[-1].header


def test_a_message_that_fills_the_bytes_exactly(make_worker):
    worker = make_worker(messages=3)
    size = len(b"s.0" + b"m1") + len(worker.pull()[0].reply)
    frames = worker.pull({"batch": 5, "max_bytes": size})
    assert (worker.sequences(frames), worker.statuses(frames)) == ([2], [])
    assert worker.numbers()[5] == 0


def test_headers_count_as_bytes(make_worker, harness):
    worker = make_worker()
    harness.store("s.x", b"", {"A": "x" * 100})
    assert worker.statuses(worker.pull({"batch": 1, "max_bytes": 120})) == ["409 Message Size Exceeds MaxBytes"]


def test_a_complete_batch_with_bytes_left(make_worker):
    worker = make_worker(messages=3)
    frames = worker.pull({"batch": 2, "max_bytes": 5000})
    assert (worker.sequences(frames), worker.statuses(frames)) == ([1, 2], ["409 Batch Completed"])
    frames = worker.pull({"max_bytes": 5000})
    assert b"409 Batch Completed\r\nNats-Pending-Messages: -1\r\n" in frames[-1].header


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"batch": 6}, "409 Exceeded MaxRequestBatch of 5"),
        (b"6", "409 Exceeded MaxRequestBatch of 5"),
        ({"batch": 1, "expires": 90 * SECOND + 1}, "409 Exceeded MaxRequestExpires of 1m30s"),
        ({"batch": 1, "max_bytes": 1001}, "409 Exceeded MaxRequestMaxBytes of 1000"),
        ({"batch": 1, "expires": 3, "idle_heartbeat": 2}, "400 Bad Request - heartbeat value too large"),
        ({"batch": 6, "min_pending": 1}, "409 Exceeded MaxRequestBatch of 5"),
        ({"batch": 1, "min_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({"batch": 1, "min_ack_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({"batch": 1, "id": "x"}, "400 Bad Request - Not a Pinned Client Priority consumer"),
        ({"batch": 1, "priority": 10}, "400 Bad Request - Priority must be between 0 and 9"),
        ({"batch": 1, "priority": -1}, "400 Bad Request - Priority must be between 0 and 9"),
    ],
)
def test_refusals(make_worker, body, status):
    worker = make_worker(messages=1, max_batch=5, max_expires=90 * SECOND, max_bytes=1000)
    assert worker.statuses(worker.pull(body)) == [status]
    assert worker.numbers() == ((0, 0), (0, 0), 1, 0, 0, 0)


def test_broken_json_is_told(make_worker):
    (frame,) = make_worker().pull(b'{"batch": ')
    assert frame.header.startswith(b"NATS/1.0 400 Bad Request - ")
    assert frame.header.count(b"\r\n") == 2


def test_a_newer_api_is_refused(make_worker, harness):
    worker = make_worker(messages=1)
    harness.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"", {"Nats-Required-Api-Level": "99"}, reply=b"_INBOX.w")
    harness.turn()
    assert worker.statuses(worker.taken()) == ["412 Required Api Level"]


def test_unknown_consumers_have_no_responders(make_worker, harness):
    worker = make_worker()
    worker.name = "other"
    assert worker.statuses(worker.pull()) == ["503"]


def test_requests_pending(make_worker, harness):
    worker = make_worker(messages=3, max_ack_pending=1)
    worker.pull({"batch": 5})
    assert worker.statuses(worker.pull({"batch": 1, "no_wait": True})) == ["408 Requests Pending"]


def test_too_many_waiting(make_worker):
    worker = make_worker(max_waiting=2)
    assert worker.pull() == worker.pull() == []
    assert worker.statuses(worker.pull()) == ["409 Exceeded MaxWaiting"]
    assert worker.pull({"batch": 1, "expires": 9 * SECOND, "idle_heartbeat": SECOND}) == []
    assert worker.numbers()[5] == 2


def test_inboxes_get_their_turns_in_order(make_worker, harness):
    worker = make_worker()
    clients = {}
    for name in (b"a", b"b"):
        clients[name] = type(harness.client)()
        harness.account.subscribe(b"in." + name, b"7", clients[name])
        worker.pull({"batch": 3}, "in." + name.decode())
    for _ in range(6):
        harness.publish("s.x")
    harness.turn()
    assert worker.sequences(clients[b"a"].take()) == [1, 3, 5]
    assert worker.sequences(clients[b"b"].take()) == [2, 4, 6]


def test_a_request_whose_inbox_is_gone_is_dropped(make_worker, harness):
    worker = make_worker()
    client = type(harness.client)()
    subscription = harness.account.subscribe(b"in.a", b"7", client)
    worker.pull({"batch": 3}, "in.a")
    worker.pull({"batch": 1})
    assert worker.numbers()[5] == 2
    harness.account.unsubscribe(subscription)
    assert worker.numbers()[5] == 1
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [1]


def test_a_request_in_between_whose_inbox_is_gone_gets_nothing(make_worker, harness):
    worker = make_worker(ack_policy="none")
    client = type(harness.client)()
    subscription = harness.account.subscribe(b"in.a", b"7", client)
    worker.pull({"batch": 30})
    worker.pull({"batch": 3}, "in.a")
    harness.account.unsubscribe(subscription)
    for _ in range(4):
        harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [1, 2, 3, 4]


def test_a_subscription_that_ends_midway_leaves_the_rest_to_others(make_worker, harness):
    worker = make_worker(messages=5)
    client = type(harness.client)()
    subscription = harness.account.subscribe(b"in.a", b"7", client)
    harness.account.unsubscribe(subscription, max=2)
    worker.pull({"batch": 5}, "in.a")
    assert worker.sequences(client.take()) == [1, 2]
    assert worker.numbers() == ((2, 2), (0, 0), 3, 2, 0, 0)
    assert worker.sequences(worker.pull(b"9")) == [3, 4, 5]


def test_a_redelivery_to_a_vanished_inbox_stays_queued(make_worker, harness):
    worker = make_worker(messages=1)
    (frame,) = worker.pull()
    worker.answer(frame, b"-NAK")
    worker.pull({"batch": 1}, "nobody.there")
    assert worker.numbers() == ((1, 1), (0, 0), 0, 1, 0, 0)
    assert worker.of(*worker.pull())[:3] == (2, 1, 2)


def test_a_congested_client_waits_until_it_has_drained(make_worker, harness):
    worker = make_worker(messages=3)
    harness.client.congested = True
    assert worker.pull(b"2") == []
    assert worker.consumer.ack_tracker.delivered_consumer == 0
    harness.client.congested = False
    harness.engine.wake_congested()
    harness.turn()
    assert worker.sequences(worker.taken()) == [1, 2]


def test_max_ack_pending_stops_new_messages_but_not_redeliveries(make_worker, harness):
    worker = make_worker(messages=4, max_ack_pending=2)
    frames = worker.pull({"batch": 4, "expires": 300 * SECOND})
    assert worker.sequences(frames) == [1, 2]
    harness.advance(31)
    assert worker.sequences(worker.taken()) == [1, 2]
    worker.answer(frames[0])
    assert worker.sequences(worker.taken()) == []
    assert worker.sequences(worker.pull(b"9")) == [3]


def test_no_wait_lingers_while_max_ack_pending_blocks(make_worker):
    worker = make_worker(messages=3, max_ack_pending=1)
    (frame,) = worker.pull()
    assert worker.pull({"batch": 1, "no_wait": True}) == []
    worker.answer(frame)
    assert worker.sequences(worker.taken()) == [2]


@pytest.mark.parametrize("others", [0, 3])
def test_no_wait_ends_when_nothing_is_left_although_max_ack_pending_is_reached(make_worker, harness, others):
    worker = make_worker(max_ack_pending=1, filter_subject="s.a")
    harness.store("s.a")
    for _ in range(others):
        harness.store("s.b")
    frames = worker.pull({"batch": 5, "no_wait": True})
    assert (worker.sequences(frames), worker.statuses(frames)) == ([1], ["404 No Messages"])


def test_a_pause_ends_those_who_do_not_wait(make_worker, harness):
    worker = make_worker(messages=2, max_ack_pending=1)
    assert worker.sequences(worker.pull({"batch": 2, "no_wait": True})) == [1]
    frames = harness.request("$JS.API.CONSUMER.PAUSE.S.c", {"pause_until": "2099-01-01T00:00:00Z"})
    assert "404 No Messages" in worker.statuses(frames)


def test_a_paused_consumer_delivers_nothing(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.>")
    worker = make_worker(messages=2)
    until = "2099-01-01T00:00:00Z"
    answer = harness.api("CONSUMER.PAUSE.S.c", {"pause_until": until})
    assert (answer["paused"], answer["pause_until"]) == (True, until)
    assert worker.statuses(worker.pull({"batch": 1, "no_wait": True})) == ["404 No Messages"]
    assert worker.pull({"batch": 2, "expires": 9 * SECOND, "idle_heartbeat": 2 * SECOND}) == []
    harness.advance(2)
    assert worker.statuses(worker.taken()) == ["100 Idle Heartbeat"]
    assert worker.info()["paused"]
    harness.publish("$JS.API.CONSUMER.PAUSE.S.c")
    harness.turn()
    assert worker.sequences(worker.taken()) == [1, 2]
    assert "paused" not in worker.info()
    assert [event["paused"] for _, event in ear()] == [True, False]


def test_a_pause_ends_by_itself(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.>")
    worker = make_worker(messages=1)
    harness.api("CONSUMER.PAUSE.S.c", {"pause_until": format_time(harness.clock.now_ns() + 3 * SECOND)})
    worker.pull({"batch": 1, "expires": 9 * SECOND})
    harness.advance(2.9)
    assert worker.taken() == []
    harness.advance(0.1)
    assert worker.sequences(worker.taken()) == [1]
    assert [event["paused"] for _, event in ear()] == [True, False]


def test_deleting_a_consumer_tells_those_who_wait(make_worker, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.DELETED.>")
    worker = make_worker()
    worker.pull({"batch": 2})
    harness.publish("$JS.API.CONSUMER.DELETE.S.c", reply=b"_INBOX.api")
    harness.turn()
    frames = worker.taken()
    assert worker.statuses(frames) == ["409 Consumer Deleted"]
    assert frames[0].header == b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    assert [subject for subject, _ in ear()] == ["$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c"]


def test_deleting_the_stream_tells_those_who_wait(make_worker, harness):
    worker = make_worker()
    worker.pull({"batch": 2})
    harness.publish("$JS.API.STREAM.DELETE.S", reply=b"_INBOX.api")
    harness.turn()
    assert worker.statuses(worker.taken()) == ["409 Consumer Deleted"]


def test_a_server_that_stops_tells_those_who_wait(make_worker, harness):
    worker = make_worker()
    worker.pull({"batch": 2, "max_bytes": 77})
    harness.engine.close()
    assert worker.taken()[0].header == (
        b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 77\r\n\r\n"
    )


def test_headers_only(make_worker, harness):
    worker = make_worker(headers_only=True)
    harness.store("s.x", b"12345", {"A": "b"})
    harness.store("s.y", b"")
    first, second = worker.pull(b"2")
    assert (first.header, first.payload) == (b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 5\r\n\r\n", b"")
    assert (second.header, second.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n", b"")


def test_replay_keeps_the_original_distances(make_worker, harness):
    harness.create()
    for gap in (0, 0.4, 0.0005, 2):
        harness.advance(gap)
        harness.store("s.x")
    worker = make_worker(replay_policy="original", ack_policy="none")
    assert worker.sequences(worker.pull({"batch": 9, "expires": 60 * SECOND})) == [1]
    harness.advance(0.3)
    assert worker.taken() == []
    harness.advance(0.1)
    assert worker.sequences(worker.taken()) == [2, 3]
    harness.advance(1.9)
    assert worker.taken() == []
    harness.advance(0.1)
    assert worker.sequences(worker.taken()) == [4]
    harness.publish("s.x")
    harness.turn()
    assert worker.sequences(worker.taken()) == [5]


def test_messages_are_not_shown_before_they_are_safe(make_worker, durable):
    worker = make_worker(on=durable)
    worker.pull()
    durable.publish("s.x")
    durable.engine.flush()
    assert worker.taken() == []
    durable.turn()
    assert worker.sequences(worker.taken()) == [1]
