"""Defaults, ranges and contradictions of fetch and consume (NATS ADR-37, ADR-42)."""

from datetime import timedelta

import pytest

from jetlake.client.pull.options import consume_options, fetch_options, group_options
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import PriorityPolicy


def test_consume_defaults():
    options = consume_options()
    assert (options.max_messages, options.threshold_messages) == (1000, 250)
    assert (options.max_bytes, options.threshold_bytes) == (0, 0)
    assert (options.expires_s, options.idle_heartbeat_s) == (60, 30)
    assert options.on_missed_heartbeat == "stop"
    options = consume_options(max_messages=10)
    assert (options.max_messages, options.max_bytes) == (10, 0)


@pytest.mark.parametrize(("limit", "threshold"), [(1, 1), (2, 1), (4, 1), (5, 2), (10, 3), (1000, 250)])
def test_the_threshold_is_a_quarter_rounded_up(limit, threshold):
    assert consume_options(max_messages=limit).threshold_messages == threshold
    assert consume_options(max_bytes=limit).threshold_bytes == threshold


def test_bytes_instead_of_messages():
    options = consume_options(max_bytes=1000, threshold_bytes=400)
    assert (options.max_messages, options.threshold_messages) == (0, 0)
    assert (options.max_bytes, options.threshold_bytes) == (1000, 400)


def test_the_heartbeat_follows_a_shorter_expiry():
    assert consume_options(expires=10).idle_heartbeat_s == 5
    assert consume_options(expires=4).idle_heartbeat_s == 2
    assert consume_options(expires=600).idle_heartbeat_s == 30
    assert consume_options(expires=timedelta(minutes=2), idle_heartbeat=60).idle_heartbeat_s == 60


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_messages": 10, "max_bytes": 10}, "mutually exclusive"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": True}, "max_messages"),
        ({"max_messages": 1.5}, "max_messages"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"expires": 3.9}, "expires must be 4 to 600"),
        ({"expires": 601}, "expires must be 4 to 600"),
        ({"expires": "x"}, "expires"),
        ({"idle_heartbeat": 1.9}, "idle_heartbeat must be 2 to 60"),
        ({"idle_heartbeat": 61, "expires": 600}, "idle_heartbeat must be 2 to 60"),
        ({"idle_heartbeat": 31}, "at most half of expires"),
        ({"expires": 10, "idle_heartbeat": 6}, "at most half of expires"),
        ({"threshold_messages": 1001}, "threshold_messages must be at most"),
        ({"threshold_messages": 0}, "threshold_messages"),
        ({"threshold_bytes": 10}, "threshold_bytes needs max_bytes"),
        ({"max_bytes": 10, "threshold_messages": 1}, "threshold_messages needs max_messages"),
        ({"max_bytes": 10, "threshold_bytes": 11}, "threshold_bytes must be at most"),
        ({"on_missed_heartbeat": "panic"}, "on_missed_heartbeat"),
    ],
)
def test_consume_refuses(given, words):
    with pytest.raises(InvalidOptionError, match=words):
        consume_options(**given)


def test_fetch_defaults():
    options = fetch_options(10)
    assert (options.max_messages, options.max_bytes, options.expires_s) == (10, 0, 5)
    assert options.idle_heartbeat_s == 0
    assert not options.no_wait
    assert fetch_options(10, expires=30).idle_heartbeat_s == 5
    assert fetch_options(10, no_wait=True).expires_s == 0


def test_a_fetch_by_bytes_alone_asks_for_a_large_batch():
    request = fetch_options(None, max_bytes=100).request(1_000_000, 100)
    assert (request.batch, request.max_bytes) == (1_000_000, 100)


def test_no_wait_needs_no_expiry():
    request = fetch_options(5, no_wait=True).request(5, 0)
    assert (request.no_wait, request.expires) == (True, 0)
    request = fetch_options(5, no_wait=True, expires=2).request(5, 0)
    assert (request.no_wait, request.expires) == (True, 2_000_000_000)


@pytest.mark.parametrize(
    ("max_messages", "given", "words"),
    [
        (None, {}, "max_messages or max_bytes"),
        (0, {}, "max_messages"),
        (-5, {}, "max_messages"),
        (1, {"max_bytes": 0}, "max_bytes"),
        (1, {"expires": 0}, "expires must be more than 0"),
        (1, {"expires": -1}, "expires must be more than 0"),
        (1, {"expires": 4, "idle_heartbeat": 3}, "half of expires"),
        (1, {"idle_heartbeat": -1}, "idle_heartbeat"),
        (1, {"no_wait": True, "idle_heartbeat": 1}, "half of expires"),
    ],
)
def test_fetch_refuses(max_messages, given, words):
    with pytest.raises(InvalidOptionError, match=words):
        fetch_options(max_messages, **given)


OVERFLOW = ConsumerConfig(name="c", priority_policy=PriorityPolicy.OVERFLOW, priority_groups=("jobs",))
PINNED = ConsumerConfig(name="c", priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("jobs",))
PRIORITIZED = ConsumerConfig(name="c", priority_policy=PriorityPolicy.PRIORITIZED, priority_groups=("jobs",))
PLAIN = ConsumerConfig(name="c")


@pytest.mark.parametrize(
    ("good", "bad"), [((1, 5), (True, 5)), ((1, 1), (1, True)), ((1, 1), (1.0, 1)), ((1, 5), (1, [5]))]
)
def test_what_was_checked_before_vouches_only_for_itself(good, bad):
    assert fetch_options(good[0], expires=good[1]) is fetch_options(good[0], expires=good[1])
    with pytest.raises(InvalidOptionError):
        fetch_options(bad[0], expires=bad[1])


def test_groups_that_fit():
    assert group_options(PLAIN).group == ""
    assert group_options(OVERFLOW, group="jobs", min_pending=5, min_ack_pending=6).min_ack_pending == 6
    assert group_options(PINNED, group="jobs").group == "jobs"
    assert group_options(PRIORITIZED, group="jobs", priority=9).priority == 9
    assert group_options(None, group="any", priority=0).group == "any"


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (OVERFLOW, {}, "has priority groups: pass group"),
        (OVERFLOW, {"group": "other"}, "no group 'other'"),
        (PLAIN, {"group": "jobs"}, "has no priority groups"),
        (PLAIN, {"min_pending": 5}, "need group"),
        (PINNED, {"group": "jobs", "min_pending": 5}, "min_pending is for the policy overflow"),
        (OVERFLOW, {"group": "jobs", "priority": 1}, "priority is for the policy prioritized"),
        (PRIORITIZED, {"group": "jobs", "priority": 10}, "0 .first. to 9"),
        (PRIORITIZED, {"group": "jobs", "priority": -1}, "0 .first. to 9"),
        (OVERFLOW, {"group": "jobs", "min_pending": 0}, "min_pending"),
        (OVERFLOW, {"group": "jobs", "min_ack_pending": -1}, "min_ack_pending"),
    ],
)
def test_groups_that_do_not_fit(config, given, words):
    with pytest.raises(InvalidOptionError, match=words):
        group_options(config, **given)
