"""Pull(n) and Pull(1) of NATS ADR-13: what is there at once, and waiting only if nothing is."""

import pytest

from jetlake.client.pull.pull_status import PullStatus
from jetlake.client.subscribe.pull_subscription import PullPhase, TwoStepPull


def test_asks_without_waiting_first():
    request = TwoStepPull(5).first_request()
    assert (request.batch, request.no_wait, request.expires) == (5, True, 0)


def test_waits_a_tenth_of_a_second_less_than_the_client():
    request = TwoStepPull(5).second_request(5.0)
    assert (request.batch, request.no_wait, request.expires) == (5, False, 4_900_000_000)
    assert TwoStepPull(5).second_request(0.05).expires == 25_000_000


def test_is_over_when_the_batch_is_full():
    pull = TwoStepPull(2)
    pull.received(1)
    assert pull.phase is PullPhase.NO_WAIT
    pull.received(1)
    assert pull.phase is PullPhase.OVER


def test_nothing_there_means_waiting():
    pull = TwoStepPull(2)
    pull.heard(PullStatus(404, "No Messages"))
    assert pull.phase is PullPhase.LINGER
    pull.heard(PullStatus(100, "Idle Heartbeat"))
    assert pull.phase is PullPhase.LINGER
    pull.received(1)
    assert pull.phase is PullPhase.LINGER
    pull.heard(PullStatus(408, "Request Timeout", 1, 0))
    assert pull.phase is PullPhase.OVER
    assert pull.error is None


def test_something_there_is_enough():
    pull = TwoStepPull(5)
    pull.received(3)
    pull.heard(PullStatus(404, "No Messages"))
    assert pull.phase is PullPhase.OVER
    assert pull.error is None


@pytest.mark.parametrize(
    ("number", "words"), [(409, "Consumer Deleted"), (400, "Bad Request"), (503, ""), (599, "Unheard Of")]
)
def test_errors(number, words):
    pull = TwoStepPull(5)
    pull.heard(PullStatus(number, words))
    assert pull.phase is PullPhase.OVER
    assert pull.error.status == number


def test_other_ends_are_no_errors():
    pull = TwoStepPull(5)
    pull.heard(PullStatus(409, "Server Shutdown", 5, 0))
    assert pull.phase is PullPhase.OVER
    assert pull.error is None
