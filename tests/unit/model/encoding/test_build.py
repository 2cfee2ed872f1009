"""Configurations from what people write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy, DeliverPolicy, RetentionPolicy
from jetlake.model.stream import ConsumerLimits, StreamConfig, StreamSource, SubjectTransform


def test_a_stream_in_plain_words() -> None:
    config = StreamConfig.of(
        "ORDERS",
        subjects=["orders.>"],
        retention="interest",
        max_age=timedelta(hours=1),
        duplicate_window=2.5,
        consumer_limits={"inactive_threshold": 10},
        mirror={"name": "M", "opt_start_time": datetime(2026, 1, 1, tzinfo=UTC)},
        sources=[{"name": "A", "subject_transforms": [{"src": "a", "dest": "b"}]}, StreamSource(name="B")],
        description=None,
    )
    assert config == StreamConfig(
        name="ORDERS",
        subjects=("orders.>",),
        retention=RetentionPolicy.INTEREST,
        max_age=3_600_000_000_000,
        duplicate_window=2_500_000_000,
        consumer_limits=ConsumerLimits(inactive_threshold=10_000_000_000),
        mirror=StreamSource(name="M", opt_start_time="2026-01-01T00:00:00Z"),
        sources=(
            StreamSource(name="A", subject_transforms=(SubjectTransform(src="a", dest="b"),)),
            StreamSource(name="B"),
        ),
    )


def test_a_consumer_in_plain_words() -> None:
    config = ConsumerConfig.of(
        "worker", ack_policy="explicit", ack_wait=1.5, backoff=[1, timedelta(seconds=2)], opt_start_time=None
    )
    assert config == ConsumerConfig(
        name="worker",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=1_500_000_000,
        backoff=(1_000_000_000, 2_000_000_000),
    )
    assert ConsumerConfig.of(deliver_policy=DeliverPolicy.NEW).deliver_policy is DeliverPolicy.NEW


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bogus": 1}, "StreamConfig has no field 'bogus'; it has allow_atomic, "),
        ({"maxage": 1}, "StreamConfig has no field 'maxage'; did you mean 'max_age'?"),
        ({"max_age": "soon"}, "StreamConfig.max_age: a duration must be a number of seconds"),
        ({"max_age": 10**12}, "shorter than 292 years"),
        (
            {"retention": "never"},
            "StreamConfig.retention must be one of 'limits', 'interest', 'workqueue', not 'never'",
        ),
        ({"subjects": "orders.>"}, "StreamConfig.subjects must be a list, not 'orders.>'"),
        ({"subjects": [1]}, "StreamConfig: Expected `str`, got `int`"),
        ({"max_msgs": "5"}, "StreamConfig: Expected `int`, got `str`"),
        ({"first_seq": -1}, "Expected `int` >= 0"),
        ({"mirror": {"nome": "x"}}, "StreamSource has no field 'nome'"),
        ({"mirror": {"name": "x", "opt_start_time": "soon"}}, "not an RFC 3339 time"),
        ({"metadata": {"a": 1}}, "Expected `str`, got `int`"),
    ],
)
def test_what_does_not_fit_is_named(options: dict, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamConfig.of("S", **options)
    assert reason in str(caught.value)


def test_filters_and_kind_of_a_consumer() -> None:
    assert ConsumerConfig().filters == ()
    assert ConsumerConfig(filter_subject="a").filters == ("a",)
    assert ConsumerConfig(filter_subjects=("a", "b")).filters == ("a", "b")
    assert ConsumerConfig(deliver_subject="d").is_push
    assert not ConsumerConfig().is_push
