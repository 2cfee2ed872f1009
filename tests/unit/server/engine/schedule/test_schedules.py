"""Schedules with a clock moved by hand: a month in no time, restarts, crashes, disk faults."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.model.account import AccountLimits
from jetlake.protocol.headers import find_value
from jetlake.server.engine.schedule import schedules
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.executed_lines import ExecutedLines
from tests.support.faulty_disk import FaultyDisk

DAY = 86_400


def create(harness, **config):
    return harness.create(allow_msg_schedules=True, **config)


def schedule(harness, pattern, subject="s.schedule", payload=b"x", target="s.target", **more):
    headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target}
    headers |= {f"Nats-Schedule-{key.replace('_', '-')}": value for key, value in more.items()}
    answer = harness.store(subject, payload, headers)
    assert "error" not in answer, answer
    return answer["seq"]


def published(harness, subject=b"s.target"):
    """Time and payload of every message on a subject, with the next time that it tells."""
    store = harness.jetstream.streams["S"].store
    messages = (store.get(sequence) for sequence in range(1, store.last_sequence + 1))
    return [
        (message.time_ns, message.payload, find_value(message.header, b"Nats-Schedule-Next"))
        for message in messages
        if message is not None and message.subject == subject
    ]


def start_at(harness, *when):
    harness.clock.advance(datetime(*when, tzinfo=UTC).timestamp() - harness.clock.now_ns() / 1e9)


@pytest.fixture
def disk():
    return FaultyDisk(Random(1))


def on(disk, make_harness, clock=None):
    harness = make_harness(FolderStorage(StoreFolder(disk, Path("/data")), report=print))
    if clock is not None:
        harness.clock.advance((clock.now_ns() - harness.clock.now_ns()) / 1e9)
        harness.engine.run_timers()
        harness.turn()
    return harness


def test_a_month_of_mornings_with_a_change_of_clocks(harness):
    start_at(harness, 2026, 10, 10)
    create(harness)
    schedule(harness, "0 0 7 * * *", Time_Zone="Europe/Berlin")
    for _ in range(31 * 24):
        harness.advance(3600)
    hours = [datetime.fromtimestamp(time_ns / 1e9, UTC).hour for time_ns, _, _ in published(harness)]
    assert hours == [5] * 15 + [6] * 16
    assert len(harness.engine.timers) < 5


def test_one_timer_for_all_schedules(harness):
    create(harness)
    timers = len(harness.engine.timers)
    for number in range(100):
        schedule(harness, f"@every {number + 1}h", f"s.{number}")
    assert len(harness.engine.timers) <= timers + 2
    harness.advance(3600)
    assert len(published(harness)) == 1


def test_messages_that_take_long_to_check_are_stored_before_the_turn_ends(harness):
    """So that the share of the connection which sends them counts what they cost."""
    create(harness)
    store = harness.jetstream.streams["S"].store
    for number in range(100):
        headers = b"NATS/1.0\r\nNats-Schedule: 0 0 0 29 2 *\r\nNats-Schedule-Target: s.target\r\n\r\n"
        harness.publish(f"s.{number}", b"x", headers, reply=b"_INBOX.a")
    assert store.messages >= 90
    for _ in range(100):
        headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 100\r\n"
        headers += b"Nats-Expected-Last-Subject-Sequence-Subject: s.*\r\n\r\n"
        harness.publish("s.other", b"x", headers, reply=b"_INBOX.a")
    assert store.messages == 101
    harness.turn()
    assert store.messages == 101


def test_schedules_that_are_due_together_are_published_in_several_turns(harness):
    create(harness)
    for number in range(100):
        schedule(harness, "0 0 1 * * *", f"s.{number}")
    start_at(harness, 2030, 1, 1, 1)
    counts = []
    while len(published(harness)) < 100:
        harness.engine.run_timers()
        harness.turn()
        counts.append(len(published(harness)))
    assert len(counts) >= 3
    assert counts[0] <= 40


def test_the_subjects_of_a_stream_are_not_compared_with_each_target(harness):
    harness.create(name="MANY", subjects=[f"m.{number}" for number in range(2000)], allow_msg_schedules=True)
    lines = ExecutedLines()
    lines.during(lambda: schedule(harness, "@every 10s", "m.1", target="m.1999"))
    assert lines.total < 1500


def test_missed_times_collapse_into_one(harness):
    create(harness)
    schedule(harness, "@every 10s")
    harness.advance(1000)
    assert len(published(harness)) == 1
    harness.advance(9)
    assert len(published(harness)) == 1
    harness.advance(2)
    assert len(published(harness)) == 2


def test_due_schedules_are_published_in_their_order(harness, monkeypatch):
    monkeypatch.setattr(schedules, "_FIRE_MAX", 3)
    create(harness)
    for number in range(10):
        schedule(harness, f"@every {20 - number}s", f"s.{number}", b"%d" % number)
    harness.advance(100)
    for _ in range(4):
        harness.advance(0)
    assert sorted(payload for _, payload, _ in published(harness)) == [b"%d" % number for number in range(10)]


def test_the_newest_message_of_the_source_is_published(harness):
    create(harness)
    schedule(harness, "@every 10s", payload=b"own", Source="s.source")
    harness.advance(10)
    harness.store("s.source", b"first")
    harness.store("s.source", b"second")
    harness.advance(10)
    harness.api("STREAM.PURGE.S", {"filter": "s.source"})
    harness.advance(10)
    assert [payload for _, payload, _ in published(harness)] == [b"own", b"second", b"own"]


def test_a_schedule_ends_with_its_lifetime(harness):
    create(harness, allow_msg_ttl=True)
    headers = {"Nats-Schedule": "@every 10s", "Nats-Schedule-Target": "s.target", "Nats-TTL": "25s"}
    harness.store("s.schedule", b"x", headers)
    for _ in range(6):
        harness.advance(10)
    assert len(published(harness)) == 2


def test_schedules_that_were_purged_do_not_pile_up(harness):
    stream = create(harness)
    for number in range(20):
        schedule(harness, "@at 2100-01-01T00:00:00Z", f"s.kept.{number}")
    for number in range(300):
        schedule(harness, "@at 2100-01-01T00:00:00Z", f"s.job.{number}")
        harness.api("STREAM.PURGE.S", {"filter": f"s.job.{number}"})
    assert 20 <= len(stream.schedules) < 50
    harness.advance(100 * 366 * DAY)
    assert len(published(harness)) == 20


@pytest.mark.parametrize("plain", [True, False])
def test_a_message_in_its_place_cancels(harness, plain):
    create(harness)
    schedule(harness, "@every 10s")
    harness.store("s.schedule", b"", {} if plain else {"Nats-Msg-Id": "1"})
    harness.advance(30)
    assert published(harness) == []


def test_consumers_get_what_is_published(harness):
    create(harness)
    config = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "filter_subject": "s.target"}
    answer = harness.api("CONSUMER.CREATE.S.c.s.target", {"stream_name": "S", "config": config})
    assert "error" not in answer, answer
    schedule(harness, "@every 10s")
    harness.advance(10)
    (frame,) = harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1")
    assert frame.payload == b"x", frame


def test_subscribers_of_the_target_get_nothing(harness):
    create(harness)
    harness.account.subscribe(b"s.target", b"9", harness.client)
    schedule(harness, "@every 10s")
    harness.advance(10)
    assert harness.client.take() == []


def test_a_clean_restart_goes_on_with_the_saved_index(disk, make_harness, monkeypatch):
    harness = on(disk, make_harness)
    create(harness)
    schedule(harness, "@every 60s")
    schedule(harness, "@every 1h", "s.other", target="s.late")
    for _ in range(3):
        harness.advance(60)
    harness.engine.close()
    read = []
    monkeypatch.setattr(schedules.Schedules, "stored", lambda *_: read.append(1))
    again = on(disk, make_harness, harness.clock)
    monkeypatch.undo()
    assert read == []
    assert len(again.jetstream.streams["S"].schedules) == 2
    assert len(published(again)) == 3
    again.advance(61)
    assert len(published(again)) == 4


def test_an_overdue_schedule_is_published_once_after_a_start(disk, make_harness):
    harness = on(disk, make_harness)
    create(harness)
    schedule(harness, "@every 60s")
    harness.engine.close()
    harness.clock.advance(DAY)
    again = on(disk, make_harness, harness.clock)
    again.advance(1)
    assert len(published(again)) == 1
    again.advance(60)
    assert len(published(again)) == 2


def test_a_full_account_delays_what_is_published(make_harness):
    harness = make_harness(limits=AccountLimits(max_memory=1000))
    create(harness, storage="memory")
    schedule(harness, "@every 10s", "s.small", b"", target="s.target")
    schedule(harness, "@every 10s", "s.large", bytes(150), target="s.large.target")
    harness.store("s.other", bytes(400))
    harness.advance(10)
    assert (len(published(harness)), len(published(harness, b"s.large.target"))) == (1, 0)
    harness.api("STREAM.PURGE.S", {"filter": "s.other"})
    harness.advance(1)
    assert (len(published(harness)), len(published(harness, b"s.large.target"))) == (1, 1)


@pytest.mark.parametrize("kill", [True, False])
def test_after_a_crash_no_time_is_published_twice(disk, make_harness, kill):
    harness = on(disk, make_harness)
    create(harness)
    schedule(harness, "@every 60s")
    schedule(harness, "@at 2000-01-01T00:00:00Z", "s.once", b"once", "s.done")
    harness.advance(0)
    harness.advance(60)
    before = published(harness), published(harness, b"s.done")
    assert [len(messages) for messages in before] == [1, 1]
    if kill:
        disk.kill()
    else:
        disk.cut_power()
    again = on(disk, make_harness, harness.clock)
    again.advance(1)
    assert (published(again), published(again, b"s.done")) == before
    assert again.jetstream.streams["S"].store.last_sequence_for(b"s.once") == 0
    again.advance(60)
    assert len(published(again)) == 2


def test_the_index_is_saved_now_and_then(disk, make_harness, monkeypatch):
    monkeypatch.setattr(schedules, "_SAVE_MESSAGES", 50)
    harness = on(disk, make_harness)
    create(harness)
    schedule(harness, "@every 60s")
    for number in range(60):
        harness.store(f"s.{number}")
    harness.advance(60)
    harness.turn()
    disk.kill()
    saved = harness.jetstream.streams["S"].storage.load_schedules()
    assert saved is not None and saved.last_sequence == 62
    again = on(disk, make_harness, harness.clock)
    assert len(again.jetstream.streams["S"].schedules) == 1


def test_a_disk_that_refuses_is_asked_again(durable, monkeypatch):
    create(durable)
    schedule(durable, "@every 60s")
    store = durable.jetstream.streams["S"].store
    tries = []

    def append(*_):
        tries.append(durable.clock.now_ns())
        raise StoreError("write", "no space")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", append)
        durable.advance(60)
        for _ in range(10):
            durable.engine.run_timers()
            durable.turn()
        assert len(tries) == 1
        durable.advance(1)
        assert len(tries) == 2
    durable.advance(2)
    assert len(published(durable)) == 1


def test_a_sealed_stream_publishes_nothing(harness):
    create(harness)
    schedule(harness, "@every 10s")
    answer = harness.api(
        "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True, "sealed": True}
    )
    assert "error" not in answer, answer
    harness.advance(60)
    assert published(harness) == []


def test_a_pattern_in_a_copied_message_purges_nothing(harness):
    stream = create(harness)
    harness.store("s.a")
    header = b"NATS/1.0\r\nNats-Scheduler: >\r\nNats-Schedule-Next: purge\r\n\r\n"
    stream.schedules.stored(2, b"s.b", header, 0)
    assert harness.state()["messages"] == 1


def test_limits_remove_a_schedule(harness):
    create(harness, max_msgs=3)
    schedule(harness, "@every 10s")
    for number in range(3):
        harness.store(f"s.{number}")
    harness.advance(30)
    assert published(harness) == []
    assert len(harness.jetstream.streams["S"].schedules) == 0


@pytest.mark.parametrize("crashes", [False, True])
def test_a_schedule_stored_after_the_clock_was_set_back_is_due_by_the_new_time(disk, make_harness, crashes):
    harness = on(disk, make_harness)
    create(harness)
    harness.advance(DAY)
    harness.store("s.other")
    harness = on(disk, make_harness)
    schedule(harness, "@every 1s")
    if crashes:
        harness = on(disk, make_harness)
    for times in (1, 2, 3):
        harness.advance(1)
        assert len(published(harness)) == times
