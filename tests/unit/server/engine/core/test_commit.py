"""Group commit: nobody is told before the sync, and whose write failed is told so."""

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.core.commit import Commit


class Log:
    """A syncable that records what happens to it."""

    changes_names = False
    failure = None

    def __init__(self, name="log"):
        self.name = name
        self.calls = []
        self.flush_error = None

    def flush(self):
        self.calls.append("flush")
        if self.flush_error:
            raise self.flush_error

    def sync(self):
        self.calls.append("sync")

    def retry(self):
        if self.flush_error:
            raise self.flush_error


@pytest.fixture
def told():
    return []


def finish(commit, errors=None):
    """End all syncs that are under way."""
    commit.finish({syncable: (errors or {}).get(syncable) for syncable in list(commit._in_flight)})


def tell(told, name):
    return lambda error: told.append((name, error))


def test_with_always_an_action_waits_for_the_sync(told):
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.when_durable(log, tell(told, "a"))
    commit.flush()
    assert log.calls == ["flush"] and told == []
    assert commit.wants_sync()
    assert commit.begin() == [log]
    assert not commit.wants_sync()
    finish(commit)
    assert told == [("a", None)]


def test_what_comes_during_a_sync_shares_the_next_one(told):
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.when_durable(log, tell(told, "first"))
    commit.flush()
    commit.begin()
    for name in ("second", "third"):
        commit.mark(log)
        commit.when_durable(log, tell(told, name))
        commit.flush()
        assert not commit.wants_sync(), "one sync at a time"
    finish(commit)
    assert told == [("first", None)]
    assert commit.begin() == [log]
    finish(commit)
    assert [name for name, _ in told] == ["first", "second", "third"]


def test_waiters_of_one_log_do_not_wait_for_the_sync_of_another(told):
    commit, quick, slow = Commit(always=True), Log("quick"), Log("slow")
    for log in (slow, quick):
        commit.mark(log)
        commit.when_durable(log, tell(told, log.name))
    commit.when_durable(None, tell(told, "all"))
    commit.flush()
    assert commit.begin() == [slow, quick]
    commit.finish({quick: None})
    assert told == [("quick", None)]
    commit.mark(quick)
    commit.when_durable(quick, tell(told, "quick again"))
    commit.flush()
    assert commit.begin() == [quick], "the slow one holds nobody up"
    commit.finish({quick: None})
    commit.finish({slow: None})
    assert [name for name, _ in told] == ["quick", "quick again", "slow", "all"]


def test_no_more_syncs_begin_than_were_asked_for():
    commit = Commit(always=True)
    logs = [Log(str(number)) for number in range(5)]
    for log in logs:
        commit.mark(log)
    commit.flush()
    assert commit.begin(2) == logs[:2]
    commit.mark(logs[0])
    commit.flush()
    assert commit.begin(2) == logs[2:4]
    assert commit.begin() == logs[4:], "one sync at a time for each"
    commit.finish({logs[0]: None})
    assert commit.begin() == logs[:1]


def test_whoever_waits_for_a_deleted_log_goes_on(told):
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.when_durable(log, tell(told, "log"))
    commit.when_durable(None, tell(told, "all"))
    commit.flush()
    commit.forget(log)
    assert not commit.is_quiet()
    commit.flush()
    assert told == [("log", None), ("all", None)]


def test_what_cannot_wait_is_synced_and_waited_for_with_an_interval_too(told):
    commit, log, other = Commit(always=False), Log(), Log("other")
    commit.mark(other)
    commit.mark_now(log)
    commit.when_durable(log, tell(told, "log"))
    commit.when_durable(other, tell(told, "other"))
    commit.when_durable(None, tell(told, "all"))
    commit.flush()
    assert told == [("other", None)]
    assert commit.begin() == [log]
    finish(commit)
    assert told[1:] == [("log", None), ("all", None)]
    commit.mark(log)
    commit.when_durable(log, tell(told, "as usual"))
    commit.flush()
    assert told[3:] == [("as usual", None)] and not commit.wants_sync()


def test_a_failed_flush_is_told_to_those_who_waited_for_that_write_alone(told):
    commit, good, bad = Commit(always=True), Log("good"), Log("bad")
    commit.mark(bad)
    commit.when_durable(bad, tell(told, "flushed before"))
    commit.flush()
    bad.flush_error = StoreError("write", "disk full")
    for log in (good, bad):
        commit.mark(log)
        commit.when_durable(log, tell(told, log.name))
    commit.flush()
    assert told == [("bad", bad.flush_error)]
    commit.begin()
    finish(commit)
    assert told[1:] == [("flushed before", None), ("good", None)]


