"""Streams on a bad disk: refused with the reason, nothing acknowledged is lost, nothing is seen that could vanish."""

import errno
import json
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.server.config.options import STORED_PAYLOAD_MAX
from jetlake.server.engine.consumer.consumer import Consumer
from jetlake.server.engine.core.commit import sync
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.steps import finish
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk, PowerCut

ROOT = Path("/data")


class Machine:
    """A disk, and a server on it that can be stopped, killed, and cut off from its power."""

    def __init__(self, make_harness, seed=0, **options):
        self.disk = FaultyDisk(Random(seed))
        self.disk.make_folder(ROOT)
        self.reports = []
        self.notes = []
        self._make_harness = make_harness
        self._options = options
        self.start()

    def start(self):
        storage = FolderStorage(StoreFolder(self.disk, ROOT), self.reports.append, self.notes.append)
        self.server = self._make_harness(storage, **self._options)

    def restart(self):
        self.server.engine.close()
        now_ns = self.server.clock.now_ns()
        self.start()
        self.server.clock.advance((now_ns - self.server.clock.now_ns()) / 1e9)

    def kill(self):
        self.disk.kill()
        self.start()

    def cut_power(self):
        self.disk.cut_at = None
        self.disk.cut_power()
        self.start()


@pytest.fixture
def machine(make_harness):
    return Machine(make_harness)


def refusal(answer):
    return answer["error"]["code"], answer["error"]["err_code"]


def test_streams_come_back_after_a_clean_stop(machine):
    machine.server.create(max_msgs=5, description="kept")
    for number in range(8):
        machine.server.store("s.a", b"%d" % number, {"Nats-Msg-Id": str(number)})
    machine.server.create("M", subjects=["m"], storage="memory")
    before = machine.server.api("STREAM.INFO.S")
    machine.restart()
    after = machine.server.api("STREAM.INFO.S")
    for answer in (before, after):
        del answer["ts"]
    assert after == before
    assert list(machine.server.jetstream.streams) == ["S"], "what was in memory is gone"
    assert machine.server.store("s.a", b"", {"Nats-Msg-Id": "7"})["duplicate"] is True
    assert machine.server.store("s.a", b"", {"Nats-Msg-Id": "8"})["seq"] == 9
    assert machine.server.api("INFO")["storage"] == machine.server.state()["bytes"]


def test_an_update_and_a_deletion_outlive_a_kill(machine):
    machine.server.create(max_msgs=5)
    machine.server.create("T", subjects=["t"])
    machine.server.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 7})
    machine.server.api("STREAM.DELETE.T")
    machine.cut_power()
    assert machine.server.api("STREAM.INFO.S")["config"]["max_msgs"] == 7
    assert machine.server.api("STREAM.NAMES")["streams"] == ["S"]


def test_ids_are_known_again_after_a_kill(machine):
    machine.server.create()
    machine.server.store("s.a", b"", {"Nats-Msg-Id": "one"})
    machine.restart()
    machine.server.store("s.a", b"", {"Nats-Msg-Id": "two"})
    machine.kill()
    for name, sequence in (("one", 1), ("two", 2)):
        assert machine.server.store("s.a", b"", {"Nats-Msg-Id": name}) == {
            "stream": "S",
            "seq": sequence,
            "duplicate": True,
        }
    answer = machine.server.store("s.a", b"", {"Nats-Expected-Last-Msg-Id": "one"})
    assert answer["error"]["description"] == "wrong last msg ID: two"


def test_a_stream_without_ids_is_not_searched_for_them(machine, monkeypatch):
    machine.server.create()
    for _ in range(10):
        machine.server.store("s.a", b"", {"k": "v"})
    machine.kill()
    stream = machine.server.jetstream.streams["S"]
    assert stream.storage.load_ids() is None
    machine.server.store("s.a", b"", {"Nats-Msg-Id": "one"})
    assert stream.storage.load_ids() is not None


def test_damaged_ids_are_read_from_the_messages(machine):
    machine.server.create()
    machine.server.store("s.a", b"", {"Nats-Msg-Id": "one"})
    machine.server.engine.close()
    (path,) = [path for path in machine.disk.files() if path.name == "ids"]
    machine.disk.flip(path, 10)
    machine.start()
    assert machine.server.store("s.a", b"", {"Nats-Msg-Id": "one"})["duplicate"] is True


