"""Priority groups as NATS ADR-42 wants them: overflow, a pinned client, priorities."""

import pytest

SECOND = 1_000_000_000


@pytest.fixture
def make_group(make_worker):
    def make(policy, **config):
        return make_worker(priority_policy=policy, priority_groups=["jobs"], **config)

    return make


def ask(worker, inbox, **fields):
    """A pull of the group into an inbox of its own; what came to it is returned."""
    return worker.pull({"batch": 1, "group": "jobs", "expires": 300 * SECOND, **fields}, "_INBOX." + inbox)


def publish(harness, count=1):
    for _ in range(count):
        harness.publish("s.x")
    harness.turn()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"batch": 1}, "400 Bad Request - Priority Group missing"),
        ({"batch": 1, "group": "other"}, "400 Bad Request - Invalid Priority Group"),
        (b"", "400 Bad Request - Priority Group missing"),
        (b"1", "400 Bad Request - Priority Group missing"),
    ],
)
@pytest.mark.parametrize("policy", ["overflow", "pinned_client", "prioritized"])
def test_a_pull_must_name_the_group(make_group, policy, body, status):
    worker = make_group(policy, messages=1)
    assert worker.statuses(worker.pull(body)) == [status]
    assert worker.sequences(ask(worker, "a")) == [1]


# Overflow


def test_overflow_waits_for_a_backlog(make_group, harness):
    worker = make_group("overflow", messages=2)
    assert ask(worker, "far", min_pending=3, batch=9) == []
    publish(harness)
    assert worker.sequences(worker.taken()) == [1]
    publish(harness, 2)
    assert worker.sequences(worker.taken()) == [2, 3]


def test_overflow_by_acks(make_group, harness):
    worker = make_group("overflow", messages=5)
    assert ask(worker, "far", min_ack_pending=2) == []
    assert worker.sequences(ask(worker, "near")) == [1]
    frames = ask(worker, "near")
    assert worker.sequences(frames) == [2, 3]


def test_either_condition_is_enough(make_group):
    worker = make_group("overflow", messages=3)
    assert worker.sequences(ask(worker, "far", min_pending=3, min_ack_pending=100)) == [1]
    assert worker.sequences(ask(worker, "far", min_pending=100, min_ack_pending=1)) == [2]


def test_unconditional_pulls_come_before_conditional_ones_as_adr_42_asks(make_group, harness):
    worker = make_group("overflow", max_ack_pending=1)
    ask(worker, "conditional", min_pending=1)
    ask(worker, "plain")
    client = harness.client
    client.take()
    publish(harness)
    (frame,) = client.take()
    assert worker.consumer.delivery.queue.batch_total() == 1
    (waiting,) = worker.consumer.delivery.queue
    assert waiting.reply == b"_INBOX.conditional"
    worker.answer(frame)
    publish(harness)
    assert worker.sequences(client.take()) == [2]


def test_overflow_below_the_threshold_does_not_keep_those_who_do_not_wait(make_group):
    worker = make_group("overflow", messages=1)
    frames = worker.pull({"batch": 1, "group": "jobs", "min_pending": 5, "no_wait": True})
    assert worker.statuses(frames) == ["404 No Messages"]


def test_the_state_of_a_group_without_a_pin(make_group):
    info = make_group("overflow").info()
    assert info["priority_groups"] == [{"group": "jobs", "pinned_ts": "0001-01-01T00:00:00Z"}]


# Pinned client


def pin_of(frame):
    return frame.header.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()


