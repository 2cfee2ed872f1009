"""Appends that the disk refused are taken back: no consumer stands behind them, nobody sees them, no id is known."""

import errno
import json
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.core.commit import sync
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk


class Machine:
    """A server on a disk that can refuse what is written to the log."""

    def __init__(self, make_harness, seed=1):
        self.disk = FaultyDisk(Random(seed))
        self._make_harness = make_harness
        self.start()

    def start(self):
        self.server = self._make_harness(FolderStorage(StoreFolder(self.disk, Path("/data")), lambda _text: None))

    def restart(self):
        self.server.engine.close()
        self.start()

    def refuse_log(self):
        def fault(operation, path):
            if operation == "write" and path.suffix == ".seg":
                raise OSError(errno.ENOSPC, "as asked", str(path))

        self.disk.fault = fault

    def heal(self):
        self.disk.fault = None
        for _ in range(3):
            self.server.advance(1)

    def consumer(self, name, **config):
        body = {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit", **config}}
        return self.server.api(f"CONSUMER.CREATE.S.{name}", body)

    def pull(self, name):
        frames = self.server.request(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b'{"batch":100,"no_wait":true}')
        return [frame.payload for frame in frames if frame.reply.startswith(b"$JS.ACK.")]

    @property
    def stream(self):
        return self.server.jetstream.streams["S"]


@pytest.fixture
def machine(make_harness):
    machine = Machine(make_harness)
    machine.server.create()
    for number in range(3):
        machine.server.store("s.a", b"%d" % number)
    return machine


@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_consumer_does_not_start_behind_messages_that_are_taken_back(machine, restarts):
    server = machine.server
    machine.refuse_log()
    for _ in range(2):
        server.publish("s.a", b"taken back")
    assert machine.consumer("new", deliver_policy="new")["error"]["code"] in (500, 503)
    machine.heal()
    assert "error" not in machine.consumer("new", deliver_policy="new")
    assert [server.store("s.a", payload)["seq"] for payload in (b"4", b"5")] == [4, 5]
    if restarts:
        machine.restart()
    assert machine.pull("new") == [b"4", b"5"]


def test_a_new_consumer_comes_after_the_messages_that_it_starts_behind(make_harness):
    config = {"durable_name": "new", "ack_policy": "explicit", "deliver_policy": "new"}
    for seed in range(20):
        machine = Machine(make_harness, seed)
        server = machine.server
        server.create()
        server.publish("s.a", b"not yet durable")
        server.publish("$JS.API.CONSUMER.CREATE.S.new", json.dumps({"stream_name": "S", "config": config}).encode())
        server.engine.flush()
        # All that can be made safe now is, but for the log; then the power goes.
        store = machine.stream.store
        while begun := [syncable for syncable in server.engine.commit.begin() if syncable is not store]:
            for syncable in begun:
                server.engine.commit.finish({syncable: sync(syncable)})
            server.engine.flush()
        machine.disk.cut_power()
        machine.start()
        assert "error" not in machine.consumer("new", deliver_policy="new")
        machine.server.store("s.a", b"next")
        assert machine.pull("new")[-1:] == [b"next"], seed


@pytest.mark.parametrize("restarts", [False, True])
def test_a_purge_beyond_the_end_that_is_taken_back_leaves_consumers_where_they_were(machine, restarts):
    machine.consumer("all")
    assert machine.pull("all") == [b"0", b"1", b"2"]
    machine.refuse_log()
    assert "error" in machine.server.api("STREAM.PURGE.S", {"seq": 20})
    machine.heal()
    sequence = machine.server.store("s.a", b"next")["seq"]
    if sequence < 20 and restarts:
        machine.restart()
    assert machine.pull("all")[-1:] == [b"next"]


def test_what_is_not_written_yet_is_not_shown_when_the_trouble_is_over(machine):
    server = machine.server
    machine.consumer("all")
    machine.pull("all")
    machine.refuse_log()
    assert "error" in server.store("s.a", b"refused")
    machine.disk.fault = None
    server.clock.advance(1)
    server.engine.run_timers()  # The disk is tried again, and a sync decides.
    server.publish("s.a", b"appended")
    server.engine.store_received()
    machine.refuse_log()
    for syncable in server.engine.commit.begin():
        server.engine.commit.finish({syncable: sync(syncable)})
    assert machine.stream.visible_sequence == 3
    server.turn()
    assert machine.stream.visible_sequence == machine.stream.store.last_sequence == 3
    machine.heal()
    assert server.store("s.a", b"next")["seq"] == 4
    assert machine.pull("all") == [b"next"]


def test_no_get_shows_what_is_taken_back(make_harness):
    machine = Machine(make_harness)
    server = machine.server
    server.create(allow_direct=True)
    server.store("s.a", b"kept")
    machine.refuse_log()
    server.publish("s.a", b"taken back")
    gets = {
        "STREAM.MSG.GET.S": b'{"last_by_subj":"s.a"}',
        "DIRECT.GET.S.s.a": b"",
        "DIRECT.GET.S": b'{"multi_last":["s.>"]}',
        "DIRECT.GET.S ": b'{"seq":1,"batch":5}',
    }
    server.client.take()
    for number, (verb, body) in enumerate(gets.items()):
        server.publish(f"$JS.API.{verb.strip()}", body, reply=b"_INBOX.get.%d" % number)
    server.turn()
    frames = server.client.take()
    shown = {(frame.subject[-1:], frame.payload) for frame in frames if frame.payload}
    refusal = next(payload for number, payload in shown if number == b"0")
    assert json.loads(refusal)["error"]["err_code"] == 10077
    assert shown - {(b"0", refusal)} == {(number, b"kept") for number in (b"1", b"2", b"3")}
    assert json.loads(server.request("$JS.API.STREAM.MSG.GET.S", b'{"seq":1}')[0].payload)["message"]["seq"] == 1


def test_what_was_acknowledged_without_waiting_for_the_disk_is_not_shown_when_it_is_taken_back(machine):
    server = machine.server
    server.create("T", subjects=["t"], persist_mode="async")
    stream = server.jetstream.streams["T"]
    machine.refuse_log()
    server.store("t", b"gone", {"Nats-Msg-Id": "1"})
    assert stream.visible_sequence == stream.store.last_sequence == 0
    machine.heal()
    assert "duplicate" not in server.store("t", b"again", {"Nats-Msg-Id": "1"})


def test_a_batch_whose_ids_are_kept_is_not_acknowledged_when_its_messages_are_taken_back(machine):
    server = machine.server
    server.create("I", subjects=["i.>"], retention="interest")
    body = {"stream_name": "I", "config": {"durable_name": "a", "ack_policy": "explicit", "filter_subject": "i.a"}}
    server.api("CONSUMER.CREATE.I.a", body)
    machine.refuse_log()
    server.client.take()
    server.publish("i.b", b"unwanted", {"Nats-Msg-Id": "1"}, reply=b"_INBOX.1")
    server.publish("i.a", b"wanted", {"Nats-Msg-Id": "2"}, reply=b"_INBOX.2")
    server.turn()
    answers = [json.loads(frame.payload) for frame in server.client.take()]
    assert ["error" in answer for answer in answers] == [True, True], answers
    machine.heal()
    assert server.store("i.a", b"other")["seq"] == 1
    assert "duplicate" not in server.store("i.a", b"wanted", {"Nats-Msg-Id": "2"})


def refuse_syncs(machine):
    def fault(operation, path):
        if operation == "sync" and path.suffix == ".seg":
            raise OSError(errno.EIO, "as asked", str(path))

    machine.disk.fault = fault


def commit_batch(server, count=3):
    """Publish an atomic batch, and return what is answered to its end."""
    for place in range(1, count + 1):
        headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(place)}
        if place < count:
            server.publish("s.batch", b"member", headers)
    return server.store("s.batch", b"member", {**headers, "Nats-Batch-Commit": "1"})


