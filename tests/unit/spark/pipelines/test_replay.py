from __future__ import annotations

import pytest

from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState
from jetlake.spark.pipelines.replay import ReplayTarget, Resumption


def target(*, created: str = "2026-11-15T10:00:00Z", messages: int = 100, last: int = 100, **config) -> ReplayTarget:
    settings = StreamConfig.of("B", subjects=["B.>"], **config)
    return ReplayTarget.of(
        StreamInfo(config=settings, created=created, state=StreamState(messages=messages, last_seq=last))
    )


QUEUE = {"retention": RetentionPolicy.WORKQUEUE}


def test_a_stream_that_keeps_its_messages_is_asked_itself():
    for other in (target(), target(created="2026-11-15T11:00:00Z"), target(messages=0)):
        assert other.resume(target().note({}, "f", 51)) == Resumption(0)


def test_the_note_counts_for_a_stream_that_removes_messages_and_for_no_other_of_its_name():
    noted = target(**QUEUE).note({}, "f", 51)
    assert target(messages=3, last=120, **QUEUE).resume(noted) == Resumption(51)
    recreated = target(created="2026-11-15T11:00:00Z", **QUEUE).resume(noted)
    assert recreated.next_sequence == 0 and "not the one" in recreated.reason
    restored = target(last=99, messages=99, **QUEUE).resume(noted)
    assert restored.next_sequence == 0 and "earlier state" in restored.reason
    assert target(**QUEUE).resume({}) == Resumption(0)
    # Another one is noted beside it, and the number of those is bounded.
    other = target(created="2026-11-15T11:00:00Z", **QUEUE)
    both = other.note(noted, "f", 7)
    assert (target(**QUEUE).resume(both), other.resume(both)) == (Resumption(51), Resumption(7))
    for hour in range(12, 22):
        both = target(created=f"2026-11-15T{hour}:00:00Z", **QUEUE).note(both, "f", 1)
    assert len(both["targets"]) == 8


@pytest.mark.parametrize(
    "config",
    [QUEUE, {"retention": RetentionPolicy.INTEREST}, {"max_age": 60}, {"max_msgs": 5}, {"max_bytes": 500},
     {"max_msgs_per_subject": 1}, {"allow_rollup_hdrs": True}, {"allow_msg_ttl": True}],
    ids=lambda config: next(iter(config)),
)  # fmt: skip
def test_streams_that_remove_messages_by_themselves(config):
    assert not target(**config).keeps_all
    assert target(messages=3, **config).id_suffix() == ""


def test_ids_differ_from_those_of_messages_that_were_removed():
    assert target().id_suffix() == ""
    assert target(messages=0).id_suffix() == "#100"
    assert target(messages=50, last=250).id_suffix() == "#200"