def test_the_first_request_is_pinned_and_the_next_one_waits(make_group, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.PINNED.>")
    worker = make_group("pinned_client")
    ask(worker, "a", batch=3)
    ask(worker, "b", batch=3)
    publish(harness, 2)
    frames = worker.taken()
    assert worker.sequences(frames) == [1, 2]
    pins = {pin_of(frame) for frame in frames}
    assert len(pins) == 1
    (pin,) = pins
    assert len(pin) == 22
    waiting = {request.reply: request.batch for request in worker.consumer.delivery.queue}
    assert waiting == {b"_INBOX.a": 1, b"_INBOX.b": 3}
    (state,) = worker.info()["priority_groups"]
    assert (state["group"], state["pinned_client_id"]) == ("jobs", pin)
    assert state["pinned_ts"].startswith("2026-")
    ((subject, event),) = ear()
    assert subject == "$JS.EVENT.ADVISORY.CONSUMER.PINNED.S.c"
    assert (event["group"], event["pinned_id"], event["account"]) == ("jobs", pin, "$G")


def test_the_advisory_names_the_client_as_adr_42_asks(make_group, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.PINNED.>")
    harness.client.client_info = lambda: {"id": 7, "acc": "$G", "name": "worker"}
    worker = make_group("pinned_client", messages=1)
    ask(worker, "a")
    assert [event["client"]["name"] for _, event in ear()] == ["worker"]


def test_only_the_pin_gets_messages(make_group, harness):
    worker = make_group("pinned_client", messages=5)
    (frame,) = ask(worker, "a")
    pin = pin_of(frame)
    assert ask(worker, "b") == []
    assert worker.sequences(ask(worker, "a", id=pin)) == [2]
    (refusal,) = ask(worker, "c", id="wrong")
    assert refusal.header == b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
    assert worker.statuses(worker.pull({"batch": 1, "group": "jobs", "no_wait": True})) == ["404 No Messages"]


def test_a_pin_that_nobody_got_is_no_pin(make_group, harness, heard):
    worker = make_group("pinned_client", messages=1, priority_timeout=10 * SECOND)
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.*.S.c")
    assert worker.statuses(ask(worker, "a", max_bytes=1)) == ["409 Message Size Exceeds MaxBytes"]
    assert "pinned_client_id" not in worker.info()["priority_groups"][0]
    harness.advance(11)
    assert ear() == []


def test_the_pin_is_lost_when_its_client_stops_pulling(make_group, harness, heard):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.>")
    worker = make_group("pinned_client", messages=4, priority_timeout=10 * SECOND)
    (first,) = ask(worker, "a")
    pin = pin_of(first)
    harness.advance(8)
    (second,) = ask(worker, "a", id=pin)
    assert worker.of(second)[1] == 2
    worker.answer(first)
    worker.answer(second)
    harness.advance(8)
    ask(worker, "b")
    assert worker.taken() == []
    harness.advance(2.1)
    (frame,) = worker.taken()
    assert worker.of(frame)[1] == 3
    assert pin_of(frame) != pin
    ((_, event),) = ear()
    assert (event["reason"], event["group"]) == ("timeout", "jobs")


@pytest.mark.parametrize(("old_s", "new_s", "lost"), [(20, 60, [0, 0, 1]), (60, 20, [1, 0, 0])])
def test_a_changed_timeout_counts_from_the_last_pull_on(make_group, harness, heard, old_s, new_s, lost):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.>")
    worker = make_group("pinned_client", messages=1, priority_timeout=old_s * SECOND)
    assert worker.sequences(ask(worker, "a")) == [1]
    config = {**worker.info()["config"], "priority_timeout": new_s * SECOND}
    del config["metadata"]
    assert "error" not in harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    events = []
    for _ in lost:
        harness.advance(20)
        events.append(len(ear()))
    assert events == lost


def test_a_waiting_request_with_an_old_pin_is_told(make_group, harness):
    worker = make_group("pinned_client", messages=1)
    (first,) = ask(worker, "a")
    pin = pin_of(first)
    worker.answer(first)
    ask(worker, "a", id=pin, batch=5, max_bytes=1000)
    ask(worker, "b")
    harness.publish("$JS.API.CONSUMER.UNPIN.S.c", b'{"group":"jobs"}')
    harness.turn()
    worker.taken()
    publish(harness)
    frames = worker.taken()
    assert worker.sequences(frames) == [2]
    (refusal,) = [frame for frame in frames if frame.header.startswith(b"NATS/1.0 423")]
    assert refusal.header == (
        b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 1000\r\n\r\n"
    )


@pytest.mark.parametrize("form", [("CONSUMER.UNPIN.S.c", {"group": "jobs"}), ("CONSUMER.UNPIN.S.c.jobs", b"")])
def test_unpin_in_both_forms(make_group, harness, heard, form):
    ear = heard("$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.>")
    worker = make_group("pinned_client", messages=2)
    (first,) = ask(worker, "a")
    pin = pin_of(first)
    worker.answer(first)
    assert harness.api(*form) == {"type": "io.nats.jetstream.api.v1.consumer_unpin_response"}
    assert [event["reason"] for _, event in ear()] == ["admin"]
    assert pin_of(*ask(worker, "b")) != pin


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 10025), ({}, 10025), ({"group": ""}, 10025), ({"group": "bad name"}, 10162), ({"group": "zz"}, 10160)],
)
def test_unpin_refusals(make_group, harness, body, code):
    make_group("pinned_client")
    assert harness.api("CONSUMER.UNPIN.S.c", body)["error"]["err_code"] == code