def test_a_message_that_was_appended_when_a_sync_failed_is_refused_and_never_stored(machine, monkeypatch):
    server, store = machine.server, machine.stream.store
    refuse_syncs(machine)

    def append_beside_failing_sync(messages, time_ns, append=store.append_run):
        first = append(messages, time_ns)
        assert sync(store) is not None  # as the thread that syncs would, at this very moment
        return first

    monkeypatch.setattr(store, "append_run", append_beside_failing_sync)
    store._log.durability.wrote([store._index.active], 3)  # something to sync
    assert "error" in server.store("s.a", b"refused")
    monkeypatch.undo()
    machine.heal()
    assert server.store("s.a", b"stored")["seq"] == 4
    machine.consumer("c")
    assert machine.pull("c") == [b"0", b"1", b"2", b"stored"]


def test_a_batch_that_a_failing_disk_refuses_has_no_part_in_later_messages(make_harness):
    machine = Machine(make_harness)
    server = machine.server
    server.create(allow_atomic=True)
    refuse_syncs(machine)
    assert "error" in server.store("s.a", b"refused")
    assert "error" in commit_batch(server)
    machine.heal()
    assert server.store("s.a", b"stored", {"Nats-Expected-Stream": "S"})["seq"]
    # A power cut that takes the mark along, and nothing else.
    machine.disk.kill()
    machine.disk.remove(next(path for path in machine.disk.files() if path.name == "mark"))
    machine.start()
    machine.consumer("c")
    assert machine.pull("c")[-1] == b"stored"


def test_nothing_is_left_of_a_batch_in_whose_middle_the_store_failed(make_harness, monkeypatch):
    machine = Machine(make_harness)
    server = machine.server
    server.create(allow_atomic=True)
    store = machine.stream.store
    appended = []

    def append(*message, append=store.append):
        if len(appended) == 2:
            raise StoreError("read", "as asked")
        appended.append(append(*message))
        return appended[-1]

    monkeypatch.setattr(store, "append", append)
    assert "error" in commit_batch(server)
    monkeypatch.undo()
    machine.heal()
    assert server.store("s.a", b"stored")["seq"] == 1
    machine.restart()
    assert machine.stream.store.messages == 1


@pytest.mark.parametrize(
    ("place", "header"),
    [("append_run", {}), ("append", {"Nats-Expected-Stream": "S"}), ("write", {}), ("sync", {})],
)
def test_a_duplicate_of_a_stored_message_is_not_refused_with_others(machine, monkeypatch, place, header):
    server = machine.server
    original = server.store("s.a", b"stored", {"Nats-Msg-Id": "stored"})
    if place == "write":
        machine.refuse_log()
    elif place == "sync":
        refuse_syncs(machine)
    else:

        def refuse(*_):
            raise StoreError("write", "as asked")

        monkeypatch.setattr(machine.stream.store, place, refuse)
    server.client.take()
    for number, (name, more) in enumerate((("new", header), ("stored", {}), ("new", {}))):
        server.publish("s.a", b"x", {"Nats-Msg-Id": name, **more}, reply=b"_INBOX.%d" % number)
    server.turn()
    answers = {frame.subject: json.loads(frame.payload) for frame in server.client.take()}
    assert ["error" in answers[b"_INBOX.%d" % number] for number in range(3)] == [True, False, True], answers
    assert answers[b"_INBOX.1"] == {**original, "duplicate": True}