def test_a_full_disk_refuses_and_takes_again_when_there_is_room(machine):
    stream = machine.server.create()
    assert machine.server.store("s.a", b"kept")["seq"] == 1
    machine.disk.capacity = sum(len(machine.disk.content(path)) for path in machine.disk.files()) + 100
    answers = [machine.server.store("s.a", b"x" * 200) for _ in range(3)]
    assert {refusal(answer) for answer in answers} == {(503, 10077)}
    assert "no space left on device" in answers[0]["error"]["description"]
    assert machine.server.state()["messages"] == 1
    assert stream.store.get(1).payload == b"kept"
    assert machine.server.api("STREAM.CREATE.T", {"name": "T"})["error"]["err_code"] == 10077
    machine.disk.capacity = None
    assert machine.server.store("s.a", b"fits")["seq"] == 2
    machine.kill()
    assert [machine.server.jetstream.streams["S"].store.get(number).payload for number in (1, 2)] == [b"kept", b"fits"]


def test_a_full_disk_refuses_the_batch_but_not_the_one_before(machine):
    machine.server.create(max_msgs=3)
    for number in range(3):
        machine.server.publish("s.a", b"%d" % number, reply=b"_INBOX.a.%d" % number)
    machine.server.engine.flush()
    machine.disk.capacity = 0
    for number in range(3, 6):
        machine.server.publish("s.a", b"%d" % number, reply=b"_INBOX.a.%d" % number)
    machine.server.turn()
    answers = {frame.subject[-1:]: json.loads(frame.payload) for frame in machine.server.client.take()}
    assert [answers[b"%d" % number]["seq"] for number in range(6)] == [1, 2, 3, 0, 0, 0]
    assert machine.server.state()["messages"] == 3


def test_a_full_disk_is_read_while_removals_wait_for_it(machine):
    machine.server.create(max_msgs=3)
    for number in range(5):
        machine.server.publish("s.a", b"%d" % number)
        machine.server.engine.flush()
    machine.disk.capacity = machine.disk.used()
    machine.kill()
    assert "error" in machine.server.store("s.a")
    create = {"stream_name": "S", "config": {"name": "r", "ack_policy": "none", "inactive_threshold": 10**10}}
    assert refusal(machine.server.api("CONSUMER.CREATE.S.r", create)) == (503, 10077)
    create["config"]["mem_storage"] = True
    answer = machine.server.api("CONSUMER.CREATE.S.r", create)
    assert (answer["name"], answer["num_pending"], machine.server.state()["last_seq"]) == ("r", 3, 5)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_who_only_reads_needs_no_sync(machine, is_restarted):
    machine.server.create()
    assert [machine.server.store("s.a")["seq"] for _ in range(3)] == [1, 2, 3]

    def fault(operation, path):
        if operation in ("write", "sync"):
            raise OSError(errno.EROFS, "as asked", str(path))

    if is_restarted:
        machine.server.publish("s.a")
        machine.server.engine.flush()  # Written, and not synced by whoever is killed now.
        machine.disk.kill()
    machine.disk.fault = fault
    if is_restarted:
        machine.start()
    assert "error" in machine.server.store("s.a")
    config = {"name": "r", "ack_policy": "none", "mem_storage": True, "inactive_threshold": 10**10}
    answer = machine.server.api("CONSUMER.CREATE.S.r", {"stream_name": "S", "config": config})
    assert answer["name"] == "r", answer
    machine.server.publish("$JS.API.CONSUMER.MSG.NEXT.S.r", b'{"batch":3,"no_wait":true}', reply=b"_INBOX.a.1")
    machine.server.turn()
    delivered = [frame.reply.split(b".")[5] for frame in machine.server.client.take() if frame.reply]
    assert delivered == [b"1", b"2", b"3"]


def test_a_folder_that_vanished_is_not_made_again(machine):
    """As with a disk that is unmounted: what would be stored elsewhere is gone when the disk is back."""
    machine.server.create()
    machine.restart()
    away = ROOT / "away"
    machine.disk.replace(ROOT / "jetstream", away)
    answer = machine.server.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    assert refusal(answer) == (503, 10077) and "no such file" in answer["error"]["description"]
    assert not machine.disk.is_folder(ROOT / "jetstream")
    machine.disk.replace(away, ROOT / "jetstream")
    assert "error" not in machine.server.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})


