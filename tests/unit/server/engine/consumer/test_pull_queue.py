"""Who of the waiting pull requests is served, in which order, and how the others learn that they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.consumer.pull_queue import InboxState, PullQueue, WaitingPull

SECOND = 1_000_000_000


class Inboxes:
    """The far end: collects statuses, and may be gone or congested."""

    def __init__(self):
        self.statuses = []
        self.gone = set()
        self.congested = set()

    def answer(self, reply, header):
        self.statuses.append((reply, header))

    def inbox_state(self, reply):
        if reply in self.gone:
            return InboxState.GONE
        return InboxState.CONGESTED if reply in self.congested else InboxState.OPEN

    def lines(self):
        return [(reply, header.split(b"\r\n")[0].removeprefix(b"NATS/1.0 ")) for reply, header in self.statuses]


@pytest.fixture
def inboxes():
    return Inboxes()


@pytest.fixture
def queue(inboxes):
    return PullQueue(512, inboxes.answer, inboxes.inbox_state)


def add(queue, reply, now_ns=0, level=0, **fields):
    request = WaitingPull(reply=reply, **fields)
    queue.add(request, now_ns, level)
    return request


def replies(requests):
    return [request.reply for request in requests]


def test_requests_take_turns(queue):
    add(queue, b"a", batch=3)
    add(queue, b"b", batch=2)
    assert replies(queue.deal(10, 0)) == [b"a", b"b", b"a", b"b", b"a"]
    assert len(queue) == 0


def test_a_turn_that_ends_midway_goes_on_there(queue):
    add(queue, b"a", batch=5)
    add(queue, b"b", batch=5)
    add(queue, b"c", batch=5)
    assert replies(queue.deal(2, 0)) == [b"a", b"b"]
    assert replies(queue.deal(2, 0)) == [b"c", b"a"]
    assert replies([queue.choose(10, 0)]) == [b"b"]


@given(
    batches=st.lists(st.integers(-1, 7), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_dealing_many_is_the_same_as_choosing_one_by_one(batches, counts):
    inboxes = Inboxes()
    by_run = PullQueue(512, inboxes.answer, inboxes.inbox_state)
    one_by_one = PullQueue(512, inboxes.answer, inboxes.inbox_state)
    for number, batch in enumerate(batches):
        add(by_run, b"%d" % number, batch=batch)
        add(one_by_one, b"%d" % number, batch=batch)
    for count in counts:
        chosen = [request for _ in range(count) if (request := one_by_one.choose(1, 0)) is not None]
        assert replies(by_run.deal(count, 0)) == replies(chosen)
        assert [(one.reply, one.batch) for one in by_run] == [(one.reply, one.batch) for one in one_by_one]
    assert len(by_run) == len(one_by_one) == len(list(by_run))


def test_better_levels_are_served_first(queue):
    add(queue, b"later", batch=2, level=4)
    add(queue, b"first", batch=2, level=1)
    assert replies(queue.deal(3, 0)) == [b"first", b"first", b"later"]
    assert queue.choose(1, 0).reply == b"later"


def test_a_request_whose_client_is_gone_leaves_in_silence(queue, inboxes):
    add(queue, b"a")
    add(queue, b"b")
    inboxes.gone.add(b"a")
    assert queue.choose(1, 0).reply == b"b"
    assert (len(queue), inboxes.statuses) == (0, [])


def test_a_congested_client_is_passed_over_and_keeps_waiting(queue, inboxes):
    slow = add(queue, b"slow", batch=5)
    inboxes.congested.add(b"slow")
    assert queue.choose(1, 0) is None
    assert queue.held_back
    assert slow.waiting
    inboxes.congested.clear()
    assert queue.choose(1, 0) is slow
    assert not queue.held_back


def test_expiry_tells_what_was_still_owed(queue, inboxes):
    add(queue, b"a", batch=3, max_bytes=100, expires_ns=5 * SECOND)
    queue.choose(40, SECOND)
    assert queue.next_due_ns == 5 * SECOND
    queue.reap(5 * SECOND - 1)
    assert len(queue) == 1
    queue.reap(5 * SECOND)
    assert inboxes.statuses == [
        (b"a", b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 60\r\n\r\n")
    ]
    assert (len(queue), queue.next_due_ns) == (0, 0)


def test_an_expired_request_is_not_served(queue, inboxes):
    add(queue, b"a", expires_ns=SECOND)
    add(queue, b"b")
    assert replies(queue.deal(2, SECOND)) == [b"b"]
    assert inboxes.lines() == [(b"a", b"408 Request Timeout")]
    add(queue, b"a", expires_ns=SECOND)
    assert queue.choose(1, SECOND) is None


def test_heartbeats_come_after_silence_only(queue, inboxes):
    request = add(queue, b"a", batch=9, expires_ns=10 * SECOND, idle_heartbeat_ns=2 * SECOND)
    queue.run_due(2 * SECOND, b"beat")
    assert inboxes.statuses == [(b"a", b"beat")]
    assert queue.next_due_ns == 4 * SECOND
    queue.choose(1, 3 * SECOND)
    queue.run_due(4 * SECOND, b"beat")
    assert len(inboxes.statuses) == 1
    assert queue.next_due_ns == request.next_heartbeat_ns == 5 * SECOND
    queue.run_due(5 * SECOND, b"beat")
    assert len(inboxes.statuses) == 2


def test_bytes_run_out_with_a_message_that_does_not_fit(queue, inboxes):
    add(queue, b"a", batch=9, max_bytes=100)
    assert queue.choose(60, 0).max_bytes == 40
    assert queue.choose(41, 0) is None
    assert inboxes.statuses == [
        (
            b"a",
            b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 8\r\nNats-Pending-Bytes: 40\r\n\r\n",
        )
    ]
    assert (len(queue), queue.counts_bytes) == (0, 0)


def test_a_message_that_fills_the_bytes_exactly_ends_the_request_without_a_word(queue, inboxes):
    request = add(queue, b"a", batch=9, max_bytes=100)
    assert queue.choose(100, 0) is request
    queue.complete(request)
    assert (len(queue), queue.counts_bytes, inboxes.statuses) == (0, 0, [])


@pytest.mark.parametrize(("batch", "left"), [(1, 0), (0, -1), (-1, -2)])
def test_a_complete_batch_with_bytes_left_is_told(queue, inboxes, batch, left):
    request = add(queue, b"a", batch=batch, max_bytes=1000)
    assert queue.choose(44, 0) is request
    queue.complete(request)
    assert inboxes.statuses == [
        (b"a", b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: 956\r\n\r\n" % left)
    ]
    assert (len(queue), queue.counts_bytes) == (0, 0)


def test_one_shots_end_when_nothing_is_left(queue, inboxes):
    add(queue, b"now", batch=5, no_wait=True)
    waits = add(queue, b"first", batch=5, no_wait=True, expires_ns=9 * SECOND)
    add(queue, b"lingers", batch=5)
    queue.end_one_shots()
    assert inboxes.statuses == [(b"now", b"NATS/1.0 404 No Messages\r\n\r\n")]
    queue.deal(1, 0)
    assert waits.delivered == 1
    queue.end_one_shots()
    assert inboxes.lines() == [(b"now", b"404 No Messages"), (b"first", b"404 No Messages")]
    assert replies(queue) == [b"lingers"]


def test_a_one_shot_that_is_filled_gets_no_status(queue, inboxes):
    add(queue, b"a", batch=2, no_wait=True)
    queue.deal(2, 0)
    queue.end_one_shots()
    assert inboxes.statuses == []


def test_refused_requests_keep_their_place_in_the_turns(queue):
    add(queue, b"a", batch=5)
    add(queue, b"b", batch=5)
    assert queue.choose(1, 0, lambda request: request.reply == b"b").reply == b"b"
    assert queue.choose(1, 0, lambda request: False) is None
    assert len(queue) == 2


def test_a_full_queue_makes_room_by_looking_for_the_gone_once_a_second(inboxes):
    queue = PullQueue(2, inboxes.answer, inboxes.inbox_state)
    now_ns = 10 * SECOND
    add(queue, b"a")
    add(queue, b"b")
    assert queue.is_full(now_ns)
    inboxes.gone.add(b"a")
    assert queue.is_full(now_ns + SECOND - 1)
    assert not queue.is_full(now_ns + SECOND)
    assert replies(queue) == [b"b"]


def test_those_that_left_do_not_pile_up(queue, inboxes):
    add(queue, b"stays")
    for number in range(1000):
        add(queue, b"%d" % number, no_wait=True)
        queue.end_one_shots()
    assert len(queue) == 1
    assert sum(map(len, queue._levels)) < 100
    assert len(inboxes.statuses) == 1000


def test_closing_and_shutting_down_tell_everybody(queue, inboxes):
    add(queue, b"b", batch=3)
    queue.shut_down()
    assert inboxes.statuses == [
        (
            b"b",
            b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n",
        )
    ]
    add(queue, b"a", batch=3)
    queue.close(b"bye")
    assert inboxes.statuses[1:] == [(b"a", b"bye")]
    assert len(queue) == 0


def test_what_is_owed_is_summed_up(queue):
    add(queue, b"a", batch=3)
    add(queue, b"b", batch=4)
    queue.deal(2, 0)
    assert queue.batch_total() == 5


def test_many_that_are_due_together_are_ended_some_at_a_time(inboxes):
    queue = PullQueue(10_000, inboxes.answer, inboxes.inbox_state)
    for number in range(2000):
        add(queue, b"%d" % number, expires_ns=5 * SECOND)
    beating = add(queue, b"beating", expires_ns=60 * SECOND, idle_heartbeat_ns=5 * SECOND)
    calls = 0
    while queue.next_due_ns == 5 * SECOND:
        before = len(inboxes.statuses)
        queue.run_due(5 * SECOND, b"beat")
        calls += 1
        assert len(inboxes.statuses) - before <= 512
    assert calls == 4
    assert [reply for reply, _ in inboxes.statuses] == [b"%d" % number for number in range(2000)] + [b"beating"]
    assert queue.next_due_ns == beating.next_heartbeat_ns == 10 * SECOND


def test_deadlines_of_those_that_left_do_not_pile_up(queue):
    add(queue, b"stays", expires_ns=SECOND)
    for number in range(1000):
        add(queue, b"%d" % number, expires_ns=30 * SECOND)
        queue.deal(2, 0)
    assert len(queue._due) < 100