def test_a_write_that_failed_is_tried_again_soon():
    commit, log = Commit(always=True), Log()
    log.flush_error = StoreError("write", "disk full")
    commit.mark(log)
    commit.flush()
    assert commit.has_soon() and not commit.wants_sync()
    log.flush_error = None
    commit.flush_soon()
    commit.flush()
    assert log.calls == ["flush", "flush"] and commit.wants_sync()


def test_a_failed_sync_acknowledges_nothing_that_waited_for_it(told):
    commit, good, bad = Commit(always=True), Log("good"), Log("bad")
    for log in (good, bad):
        commit.mark(log)
        commit.when_durable(log, tell(told, log.name))
    commit.flush()
    commit.begin()
    error = StoreError("sync", "gone")
    finish(commit, {bad: error})
    assert told == [("good", None), ("bad", error)]


def test_what_is_durable_already_is_told_at_once(told):
    commit, log = Commit(always=True), Log()
    commit.when_durable(log, tell(told, "quiet"))
    commit.flush()
    assert told == [("quiet", None)]


def test_a_question_about_a_write_under_way_waits_for_it_without_another_sync(told):
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.flush()
    commit.begin()
    commit.when_durable(log, tell(told, "duplicate"))
    commit.flush()
    assert told == []
    finish(commit)
    assert told == [("duplicate", None)]
    assert not commit.wants_sync()


def test_waiting_for_everything_waits_for_every_log(told):
    commit, one, other = Commit(always=True), Log(), Log()
    commit.mark(one)
    commit.flush()
    commit.begin()
    commit.mark(other)
    commit.when_durable(None, tell(told, "all"))
    commit.flush()
    finish(commit)
    assert told == []
    commit.begin()
    finish(commit)
    assert told == [("all", None)]


def test_with_an_interval_actions_follow_the_flush_and_the_sync_comes_when_due(told):
    commit, log = Commit(always=False), Log()
    commit.mark(log)
    commit.when_durable(log, tell(told, "a"))
    commit.flush()
    assert told == [("a", None)]
    assert not commit.wants_sync()
    commit.interval_passed()
    assert commit.wants_sync()
    commit.begin()
    finish(commit)
    commit.interval_passed()
    assert not commit.wants_sync(), "nothing was written since"


def test_what_was_marked_for_soon_is_flushed_soon_or_with_what_cannot_wait():
    commit, log = Commit(always=False), Log()
    commit.mark_soon(log)
    commit.flush()
    assert log.calls == [] and commit.has_soon()
    commit.flush_soon()
    commit.flush()
    assert log.calls == ["flush"] and not commit.has_soon()
    commit.mark_soon(log)
    commit.mark(log)
    commit.flush()
    assert log.calls == ["flush", "flush"] and not commit.has_soon()


def test_an_engine_that_stops_tells_everyone_who_still_waits(told):
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.when_durable(log, tell(told, "flushed"))
    commit.flush()
    commit.when_durable(log, tell(told, "fresh"))
    error = StoreError("go on", "stopped")
    commit.fail_waiting(error)
    assert told == [("flushed", error), ("fresh", error)]


def test_a_forgotten_log_is_neither_flushed_nor_synced():
    commit, log = Commit(always=True), Log()
    commit.mark(log)
    commit.forget(log)
    commit.flush()
    assert log.calls == [] and not commit.wants_sync()


def test_a_failed_sync_is_told_once_and_remembered_until_it_is_gone(told):
    commit, log, deleted = Commit(always=True), Log(), Log("deleted")
    commit.on_failure = lambda syncable, error: told.append((syncable.name, str(error)))
    error = StoreError("make it safe", "input/output error")
    for _ in range(2):
        commit.mark(log)
        commit.mark(deleted)
        commit.flush()
        commit.begin()
        commit.forget(deleted)
        finish(commit, {log: error, deleted: error})
    assert told == [("log", "cannot make it safe: input/output error")]
    assert list(commit.failures) == [log]
    commit.forget(log)
    assert commit.failures == {}


def test_a_refused_write_is_told_once_until_the_disk_takes_writes_again(told):
    commit, log = Commit(always=True), Log()
    commit.on_failure = lambda syncable, error: told.append(error)
    commit.on_recovery = lambda syncable: told.append("again")
    log.flush_error = full = StoreError("write", "no space left on device")
    for _ in range(2):
        commit.mark(log)
        commit.flush()
        commit.retry()
        assert told == [full] and list(commit.failures) == [log]
    log.flush_error = None
    commit.mark(log)
    commit.flush()
    commit.begin()
    finish(commit)
    assert told == [full], "a flush that may have had nothing to write proves nothing"
    commit.retry()
    commit.begin()
    assert told == [full]
    finish(commit)
    assert told == [full, "again"] and commit.failures == {}