@pytest.mark.parametrize("request_", [("STREAM.PURGE.S", b""), ("STREAM.MSG.DELETE.S", b'{"seq":1}')])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_removal_is_not_answered_with_the_refusal_of_messages_beside_it(machine, request_, is_first):
    machine.server.create()
    for _ in range(2):
        assert "error" not in machine.server.store("s.a")
    machine.disk.capacity = machine.disk.used() + 200

    def publish():
        machine.server.publish("s.a", b"x" * 1000, reply=b"_INBOX.a.message")

    if not is_first:
        publish()
    verb, body = request_
    machine.server.publish(f"$JS.API.{verb}", body, reply=b"_INBOX.a.removal")
    if is_first:
        publish()
    engine = machine.server.engine
    engine.flush()
    for _ in range(3):  # Nor with that of later ones: every flush is refused in part.
        for syncable in engine.commit.begin():
            engine.commit.finish({syncable: sync(syncable)})
        publish()
        engine.flush()
    answers = {frame.subject.split(b".")[2]: json.loads(frame.payload) for frame in machine.server.client.take()}
    assert refusal(answers[b"message"]) == (503, 10077)
    assert answers[b"removal"]["success"] is True, answers
    left = machine.server.state()["messages"]
    assert left < 2
    machine.cut_power()
    assert machine.server.state()["messages"] == left


def test_two_batches_of_one_turn_are_refused_together(machine):
    machine.server.create(max_msgs=3)
    machine.disk.capacity = 0
    machine.server.publish("s.a", b"one", reply=b"_INBOX.a.1")
    machine.server.engine.store_received()
    machine.server.publish("s.a", b"two", {"Nats-Expected-Last-Sequence": "1"}, reply=b"_INBOX.a.2")
    machine.server.turn()
    answers = [json.loads(frame.payload) for frame in machine.server.client.take()]
    assert [refusal(answer)[1] for answer in answers] == [10077, 10071]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failing_disk_refuses_and_stays_readable(machine, operation):
    stream = machine.server.create()
    assert machine.server.store("s.a", b"kept")["seq"] == 1

    def fail(name, path):
        if name == operation and path.suffix == ".seg":
            raise OSError(errno.EIO, "Input/output error")

    machine.disk.fault = fail
    answer = machine.server.store("s.a", b"lost")
    assert refusal(answer) == (503, 10077) and "input/output error" in answer["error"]["description"]
    assert stream.visible_sequence == 1
    machine.disk.fault = None
    answer = machine.server.store("s.a", b"after")
    if operation == "write":
        assert answer["seq"] == 2
    else:
        assert refusal(answer) == (503, 10077), "nobody knows what the disk has: not before a restart"
    assert machine.server.api("STREAM.MSG.GET.S", {"seq": 1})["message"]["data"] == "a2VwdA=="
    machine.kill()
    assert machine.server.store("s.a", b"again")["seq"] >= 2
    assert machine.server.api("STREAM.MSG.GET.S", {"seq": 1})["message"]["data"] == "a2VwdA=="


def test_a_failed_sync_of_one_stream_leaves_others_alone(machine):
    machine.server.create("A", subjects=["a"])
    machine.server.create("B", subjects=["b"])

    def fail(name, path):
        if name == "sync" and "A" in path.parts and path.suffix == ".seg":
            raise OSError(errno.EIO, "Input/output error")

    machine.disk.fault = fail
    machine.server.publish("a", b"", reply=b"_INBOX.x.a")
    machine.server.publish("b", b"", reply=b"_INBOX.x.b")
    machine.server.turn()
    answers = {frame.subject[-1:]: json.loads(frame.payload) for frame in machine.server.client.take()}
    assert refusal(answers[b"a"]) == (503, 10077)
    assert answers[b"b"] == {"stream": "B", "seq": 1}


def test_a_read_only_disk(machine):
    machine.server.create(max_msgs=10)
    machine.server.store("s.a", b"kept")

    def fail(name, path):
        if name not in ("read", "open", "sync"):
            raise OSError(errno.EROFS, "Read-only file system")

    machine.disk.fault = fail
    for request in (
        lambda: machine.server.store("s.a"),
        lambda: machine.server.store("s.a", b"", {"Nats-Msg-Id": "x"}),
        lambda: machine.server.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 5}),
        lambda: machine.server.api("STREAM.DELETE.S"),
        lambda: machine.server.api("STREAM.CREATE.T", {"name": "T"}),
    ):
        answer = request()
        assert "read-only file system" in answer["error"]["description"], answer
    info = machine.server.api("STREAM.INFO.S")
    assert "config" in info, info
    assert info["config"]["max_msgs"] == 10
    assert machine.server.api("STREAM.MSG.GET.S", {"seq": 1})["message"]["seq"] == 1
    machine.disk.fault = None
    machine.restart()
    assert machine.server.store("s.a")["seq"] == 2


