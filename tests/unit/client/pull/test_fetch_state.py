"""When a fetch is over, and what it says."""

import pytest

from jetlake.client.pull.fetch import FetchState
from jetlake.client.pull.options import fetch_options
from jetlake.client.pull.pull_status import PullStatus
from jetlake.errors import ConsumerDeletedError, HeartbeatMissedError, PullStatusError


def state(max_messages=10, **options):
    return FetchState(fetch_options(max_messages, **options), "S", "C", 0.0)


def test_is_over_when_it_is_full():
    fetch = state(3)
    fetch.received(2, 0, 0.0)
    assert not fetch.is_over
    fetch.received(1, 0, 0.0)
    assert fetch.is_over
    assert fetch.error is None


def test_is_over_when_its_bytes_are_used():
    fetch = state(None, max_bytes=100)
    fetch.received(1, 60, 0.0)
    assert not fetch.is_over
    fetch.received(1, 40, 0.0)
    assert fetch.is_over


@pytest.mark.parametrize("limits", [{"max_messages": None, "max_bytes": 100}, {"max_messages": 10}])
def test_messages_of_the_same_read_do_not_reopen_what_a_status_ended(limits):
    fetch = state(**limits)
    fetch.heard(PullStatus(409, "Message Size Exceeds MaxBytes"), 0.0)
    fetch.received(1, 60, 0.0)
    assert fetch.is_over


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (404, "No Messages"),
        (408, "Request Timeout"),
        (408, "Requests Pending"),
        (409, "Message Size Exceeds MaxBytes"),
        (409, "Batch Completed"),
    ],
)
def test_ordinary_ends_are_no_errors(number, words):
    fetch = state()
    fetch.heard(PullStatus(number, words), 0.0)
    assert fetch.is_over
    assert fetch.error is None
    assert fetch.status.status == number


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (409, "Consumer Deleted", ConsumerDeletedError),
        (409, "Consumer is push based", PullStatusError),
        (409, "Exceeded MaxWaiting", PullStatusError),
        (409, "Exceeded MaxRequestBatch of 5", PullStatusError),
        (400, "Bad Request", PullStatusError),
        (423, "Nats-Pin-Id mismatch", PullStatusError),
        (599, "Unheard Of", PullStatusError),
    ],
)
def test_others_are(number, words, kind):
    fetch = state()
    fetch.heard(PullStatus(number, words), 0.0)
    assert fetch.is_over
    assert type(fetch.error) is kind


@pytest.mark.parametrize(
    ("number", "words"), [(503, ""), (409, "Leadership Change"), (409, "Server Shutdown Nats-Pending")]
)
def test_a_lost_pull_is_sent_again_for_what_is_left(number, words):
    fetch = state(expires=5)
    assert fetch.next_request(0.0).batch == 10
    fetch.received(4, 0, 1.0)
    fetch.heard(PullStatus(number, words), 2.0)
    assert not fetch.is_over
    assert type(fetch.loss) is PullStatusError
    assert fetch.is_unavailable is (number == 503)
    again = fetch.next_request(3.0)
    assert (again.batch, again.expires) == (6, 2_000_000_000)
    assert fetch.loss is None and not fetch.is_unavailable


def test_a_pull_that_stays_lost_is_an_error_only_without_messages():
    empty, some = state(expires=5), state(expires=5)
    some.received(1, 0, 1.0)
    for fetch in (empty, some):
        fetch.heard(PullStatus(503, ""), 5.0)
        assert fetch.is_over
    assert type(empty.error) is PullStatusError
    assert some.error is None


def test_a_fetch_of_what_is_there_ends_with_what_it_has():
    fetch = state(no_wait=True)
    fetch.received(1, 0, 0.0)
    fetch.heard(PullStatus(409, "Leadership Change"), 0.0)
    assert fetch.is_over
    assert fetch.error is None


def test_the_waits_between_pulls_grow():
    fetch = state(expires=30)
    waits = [fetch.retry_wait_s() for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_a_heartbeat_is_only_a_sign_of_life():
    fetch = state(expires=20, idle_heartbeat=5)
    fetch.heard(PullStatus(100, "Idle Heartbeat"), 8.0)
    assert not fetch.is_over
    assert fetch.deadline() == 18.0


def test_silence_is_a_loss_and_an_error_at_the_end():
    fetch = state(expires=20, idle_heartbeat=5)
    assert fetch.deadline() == 10.0
    fetch.expire(9.0)
    assert not fetch.is_over
    fetch.expire(10.0)
    assert not fetch.is_over
    assert type(fetch.loss) is HeartbeatMissedError
    assert fetch.next_request(10.0).idle_heartbeat == 5_000_000_000
    fetch.expire(20.0)
    assert fetch.is_over
    assert type(fetch.error) is HeartbeatMissedError


def test_a_server_that_forgets_to_end_it_is_not_waited_for_much_longer():
    fetch = state(expires=5)
    assert fetch.deadline() == 6.0
    fetch.expire(6.0)
    assert fetch.is_over
    assert fetch.error is None
