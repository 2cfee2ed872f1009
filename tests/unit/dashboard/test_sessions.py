"""Sessions: what one session keeps is bounded, and failed logins are limited by address and in total."""

from __future__ import annotations

from jetlake.dashboard.changes import Prepared
from jetlake.dashboard.sessions import (
    ALL_FAILURES_MAX,
    PEER_FAILURES_MAX,
    PEERS_MAX,
    PERIOD_S,
    PREPARED_BYTES_MAX,
    PREPARED_MAX,
    LoginLimit,
    Session,
)


def test_changes_that_wait_to_be_confirmed_are_bounded_by_number_and_size():
    session = Session("boss", None, None, may_change=True, now_s=0.0)
    change = Prepared("purge", "jetlake stream purge S", run=None)
    small = [session.keep(change, 10) for _ in range(PREPARED_MAX + 1)]
    assert [session.take_prepared(one) is change for one in small] == [False] + [True] * PREPARED_MAX
    assert session.take_prepared(small[1]) is None  # once only
    large = [session.keep(change, PREPARED_BYTES_MAX // 2) for _ in range(3)]
    assert [session.take_prepared(one) is change for one in large] == [False, True, True]


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
