"""What a consumer remembers: across clean stops, kills and power cuts, on a disk in memory."""

import json
from pathlib import Path
from random import Random

import pytest

from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

SECOND = 1_000_000_000


class Machine:
    """A disk, and the server that runs on it; whoever restarts goes on with the same time."""

    def __init__(self, make_harness, make_worker, **options):
        self.disk = FaultyDisk(Random(3))
        self.set_back_s = 0  # at the next start
        self._make_harness = make_harness
        self._make_worker = make_worker
        self._options = options
        self.harness = self._start()

    def _start(self):
        storage = FolderStorage(StoreFolder(self.disk, Path("/data")), self.report)
        return self._make_harness(storage, **self._options)

    def report(self, line):
        raise AssertionError(line)

    def worker(self, name="c", **config):
        return self._make_worker(name, on=self.harness, **config)

    def _again(self, worker, now_ns):
        self.harness = self._start()
        self.harness.clock.advance((now_ns - self.harness.clock.now_ns()) / SECOND - self.set_back_s)
        worker.harness = self.harness
        return worker

    def stop(self, worker):
        now_ns = self.harness.clock.now_ns()
        self.harness.engine.close()
        return self._again(worker, now_ns)

    def kill(self, worker):
        self.disk.kill()
        return self._again(worker, self.harness.clock.now_ns())

    def cut_power(self, worker):
        self.disk.cut_power()
        return self._again(worker, self.harness.clock.now_ns())


@pytest.fixture
def machine(make_harness, make_worker):
    return Machine(make_harness, make_worker)


@pytest.fixture(params=["stop", "kill", "cut_power"])
def restart(request, machine):
    """A function that restarts the machine in one of three ways and gives back the worker."""
    return getattr(machine, request.param)


def test_positions_counts_and_floors_come_back(machine, restart):
    worker = machine.worker(messages=6)
    frames = worker.pull(b"4")
    worker.double_ack(frames[0])
    worker.answer(frames[2], b"-NAK")
    worker.pull(b"1")
    worker.double_ack(frames[3])
    before = worker.numbers()
    assert before == ((5, 4), (1, 1), 2, 2, 1, 0)
    worker = restart(worker)
    assert worker.numbers() == before
    machine.harness.advance(31)
    assert [worker.of(frame)[:3] for frame in worker.pull(b"9")] == [(2, 2, 6), (3, 3, 7), (1, 5, 8), (1, 6, 9)]


def test_a_confirmed_ack_is_never_pending_again(machine, restart):
    worker = machine.worker(messages=30)
    confirmed = []
    for frame in worker.pull(b"20"):
        (answer,) = worker.double_ack(frame)
        assert answer.subject == b"_INBOX.acked"
        confirmed.append(worker.of(frame)[1])
    worker = restart(worker)
    machine.harness.advance(60)
    assert set(worker.sequences(worker.pull(b"99"))).isdisjoint(confirmed)


def test_a_confirmation_waits_for_the_disk(machine):
    worker = machine.worker(messages=1)
    (frame,) = worker.pull()
    harness = machine.harness
    harness.publish(frame.reply, reply=b"_INBOX.acked")
    harness.engine.flush()
    assert worker.taken() == []
    harness.turn()
    assert len(worker.taken()) == 1


def test_no_confirmation_when_the_disk_fails(machine):
    worker = machine.worker(messages=2)
    first, second = worker.pull(b"2")

    def fail(operation, path):
        if operation == "sync" and path.suffix == ".journal":
            raise OSError(5, "Input/output error")

    machine.disk.fault = fail
    (refused,) = worker.double_ack(first)
    assert refused.header == b"NATS/1.0 503 cannot make the consumer's journal safe: input/output error\r\n\r\n"
    machine.disk.fault = None
    # What was not confirmed may have been lost, and nothing is promised until another sync has come through.
    (refused,) = worker.double_ack(second)
    assert refused.header.startswith(b"NATS/1.0 503 ")
    machine.harness.advance(1)
    (confirmed,) = worker.double_ack(second)
    assert (confirmed.header, confirmed.payload) == (b"", b"")
    worker = machine.kill(worker)
    assert worker.numbers() == ((2, 2), (2, 2), 0, 0, 0, 0)