def test_nobody_is_told_that_something_is_durable_while_its_store_has_failed(told):
    commit, log = Commit(always=True), Log()
    log.failure = StoreError("make it safe", "input/output error")
    commit.when_durable(log, tell(told, "duplicate"))
    commit.flush()
    assert told == [("duplicate", log.failure)]


def test_a_journal_waits_until_the_log_before_it_is_on_the_disk(told):
    commit, log, journal = Commit(always=False), Log(), Log("journal")
    commit.mark(journal)
    commit.when_durable(journal, tell(told, "ack"))
    commit.order(log, journal)
    commit.flush()
    assert log.calls == ["flush"] and journal.calls == [] and told == []
    assert commit.wants_sync(), "also with an interval"
    commit.begin()
    commit.order(log, journal)  # another removal, which this sync does not have
    commit.flush()
    finish(commit)
    commit.flush()
    assert journal.calls == []
    commit.begin()
    finish(commit)
    commit.flush()
    assert journal.calls == ["flush"] and told == [("ack", None)]


def test_who_waits_for_a_journal_hears_that_the_log_before_it_failed(told):
    commit, log, journal = Commit(always=True), Log(), Log("journal")
    error = StoreError("write", "no")
    commit.order(log, journal)
    commit.mark(journal)
    commit.when_durable(journal, tell(told, "ack"))
    commit.flush()
    commit.begin()
    finish(commit, {log: error})
    assert told == [("ack", error)] and journal.calls == []
    commit.when_durable(journal, tell(told, "late"))
    commit.flush()
    assert told[1:] == [("late", error)]


def settle(commit, synced):
    """Flush and sync one after the other, noting which were synced."""
    commit.flush()
    while begun := commit.begin(1):
        synced += begun
        finish(commit)
        commit.flush()


def test_a_journal_waits_for_all_that_must_be_on_the_disk_before_it(told):
    commit, log, place, journal = Commit(always=True), Log(), Log("place"), Log("journal")
    commit.order(place, journal)
    commit.order(log, journal)
    commit.mark(journal)
    commit.when_durable(journal, tell(told, "ack"))
    commit.flush()
    assert set(commit.begin()) == {log, place}
    commit.finish({log: None})
    commit.flush()
    assert journal.calls == [] and told == []
    commit.finish({place: None})
    synced = []
    settle(commit, synced)
    assert synced == [journal] and told == [("ack", None)]


def test_what_waits_may_be_waited_for(told):
    commit, log, place, journal = Commit(always=True), Log(), Log("place"), Log("journal")
    commit.order(log, place)
    commit.order(place, journal)
    for syncable in (journal, place):
        commit.mark(syncable)
        commit.when_durable(syncable, tell(told, syncable.name))
    synced = []
    settle(commit, synced)
    assert synced == [log, place, journal]
    assert told == [("place", None), ("journal", None)]


def test_who_waits_hears_of_a_failure_however_far_before(told):
    commit, log, place, journal = Commit(always=True), Log(), Log("place"), Log("journal")
    error = StoreError("write", "no")
    commit.order(log, place)
    commit.order(place, journal)
    commit.mark(journal)
    commit.when_durable(journal, tell(told, "ack"))
    commit.flush()
    commit.begin()
    finish(commit, {log: error})
    assert told == [("ack", error)]
    commit.when_durable(journal, tell(told, "late"))
    commit.flush()
    assert told[1:] == [("late", error)]
    commit.forget(log)
    synced = []
    settle(commit, synced)
    assert synced == [place, journal]


def test_a_log_that_is_written_to_all_the_time_lets_its_journal_go(told):
    commit, log, journal = Commit(always=True), Log(), Log("journal")
    commit.order(log, journal)
    commit.mark(journal)
    commit.when_durable(journal, tell(told, "ack"))
    for _ in range(3):
        commit.mark(log)
        commit.flush()
        commit.begin()
        commit.mark(log)
        commit.flush()
        finish(commit)
    assert told == [("ack", None)]


def test_what_one_flush_writes_to_another_is_waited_for(told):
    commit, log, ids = Commit(always=False), Log(), Log("ids")

    def flush():
        commit.mark_now(ids)
        commit.when_durable(ids, tell(told, "ids"))

    log.flush = flush
    commit.mark(log)
    commit.flush()
    assert told == []
    commit.flush()
    assert told == [] and commit.begin() == [ids]
    commit.finish({ids: None})
    assert told == [("ids", None)]
