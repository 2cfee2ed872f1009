"""Delete markers: who gets one when its last message ends, what it says, and that it takes nobody's place."""

from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk, PowerCut

SECOND = 1_000_000_000
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m30s\r\nNats-Rollup: sub\r\n\r\n"


def create(harness, **config):
    return harness.create(allow_msg_ttl=True, subject_delete_marker_ttl=90 * SECOND, **config)


def held(harness):
    """Sequence, subject and header of what the stream has."""
    store = harness.jetstream.streams["S"].store
    found = [store.get(sequence) for sequence in range(1, store.last_sequence + 1)]
    return [(message.sequence, message.subject, message.header) for message in found if message is not None]


def test_the_last_message_that_grows_too_old_leaves_a_marker(harness):
    create(harness, max_age=10 * SECOND)
    for subject in ("s.a", "s.a", "s.b"):
        harness.store(subject, b"text")
    harness.advance(5)
    harness.store("s.b", b"young")
    harness.advance(6)
    assert held(harness) == [(4, b"s.b", b""), (5, b"s.a", MARKER)]


def test_messages_that_stay_are_looked_at_once(harness, monkeypatch):
    stream = create(harness, max_age=10 * SECOND)
    for number in range(3):
        harness.store(f"s.{number}", b"", {"Nats-TTL": "never"})
    harness.store("s.a", b"")
    harness.advance(11)
    assert [message[:2] for message in held(harness)] == [(1, b"s.0"), (2, b"s.1"), (3, b"s.2"), (5, b"s.a")]
    read, seen = stream.store.read, []

    def watch(first_sequence, *rest):
        seen.append(first_sequence)
        return read(first_sequence, *rest)

    monkeypatch.setattr(stream.store, "read", watch)
    for _ in range(3):
        harness.store("s.b", b"")
    assert seen == []
    harness.advance(11)
    assert seen == [5]
    assert [message[:2] for message in held(harness)] == [(1, b"s.0"), (2, b"s.1"), (3, b"s.2"), (9, b"s.b")]


def test_a_marker_ends_without_another(harness):
    create(harness, max_age=10 * SECOND)
    harness.store("s.a")
    harness.advance(11)
    assert held(harness) == [(2, b"s.a", MARKER)]
    harness.advance(11)
    assert held(harness) == [], "the stream's age takes markers too"
    harness.advance(1000)
    assert harness.state()["last_seq"] == 2


def test_a_life_of_its_own_ends_in_a_marker(harness):
    create(harness, max_msgs_per_subject=1)
    harness.store("s.value", b"", {"Nats-TTL": "2s"})
    harness.store("s.deleted", b"", {"Nats-TTL": "2s", "KV-Operation": "DEL"})
    harness.store("s.purged", b"", {"Nats-TTL": "2s", "KV-Operation": "PURGE"})
    harness.store("s.marked", b"", {"Nats-TTL": "2s", "Nats-Marker-Reason": "Purge"})
    harness.advance(3)
    assert held(harness) == [(5, b"s.value", MARKER), (6, b"s.deleted", MARKER)]
    harness.advance(91)
    assert held(harness) == []
    assert harness.state()["last_seq"] == 6


def test_what_cannot_be_read_goes_without_a_marker(harness, monkeypatch):
    stream = create(harness, max_age=10 * SECOND, max_msgs_per_subject=1)
    harness.store("s.a", b"")
    harness.store("s.b", b"", {"Nats-TTL": "2s"})

    def refuse(*_):
        raise StoreError("read", "the disk does not give it back")

    monkeypatch.setattr(stream.store, "get", refuse)
    monkeypatch.setattr(stream.store, "read", refuse)
    harness.advance(3)
    harness.advance(8)
    monkeypatch.undo()
    assert held(harness) == []


def test_other_ends_leave_none(harness):
    create(harness, max_msgs=2)
    for number in range(4):
        harness.store(f"s.{number}")
    harness.api("STREAM.MSG.DELETE.S", {"seq": 3})
    harness.api("STREAM.PURGE.S")
    harness.advance(100)
    assert (held(harness), harness.state()["last_seq"]) == ([], 4)