def test_a_stream_without_a_readable_configuration_is_left_alone(machine):
    machine.server.create()
    machine.server.store("s.a", b"kept")
    machine.server.engine.close()
    for path in machine.disk.files():
        if path.name.startswith("meta"):
            machine.disk.flip(path, 40)
    machine.start()
    assert machine.server.api("STREAM.NAMES")["streams"] is None
    assert len(machine.reports) == 1 and "S" in machine.reports[0]
    assert "neither meta.json nor meta.copy.json" in machine.reports[0] and "move the folder away" in machine.reports[0]
    files = {path: machine.disk.content(path) for path in machine.disk.files()}
    for storage in ("file", "memory"):
        answer = machine.server.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "storage": storage})
        assert "could not be opened" in answer["error"]["description"], "its messages may still be saved by hand"
    assert {path: machine.disk.content(path) for path in machine.disk.files()} == files
    assert machine.server.api("STREAM.CREATE.T", {"name": "T"})["did_create"] is True
    machine.server.api("STREAM.DELETE.T")
    damage_meta(machine, "/S/", back=True)
    machine.restart()
    assert machine.server.api("STREAM.MSG.GET.S", {"seq": 1})["message"]["seq"] == 1, "mended by hand"


def damage_meta(machine, where, *, back=False):
    """Flip a bit in both copies of a meta file, or flip it back in one of them."""
    for path in machine.disk.files():
        if where in str(path) and path.name in (("meta.json",) if back else ("meta.json", "meta.copy.json")):
            machine.disk.flip(path, 40)


def create_consumer(machine, name, **options):
    config = {"durable_name": name, "ack_policy": "explicit", **options}
    return machine.server.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})


