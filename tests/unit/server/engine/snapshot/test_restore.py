"""Restores: all of a stream or nothing, whatever the archive, the client, the disk and the power do."""

import json
from pathlib import Path
from random import Random

import pytest

from jetlake.model.account import AccountLimits
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

ROOT = Path("/data")
STREAMS = ROOT / "jetstream" / "$G" / "streams"


def content(harness):
    """All that a client can see of the stream and its consumer."""
    messages = []
    for sequence in range(1, 301):
        answer = harness.api("STREAM.MSG.GET.S", {"seq": sequence})
        messages.append(answer.get("message"))
    state = harness.state()
    del state["bytes"]  # counted by the formula of the storage
    info = harness.api("CONSUMER.INFO.S.c")
    position = {
        key: info[key] for key in ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    }
    for key in ("delivered", "ack_floor"):
        position[key].pop("last_active", None)
    return messages, state, position, info["config"]


class Machine:
    """A server on a disk that can lose its power."""

    def __init__(self, make_harness, seed=0):
        self.disk = FaultyDisk(Random(seed))
        self.disk.make_folder(ROOT)
        self.reports = []
        self.notes = []
        self._make_harness = make_harness
        self.start()

    def start(self):
        storage = FolderStorage(StoreFolder(self.disk, ROOT), self.reports.append, self.notes.append)
        self.server = self._make_harness(storage)

    def kill(self):
        self.disk.kill()
        self.start()

    def cut_power(self):
        self.disk.cut_power()
        self.start()


@pytest.fixture
def machine(make_harness):
    return Machine(make_harness)


@pytest.fixture
def archive(filled, backup):
    return backup(filled).archive


def test_everything_is_there_again(filled, machine, backup, restore):
    before = content(filled)
    answer = restore(machine.server, backup(filled).archive)
    assert "error" not in answer
    assert "did_create" not in answer
    assert content(machine.server) == before
    assert machine.server.store("s.a", b"next")["seq"] == 301


def test_messages_that_went_while_the_backup_was_taken_are_told(make_harness, filled, backup, restore):
    """The state counts them, and neither the archive nor what is wrong with it tells why they are not there."""
    frames = filled.request(
        "$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": "_INBOX.late", "chunk_size": 1024, "window_size": 1024}
    )
    assert len(frames) == 1
    filled.api("STREAM.PURGE.S", {"keep": 100})
    archive = b""
    filled.advance(2)  # Nobody subscribes to the very subject.
    while frames := filled.client.take():
        archive += b"".join(frame.payload for frame in frames)
        for frame in frames:
            filled.publish(frame.reply, b"")
        filled.turn()
    harness = make_harness()
    told = []
    harness.engine.report = told.append
    assert restore(harness, archive)["state"]["messages"] == 100
    assert told == [
        "JetStream - restored stream S without 199 messages that its backup counts and does not hold: they were "
        "removed while it was taken, or removed from it since"
    ]
    told.clear()
    assert restore(harness, backup(filled).archive, name="T", subjects=["t.>"])["state"]["messages"] == 100
    assert told == []


def test_it_outlives_a_power_cut_once_it_is_answered(machine, archive, restore, filled):
    before = content(filled)
    restore(machine.server, archive)
    machine.cut_power()
    after = content(machine.server)
    assert after == before
    assert machine.reports == []


@pytest.mark.parametrize("end", ["kill", "cut_power"])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3])
def test_a_crash_in_the_middle_leaves_nothing(machine, archive, begin, end, chunks):
    server = machine.server
    subject = begin(server)
    for start in range(0, chunks * 1000, 1000):
        server.request(subject, archive[start : start + 1000])
    getattr(machine, end)()
    assert list(machine.server.jetstream.streams) == []
    assert machine.reports == []
    assert not [path for path in machine.disk.files() if STREAMS in path.parents]
    machine.server.create()


