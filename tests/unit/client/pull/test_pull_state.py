"""The flow control of consume, message by message and status by status (NATS ADR-37, ADR-42)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.client.pull.options import consume_options, group_options
from jetlake.client.pull.pull_state import PullState
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.errors import InvalidOptionError

TIMEOUT = "Request Timeout"


def state(now=0.0, **options):
    return PullState(consume_options(**options), now)


def ended(messages, size=0, number=408, description=TIMEOUT):
    return PullStatus(number, description, messages, size)


# Asking


def test_the_first_pull_fills_the_buffer():
    pulls = state()
    request = pulls.next_request(0, 0.0)
    assert (request.batch, request.max_bytes, request.no_wait) == (1000, 0, False)
    assert request.expires == 60_000_000_000
    assert request.idle_heartbeat == 30_000_000_000
    assert (request.group, request.id, request.priority) == ("", "", 0)
    assert pulls.outstanding == 1000


def test_one_pull_is_enough_until_the_threshold():
    pulls = state(max_messages=100, threshold_messages=40)
    pulls.next_request(0, 0.0)
    assert pulls.next_request(0, 0.0) is None
    pulls.received(59, 0.0)
    # 41 outstanding, all received ones handed out.
    assert pulls.next_request(0, 0.0) is None
    pulls.received(1, 0.0)
    assert pulls.next_request(0, 0.0).batch == 60
    assert pulls.outstanding == 100


def test_what_waits_to_be_handed_out_counts_as_pending():
    pulls = state(max_messages=100, threshold_messages=40)
    pulls.next_request(0, 0.0)
    pulls.received(100, 0.0)
    assert pulls.outstanding == 0
    assert pulls.next_request(100, 0.0) is None
    assert pulls.next_request(41, 0.0) is None
    assert pulls.next_request(40, 0.0).batch == 60


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 10])
def test_small_limits_never_get_stuck(limit):
    pulls = state(max_messages=limit)
    assert pulls.next_request(0, 0.0).batch == limit
    for _ in range(20):
        pulls.received(pulls.outstanding, 0.0)
        assert pulls.next_request(0, 0.0) is not None


def test_the_threshold_may_be_the_limit():
    pulls = state(max_messages=10, threshold_messages=10)
    pulls.next_request(0, 0.0)
    assert pulls.next_request(0, 0.0) is None
    pulls.received(1, 0.0)
    assert pulls.next_request(0, 0.0).batch == 1


def test_refill_at_tells_the_iterator_when_to_ask():
    pulls = state(max_messages=100, threshold_messages=40)
    pulls.next_request(0, 0.0)
    assert pulls.refill_at() < 0
    pulls.received(100, 0.0)
    assert pulls.refill_at() == 40
    pulls.next_request(40, 0.0)
    assert pulls.refill_at() == -20
    pulls.disconnected()
    assert pulls.refill_at() < 0


def test_bytes_have_their_own_count_and_a_large_batch():
    pulls = state(max_bytes=1000, threshold_bytes=300)
    request = pulls.next_request(0, 0.0)
    assert (request.batch, request.max_bytes) == (1_000_000, 1000)
    pulls.received(650, 0.0)
    assert pulls.outstanding == 350
    assert pulls.next_request(0, 0.0) is None
    pulls.received(50, 0.0)
    assert pulls.next_request(50, 0.0) is None
    assert pulls.next_request(0, 0.0).max_bytes == 700


# Statuses


def test_an_expired_pull_gives_back_what_it_did_not_serve():
    pulls = state(max_messages=100)
    pulls.next_request(0, 0.0)
    pulls.received(10, 0.0)
    assert pulls.heard(ended(90), 1.0) is PullOutcome.ENDED
    assert pulls.outstanding == 0
    assert pulls.next_request(0, 1.0).batch == 100


def test_several_pulls_are_counted_together():
    pulls = state(max_messages=100, threshold_messages=50)
    pulls.next_request(0, 0.0)
    pulls.received(50, 0.0)
    assert pulls.next_request(0, 0.0).batch == 50
    assert pulls.outstanding == 100
    # The second one expires first, untouched.
    pulls.heard(ended(50), 1.0)
    assert pulls.outstanding == 50
    assert pulls.next_request(0, 1.0).batch == 50


def test_bytes_given_back():
    pulls = state(max_bytes=1000)
    pulls.next_request(0, 0.0)
    pulls.received(400, 0.0)
    pulls.heard(ended(999_990, 600), 1.0)
    assert pulls.outstanding == 0
    assert pulls.next_request(0, 1.0).max_bytes == 1000


def test_batch_completed_gives_back_bytes_only():
    pulls = state(max_bytes=1000)
    pulls.next_request(0, 0.0)
    assert pulls.heard(ended(0, 1000, 409, "Batch Completed"), 1.0) is PullOutcome.ENDED
    assert pulls.outstanding == 0


def test_a_status_never_drives_the_count_below_zero():
    pulls = state(max_messages=10)
    pulls.next_request(0, 0.0)
    pulls.heard(ended(5000), 1.0)
    pulls.received(7, 1.0)
    assert pulls.outstanding == 0


def test_heartbeats_change_nothing():
    pulls = state(max_messages=10)
    pulls.next_request(0, 0.0)
    assert pulls.heard(PullStatus(100, "Idle Heartbeat"), 5.0) is PullOutcome.HEARTBEAT
    assert pulls.outstanding == 10


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (PullStatus(409, "Consumer Deleted"), PullOutcome.DELETED),
        (PullStatus(409, "Consumer is push based"), PullOutcome.TERMINAL),
        (PullStatus(400, "Bad Request"), PullOutcome.TERMINAL),
        (PullStatus(599, "Unheard Of"), PullOutcome.TERMINAL),
    ],
)
def test_terminal_statuses(status, outcome):
    pulls = state()
    pulls.next_request(0, 0.0)
    assert pulls.heard(status, 1.0) is outcome


def test_a_refused_pull_is_sent_again_later_and_later():
    pulls = state(max_messages=100)
    now = 0.0
    waits = []
    pulls.next_request(0, now)
    for _ in range(8):
        assert pulls.heard(PullStatus(409, "Exceeded MaxWaiting"), now) is PullOutcome.REFUSED
        assert pulls.outstanding == 0
        assert pulls.next_request(0, now) is None
        retry_at = pulls.deadline(now)
        waits.append(retry_at - now)
        now = retry_at
        assert pulls.next_request(0, now).batch == 100
    assert waits == [0.25, 0.5, 1, 2, 4, 5, 5, 5]
    pulls.received(1, now)
    pulls.heard(PullStatus(409, "Exceeded MaxWaiting"), now)
    assert pulls.deadline(now) - now <= 0.25 or pulls.outstanding


def test_the_newest_pull_is_the_one_that_was_refused():
    pulls = state(max_messages=100, threshold_messages=50)
    pulls.next_request(0, 0.0)
    pulls.received(50, 0.0)
    pulls.next_request(0, 0.0)
    pulls.received(5, 0.0)
    # The first pull still has 45 to come, the second was refused as a whole.
    pulls.heard(PullStatus(409, "Exceeded MaxWaiting"), 0.0)
    assert pulls.outstanding == 45


def test_a_refusal_out_of_the_blue_changes_nothing():
    pulls = state()
    pulls.heard(PullStatus(409, "Exceeded MaxWaiting"), 0.0)
    assert pulls.outstanding == 0


def test_a_change_of_leader_ends_all_pulls():
    pulls = state(max_messages=100, threshold_messages=50)
    pulls.next_request(0, 0.0)
    pulls.received(50, 0.0)
    pulls.next_request(0, 0.0)
    # Each pull is told so, perhaps in another read: a new one that was sent in between would be counted out.
    for _ in range(2):
        assert pulls.heard(PullStatus(409, "Leadership Change"), 0.0) is PullOutcome.LOST
        assert pulls.outstanding == 0
        assert pulls.next_request(0, 0.0) is None
    assert pulls.next_request(0, pulls.deadline(0.0)).batch == 100


def test_a_server_that_stops_is_not_asked_again_at_once():
    pulls = state(max_messages=100)
    pulls.next_request(0, 0.0)
    assert pulls.heard(ended(100, 0, 409, "Server Shutdown"), 0.0) is PullOutcome.ENDED
    assert pulls.next_request(0, 0.5) is None
    assert pulls.next_request(0, 1.0).batch == 100


def test_a_message_that_never_fits_is_an_error_and_not_a_loop():
    pulls = state(max_bytes=1000)
    pulls.next_request(0, 0.0)
    assert pulls.heard(ended(1_000_000, 1000, 409, "Message Size Exceeds MaxBytes"), 0.0) is PullOutcome.TERMINAL


def test_a_message_that_does_not_fit_now_waits_for_more_room():
    pulls = state(max_bytes=1000, threshold_bytes=900)
    pulls.next_request(0, 0.0)
    pulls.received(700, 0.0)
    assert pulls.heard(ended(999_993, 300, 409, "Message Size Exceeds MaxBytes"), 0.0) is PullOutcome.ENDED
    # 700 wait to be handed out: the room is the same 300 into which the next message did not fit.
    assert pulls.next_request(700, 0.0) is None
    assert pulls.next_request(650, 0.0).max_bytes == 350


# Pins


def pinned(**options):
    from jetlake.model.consumer import ConsumerConfig
    from jetlake.model.enums import PriorityPolicy

    config = ConsumerConfig(name="c", priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("jobs",))
    return state(group=group_options(config, group="jobs"), **options)


def test_the_pin_is_sent_with_every_pull():
    pulls = pinned(max_messages=10)
    assert pulls.next_request(0, 0.0).id == ""
    pulls.pin_id = "abc"
    pulls.received(10, 0.0)
    request = pulls.next_request(0, 0.0)
    assert (request.group, request.id) == ("jobs", "abc")


def test_423_clears_the_pin_and_goes_on():
    pulls = pinned(max_messages=10)
    pulls.pin_id = "abc"
    pulls.next_request(0, 0.0)
    assert pulls.heard(PullStatus(423, "Nats-Wrong-Pin-Id", 10, 0), 0.0) is PullOutcome.UNPINNED
    assert pulls.next_request(0, 0.0).id == ""
    pulls.pin_id = "def"
    assert pulls.heard(PullStatus(423, "Nats-Pin-Id mismatch"), 0.0) is PullOutcome.UNPINNED
    assert (pulls.pin_id, pulls.outstanding) == ("", 0)
    assert pulls.next_request(0, 0.0).id == ""


# Heartbeats


def test_silence_of_two_intervals_is_a_missed_heartbeat():
    pulls = state(idle_heartbeat=10)
    pulls.next_request(0, 100.0)
    assert pulls.deadline(100.0) == 120
    assert not pulls.missed_heartbeat(119.9)
    assert pulls.missed_heartbeat(120.0)


@pytest.mark.parametrize("sign", ["message", "heartbeat", "status"])
def test_every_sign_of_life_resets_it(sign):
    pulls = state(idle_heartbeat=10)
    pulls.next_request(0, 0.0)
    if sign == "message":
        pulls.received(1, 15.0)
    elif sign == "heartbeat":
        pulls.heard(PullStatus(100, "Idle Heartbeat"), 15.0)
    else:
        pulls.heard(ended(10), 15.0)
    assert not pulls.missed_heartbeat(34.9)
    assert pulls.missed_heartbeat(35.0)


def test_a_full_buffer_owes_no_heartbeat():
    pulls = state(max_messages=10, idle_heartbeat=10)
    pulls.next_request(0, 0.0)
    pulls.received(10, 0.0)
    assert pulls.deadline(0.0) is None
    assert not pulls.missed_heartbeat(10_000.0)
    # Silence is measured from the next pull.
    pulls.next_request(0, 10_000.0)
    assert not pulls.missed_heartbeat(10_019.0)
    assert pulls.missed_heartbeat(10_020.0)


def test_heartbeats_pause_without_a_connection():
    pulls = state(idle_heartbeat=10)
    pulls.next_request(0, 0.0)
    pulls.disconnected()
    assert pulls.deadline(5.0) is None
    assert not pulls.missed_heartbeat(1000.0)
    assert pulls.next_request(0, 1000.0) is None
    pulls.reconnected(1000.0)
    assert pulls.next_request(0, 1000.0).batch == 1000
    assert not pulls.missed_heartbeat(1019.9)
    assert pulls.missed_heartbeat(1020.0)


def test_pulls_die_with_the_connection():
    pulls = state(max_messages=100)
    pulls.next_request(0, 0.0)
    pulls.disconnected()
    assert pulls.outstanding == 0


# Whatever happens


@given(
    st.integers(1, 50),
    st.lists(
        st.one_of(
            st.tuples(st.just("received"), st.integers(1, 60)),
            st.tuples(st.just("taken"), st.integers(1, 60)),
            st.tuples(st.just("ended"), st.integers(0, 60)),
            st.tuples(st.just("refused"), st.just(0)),
            st.tuples(st.just("reconnect"), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_pending_stays_within_the_limit_and_consumption_never_stops(limit, events):
    pulls = state(max_messages=limit)
    buffered = 0
    now = 0.0
    pulls.next_request(buffered, now)
    for event, amount in events:
        now += 10
        if event == "received":
            amount = min(amount, pulls.outstanding)
            pulls.received(amount, now)
            buffered += amount
        elif event == "taken":
            buffered -= min(amount, buffered)
        elif event == "ended":
            pulls.heard(ended(min(amount, pulls.outstanding)), now)
        elif event == "refused":
            pulls.heard(PullStatus(409, "Exceeded MaxWaiting"), now)
        else:
            pulls.disconnected()
            pulls.reconnected(now)
        now += 10
        pulls.next_request(buffered, now)
        assert 0 <= pulls.outstanding + buffered <= limit
        assert pulls.outstanding == sum(pulls._open)
    # Once all is handed out, something is always asked for.
    pulls.next_request(0, now + 10)
    assert pulls.outstanding > 0


# The rate


@pytest.mark.parametrize(("rate", "first"), [(2, 1), (1000, 100)])
def test_a_rate_is_never_exceeded_and_is_reached(rate, first):
    pulls = state(max_rate=rate)
    now, received, requests = 0.0, 0, 0
    assert pulls.next_request(0, now).batch == first
    while now < 10:
        # The server has plenty, and answers every pull at once.
        received += pulls.outstanding
        pulls.received(pulls.outstanding, now)
        while pulls.next_request(0, now) is not None:
            received += pulls.outstanding
            pulls.received(pulls.outstanding, now)
            requests += 1
        assert received <= first + rate * now + 1
        now = pulls.deadline(now)
    assert received >= rate * 9
    assert requests <= min(rate, 20) * 11


def test_a_rate_without_messages_leaves_the_timer_alone():
    pulls = state(max_rate=50)
    assert pulls.next_request(0, 0.0).batch == 5
    assert pulls.deadline(0.0) == 60.0  # For the heartbeat.
    assert pulls.next_request(0, 10.0) is None


def test_what_a_pull_did_not_bring_may_be_asked_for_again():
    pulls = state(max_rate=50)
    pulls.next_request(0, 0.0)
    pulls.heard(ended(5), 0.0)
    assert pulls.next_request(0, 0.0).batch == 5


@pytest.mark.parametrize(
    "options", [{"max_rate": 0}, {"max_rate": True}, {"max_rate": "9"}, {"max_rate": 1, "max_bytes": 9}]
)
def test_rates_that_cannot_be_meant(options):
    with pytest.raises(InvalidOptionError, match="max_rate"):
        state(**options)
