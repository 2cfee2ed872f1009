"""A bounded part of the histories of batches and schedules, and that a broken promise is noticed at all."""

import pytest

from jetlake.server.engine.schedule.schedules import Schedules
from jetlake.store.log.log import Log
from tests.simulation.batch_history import BatchHistory

pytestmark = pytest.mark.usefixtures("small_segments")

STEPS = 120


def test_histories_keep_every_promise():
    fired = 0
    # Three crash in segments with remains of a crash before: one is listed so, the next one's list was taken by a full
    # disk, and that of 65 was struck off the list. In the last one removals wait for a disk that refuses every write.
    for seed in (*range(1, 7), 30, 28, 65, 837):
        history = BatchHistory(seed)
        try:
            history.run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"{error}\nreplay: BatchHistory({seed}).run({STEPS})") from error
        assert len(history.acknowledged) > 40
        fired += len(history.fired)  # Few in a history that crashes often.
    assert fired > 30


def find_a_broken_promise():
    for seed in range(1, 30):
        BatchHistory(seed).run(STEPS)


def test_a_batch_that_is_torn_is_noticed(monkeypatch):
    monkeypatch.setattr(Log, "begin_group", lambda self, count: None)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_schedule_that_publishes_twice_is_noticed(monkeypatch):
    publish = Schedules._publish_due
    monkeypatch.setattr(Schedules, "_publish_due", lambda self, due, now_ns: publish(self, due * 2, now_ns))
    with pytest.raises(AssertionError):
        find_a_broken_promise()