def take(machine, name, count):
    """Let the consumer have so many messages, acknowledged; their sequences."""
    server = machine.server
    frames = server.request(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", {"no_wait": True, "batch": count})
    taken = [frame.reply for frame in frames if frame.reply.startswith(b"$JS.ACK.")]
    for subject in taken:
        server.publish(subject, b"+ACK")
    server.turn()
    return [int(subject.split(b".")[5]) for subject in taken]


def stored(machine):
    return machine.server.state()["messages"]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
@pytest.mark.parametrize("ending", ["create", "create in memory", "delete", "retry"])
def test_a_consumer_without_a_readable_configuration_keeps_its_messages(machine, retention, ending):
    machine.server.create(retention=retention)
    create_consumer(machine, "lost", filter_subject="s.l")
    create_consumer(machine, "other", filter_subject="s.o")
    for subject in ("s.l", "s.o", "s.l", "s.o"):
        machine.server.store(subject)
    assert take(machine, "lost", 1) == [1]
    machine.server.engine.close()
    damage_meta(machine, "/consumers/lost/")
    machine.start()
    assert len(machine.reports) == 1 and "/consumers/lost can not be opened" in machine.reports[0]
    assert machine.server.api("CONSUMER.NAMES.S")["consumers"] == ["other"]
    # Neither the start, nor what the others do, nor a message that only the lost one wants.
    assert take(machine, "other", 10) == [2, 4]
    machine.server.store("s.l")
    machine.restart()
    machine.server.api("CONSUMER.DELETE.S.other")
    assert len(machine.reports) == 2
    assert stored(machine) == (4 if retention == "interest" else 2)
    if ending == "retry":
        machine.server.engine.close()
        damage_meta(machine, "/consumers/lost/", back=True)
        machine.start()
        assert len(machine.reports) == 2
        assert take(machine, "lost", 10) == [3, 5]
        assert stored(machine) == 0
    elif ending == "delete":
        assert machine.server.api("CONSUMER.DELETE.S.lost")["success"] is True
        assert refusal(machine.server.api("CONSUMER.DELETE.S.lost")) == (404, 10014)
        assert stored(machine) == (0 if retention == "interest" else 2), "a work queue keeps what nobody took"
    else:
        create_consumer(machine, "lost", filter_subject="s.l", mem_storage=ending.endswith("memory"))
        assert take(machine, "lost", 10) == [3, 5]
        assert stored(machine) == 0
    machine.restart()
    assert len(machine.reports) == 2
    assert stored(machine) == (2 if (ending, retention) == ("delete", "workqueue") else 0)


def test_a_consumer_that_a_crash_left_half_made_is_no_consumer(machine):
    machine.server.create(retention="interest")
    create_consumer(machine, "whole")
    machine.server.store("s.a")
    folder = next(path.parent.parent for path in machine.disk.files() if "/consumers/whole/" in str(path))
    machine.disk.make_folder(folder / "half")
    machine.disk.close(machine.disk.open(folder / "half" / "meta.json.tmp", create=True))
    machine.restart()
    assert machine.reports == []
    assert machine.notes == [f"Removed {folder / 'half'}, which was left unfinished by a crash"]
    assert not machine.disk.is_folder(folder / "half")


@pytest.mark.parametrize(
    ("place", "operation"),
    [("S", "open"), ("S/msgs", "names"), ("S/msgs", "open"), ("S/consumers", "names"), ("S/consumers", "open")],
)
def test_a_folder_that_cannot_be_read_sets_its_stream_aside(machine, place, operation):
    machine.server.create(retention="interest")
    machine.server.create("T", subjects=["t"])
    create_consumer(machine, "c")
    machine.server.store("s.a")
    machine.server.engine.close()
    before = {path: machine.disk.content(path) for path in machine.disk.files() if "/S/" in str(path)}

    def refuse(asked, path):
        in_place = (
            f"/streams/{place}/" in f"{path}/" if operation == "open" else str(path).endswith(f"/streams/{place}")
        )
        if asked == operation and in_place:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    machine.disk.fault = refuse
    machine.start()
    if (place, operation) == ("S/consumers", "open"):
        assert machine.server.jetstream.streams["S"].storage.missing == {"c"}
        assert finish(machine.server.engine.store_faults()) == ["consumer in c of stream S of account $G is set aside"]
    else:
        assert sorted(machine.server.jetstream.streams) == ["T"]
        (fault,) = finish(machine.server.engine.store_faults())
        assert fault.startswith("stream in S of account $G is set aside: ")
    assert machine.reports
    machine.disk.fault = None
    assert {path: machine.disk.content(path) for path in before} == before
    machine.server.engine.close()
    machine.start()
    assert stored(machine) == 1
    assert finish(machine.server.engine.store_faults()) == []


def test_streams_that_cannot_be_listed_are_set_aside(machine):
    machine.server.create()
    machine.server.engine.close()

    def refuse(operation, path):
        if operation == "names" and path.name == "streams":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    machine.disk.fault = refuse
    machine.start()
    assert finish(machine.server.engine.store_faults()) == [
        f"streams of account $G are set aside: cannot read {ROOT}/jetstream/$G/streams: permission denied"
    ]
    machine.disk.fault = None
    machine.restart()
    assert list(machine.server.jetstream.streams) == ["S"]


def test_a_consumer_that_the_disk_does_not_let_recover_is_set_aside(machine, monkeypatch):
    machine.server.create(retention="interest")
    for name in ("a", "b"):
        create_consumer(machine, name)
    machine.server.store("s.a")
    machine.server.engine.close()
    restore = Consumer.restore

    def fail(consumer, *arguments):
        if consumer.name == "a":
            raise StoreError("read messages", "input/output error")
        restore(consumer, *arguments)

    monkeypatch.setattr(Consumer, "restore", fail)
    machine.start()
    assert "/consumers/a can not be opened: cannot read messages: input/output error" in machine.reports[0]
    assert take(machine, "b", 10) == [1]
    monkeypatch.undo()
    machine.restart()
    assert take(machine, "a", 10) == [1]
    assert stored(machine) == 0


@pytest.mark.parametrize("seed", range(40))
def test_power_cuts_lose_nothing_that_was_acknowledged(make_harness, seed):
    """Publish, purge and delete until the power goes somewhere in a change of the disk; then look what is there."""
    random = Random(seed)
    machine = Machine(make_harness, seed)
    machine.server.create(max_msgs=random.choice([-1, 20]), duplicate_window=3_600_000_000_000)
    promised = {}
    removed_up_to = tried_up_to = 0
    number = 0
    seen = {}
    for _ in range(6):
        machine.disk.cut_at = machine.disk.operations + random.randint(1, 60)
        try:
            while True:
                for _ in range(random.randint(1, 10)):
                    number += 1
                    reply = b"_INBOX.n.%d" % number
                    machine.server.publish("s.a", b"%d" % number, {"Nats-Msg-Id": str(number)}, reply=reply)
                machine.server.turn()
                for frame in machine.server.client.take():
                    answer = json.loads(frame.payload)
                    if "seq" in answer and "error" not in answer:
                        promised[answer["seq"]] = int(frame.subject.rpartition(b".")[2])
                if random.random() < 0.1:
                    upper = random.randint(1, max(promised, default=1))
                    tried_up_to = max(tried_up_to, upper - 1)
                    if "success" in machine.server.api("STREAM.PURGE.S", {"seq": upper}):
                        removed_up_to = max(removed_up_to, upper - 1)
        except PowerCut:
            pass
        machine.cut_power()
        stream = machine.server.jetstream.streams["S"]
        limit = stream.config.max_msgs
        last = stream.store.last_sequence
        for sequence, value in promised.items():
            message = stream.store.get(sequence)
            if sequence <= removed_up_to:
                assert message is None
            elif message is None:
                assert sequence <= max(tried_up_to, last - limit if limit > 0 else 0)
            else:
                assert message.payload == b"%d" % value
            assert seen.setdefault(sequence, value) == value
        for sequence in range(stream.store.first_sequence, last + 1):
            message = stream.store.get(sequence)
            if message is not None:
                assert seen.setdefault(sequence, int(message.payload)) == int(message.payload)


def test_a_disk_that_cannot_be_read_keeps_neither_start_nor_stop_from_coming_to_an_end(machine):
    machine.server.create(max_age=3_600_000_000_000)
    machine.server.create("T", subjects=["t"])
    machine.server.store("s.a", b"", {"Nats-Msg-Id": "x"})
    machine.server.engine.close()

    def fail(name, path):
        if name == "read" and "S" in path.parts and path.suffix == ".seg":
            raise OSError(errno.EIO, "Input/output error")

    machine.disk.fault = fail
    machine.start()
    assert machine.server.api("STREAM.INFO.T")["state"]["messages"] == 0
    assert machine.server.store("t")["seq"] == 1
    machine.server.publish("t", b"not acknowledged yet")
    machine.disk.fault = lambda name, path: fail("read", path)
    machine.server.engine.close()
    machine.disk.fault = None
    machine.start()
    assert machine.server.api("STREAM.INFO.S")["state"]["messages"] == 1
    assert machine.server.api("STREAM.INFO.T")["state"]["messages"] == 2


def test_the_longest_payload_that_goes_with_jetstream_is_stored(machine):
    machine.server.create()
    payload = bytes(STORED_PAYLOAD_MAX)
    assert machine.server.store("s.a", payload)["seq"] == 1
    machine.kill()
    message = machine.server.jetstream.streams["S"].store.get(1)
    assert message is not None and message.payload == payload


def test_a_purge_writes_the_journals_that_it_changes_and_no_others(machine):
    server = machine.server
    server.create()
    for subject in ("s.a", "s.b", "s.c"):
        server.store(subject)
    for name in ("behind", "ahead"):
        create_consumer(machine, name)
    server.request("$JS.API.CONSUMER.MSG.NEXT.S.ahead", {"no_wait": True, "batch": 2})
    written = set()
    machine.disk.fault = lambda operation, path: written.add(path.parent.name) if operation == "write" else None
    assert server.api("STREAM.PURGE.S", {"filter": "s.b"})["purged"] == 1
    assert "ahead" in written and "behind" not in written
    written.clear()
    assert server.api("STREAM.PURGE.S", {"filter": "s.c"})["purged"] == 1
    assert written.isdisjoint({"ahead", "behind"})
    machine.disk.fault = None
    machine.cut_power()
    infos = {name: machine.server.api(f"CONSUMER.INFO.S.{name}") for name in ("behind", "ahead")}
    assert (infos["behind"]["num_pending"], infos["behind"]["num_ack_pending"]) == (1, 0)
    assert (infos["ahead"]["num_pending"], infos["ahead"]["num_ack_pending"]) == (0, 1)
    assert infos["ahead"]["delivered"]["stream_seq"] == 2


@pytest.mark.parametrize("crash", [FaultyDisk.kill, FaultyDisk.cut_power])
@pytest.mark.parametrize("change", [{"max_msgs": 3}, {"max_msgs_per_subject": 1}, {"retention": "interest"}])
def test_a_crash_during_an_update_leaves_the_old_configuration_with_all_messages(make_harness, crash, change):
    crashes = 0
    for write in range(1, 60):
        disk = FaultyDisk(Random(write))

        def start(disk=disk):
            return make_harness(FolderStorage(StoreFolder(disk, Path("/data")), lambda line: None))

        harness = start()
        harness.create()
        for _ in range(10):
            harness.store("s.a", b"text")
        disk.cut_at = disk.operations + write
        try:
            harness.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **change})
            break
        except PowerCut:
            disk.cut_at = None
            crash(disk)
        crashes += 1
        info = start().api("STREAM.INFO.S")
        if not change.items() <= info["config"].items():
            assert info["state"]["messages"] == 10, write
    assert crashes > 3


