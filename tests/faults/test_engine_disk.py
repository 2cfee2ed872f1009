"""The engine on a faulty disk: thousands of moments at which the power goes, and every way in which a disk refuses."""

import errno
import json
import os
from contextlib import suppress
from random import Random

import pytest

from jetlake.protocol.headers import encode_headers
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.store.steps import finish
from tests.faults.engine_world import SECOND_NS, Client, World, run_crashes, run_faults
from tests.support.faulty_disk import PowerCut

WORLDS = int(os.environ.get("JETLAKE_FAULT_WORLDS", "42"))
"""How many worlds of each kind; `JETLAKE_FAULT_WORLDS=5000` for an hour of it."""
BLOCKS = 6


def seeds(block):
    return range(block * WORLDS // BLOCKS, (block + 1) * WORLDS // BLOCKS)


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("run", [run_crashes, run_faults])
def test_what_was_promised_holds_after_every_bad_day(run, block):
    for seed in seeds(block):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"{run.__name__}({seed})")
            raise


def test_a_removed_file_that_comes_back_with_its_header_hides_no_message():
    run_faults(5628)


@pytest.fixture
def world():
    return World(1)


def publish(world, subject=b"s.1", payload=b"s.1 x"):
    """Publish and turn the cycle once; the list that will hold the answers."""
    answers = []
    world.send(subject, payload, answers.append)
    world.engine.flush()
    world.read()
    return answers


def says(answers):
    return [json.loads(answer.payload) for answer in answers]


def test_nothing_is_acknowledged_while_a_slow_sync_is_under_way(world):
    answers = publish(world)
    world.sync_step()  # begins
    for _ in range(5):
        late = publish(world, payload=b"s.1 late")
        world.clock.advance(60)
        world.engine.run_timers()
        world.read()
        assert answers == late == []
    world.settle()
    assert [answer["seq"] for answer in says(answers)] == [1]


def wait_for_retry(world):
    world.clock.advance(1)
    world.engine.run_timers()
    world.settle()


def test_a_failed_sync_is_the_end_of_promises_until_another_one_comes_through(world):
    world.disk.drops_failed_syncs = True
    first = publish(world)
    world.settle()
    assert says(first)[0]["seq"] == 1
    world.fail({"sync"}, errno.EIO, 1)
    unsure = publish(world, payload=b"s.1 unsure")
    world.settle()
    assert "error" in says(unsure)[0]
    refused = publish(world, payload=b"s.1 refused")
    world.settle()
    assert "error" in says(refused)[0]
    # What is there can still be read, and the stream goes on by itself.
    store = world.jetstream.streams["S"].store
    assert store.get(1).payload == b"s.1 x"
    wait_for_retry(world)
    again = publish(world, payload=b"s.1 again")
    world.settle()
    assert says(again)[0]["seq"] == store.last_sequence > 1
    world.crash(power=True)
    assert world.jetstream.streams["S"].store.get(store.last_sequence).payload == b"s.1 again"


