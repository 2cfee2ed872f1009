"""Why a consumer delivers nothing, from what the server tells about it."""

from __future__ import annotations

from jetlake.client.pull.explanation import explain
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.replies import PendingMessage


def test_messages_of_one_deadline_are_named_together():
    info = ConsumerInfo(num_pending=9, num_ack_pending=3, config=ConsumerConfig(max_ack_pending=3))
    first, last = "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:09Z"
    pending = tuple(PendingMessage(number, 1, "in_flight", due) for number, due in ((4, first), (5, first), (6, last)))
    (reason,) = explain(info, None, pending).reasons
    assert reason.text.endswith(
        "sequences 4, 5 (delivery 1, in flight until 2026-01-31 12:00:00 UTC), "
        "6 (delivery 1, in flight until 2026-01-31 12:00:09 UTC)"
    )


def test_messages_that_are_due_again_wait_for_somebody_to_fetch_them():
    info = ConsumerInfo(num_pending=9, num_ack_pending=1, config=ConsumerConfig(max_ack_pending=1))
    found = explain(info, None, (PendingMessage(4, 2, "queued", "2026-01-31T12:00:00Z"),))
    assert [reason.kind for reason in found.reasons] == ["max_ack_pending", "no_pulls"]
    assert "sequence 4 (delivery 2, queued for redelivery since 2026-01-31 12:00:00 UTC)" in str(found)
