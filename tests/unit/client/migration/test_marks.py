"""The configurations of a stream while it moves."""

from jetlake.client.migration.marks import (
    Fence,
    fence_of,
    is_closed,
    is_complete,
    is_staged,
    marked,
    opened,
    staged,
    unmarked,
    with_bulk,
)
from jetlake.model.stream import StreamConfig

CONFIG = StreamConfig.of(
    "S",
    subjects=["s.>", "t"],
    max_msgs=10,
    max_bytes=1000,
    max_age=60,
    max_msgs_per_subject=2,
    discard="new",
    deny_purge=True,
    no_ack=True,
    republish={"src": "s.>", "dest": "r.>"},
    placement={"cluster": "C"},
    metadata={"owner": "shop"},
)


def test_a_source_is_paused_then_closed_then_as_it_was():
    fence = Fence(subjects=CONFIG.subjects, pauses={"c": "2100-01-01T00:00:00Z"})
    paused = marked(CONFIG, fence)
    assert paused.subjects == CONFIG.subjects
    assert not is_closed(paused)
    closed = marked(paused, Fence(subjects=CONFIG.subjects, pauses=fence.pauses, closed_at="2026-01-01T00:00:00Z"))
    assert closed.subjects == ("_jetlake.moved.S",)
    assert is_closed(closed)
    assert fence_of(closed).pauses == fence.pauses
    assert unmarked(closed) == unmarked(paused) == CONFIG
    assert unmarked(CONFIG) is CONFIG


def test_a_copy_takes_only_what_is_copied_and_removes_nothing_by_itself():
    copy = staged(CONFIG, 3, takes_tail=True)
    assert copy.subjects == ("_jetlake.moving.S.>",)
    assert (copy.subject_transform.src, copy.subject_transform.dest) == ("_jetlake.moving.S.>", ">")
    assert (copy.max_msgs, copy.max_bytes, copy.max_age, copy.max_msgs_per_subject) == (-1, -1, 0, 2)
    assert (copy.num_replicas, copy.placement, copy.republish, copy.no_ack, copy.deny_purge) == (
        3,
        None,
        None,
        False,
        False,
    )
    assert staged(CONFIG, 3, takes_tail=False).subject_transform is None
    refusing = StreamConfig.of("S", discard="new", discard_new_per_subject=True, max_msgs_per_subject=2)
    assert staged(refusing, 1, takes_tail=True).max_msgs_per_subject == -1


def test_a_copy_is_staged_then_complete_then_open():
    copy = staged(CONFIG, 1, takes_tail=True)
    assert is_staged(copy)
    assert not is_complete(copy)
    assert is_complete(with_bulk(copy))
    final = opened(CONFIG, 3)
    assert not is_staged(final)
    assert (final.subjects, final.metadata, final.num_replicas) == (CONFIG.subjects, CONFIG.metadata, 3)
    assert final.deny_purge


def test_a_mark_that_nobody_here_wrote_is_none():
    assert fence_of(StreamConfig.of("S", metadata={"jetlake.moving.fence": "[]"})) is None