TROUBLE = {
    "full disk": ({"write", "create"}, errno.ENOSPC),
    "no descriptors": ({"open", "sync_folder"}, errno.EMFILE),
    "failing writes": ({"write", "truncate"}, errno.EIO),
    "failing syncs": ({"sync"}, errno.EIO),
    "failing syncs of folders": ({"sync_folder"}, errno.EIO),
    "nothing works": ({"write", "sync", "sync_folder", "open", "truncate", "remove", "replace"}, errno.EIO),
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("sync_interval_ns", [0, 120_000_000_000])
def test_trouble_is_told_once_and_over_by_itself(trouble, sync_interval_ns):
    operations, number = TROUBLE[trouble]
    for seed in range(12):
        world = World(seed)
        world.options = EngineOptions(sync_interval_ns=sync_interval_ns)
        world.restart()
        world.disk.drops_failed_syncs = True
        reports = []
        world.engine.report = reports.append
        for _ in range(20):
            world.step()
        world.settle()
        world.fail(operations, number, 1_000_000)
        for _ in range(60):
            world.step()
        world.settle()
        refused = [report for report in reports if "retrying" in report]
        assert len(refused) == len(set(refused)), "each of them once"
        assert bool(refused) == bool(world.engine.disk_failures())
        world.heal()
        for _ in range(3):
            wait_for_retry(world)
        assert world.engine.disk_failures() == [], reports
        assert len(reports) == 2 * len(refused), reports
        for stream in world.streams:
            answers = publish(world, stream.prefix + b".1", stream.prefix + b".1 after all")
            world.settle()
            assert "seq" in says(answers)[0], answers
        world.crash(power=not sync_interval_ns)
        world.check()


def test_a_double_ack_that_the_disk_did_not_take_is_answered_with_an_error(world):
    publish(world)
    world.settle()
    world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":1,"no_wait":true}', lambda _: None)
    world.settle()
    ((_, subject),) = world.streams[0].consumers["all"].pending.items()
    world.fail({"write"}, errno.ENOSPC, 1000)
    answers = []
    world.send(subject, b"+ACK", answers.append)
    world.settle()
    assert answers[0].header.startswith(b"NATS/1.0 503 cannot write to the consumer's journal")
    world.heal()
    wait_for_retry(world)
    world.send(subject, b"+ACK", answers.append)
    world.settle()
    assert (answers[1].header, answers[1].payload) == (b"", b"")


@pytest.mark.parametrize("path", ["/S/msgs/", "/consumers/all/"])
def test_a_failed_sync_is_reported_once_and_names_its_owner(world, path):
    reports = []
    world.engine.report = reports.append

    def fault(operation, where):
        if operation == "sync" and path in str(where):
            raise OSError(errno.EIO, "as asked", str(where))

    world.disk.fault = fault
    for _ in range(3):
        publish(world)
        world.pull()
        world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":10,"no_wait":true}', lambda _: None)
        world.settle()
        world.clock.advance(1)
        world.engine.run_timers()
        world.settle()
    owner = "stream S of account $G" if path == "/S/msgs/" else "consumer all of stream S of account $G"
    assert len(reports) == 1
    assert reports[0].startswith(f"JetStream - cannot write {owner} to disk; retrying: cannot make")
    assert reports[0].endswith(": as asked")
    (told,) = world.engine.disk_failures()
    assert told.startswith(f"{owner}: ")


def test_a_journal_that_somebody_removed_is_told(world):
    publish(world)
    world.settle()
    world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":1,"no_wait":true}', lambda _: None)
    world.settle()
    world.disk.kill()
    (path,) = (path for path in world.disk.files() if "/consumers/all/" in str(path) and path.suffix == ".journal")
    world.disk.remove(path)
    world.start()
    assert finish(world.engine.store_faults()) == [
        "consumer all of stream S of account $G lost its journal and started again"
    ]
    world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":1,"no_wait":true}', lambda _: None)
    world.settle()
    assert list(world.streams[0].consumers["all"].pending) == [1], "messages come again"
    world.restart()
    assert finish(world.engine.store_faults()) == []


def test_a_disk_that_fails_at_the_start_is_reported(world):
    publish(world)
    world.disk.kill()
    world.fail({"sync"}, errno.EIO, 1000)
    reports = []
    storage = world.engine.storage
    world.engine = Engine(world.clock, EngineOptions(), storage)
    world.engine.report = reports.append
    world.engine.enable(Account("$G"))
    assert any(report.startswith("JetStream - cannot write stream S of account $G to disk") for report in reports)


def test_a_full_disk_refuses_and_recovers_when_there_is_room(world):
    world.disk.capacity = sum(len(world.disk.content(path)) for path in world.disk.files())
    refused = publish(world, payload=b"s.1 " + b"x" * 5000)
    world.settle()
    assert "error" in says(refused)[0]
    world.heal()
    taken = publish(world)
    world.settle()
    assert says(taken)[0]["seq"] == 1
    world.crash(power=True)
    assert world.jetstream.streams["S"].store.get(1).payload == b"s.1 x"


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize(
    ("verb", "body"), [("STREAM.MSG.DELETE.S", {"seq": 1, "no_erase": True}), ("STREAM.PURGE.S", {})]
)
def test_a_removal_that_the_disk_did_not_take_is_not_confirmed(world, operation, verb, body):
    publish(world)
    world.settle()
    world.fail({operation}, errno.EIO, 1000)
    answers = []
    world.send(f"$JS.API.{verb}".encode(), json.dumps(body).encode(), answers.append)
    world.settle()
    (answer,) = says(answers)
    assert answer["error"]["code"] == 503 or answer["error"]["err_code"] == 10077
    assert not answer.get("success")


def test_one_consumer_that_cannot_read_does_not_hold_up_the_others(world):
    for number in range(20):
        publish(world, b"s.1", b"s.1 %d " % number + b"." * 400)
        publish(world, b"w.1", b"w.1 %d " % number)
    world.settle()
    reports = []
    world.engine.report = reports.append

    def fault(operation, path):
        if operation == "read" and "/S/msgs/" in str(path):
            raise OSError(errno.EIO, "as asked", str(path))

    world.disk.fault = fault
    for consumer in (b"S.all", b"W.work"):
        world.send(b"$JS.API.CONSUMER.MSG.NEXT." + consumer, b'{"batch":100}', lambda _: None)
    world.settle()
    assert len(world.streams[1].consumers["work"].pending) == 20
    assert world.streams[0].consumers["all"].pending == {}
    assert len(reports) == 1
    assert "as asked" in reports[0]
    world.heal()
    world.clock.advance(1.1)
    world.engine.run_timers()
    world.settle()
    assert len(world.streams[0].consumers["all"].pending) == 20


@pytest.mark.parametrize("clean", [True, False])
def test_one_flipped_bit_costs_one_message_and_is_found_out(clean):
    for seed in range(40):
        random = Random(seed)
        world = World(seed)
        while world.streams[0].evicts:
            seed += 1000
            world = World(seed)
        sent = {}
        for number in range(25):
            payload = b"s.1 %d " % number + b"." * random.choice([0, 10, 100])
            answers = publish(world, b"s.1", payload)
            world.settle()
            sent[says(answers)[0]["seq"]] = payload
        if clean:
            world.engine.close()
        world.disk.kill()
        path = random.choice([path for path in world.disk.files() if "/S/" in str(path) and path.suffix == ".seg"])
        world.disk.flip(path, random.randrange(len(world.disk.content(path))), 1 << random.randrange(8))
        world.start()
        store = world.jetstream.streams["S"].store
        stored = {message.sequence: message.payload for message in store.read(1, None, 1000, 1 << 20).messages}
        missing = sent.keys() - stored.keys()
        assert len(missing) <= 1, (seed, path, missing)
        assert set(store.lost) == missing
        assert all(sent[sequence] == payload for sequence, payload in stored.items())
        assert store.last_sequence == 25


@pytest.mark.parametrize(
    ("body", "left"), [({}, set()), ({"filter": "e.1"}, set()), ({"keep": 1}, {10}), ({"seq": 9}, {9, 10})]
)
def test_what_made_room_is_not_back_when_the_power_goes_after_a_confirmed_purge(body, left):
    for seed in range(8):
        world = World(seed)
        world.ask("STREAM.CREATE.E", {"name": "E", "subjects": ["e.*"], "max_msgs": 5})
        for number in range(10):
            # The first five make room; their tombstones wait for a sync of those that came after them.
            world.send(b"e.1", b"%d" % number)
        if seed % 2:
            world.turn()
        answers = []
        world.send(b"$JS.API.STREAM.PURGE.E", json.dumps(body).encode(), answers.append)
        while not answers:
            world.turn()
            world.sync_step()
            world.read()
        world.crash(power=True)
        store = world.jetstream.streams["E"].store
        assert {sequence for sequence in range(1, 11) if store.has(sequence)} == left, f"seed {seed}"


@pytest.mark.parametrize(("rollup", "left"), [("sub", {2, 4, 6}), ("all", {6})])
@pytest.mark.parametrize("batched", [False, True])
def test_what_was_rolled_up_is_not_back_when_the_power_goes_after_the_acknowledgement(rollup, left, batched):
    for seed in range(8):
        world = World(seed)
        config = {"name": "E", "subjects": ["e.*"], "allow_rollup_hdrs": True, "allow_atomic": True}
        world.ask("STREAM.CREATE.E", config)
        for subject in (b"e.1", b"e.2", b"e.1", b"e.2", b"e.1"):
            world.send(subject, b"x")
        if seed % 2:
            world.settle()
        answers = []
        header = [("Nats-Rollup", rollup)]
        if batched:
            header += [("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", "1"), ("Nats-Batch-Commit", "1")]
        world.send(b"e.1", b"y", answers.append, encode_headers(header))
        while not answers:
            world.turn()
            world.sync_step()
            world.read()
        assert says(answers)[0]["seq"] == 6
        world.crash(power=True)
        store = world.jetstream.streams["E"].store
        assert {sequence for sequence in range(1, 7) if store.has(sequence)} == left, f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_a_reader_that_comes_before_a_roll_up_is_acknowledged_gets_it(seed):
    world, random = World(seed), Random(seed)
    world.ask("STREAM.CREATE.E", {"name": "E", "subjects": ["e.*"], "allow_rollup_hdrs": True})
    for _ in range(3):
        world.send(b"e.1", b"x")
    world.settle()
    world.send(b"e.1", b"rolled up", lambda _: None, encode_headers([("Nats-Rollup", "sub")]))
    created = []

    def step():
        world.turn() if random.random() < 0.4 else world.sync_step()
        world.read()

    for _ in range(random.randint(0, 14)):
        step()
    config = {"name": "r", "mem_storage": True, "ack_policy": "none", "inactive_threshold": SECOND_NS * 60}
    body = json.dumps({"stream_name": "E", "config": config}).encode()
    world.send(b"$JS.API.CONSUMER.CREATE.E.r", body, created.append)
    while not created:
        step()
    reader = Client()
    world.account.subscribe(b"reader", b"2", reader)
    request = json.dumps({"batch": 5, "expires": SECOND_NS * 60}).encode()
    world.account.publish(b"$JS.API.CONSUMER.MSG.NEXT.E.r", b"reader", b"", request, reader)
    world.settle()
    assert [message.payload for message in reader.messages] == [b"rolled up"]


@pytest.mark.parametrize("seed", range(60))
def test_roll_ups_amid_other_messages_are_acknowledged_in_order_and_for_good(seed):
    world, random = World(seed), Random(seed)
    world.ask("STREAM.CREATE.E", {"name": "E", "subjects": ["e.*"], "allow_rollup_hdrs": True})
    sent, answers, acknowledged = [], [], 0
    while acknowledged < 40:
        action = random.random()
        if action < 0.4 and len(sent) < 60:
            is_rollup = random.random() < 0.4
            header = encode_headers([("Nats-Rollup", "sub")]) if is_rollup else b""
            subject = b"e.%d" % random.randint(1, 3)
            sent.append((subject, is_rollup))
            world.send(subject, b"x", answers.append, header)
        elif action < 0.6:
            world.turn()
        else:
            world.sync_step()
        world.read()
        assert [answer["seq"] for answer in says(answers)] == list(range(1, len(answers) + 1))
        acknowledged = len(answers)
    world.crash(power=True)
    store = world.jetstream.streams["E"].store
    for sequence, (subject, _) in enumerate(sent[:acknowledged], 1):
        rolled_up = (subject, True) in sent[sequence:acknowledged]
        perhaps = (subject, True) in sent[acknowledged:]  # stored, and not acknowledged
        assert perhaps or store.has(sequence) is not rolled_up, f"{sequence} of {sent}"


@pytest.mark.parametrize(
    ("verb", "body"),
    [("STREAM.PURGE.S", {}), ("STREAM.PURGE.S", {"seq": 4}), ("STREAM.MSG.DELETE.S", {"seq": 2, "no_erase": True})],
)
@pytest.mark.parametrize("sync_interval_ns", [0, 120_000_000_000])
def test_what_a_removal_left_when_the_power_went_is_delivered(verb, body, sync_interval_ns):
    for cut in range(1, 40):
        world = World(1)
        world.options = EngineOptions(sync_interval_ns=sync_interval_ns)
        world.restart()
        for number in range(6):
            publish(world, payload=b"s.1 %d" % number)
        world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":4,"no_wait":true}', lambda _: None)
        world.settle()
        world.restart()  # everything so far is on the disk, whatever the policy
        world.disk.cut_at = world.disk.operations + cut
        with suppress(PowerCut):
            world.send(f"$JS.API.{verb}".encode(), json.dumps(body).encode())
            # Consumers go on behind the removal at once.
            world.send(b"$JS.API.CONSUMER.MSG.NEXT.S.all", b'{"batch":4,"no_wait":true}', lambda _: None)
            world.settle()
            publish(world, payload=b"s.1 more")
            world.settle()
            world.clock.advance(1)
            world.engine.run_timers()
            world.settle()
        world.crash(power=True)
        world.check()


def refuse_reads(disk):
    def fault(operation, path):
        if operation == "read" and path.suffix in (".seg", ".idx"):
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault


def fill_spilled(world, pause_s=0.0, **config):
    """Create stream L with 180 messages on 90 subjects in spilled segments; returns its store."""
    world.ask("STREAM.CREATE.L", {"name": "L", "subjects": ["l.>"], **config})
    for number in range(180):
        publish(world, b"l.%d" % (number % 90), b"x" * 70)
        world.clock.advance(pause_s)
    world.settle()
    store = world.jetstream.streams["L"].store
    while store.compact_step():
        pass
    return store


@pytest.mark.parametrize(("limit", "first"), [({"max_bytes": 18_735}, 2), ({"max_age": 10**10}, 181)])
def test_a_message_that_is_stored_is_acknowledged_though_the_limits_can_not_be_told(world, limit, first):
    store = fill_spilled(world, pause_s=0.01, **limit)
    store._spiller._cache.bytes_max = 0
    refuse_reads(world.disk)
    world.clock.advance(9)
    answers = []
    header = encode_headers([("Nats-Msg-Id", "once")])
    for _ in range(3):
        world.send(b"l.0", b"y" * 70, answers.append, header)
        world.settle()
    assert [(answer["seq"], "duplicate" in answer) for answer in says(answers)] == [
        (181, False),
        (181, True),
        (181, True),
    ]
    world.disk.fault = None
    wait_for_retry(world)
    assert world.ask("STREAM.INFO.L")["state"]["first_seq"] == first


def test_a_rollup_is_acknowledged_and_finished_later_though_the_disk_does_not_tell_what_it_removes(world):
    store = fill_spilled(world, allow_rollup_hdrs=True)
    store._spiller._cache.bytes_max = 0
    refuse_reads(world.disk)
    answers = []
    world.send(b"l.0", b"y", answers.append, encode_headers([("Nats-Rollup", "sub")]))
    world.settle()
    assert [answer.get("seq") for answer in says(answers)] == [181]
    world.disk.fault = None
    wait_for_retry(world)
    assert (store.count_on(b"l.0"), store.messages) == (1, 179)


def test_an_expectation_that_can_not_be_read_refuses_no_other_message(world):
    store = fill_spilled(world)
    world.ask("STREAM.MSG.DELETE.L", {"seq": 92})
    store._spiller._cache.bytes_max = 0
    refuse_reads(world.disk)
    answers = []
    world.send(b"l.5", b"y", answers.append)
    world.send(b"l.1", b"z", answers.append, encode_headers([("Nats-Expected-Last-Subject-Sequence", "2")]))
    world.settle()
    world.disk.fault = None
    assert [(answer["seq"], answer.get("error", {}).get("err_code")) for answer in says(answers)] == [
        (181, None),
        (0, 10077),
    ]
    assert world.ask("STREAM.INFO.L")["state"]["last_seq"] == 181