def test_a_crash_at_any_write_leaves_all_or_nothing(make_harness, archive, begin, filled):
    """The power goes with each operation of the disk in turn."""
    before = content(filled)
    outcomes = set()
    for operation in range(1, 400):
        machine = Machine(make_harness, seed=operation)
        machine.disk.cut_at = machine.disk.operations + operation
        answered = False
        try:
            subject = begin(machine.server)
            for start in range(0, len(archive), 2000):
                machine.server.request(subject, archive[start : start + 2000])
            (frame,) = machine.server.request(subject, b"")
            answered = "error" not in json.loads(frame.payload)
            done = machine.disk.cut_at is not None
        except BaseException as error:
            if type(error).__name__ != "PowerCut":
                raise
            done = False
        machine.disk.cut_at = None
        machine.cut_power()
        streams = list(machine.server.jetstream.streams)
        assert streams or not answered
        if streams:
            assert content(machine.server) == before
        assert machine.reports == []
        outcomes.add(bool(streams))
        if done:
            break
    assert outcomes == {True, False}


BROKEN = {
    "cut": lambda archive: archive[: len(archive) // 2],
    "cut at its end": lambda archive: archive[:-1],
    "flipped": lambda archive: archive[:900] + bytes([archive[900] ^ 1]) + archive[901:],
    "something else": lambda archive: b"something else",
    "empty": lambda archive: b"",
    "twice": lambda archive: archive + archive,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_archive_is_refused_and_leaves_nothing(machine, archive, restore, name):
    answer = restore(machine.server, BROKEN[name](archive), chunk_bytes=700)
    assert (answer["error"]["code"], answer["error"]["err_code"]) == (500, 10062)
    assert answer["error"]["description"].startswith("restore failed: ")
    assert "error" in machine.server.api("STREAM.INFO.S")
    machine.server.turn()
    assert not [path for path in machine.disk.files() if STREAMS / "S" in path.parents]
    assert machine.server.api("INFO")["storage"] == 0
    assert "error" not in restore(machine.server, archive), "the name is free"


def test_a_silent_client_is_given_up_after_five_seconds(machine, archive, begin):
    server = machine.server
    subject = begin(server)
    server.request(subject, archive[:1000])
    server.advance(4.9)
    server.request(subject, archive[1000:2000])
    server.advance(5.1)
    (answer,) = server.request(subject, archive[2000:])
    assert answer.header.startswith(b"NATS/1.0 503")
    assert not [path for path in machine.disk.files() if STREAMS / "S" in path.parents]
    server.create()


def test_a_chunk_without_a_reply_ends_the_restore(machine, archive, begin):
    subject = begin(machine.server)
    machine.server.publish(subject, archive[:100])
    machine.server.turn()
    (answer,) = machine.server.request(subject, archive[100:])
    assert answer.header.startswith(b"NATS/1.0 503")
    machine.server.create()


def test_a_client_that_does_not_wait_is_cut_off(harness, archive, begin):
    harness.engine.long_work.slice_ns = 0
    subject = begin(harness)
    harness.publish(subject, archive, reply=b"_INBOX.x")
    for _ in range(70):
        harness.publish(subject, b"\xff" * 1024 * 1024, reply=b"_INBOX.x")
    harness.turn()
    assert harness.account.publish(subject.encode(), b"_INBOX.x", b"", b"") == 0


def test_a_clean_stop_in_the_middle_leaves_nothing(machine, archive, begin):
    subject = begin(machine.server)
    machine.server.request(subject, archive[:2000])
    machine.server.engine.close()
    machine.start()
    assert list(machine.server.jetstream.streams) == []
    assert machine.reports == []


def test_nobody_else_gets_the_name_meanwhile(machine, archive, begin):
    server = machine.server
    subject = begin(server)
    server.request(subject, archive)
    assert server.api("STREAM.CREATE.S", {"name": "S", "subjects": ["x"]})["error"]["err_code"] == 10058
    assert server.api("STREAM.RESTORE.S", {"config": {"name": "S"}})["error"]["err_code"] == 10130
    assert server.request("s.a", b"")[0].header.startswith(b"NATS/1.0 503"), "nothing is captured yet"
    (frame,) = server.request(subject, b"")
    assert json.loads(frame.payload)["state"]["messages"] == 299


def test_nobody_else_gets_the_subjects_meanwhile(machine, archive, begin):
    server = machine.server
    subject = begin(server)
    server.request(subject, archive)
    assert server.api("STREAM.CREATE.O", {"name": "O", "subjects": ["s.a"]})["error"]["err_code"] == 10065
    server.create("O", subjects=["o"])
    changed = {**server.api("STREAM.INFO.O")["config"], "subjects": ["o", "s.*"]}
    assert server.api("STREAM.UPDATE.O", changed)["error"]["err_code"] == 10065
    (frame,) = server.request(subject, b"")
    assert json.loads(frame.payload)["state"]["messages"] == 299


def test_subjects_of_a_restore_that_failed_are_free_again(machine, begin):
    server = machine.server
    server.request(begin(server), b"no archive")
    server.advance(6)
    server.create("O", subjects=["s.a"])


def test_of_two_restores_with_overlapping_subjects_one_is_refused(machine, archive, begin):
    server = machine.server
    subjects = [begin(server, name) for name in ("S", "T")]
    answers = []
    for subject in subjects:
        server.request(subject, archive)
    for subject in subjects:
        (frame,) = server.request(subject, b"")
        answers.append(json.loads(frame.payload))
    assert answers[0]["error"]["description"] == (
        "restore failed: error adding stream: subjects overlap with an existing stream (10065)"
    )
    assert answers[1]["state"]["messages"] == 299


def test_a_full_disk_refuses_and_leaves_nothing(machine, archive, begin):
    server = machine.server
    subject = begin(server)
    server.request(subject, archive[:1000])
    machine.disk.capacity = 0
    server.request(subject, archive[1000:])
    (frame,) = server.request(subject, b"")
    machine.disk.capacity = None
    assert json.loads(frame.payload)["error"]["err_code"] == 10062
    assert list(server.jetstream.streams) == []


def test_the_accounts_limit_counts_while_a_stream_is_restored(make_harness, filled, backup, restore):
    archive = backup(filled).archive
    harness = make_harness(limits=AccountLimits(max_storage=5000))
    answer = restore(harness, archive)
    assert answer["error"]["description"].startswith("restore failed: insufficient storage resources")
    assert harness.api("INFO")["storage"] == 0


def test_limits_of_the_new_configuration_count(harness, archive, restore):
    state = restore(harness, archive, max_msgs=10)["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (10, 291, 300)


def test_a_stream_that_discards_new_messages_gets_all_old_ones(harness, archive, restore):
    state = restore(harness, archive, max_msgs=10, max_bytes=1000, discard="new")["state"]
    assert state["messages"] == 299


def test_another_name_other_subjects_and_another_storage(harness, archive, restore):
    answer = restore(harness, archive, "T", subjects=["t"], storage="memory")
    assert (answer["config"]["name"], answer["state"]["messages"]) == ("T", 299)


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_ids_of_messages_count_after_a_restore(machine, filled, archive, restore, storage):
    machine.server.clock.advance((filled.clock.now_ns() - machine.server.clock.now_ns()) / 1e9)
    restore(machine.server, archive, storage=storage)
    assert machine.server.store("s.a", b"", {"Nats-Msg-Id": "300"}).get("duplicate") is True
    machine.server.advance(300)
    assert machine.server.store("s.a", b"", {"Nats-Msg-Id": "300"}).get("duplicate") is None


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_messages_live_as_long_as_they_would_have(make_harness, machine, backup, restore, storage):
    harness = make_harness()
    harness.create(allow_msg_ttl=True)
    for ttl in ("10s", "never", "100s"):
        harness.store("s.a", b"", {"Nats-TTL": ttl})
    archive = backup(harness).archive
    server = machine.server
    server.clock.advance((harness.clock.now_ns() - server.clock.now_ns()) / 1e9)
    restore(server, archive, storage=storage, allow_msg_ttl=True, max_age=50 * 10**9)
    server.advance(20)
    assert (server.state()["messages"], server.state()["first_seq"]) == (2, 2)
    server.advance(40)
    assert server.state()["messages"] == 1, "the age limit spares what lives for ever"


def test_schedules_fire_after_a_restore(make_harness, machine, backup, restore):
    harness = make_harness()
    harness.create(allow_msg_schedules=True)
    headers = {"Nats-Schedule": "@every 10s", "Nats-Schedule-Target": "s.target"}
    assert "seq" in harness.store("s.schedule", b"work", headers)
    archive = backup(harness).archive
    server = machine.server
    server.clock.advance((harness.clock.now_ns() - server.clock.now_ns()) / 1e9)
    restore(server, archive, allow_msg_schedules=True, allow_rollup_hdrs=True)
    assert server.state()["messages"] == 1
    server.advance(11)
    assert server.api("STREAM.MSG.GET.S", {"last_by_subj": "s.target"})["message"]["subject"] == "s.target"


def test_limits_are_applied_while_messages_are_stored(harness, archive, begin):
    """Not all at once in the end."""
    subject = begin(harness, max_msgs=10)
    stored = []
    loader = next(iter(harness.jetstream.transfers._transfers.values()))._loader
    for start in range(0, len(archive), 1000):
        harness.request(subject, archive[start : start + 1000])
        loader.flush()
        stored.append(loader.storage.store.messages)
    assert max(stored) <= 10


def test_a_consumer_that_was_delivered_to_as_often_as_allowed_stays_so(make_harness, backup, restore):
    harness = make_harness()
    harness.create()
    harness.store("s.a", b"1")
    config = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "max_deliver": 1, "ack_wait": 10**9}
    harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True})
    harness.advance(2)
    other = make_harness()
    restore(other, backup(harness).archive)
    other.advance(60)
    (status,) = other.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True})
    assert status.header.startswith(b"NATS/1.0 404")


