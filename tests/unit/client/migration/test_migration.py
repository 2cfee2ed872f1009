"""What decides how a stream is moved."""

import pytest

from jetlake.client.migration.migration import check_movable, reason_for_whole
from jetlake.errors import MigrationError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.consumer_features import FEATURE_PREFIX, STRICT_ACKS
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState


def info(size=1000, **options):
    return StreamInfo(config=StreamConfig.of("S", **options), state=StreamState(bytes=size))


def consumer(**options):
    return ConsumerInfo(name="C", config=ConsumerConfig.of("C", **options))


@pytest.mark.parametrize(
    ("stream", "consumers", "reason"),
    [
        (info(), [consumer()], ""),
        (info(100), [], "small"),
        (info(retention="interest"), [], "interest"),
        (info(retention="workqueue"), [], "work queue"),
        (info(retention="workqueue", allow_direct=True), [], ""),
        (info(allow_msg_counter=True), [], "allow_msg_counter"),
        (info(allow_msg_schedules=True), [], "allow_msg_schedules"),
        (info(), [consumer(deliver_policy="new")], "consumer C delivers new"),
    ],
)
def test_when_a_stream_is_copied_whole(stream, consumers, reason):
    found = reason_for_whole(stream, consumers, 100)
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (StreamConfig.of("S", mirror={"name": "O"}), "copies from other streams"),
        (StreamConfig.of("S", sources=[{"name": "O"}]), "copies from other streams"),
        (StreamConfig.of("S", sealed=True), "sealed"),
    ],
)
def test_streams_that_do_not_move(config, reason):
    with pytest.raises(MigrationError, match=reason):
        check_movable(config, [], frozenset())


def test_a_consumer_that_needs_what_the_target_lacks():
    strict = consumer(ack_policy="explicit", metadata={FEATURE_PREFIX + STRICT_ACKS: "true"})
    check_movable(StreamConfig.of("S"), [strict], frozenset({STRICT_ACKS}))
    with pytest.raises(MigrationError, match=STRICT_ACKS):
        check_movable(StreamConfig.of("S"), [strict], frozenset())