def test_plain_acks_reach_the_journal_within_a_tenth_of_a_second(machine):
    worker = machine.worker(messages=2)
    first, second = worker.pull(b"2")
    worker.answer(first)
    machine.harness.advance(0.1)
    worker.answer(second)
    worker = machine.kill(worker)
    assert worker.numbers() == ((2, 2), (1, 1), 0, 1, 0, 0)


def test_deliveries_are_written_before_they_leave(machine):
    worker = machine.worker(messages=3)
    worker.pull(b"2")
    worker = machine.kill(worker)
    assert worker.numbers() == ((2, 2), (0, 0), 1, 2, 0, 0)


@pytest.mark.parametrize("policy", ["none", "all"])
def test_other_ack_policies_come_back_too(machine, restart, policy):
    worker = machine.worker(messages=5, ack_policy=policy)
    frames = worker.pull(b"3")
    if policy == "all":
        worker.double_ack(frames[1])
    machine.harness.advance(0.2)
    before = worker.numbers()
    worker = restart(worker)
    if policy == "none" and worker.numbers() != before:
        # Nothing was confirmed, so that a power cut may have taken the position back; never forward.
        assert worker.numbers()[0][1] < 3
    else:
        assert worker.numbers() == before


def test_progress_and_delays_are_remembered(machine, restart):
    worker = machine.worker(messages=3)
    working, delayed, refused = worker.pull(b"3")
    machine.harness.advance(20)
    worker.double_ack(working, b"+WPI")
    worker.double_ack(delayed, b"-NAK 60s")
    worker.double_ack(refused, b"-NAK")
    worker = restart(worker)
    worker.ask({"batch": 9, "expires": 300 * SECOND})
    machine.harness.advance(0.1)
    (frame,) = worker.taken()
    assert worker.of(frame)[:2] == (2, 3)
    worker.answer(frame)
    machine.harness.advance(29.8)
    assert worker.taken() == []
    machine.harness.advance(0.2)
    (frame,) = worker.taken()
    assert worker.of(frame)[:2] == (2, 1)
    worker.answer(frame)
    machine.harness.advance(29.8)
    assert worker.taken() == []
    machine.harness.advance(0.2)
    assert [worker.of(frame)[:2] for frame in worker.taken()] == [(2, 2)]


def test_a_clock_that_is_set_back_makes_no_ack_wait_longer(machine, restart):
    """The messages were stored long before their delivery, which alone tells how late it was."""
    worker = machine.worker(messages=3)
    machine.harness.advance(3600)
    _, delayed, _ = worker.pull(b"3")
    worker.double_ack(delayed, b"-NAK 60s")
    machine.set_back_s = 3600
    worker = restart(worker)
    worker.ask({"batch": 9, "expires": 300 * SECOND})
    machine.harness.advance(29.8)
    assert worker.taken() == []
    machine.harness.advance(0.3)
    redelivered = worker.taken()
    assert [worker.of(frame)[:2] for frame in redelivered] == [(2, 1), (2, 3)]
    for frame in redelivered:
        worker.answer(frame)
    machine.harness.advance(29.7)
    assert worker.taken() == []
    machine.harness.advance(0.3)
    assert [worker.of(frame)[:2] for frame in worker.taken()] == [(2, 2)]


def test_exhausted_messages_stay_exhausted(machine, restart):
    worker = machine.worker(messages=2, max_deliver=1)
    frames = worker.pull(b"2")
    machine.harness.advance(31)
    worker.double_ack(frames[1])
    worker = restart(worker)
    machine.harness.advance(31)
    assert worker.statuses(worker.pull({"batch": 9, "no_wait": True})) == ["404 No Messages"]
    assert worker.numbers()[3] == 0


def test_a_start_in_the_future_and_a_start_at_the_end_are_kept(machine, restart):
    machine.worker("first", messages=3)
    new = machine.worker("new", deliver_policy="new")
    future = machine.worker("future", deliver_policy="by_start_sequence", opt_start_seq=5)
    new = restart(new)
    future.harness = new.harness
    for _ in range(3):
        new.harness.store("s.x")
    assert new.sequences(new.pull(b"9")) == [4, 5, 6]
    assert future.sequences(future.pull(b"9")) == [5, 6]


