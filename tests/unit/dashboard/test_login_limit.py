"""Failed logins are counted by address and in all; the clock is moved by hand."""

from __future__ import annotations

from jetlake.dashboard.access.login_limit import ALL_FAILURES_MAX, PEER_FAILURES_MAX, PEERS_MAX, PERIOD_S, LoginLimit


class Clock:
    now_s = 1000.0


def test_an_address_waits_after_its_failures_and_others_do_not():
    clock = Clock()
    limit = LoginLimit(lambda: clock.now_s)
    for _ in range(PEER_FAILURES_MAX):
        assert limit.wait_s("a") == 0.0
        limit.attempt("a")
        clock.now_s += 1.0
    assert limit.wait_s("a") == PERIOD_S - PEER_FAILURES_MAX
    assert limit.wait_s("b") == 0.0
    clock.now_s += PERIOD_S - PEER_FAILURES_MAX
    assert limit.wait_s("a") == 0.0


def test_what_did_not_fail_does_not_count():
    limit = LoginLimit(lambda: 5.0)
    for _ in range(3 * ALL_FAILURES_MAX):
        assert limit.wait_s("a") == 0.0
        limit.attempt("a")()


def test_all_addresses_together_have_a_limit_and_are_forgotten():
    clock = Clock()
    limit = LoginLimit(lambda: clock.now_s)
    for number in range(ALL_FAILURES_MAX):
        limit.attempt(f"10.0.0.{number}")
    assert limit.wait_s("another") == PERIOD_S
    for number in range(2 * PEERS_MAX):
        limit.attempt(f"peer {number}")
    assert len(limit._peers) == PEERS_MAX