def test_a_work_queue_keeps_what_its_consumer_has_passed_and_never_delivered(make_harness, machine, backup, restore):
    harness = make_harness()
    harness.create(retention="workqueue")
    for subject in ("s.b", "s.a"):
        harness.store(subject)
    config = {"durable_name": "c", "ack_policy": "explicit"}
    for filter_subject in ("s.a", "s.>"):
        config["filter_subject"] = filter_subject
        harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        harness.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True})
    restore(machine.server, backup(harness).archive, retention="workqueue")
    machine.cut_power()
    assert machine.server.state()["messages"] == 2


OLDER = Path(__file__).parents[3] / "model" / "archive" / "resources" / "stream-2.14.tar.s2"


def test_an_archive_of_an_older_server(machine, restore):
    answer = restore(machine.server, OLDER.read_bytes(), chunk_bytes=500)
    assert answer["created"] == "2026-11-15T23:58:21.550961743Z"
    state = machine.server.api("STREAM.INFO.S", {"deleted_details": True})["state"]
    assert (state["messages"], state["last_seq"], state["deleted"]) == (44, 46, [20, 22])
    info = machine.server.api("CONSUMER.INFO.S.c1")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"], info["num_pending"]) == (8, 1, 34)
    machine.cut_power()
    assert machine.server.api("STREAM.INFO.S")["created"] == "2026-11-15T23:58:21.550961743Z"
    assert machine.server.state()["messages"] == 44


def test_streams_that_are_being_restored_count_against_the_limits(make_harness, begin):
    harness = make_harness(limits=AccountLimits(max_streams=2, max_memory=1000))
    subjects = [begin(harness, name, subjects=[name], storage="memory", max_bytes=400) for name in "AB"]
    for verb, body in (("CREATE", {"name": "C"}), ("RESTORE", {"config": {"name": "C"}})):
        assert harness.api(f"STREAM.{verb}.C", body)["error"]["err_code"] == 10027
    harness.publish(subjects[0], b"cancelled")
    harness.turn()
    assert harness.api("INFO")["reserved_memory"] == 400
    config = {"name": "C", "subjects": ["c"], "storage": "memory", "max_bytes": 700}
    assert harness.api("STREAM.CREATE.C", config)["error"]["err_code"] == 10028
    harness.advance(60)
    assert harness.api("INFO")["reserved_memory"] == 0, "the other one had no client any more"
    assert "error" not in harness.api("STREAM.CREATE.C", config)