def test_last_per_subject_goes_on_with_what_it_chose(machine, restart):
    harness = machine.harness
    harness.create()
    for subject in ("s.a", "s.b", "s.c", "s.a", "s.b", "s.c"):
        harness.store(subject)
    worker = machine.worker(deliver_policy="last_per_subject", filter_subject="s.>")
    harness.store("s.a")
    (frame,) = worker.pull()
    worker.double_ack(frame)
    worker = restart(worker)
    assert worker.numbers()[2] == 3
    assert worker.sequences(worker.pull(b"9")) == [5, 6, 7]


def test_reset_and_purge_come_back(machine, restart):
    worker = machine.worker(messages=6)
    worker.pull(b"6")
    machine.harness.api("CONSUMER.RESET.S.c", {"seq": 3})
    worker.pull(b"2")
    machine.harness.api("STREAM.PURGE.S", {"seq": 4})
    worker = restart(worker)
    assert worker.numbers() == ((2, 4), (1, 3), 2, 1, 0, 0)


def test_updates_and_pauses_come_back(machine, restart):
    worker = machine.worker(messages=1)
    config = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 9}
    machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    machine.harness.api("CONSUMER.PAUSE.S.c", {"pause_until": "2099-01-01T00:00:00Z"})
    worker = restart(worker)
    info = worker.info()
    assert (info["config"]["max_deliver"], info["paused"]) == (9, True)
    assert worker.pull() == []


def test_which_consumers_come_back(machine, restart):
    durable = machine.worker("durable")
    machine.worker("ephemeral", durable_name="")
    machine.worker("memory", mem_storage=True)
    machine.worker("gone")
    machine.harness.api("CONSUMER.DELETE.S.gone")
    durable = restart(durable)
    assert durable.harness.api("CONSUMER.NAMES.S")["consumers"] == ["durable", "ephemeral"]


def test_an_ephemeral_that_nobody_comes_back_to_goes(machine):
    worker = machine.worker(durable_name="")
    worker = machine.kill(worker)
    machine.harness.advance(7)
    assert not worker.is_there
    assert not [path for path in machine.disk.files() if "consumers" in path.parts]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_acknowledged_messages_of_a_work_queue_do_not_come_back(machine, restart, retention):
    machine.harness.create(retention=retention)
    worker = machine.worker()
    for _ in range(4):
        machine.harness.store("s.x")
    first, second, *_ = worker.pull(b"4")
    worker.double_ack(second)
    worker = restart(worker)
    state = machine.harness.state()
    assert (state["messages"], state["first_seq"], state["num_deleted"]) == (3, 1, 1)
    worker.double_ack(first)
    assert machine.harness.state()["first_seq"] == 3


def stored(machine):
    """The sequences of the messages that the stream holds."""
    store = machine.harness.jetstream.streams["S"].store
    return [sequence for sequence in range(1, store.last_sequence + 1) if store.has(sequence)]


def test_a_work_queue_keeps_what_a_reset_passed(machine, restart):
    machine.harness.create(retention="workqueue")
    worker = machine.worker()
    for _ in range(8):
        machine.harness.store("s.x")
    worker.double_ack(worker.pull(b"3")[1])
    machine.harness.api("CONSUMER.RESET.S.c", {"seq": 6})
    worker.double_ack(*worker.pull(b"1"))
    worker = restart(worker)
    assert stored(machine) == [1, 3, 4, 5, 7, 8]
    machine.harness.api("CONSUMER.RESET.S.c", {"seq": 4})
    assert worker.sequences(worker.pull(b"9")) == [4, 5, 7, 8]
    worker = restart(worker)
    assert stored(machine) == [1, 3, 4, 5, 7, 8]