@pytest.mark.parametrize("operation", ["sync", "replace", "sync_folder"])
@pytest.mark.parametrize("end", [Machine.kill, Machine.cut_power, Machine.restart])
def test_an_update_that_the_disk_refused_is_not_found_by_the_next_start(machine, operation, end):
    machine.server.create()
    for _ in range(10):
        machine.server.store("s.a", b"text")

    def fail(asked, path):
        if asked == operation:
            raise OSError(errno.EIO, "Input/output error", str(path))

    machine.disk.fault = fail
    config = {"name": "S", "subjects": ["s.>"], "max_msgs": 3}
    assert refusal(machine.server.api("STREAM.UPDATE.S", config)) == (503, 10077)
    machine.disk.fault = None
    for _ in range(3):
        machine.server.advance(1.1)
    end(machine)
    info = machine.server.api("STREAM.INFO.S")
    assert (info["config"]["max_msgs"], info["state"]["messages"]) == (-1, 10)


def test_a_stream_that_can_neither_be_made_nor_removed_goes_later(machine):
    machine.server.create("OTHER", subjects=["o"])

    def fail(asked, path):
        if asked in ("sync_folder", "replace") and "S" in path.parts:
            raise OSError(errno.EIO, "Input/output error", str(path))

    machine.disk.fault = fail
    assert refusal(machine.server.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})) == (503, 10077)
    machine.disk.fault = None
    machine.server.advance(1.5)
    assert "error" in machine.server.api("STREAM.INFO.S")
    assert not machine.server.engine.commit.failures
    machine.server.create()
    assert machine.server.store("s.a", b"text")["seq"] == 1
    machine.cut_power()
    assert machine.server.api("STREAM.INFO.S")["state"]["messages"] == 1


