"""When a fetch is over, and what it says."""

import pytest

from jetlake.client.pull.fetch_state import FetchState
from jetlake.client.pull.pull_options import fetch_options
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


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (404, "No Messages"),
        (408, "Request Timeout"),
        (408, "Requests Pending"),
        (409, "Message Size Exceeds MaxBytes"),
        (409, "Batch Completed"),
        (409, "Server Shutdown"),
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


def test_nobody_answers():
    fetch = state()
    fetch.heard(PullStatus(503, ""), 0.0)
    assert fetch.is_over
    assert fetch.is_unavailable


def test_a_heartbeat_is_only_a_sign_of_life():
    fetch = state(expires=20, idle_heartbeat=5)
    fetch.heard(PullStatus(100, "Idle Heartbeat"), 8.0)
    assert not fetch.is_over
    assert fetch.deadline() == 18.0


def test_silence_is_an_error():
    fetch = state(expires=20, idle_heartbeat=5)
    assert fetch.deadline() == 10.0
    fetch.expire(9.0)
    assert not fetch.is_over
    fetch.expire(10.0)
    assert fetch.is_over
    assert type(fetch.error) is HeartbeatMissedError


def test_a_server_that_forgets_to_end_it_is_not_waited_for_much_longer():
    fetch = state(expires=5)
    assert fetch.deadline() == 6.0
    fetch.expire(6.0)
    assert fetch.is_over
    assert fetch.error is None