def test_a_work_queue_keeps_what_was_passed_under_other_filters(machine, restart):
    machine.harness.create(retention="workqueue")
    worker = machine.worker(filter_subject="s.a")
    for token in "abababab":
        machine.harness.store(f"s.{token}")
    first, second, third = worker.pull(b"3")
    worker.double_ack(second)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.*"}
    machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    worker.double_ack(third)
    worker.double_ack(worker.pull(b"2")[1])
    worker = restart(worker)
    assert stored(machine) == [1, 2, 4, 6, 8]
    worker.double_ack(first)
    worker = restart(worker)
    assert 1 not in stored(machine)


def test_a_message_of_other_filters_that_goes_after_a_restart_is_pending_no_more(machine, restart):
    worker = machine.worker(filter_subject="s.a")
    for token in "aab":
        machine.harness.store(f"s.{token}")
    first, _ = worker.pull(b"2")
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.b"}
    machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    worker = restart(worker)
    machine.harness.api("STREAM.MSG.DELETE.S", {"seq": 2})
    assert worker.numbers() == ((2, 2), (0, 0), 1, 1, 0, 0)
    worker.double_ack(first)
    assert worker.numbers() == ((2, 2), (2, 2), 1, 0, 0, 0)


@pytest.fixture
def passed(machine):
    """A worker of a work queue whose consumer has passed 2 and 3 without delivering them, and has 5 pending."""
    machine.harness.create(retention="workqueue")
    worker = machine.worker(filter_subject="s.a")
    for subject in ("s.a", "s.b", "s.b", "s.a", "s.a"):
        machine.harness.store(subject)
    worker.double_ack(worker.pull()[0])
    worker.answer(worker.pull()[0])
    (worker.pending,) = worker.pull()
    return worker


def change_filter(worker):
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.>"}
    worker.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})


def reset(worker):
    worker.harness.api("CONSUMER.RESET.S.c", {"seq": 6})


def left(machine):
    """What the stream still holds, and what a new consumer in place of the other gets of it."""
    machine.harness.api("CONSUMER.DELETE.S.c")
    again = machine.worker("again")
    return machine.harness.state()["messages"], again.sequences(again.pull(b"9"))


@pytest.mark.parametrize("change", [change_filter, reset])
def test_a_work_queue_keeps_what_its_consumer_has_passed_and_never_delivered(machine, passed, restart, change):
    change(passed)
    restart(passed)
    assert left(machine) == (3, [2, 3, 5])


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_was_acknowledged_before_a_reset_does_not_come_back(machine, restart, retention):
    machine.harness.create(retention=retention)
    worker = machine.worker()
    machine.harness.store("s.x")
    worker.double_ack(worker.pull()[0])
    machine.harness.api("CONSUMER.RESET.S.c", {"seq": 1})
    worker = restart(worker)
    assert worker.sequences(worker.pull()) == []


def test_an_ack_after_a_change_of_filters_removes_its_message_for_good(machine, passed, restart):
    change_filter(passed)
    assert len(passed.double_ack(passed.pending)) == 1
    restart(passed)
    assert left(machine) == (2, [2, 3])


def test_acks_are_taken_while_the_disk_does_not_tell_who_needs_the_messages(machine):
    machine.harness.create(retention="interest")
    worker = machine.worker(filter_subject="s.*")
    machine.worker("other", filter_subject="s.y")
    for token in "xxy":
        machine.harness.store(f"s.{token}")
    frames = worker.pull(b"3")
    worker = machine.kill(worker)
    harness, reports = machine.harness, []
    harness.engine.report = reports.append

    def fail(operation, path):
        if operation == "read":
            raise OSError(5, "Input/output error")

    machine.disk.fault = fail
    assert [answer.header for answer in worker.double_ack(frames[0])] == [b""]
    worker.answer_run(frames[1:])
    for _ in range(3):
        harness.advance(6)
    assert worker.numbers()[3] == 0 and stored(machine) == [1, 2, 3]
    assert len(reports) == 1 and "removing what no consumer of stream S needs" in reports[0]
    machine.disk.fault = None
    harness.advance(6)
    assert stored(machine) == [3]


