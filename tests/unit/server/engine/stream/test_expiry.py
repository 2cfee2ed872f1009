"""Messages that end by themselves: which headers say so, and when they go, also after a restart."""

import errno
from pathlib import Path
from random import Random

import pytest

from jetlake.model.encoding.durations import FOREVER, parse_lifetime
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.server.engine.storage.storage import SavedLifetimes
from jetlake.server.engine.stream import expiry
from jetlake.store.file_store import FileStore
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "lifetime"),
    [
        (b"1", SECOND),
        (b"90", 90 * SECOND),
        (b"2m", 120 * SECOND),
        (b"1.5s", SECOND * 3 // 2),
        (b"never", FOREVER),
        (b"Never", FOREVER),
        (b"0", None),
        (b"999ms", None),
        (b"-5s", None),
        (b"soon", None),
        (b"", None),
        (b"9" * 30, None),
        (b"\xff", None),
    ],
)
def test_what_a_lifetime_may_say(text, lifetime):
    assert parse_lifetime(text) == lifetime


def held(harness):
    store = harness.jetstream.streams["S"].store
    return [sequence for sequence in range(1, store.last_sequence + 1) if store.has(sequence)]


def test_messages_go_when_their_time_is_over(harness):
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "5s"})
    harness.store("s.b", b"", {"Nats-TTL": "2"})
    harness.store("s.c", b"", {"Nats-TTL": "never"})
    harness.store("s.d", b"", {"Other": "5s"})
    harness.advance(1.9)
    assert held(harness) == [1, 2, 3, 4]
    harness.advance(0.2)
    assert held(harness) == [1, 3, 4]
    harness.advance(3)
    assert held(harness) == [3, 4]
    harness.advance(10_000)
    assert held(harness) == [3, 4]


@pytest.mark.parametrize(("allowed", "ttl", "code"), [(False, "5s", 10166), (False, "x", 10165), (True, "1ms", 10165)])
def test_refusals(harness, allowed, ttl, code):
    harness.create(allow_msg_ttl=allowed)
    assert harness.store("s.a", b"", {"Nats-TTL": ttl})["error"]["err_code"] == code
    assert held(harness) == []


def test_a_message_that_must_stay_stays_where_others_grow_too_old(harness):
    harness.create(allow_msg_ttl=True, max_age=10 * SECOND)
    for headers in ({"Nats-TTL": "never"}, None, {"Nats-TTL": "60"}, {"Nats-TTL": "never"}, None):
        harness.store("s.a", b"", headers)
    harness.advance(10.1)
    assert held(harness) == [1, 4], "a longer life does not help against the stream's age"
    harness.advance(1.5)
    assert harness.engine.timers.next_ns > harness.clock.now_ns() + 10 * SECOND, "nothing is left to grow old"
    harness.store("s.b")
    harness.store("s.c", b"", {"Nats-TTL": "never"})
    harness.advance(10.1)
    assert held(harness) == [1, 4, 7]
    harness.api("STREAM.MSG.DELETE.S", {"seq": 4})
    harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_msg_ttl": True, "max_msgs": 1})
    assert held(harness) == [7], "other limits know no exception"


def test_a_message_that_was_deleted_before_its_time_does_no_harm(harness):
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "2"})
    harness.store("s.a", b"", {"Nats-TTL": "3"})
    harness.api("STREAM.MSG.DELETE.S", {"seq": 1})
    harness.advance(2.5)
    assert held(harness) == [2]
    harness.advance(1)
    assert held(harness) == []


class Machine:
    """A disk and a server on it, which notes what it reads of the stream while it starts."""

    def __init__(self, make_harness, monkeypatch):
        self.disk = FaultyDisk(Random(5))
        self._make_harness = make_harness
        self.reads = []
        read = FileStore.read

        def noting(store, first_sequence, *arguments):
            self.reads.append(first_sequence)
            return read(store, first_sequence, *arguments)

        monkeypatch.setattr(FileStore, "read", noting)

    def start(self):
        self.reads.clear()
        return self._make_harness(FolderStorage(StoreFolder(self.disk, Path("/data")), lambda line: None))


@pytest.fixture
def machine(make_harness, monkeypatch):
    return Machine(make_harness, monkeypatch)


def test_a_clean_restart_reads_no_message_to_know_the_deadlines(machine):
    harness = machine.start()
    harness.create(allow_msg_ttl=True)
    for seconds in (60, 30, 90):
        harness.store("s.a", b"", {"Nats-TTL": str(seconds)})
    harness.store("s.b")
    harness.api("STREAM.MSG.DELETE.S", {"seq": 3})
    harness.engine.close()
    again = machine.start()
    assert machine.reads == []
    assert held(again) == [1, 2, 4]
    assert len(again.jetstream.streams["S"].expiry) == 2
    again.advance(31)
    assert held(again) == [1, 4]
    again.advance(30)
    assert held(again) == [4]


