"""Messages that end by themselves: which headers say so, and when they go, also after a restart."""

from pathlib import Path
from random import Random

import pytest

from jetlake.server.engine.folder_storage import FolderStorage
from jetlake.server.engine.message_lifetimes import FOREVER, parse_lifetime
from jetlake.store.faulty_disk import FaultyDisk
from jetlake.store.stream_folder import StoreFolder

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "lifetime"),
    [
        (b"1", SECOND),
        (b"90", 90 * SECOND),
        (b"2m", 120 * SECOND),
        (b"1.5s", SECOND * 3 // 2),
        (b"never", FOREVER),
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


def test_a_message_that_must_stay_is_refused_where_none_does(harness):
    harness.create(allow_msg_ttl=True, max_age=3600 * SECOND)
    assert harness.store("s.a", b"", {"Nats-TTL": "never"})["error"]["err_code"] == 10165
    assert harness.store("s.a", b"", {"Nats-TTL": "5s"})["seq"] == 1


def test_a_message_that_was_deleted_before_its_time_does_no_harm(harness):
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "2"})
    harness.store("s.a", b"", {"Nats-TTL": "3"})
    harness.api("STREAM.MSG.DELETE.S", {"seq": 1})
    harness.advance(2.5)
    assert held(harness) == [2]
    harness.advance(1)
    assert held(harness) == []


def test_deadlines_are_found_again_after_a_restart(make_harness):
    disk = FaultyDisk(Random(5))

    def start():
        return make_harness(FolderStorage(StoreFolder(disk, Path("/data")), lambda line: None))

    harness = start()
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})
    harness.store("s.b")
    disk.kill()
    again = start()
    assert held(again) == [1, 2]
    again.advance(61)
    assert held(again) == [2]


def test_nothing_is_left_of_a_deleted_stream(harness):
    harness.create(allow_msg_ttl=True)
    harness.store("s.a", b"", {"Nats-TTL": "60"})
    harness.api("STREAM.DELETE.S")
    harness.advance(120)
    assert harness.jetstream.streams == {}
