"""Rates and original distances in time."""

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.consumer.feed import Replay
from jetlake.server.engine.consumer.push_delivery import RateLimit

SECOND = 1_000_000_000


def test_a_full_bucket_lets_a_burst_through_and_then_waits():
    limit = RateLimit(8000, 200, 0)
    assert limit.ready_ns(150, 0) <= 0
    limit.spend(150)
    assert limit.ready_ns(150, 0) == SECOND // 10
    assert limit.ready_ns(150, SECOND // 10) <= SECOND // 10


def test_a_message_larger_than_the_bucket_needs_a_full_one():
    limit = RateLimit(8000, 100, 0)
    limit.spend(100)
    ready_ns = limit.ready_ns(5000, 0)
    assert ready_ns == SECOND // 10
    assert limit.ready_ns(5000, ready_ns) <= ready_ns


def test_time_that_stands_still_does_not_fill_it():
    limit = RateLimit(8000, 100, SECOND)
    limit.spend(100)
    assert limit.ready_ns(50, 0) > SECOND


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(8, 80_000))
def test_the_rate_holds_in_the_long_run(sizes, bits_per_second):
    limit = RateLimit(bits_per_second, 100, 0)
    now_ns = 0
    for size in sizes:
        now_ns = max(now_ns, limit.ready_ns(size, now_ns))
        assert limit.ready_ns(size, now_ns) <= now_ns
        limit.spend(size)
    allowed = 100 + now_ns * (bits_per_second // 8) / SECOND
    assert sum(sizes) <= allowed + 1


def test_replay_waits_for_the_distance_between_messages():
    replay = Replay(10)
    assert replay.due_ns(5 * SECOND) == 0
    replay.sent(5 * SECOND, 100 * SECOND)
    assert replay.due_ns(7 * SECOND) == 102 * SECOND
    assert replay.due_ns(5 * SECOND + 1_000_000) == 0
    replay.sent(7 * SECOND, 200 * SECOND)
    assert replay.due_ns(8 * SECOND) == 201 * SECOND


def test_replay_is_over_behind_the_end_it_found():
    replay = Replay(10)
    assert not replay.is_over(10)
    assert replay.is_over(11)