@pytest.mark.parametrize(
    ("lifetime", "kept"), [("1s", "90"), ("89s", "90"), ("90s", "90s"), ("2m", "2m"), ("never", "never")]
)
def test_no_message_ends_before_its_marker_would(harness, lifetime, kept):
    """Or the one before it would come back."""
    create(harness)
    harness.store("s.a", b"older")
    harness.store("s.a", b"newer", b"NATS/1.0\r\nNats-TTL: %b\r\n\r\n" % lifetime.encode())
    assert held(harness)[-1][2] == b"NATS/1.0\r\nNats-TTL: %b\r\n\r\n" % kept.encode()


def test_a_message_that_comes_at_the_same_moment_stays(harness):
    create(harness, max_age=10 * SECOND)
    harness.store("s.a", b"old")
    harness.clock.advance(11)
    harness.publish("s.a", b"new")
    harness.engine.run_timers()
    harness.turn()
    assert held(harness) == [(2, b"s.a", b"")]


def test_a_publish_that_finds_old_messages_leaves_their_markers(harness):
    create(harness, max_age=10 * SECOND)
    harness.store("s.a", b"old")
    harness.clock.advance(11)
    harness.store("s.b", b"new")
    harness.advance(0)
    assert held(harness) == [(2, b"s.b", b""), (3, b"s.a", MARKER)]


def test_consumers_see_markers(harness):
    create(harness, max_age=10 * SECOND)
    harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c"}})
    harness.store("s.a", b"old")
    harness.advance(11)
    assert harness.api("CONSUMER.INFO.S.c")["num_pending"] == 1
    frame = harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1")[0]
    assert (frame.subject, frame.header) == (b"s.a", MARKER)


def test_what_ended_while_the_server_was_away_leaves_its_marker(make_harness):
    disk = FaultyDisk(Random(5))

    def start():
        return make_harness(FolderStorage(StoreFolder(disk, Path("/data")), lambda line: None))

    harness = start()
    create(harness, max_age=3600 * SECOND)
    harness.store("s.a", b"old")
    harness.store("s.b", b"", {"Nats-TTL": "100s"})
    disk.kill()
    again = start()
    again.advance(4000)
    assert [message[1:] for message in held(again)] == [(b"s.b", MARKER), (b"s.a", MARKER)]


@pytest.mark.parametrize("crash", [FaultyDisk.kill, FaultyDisk.cut_power])
@pytest.mark.parametrize(("max_age", "header"), [(10 * SECOND, b""), (0, b"NATS/1.0\r\nNats-TTL: 10s\r\n\r\n")])
def test_a_crash_at_any_write_costs_no_marker(make_harness, crash, max_age, header):
    subjects = [b"s.%d" % number for number in range(4)]
    crashes = 0
    for write in range(1, 200):
        disk = FaultyDisk(Random(write))

        def start(disk=disk):
            return make_harness(FolderStorage(StoreFolder(disk, Path("/data")), lambda line: None))

        harness = start()
        create(harness, max_age=max_age, max_msgs_per_subject=1)
        for subject in subjects:
            harness.store(subject.decode(), b"text", header)
        disk.cut_at = disk.operations + write
        try:
            harness.advance(11)
            break
        except PowerCut:
            disk.cut_at = None
            crash(disk)
        crashes += 1
        again = start()
        again.advance(11)
        assert sorted(message[1:] for message in held(again)) == [(subject, MARKER) for subject in subjects], write
    assert crashes > len(subjects)


def test_a_marker_without_room_comes_when_its_message_has_gone(harness):
    create(harness, max_msgs=1, discard="new")
    harness.store("s.a", b"", {"Nats-TTL": "100s"})
    harness.advance(101)
    assert held(harness) == [(2, b"s.a", MARKER)]


def test_many_markers_come_in_several_turns(harness):
    stream = create(harness, max_age=10 * SECOND)
    for number in range(400):
        harness.store(f"s.{number}", b"")
        harness.clock.advance(0.001)
    harness.clock.advance(11)
    harness.engine.run_timers()
    assert 0 < stream.store.first_sequence - 1 <= 130
    for _ in range(10):
        harness.advance(0.02)
    assert stream.store.messages == 400
    assert {payload for _, _, payload in held(harness)} == {MARKER}


def test_many_messages_of_one_time_go_together(harness):
    create(harness, max_age=10 * SECOND)
    for number in range(400):
        harness.store(f"s.{number}", b"")
    harness.advance(11)
    assert {payload for _, _, payload in held(harness)} == {MARKER}