def test_what_a_deleted_consumer_was_done_with_does_not_come_back(machine):
    machine.harness.create(retention="workqueue")
    worker = machine.worker()
    for _ in range(3):
        machine.harness.store("s.x")
    worker.double_ack(worker.pull(b"3")[1])
    machine.harness.api("CONSUMER.DELETE.S.c")
    machine.disk.cut_power()
    machine.harness = machine._start()
    again = machine.worker("again")
    assert again.sequences(again.pull(b"9")) == [1, 3]


def test_many_consumers_use_few_handles(machine):
    workers = [machine.worker(f"c{number}", messages=1 if not number else 0) for number in range(50)]
    for worker in workers:
        worker.double_ack(*worker.pull())
    assert machine.disk.open_handles() < 10


def test_a_disk_that_refuses_keeps_the_consumer_from_being_made(machine):
    machine.harness.create()

    def fail(operation, path):
        if "consumers" in path.parts:
            raise OSError(28, "No space left on device")

    machine.disk.fault = fail
    config = {"durable_name": "c", "ack_policy": "explicit"}
    answer = machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert answer["error"]["code"] >= 400
    machine.disk.fault = None
    assert machine.harness.api("CONSUMER.NAMES.S")["consumers"] == []
    assert "error" not in machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})


def test_a_consumer_that_can_neither_be_made_nor_removed_goes_later(machine):
    machine.harness.create()
    machine.harness.store("s.x")

    def fail(operation, path):
        if operation in ("sync_folder", "replace") and "c" in path.parts:
            raise OSError(5, "Input/output error")

    machine.disk.fault = fail
    config = {"durable_name": "c", "ack_policy": "explicit"}
    assert machine.harness.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})["error"]["code"] >= 400
    machine.disk.fault = None
    machine.harness.advance(1.5)
    assert machine.harness.api("CONSUMER.NAMES.S")["consumers"] == []
    assert not machine.harness.engine.commit.failures
    worker = machine.worker()
    (frame,) = worker.pull()
    assert [answer.header for answer in worker.double_ack(frame)] == [b""]


def test_a_journal_that_grew_begins_anew(machine):
    worker = machine.worker(messages=1, max_ack_pending=-1)
    harness = machine.harness
    for _ in range(40):
        for _ in range(500):
            harness.publish("s.x")
        harness.turn()
        for frame in worker.pull(b"500"):
            harness.publish(frame.reply)
        harness.turn()
        harness.advance(0.1)
    journals = [path for path in machine.disk.files() if path.suffix == ".journal"]
    assert len(journals) == 1
    assert len(machine.disk.content(journals[0])) < 600_000
    before = worker.numbers()
    assert machine.kill(worker).numbers() == before