def test_what_a_power_cut_leaves_of_an_unfinished_write_is_no_loss(make_harness):
    remains = 0
    for seed in range(40):
        machine = Machine(make_harness, seed)
        machine.server.create()
        machine.server.store("s.a", b"text")
        for _ in range(4):
            machine.server.publish("s.a", b"x" * 700)
        machine.server.engine.flush()
        machine.cut_power()
        state = machine.server.api("STREAM.INFO.S")["state"]
        remains += bool(machine.server.jetstream.streams["S"].store.lost_bytes)
        assert state["messages"] >= 1 and "lost" not in state
    assert remains


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_stream_whose_first_sequence_the_disk_refused_is_not_there(machine, operation):
    def fail(asked, path):
        if asked == operation and path.suffix == ".seg":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    machine.disk.fault = fail
    config = {"name": "S", "subjects": ["s.>"], "first_seq": 100}
    assert refusal(machine.server.api("STREAM.CREATE.S", config)) == (503, 10077)
    machine.disk.fault = None
    assert "error" in machine.server.api("STREAM.INFO.S")
    assert "error" not in machine.server.api("STREAM.CREATE.S", config)
    assert machine.server.store("s.a", b"text")["seq"] == 100
    machine.cut_power()
    assert machine.server.store("s.a", b"text")["seq"] == 101


def test_a_stream_that_was_deleted_from_a_full_disk_is_not_missed(machine):
    machine.server.create()
    machine.server.store("s.a", b"text")
    machine.disk.capacity = machine.disk.used()
    assert machine.server.api("STREAM.DELETE.S")["success"]
    machine.disk.capacity = None
    machine.kill()
    assert machine.reports == []