def test_unacknowledged_messages_of_the_old_client_go_to_the_new_one_after_their_wait(make_group, harness):
    worker = make_group("pinned_client", messages=1, ack_wait=5 * SECOND)
    (frame,) = ask(worker, "a")
    harness.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    ask(worker, "b")
    harness.advance(5.1)
    (again,) = worker.taken()
    assert worker.of(again)[:2] == (2, 1)
    assert pin_of(again) != pin_of(frame)
    worker.answer(frame)
    assert worker.numbers()[3] == 0


UNPIN = ("CONSUMER.UNPIN.S.c", {"group": "jobs"})


@pytest.mark.parametrize("settling", [b"", b"-NAK", b'-NAK {"delay": 3600000000000}', b"+TERM"])
def test_a_switch_waits_for_the_messages_in_flight(make_group, harness, settling):
    worker = make_group("pinned_client", messages=4)
    first, second = ask(worker, "a", batch=2)
    ask(worker, "b", batch=2, idle_heartbeat=5 * SECOND)
    harness.api(*UNPIN)
    worker.answer(first, settling)
    publish(harness)
    assert worker.taken() == []
    harness.advance(5.1)
    assert worker.statuses(worker.taken()) == ["100 Idle Heartbeat"]
    worker.answer(second, b"+WPI")
    assert worker.taken() == []
    worker.answer(second, settling)
    frames = worker.taken()
    assert worker.sequences(frames) == ([1, 2] if settling == b"-NAK" else [3, 4])
    assert pin_of(frames[0]) != pin_of(first)


def test_a_switch_by_timeout_waits_too(make_group, harness):
    worker = make_group("pinned_client", messages=2, priority_timeout=10 * SECOND, ack_wait=60 * SECOND)
    (first,) = ask(worker, "a")
    ask(worker, "b")
    harness.advance(11)
    assert worker.taken() == []
    worker.answer(first)
    assert worker.sequences(worker.taken()) == [2]


def test_messages_in_flight_that_leave_the_stream_hold_up_nobody(make_group, harness):
    worker = make_group("pinned_client", messages=2)
    ask(worker, "a")
    ask(worker, "b")
    harness.api(*UNPIN)
    frames = harness.request("$JS.API.STREAM.MSG.DELETE.S", {"seq": 1})
    assert worker.sequences(frames) == [2]


def test_a_client_without_an_inbox_holds_up_nobody(make_group, harness):
    worker = make_group("pinned_client", messages=2)
    subscription = harness.account.subscribe(b"other.a", b"2", harness.client)
    worker.pull({"batch": 1, "group": "jobs"}, "other.a")
    ask(worker, "b")
    harness.api(*UNPIN)
    assert worker.taken() == []
    harness.account.unsubscribe(subscription)
    harness.turn()
    assert worker.sequences(worker.taken()) == [2]


def test_a_pin_whose_request_ended_before_its_message_goes_to_the_next(make_group, harness):
    """The chosen request takes fewer bytes than the message has."""
    worker = make_group("pinned_client", messages=1)
    worker.ask({"batch": 1, "group": "jobs", "max_bytes": 3})
    worker.ask({"batch": 1, "group": "jobs"}, "_INBOX.b")
    harness.turn()
    frames = worker.taken()
    assert worker.statuses(frames)[0] == "409 Message Size Exceeds MaxBytes"
    assert worker.sequences(frames) == [1]


# Prioritized


def test_priorities(make_group, harness):
    worker = make_group("prioritized")
    ask(worker, "low", priority=2)
    ask(worker, "mid", priority=1, batch=2)
    ask(worker, "high")
    order = []
    for _ in range(4):
        before = {request.reply: request.batch for request in worker.consumer.delivery.queue}
        publish(harness)
        after = {request.reply: request.batch for request in worker.consumer.delivery.queue}
        (changed,) = [reply for reply in before if before[reply] != after.get(reply)]
        order.append(changed)
    assert order == [b"_INBOX.high", b"_INBOX.mid", b"_INBOX.mid", b"_INBOX.low"]


def test_a_client_that_was_congested_is_pinned_when_its_buffer_has_drained(make_group, harness):
    worker = make_group("pinned_client")
    harness.client.congested = True
    ask(worker, "slow")
    publish(harness)
    assert worker.taken() == []
    harness.client.congested = False
    harness.engine.wake_congested()
    harness.turn()
    assert worker.sequences(worker.taken()) == [1]