def test_damage_in_the_journal_costs_redeliveries_and_no_messages(machine):
    worker = machine.worker(messages=40)
    for _ in range(8):
        for frame in worker.pull(b"4")[:3]:
            worker.double_ack(frame)
    (journal,) = [path for path in machine.disk.files() if path.suffix == ".journal"]
    size = len(machine.disk.content(journal))
    pending = set(worker.consumer.ack_tracker.pending)
    machine.disk.flip(journal, size // 2)
    worker = machine.kill(worker)
    machine.harness.advance(31)
    seen = set(worker.sequences(worker.pull(b"99")))
    assert pending <= seen
    assert set(range(33, 41)) <= seen
    assert json.dumps(worker.info())


def test_a_consumer_that_cannot_be_removed_stays(machine):
    worker = machine.worker(messages=1)

    def fail(operation, path):
        if operation == "replace" and "consumers" in path.parts:
            raise OSError(5, "Input/output error")

    machine.disk.fault = fail
    assert machine.harness.api("CONSUMER.DELETE.S.c")["error"]["code"] >= 400
    machine.disk.fault = None
    assert worker.sequences(worker.pull()) == [1]
    assert machine.harness.api("CONSUMER.DELETE.S.c")["success"]


def refuse_records(operation, path):
    if operation == "write" and path.name.startswith("meta"):
        raise OSError(28, "No space left on device")


def test_a_change_that_the_disk_refuses_changes_nothing(machine, restart):
    worker = machine.worker(messages=6, max_deliver=3)
    first, second, *_ = worker.pull(b"4")
    worker.double_ack(second)
    before = worker.numbers(), worker.info()["config"]
    config = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 9, "filter_subject": "s.5"}
    machine.disk.fault = refuse_records
    for verb, body in [
        ("CONSUMER.RESET.S.c", {"seq": 4}),
        ("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config}),
        ("CONSUMER.PAUSE.S.c", {"pause_until": "2099-01-01T00:00:00Z"}),
    ]:
        assert "no space left" in machine.harness.api(verb, body)["error"]["description"]
        assert (worker.numbers(), worker.info()["config"]) == before
    machine.disk.fault = None
    worker.double_ack(first)
    assert worker.sequences(worker.pull(b"1")) == [5]
    numbers = worker.numbers()
    worker = restart(worker)
    assert (worker.numbers(), worker.info()["config"]) == (numbers, before[1])


def test_a_pin_that_the_disk_refuses_keeps_nobody_waiting(machine, restart):
    worker = machine.worker(messages=3, priority_policy="pinned_client", priority_groups=["jobs"])
    machine.disk.fault = refuse_records
    (frame,) = worker.pull({"batch": 1, "group": "jobs"})
    (state,) = worker.info()["priority_groups"]
    assert state["pinned_client_id"].encode() in frame.header
    machine.disk.fault = None
    machine.harness.advance(1)
    assert restart(worker).info()["priority_groups"] == [state]


def test_a_forgotten_consumer_that_cannot_be_removed_is_tried_again(machine):
    worker = machine.worker(durable_name="")

    def fail(operation, path):
        if operation == "replace" and "consumers" in path.parts:
            raise OSError(5, "Input/output error")

    machine.disk.fault = fail
    machine.harness.advance(7)
    assert worker.is_there
    machine.disk.fault = None
    machine.harness.advance(7)
    assert not worker.is_there


def test_the_pin_comes_back(machine, restart):
    worker = machine.worker(messages=3, priority_policy="pinned_client", priority_groups=["jobs"])
    (frame,) = worker.pull({"batch": 1, "group": "jobs"})
    (state,) = worker.info()["priority_groups"]
    pin = state["pinned_client_id"].encode()
    assert b"Nats-Pin-Id: " + pin in frame.header
    worker = restart(worker)
    assert worker.info()["priority_groups"] == [state]
    assert worker.statuses(worker.pull({"batch": 1, "group": "jobs", "no_wait": True})) == ["404 No Messages"]
    (after,) = worker.pull({"batch": 1, "group": "jobs", "id": pin.decode()})
    assert (worker.of(after)[1], b"Nats-Pin-Id: " + pin in after.header) == (2, True)


def test_a_switch_after_a_restart_waits_for_the_messages_in_flight(machine, restart):
    worker = machine.worker(messages=3, priority_policy="pinned_client", priority_groups=["jobs"])
    first, delayed = worker.pull({"batch": 2, "group": "jobs"})
    worker.answer(delayed, b'-NAK {"delay": 3600000000000}')
    machine.harness.advance(1)
    worker = restart(worker)
    machine.harness.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    assert worker.pull({"batch": 1, "group": "jobs"}) == []
    worker.answer(first)
    assert worker.sequences(worker.taken()) == [3]
    assert worker.info()["priority_groups"][0]["pinned_client_id"]


def test_no_message_leaves_before_its_pin_is_on_disk(machine):
    worker = machine.worker(messages=1, priority_policy="pinned_client", priority_groups=["jobs"])
    worker.ask({"batch": 1, "group": "jobs"})
    machine.harness.engine.flush()
    assert worker.taken() == []
    machine.harness.turn()
    assert worker.sequences(worker.taken()) == [1]


def test_an_unpinned_group_stays_unpinned(machine, restart):
    worker = machine.worker(messages=2, priority_policy="pinned_client", priority_groups=["jobs"])
    worker.double_ack(*worker.pull({"batch": 1, "group": "jobs"}))
    machine.harness.api("CONSUMER.UNPIN.S.c", {"group": "jobs"})
    worker = restart(worker)
    assert "pinned_client_id" not in worker.info()["priority_groups"][0]
    assert worker.sequences(worker.pull({"batch": 1, "group": "jobs"})) == [2]