def test_after_a_crash_only_what_came_since_the_last_clean_stop_is_read(machine):
    harness = machine.start()
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})
    harness.engine.close()
    harness = machine.start()
    harness.store("s.a", b"", {"Nats-TTL": "30"})
    harness.store("s.b")
    machine.disk.kill()
    again = machine.start()
    assert machine.reads == [2]
    again.advance(31)
    assert held(again) == [1, 3]
    again.advance(30)
    assert held(again) == [3]


@pytest.mark.parametrize("damage", ["flip", "remove", "ahead"])
def test_without_a_trustworthy_file_the_headers_are_read(machine, damage):
    harness = machine.start()
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})
    harness.store("s.b")
    stream = harness.jetstream.streams["S"]
    harness.engine.close()
    path = next(path for path in machine.disk.files() if path.name == "lifetimes")
    if damage == "flip":
        machine.disk.flip(path, 12)
    elif damage == "remove":
        machine.disk.remove(path)
    else:
        stream.storage.save_lifetimes(SavedLifetimes(3, [(1, 2)]))
    again = machine.start()
    assert machine.reads == [1]
    again.advance(61)
    assert held(again) == [2]
    machine.disk.kill()
    machine.start()
    assert machine.reads == [], "what was found is kept"


def test_what_must_stay_is_known_after_a_stop_and_after_a_crash(machine):
    harness = machine.start()
    harness.create(allow_msg_ttl=True, max_age=10 * SECOND)
    harness.store("s.a", b"", {"Nats-TTL": "never"})
    harness.store("s.b")
    harness.engine.close()
    harness = machine.start()
    assert machine.reads == []
    harness.store("s.c", b"", {"Nats-TTL": "never"})
    harness.store("s.d")
    machine.disk.kill()
    harness = machine.start()
    harness.advance(11)
    assert held(harness) == [1, 3]


def test_messages_that_must_stay_and_went_are_forgotten_in_time(harness, monkeypatch):
    monkeypatch.setattr(expiry, "_AGELESS_MIN", 4)
    harness.create(allow_msg_ttl=True, max_msgs_per_subject=1)
    for number in range(40):
        harness.store("s.a" if number else "s.first", b"", {"Nats-TTL": "never"})
    lifetimes = harness.jetstream.streams["S"].expiry
    assert len(lifetimes.ageless) < 20
    assert {1, 40} <= set(lifetimes.ageless)


def test_values_that_were_replaced_before_their_time_are_forgotten(harness, monkeypatch):
    monkeypatch.setattr(expiry, "_GONE_MIN", 20)
    monkeypatch.setattr(expiry, "_LOOKED_AT_PER_STEP", 3)
    harness.engine.long_work.slice_ns = 0  # one step in each turn
    stream = harness.create(allow_msg_ttl=True, max_msgs_per_subject=1)
    counts = []
    while len(counts) < 400 or not harness.engine.long_work.waiting:
        harness.publish(f"s.{len(counts) % 5}", b"", {"Nats-TTL": "1000"})
        harness.engine.flush()
        counts.append(len(stream.expiry))
    assert max(counts) < 100, "five messages are alive"
    for seconds in (1001, 1):
        harness.advance(seconds)
    assert (held(harness), len(stream.expiry)) == ([], 0), "also those that the sweep had not come to"


def test_a_message_that_was_undone_leaves_no_deadline_to_the_next_of_its_sequence(machine):
    harness = machine.start()
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})

    def fault(operation, path):
        if operation == "write" and path.suffix == ".seg":
            raise OSError(errno.ENOSPC, "as asked", str(path))

    machine.disk.fault = fault
    for life in ("5", "never"):
        assert "error" in harness.store("s.a", b"", {"Nats-TTL": life})
    assert harness.jetstream.streams["S"].expiry.ageless == []
    machine.disk.fault = None
    assert harness.store("s.a", b"it stays")["seq"] == 2
    harness.advance(10)
    assert held(harness) == [1, 2]
    harness.advance(60)
    assert held(harness) == [2]


def test_nothing_is_left_of_a_deleted_stream(harness):
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})
    harness.api("STREAM.DELETE.S")
    harness.advance(120)
    assert harness.jetstream.streams == {}


@pytest.mark.parametrize("crashes", [False, True])
def test_a_lifetime_that_begins_after_the_clock_was_set_back_ends_by_the_new_time(machine, crashes):
    harness = machine.start()
    harness.create(allow_msg_ttl=True)
    harness.advance(86_400)
    harness.store("s.a")
    harness = machine.start()
    harness.store("s.b", b"", {"Nats-TTL": "5s"})
    if crashes:
        machine.disk.kill()
        harness = machine.start()
    assert held(harness) == [1, 2]
    harness.advance(6)
    assert held(harness) == [1]


def test_many_messages_expire_in_several_turns(harness):
    harness.create(allow_msg_ttl=True)
    for _ in range(400):
        harness.store("s.a", b"", {"Nats-TTL": "5s"})
    harness.clock.advance(6)
    harness.engine.run_timers()
    assert 0 < len(held(harness)) < 400
    for _ in range(10):
        harness.engine.run_timers()
        harness.turn()
    assert held(harness) == []
