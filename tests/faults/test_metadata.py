"""Streams and consumers come and go whole: whatever the moment of a crash, and without a sync on the loop."""

import errno
import json
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from jetlake.protocol.frames import Msg
from jetlake.protocol.headers import encode_headers
from jetlake.protocol.parser import ClientParser
from jetlake.server.engine.core.commit import sync
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.files.disk import Disk
from jetlake.store.log.durability import MarkFile
from jetlake.store.steps import finish
from jetlake.store.store_folder import StoreFolder
from jetlake.testing.clock import ManualClock
from tests.support.any_sync import AnySync
from tests.support.faulty_disk import FaultyDisk, PowerCut

SYNCS = {"sync", "sync_folder", "make_folder"}
EVERYTHING = {name for name in vars(Disk) if not name.startswith("_")} | {"create"}


class Client(Subscriber):
    """Keeps the answers by their inbox."""

    def __init__(self):
        self.answers = {}
        self._parser = ClientParser()

    def send(self, data):
        for frame in self._parser.feed(data):
            if isinstance(frame, Msg):
                self.answers[frame.subject] = json.loads(frame.payload)


class Machine:
    """An engine on a faulty disk, whose syncs run when the test says so."""

    def __init__(self, seed=0, **options):
        self.random = Random(seed)
        self.disk = FaultyDisk(Random(seed + 1))
        self.options = EngineOptions(**options)
        self.reports = []
        self.begun, self.ended = [], {}
        self.start()

    def start(self):
        storage = FolderStorage(StoreFolder(self.disk, Path("/data")), self.reports.append)
        self.engine = Engine(ManualClock(), self.options, storage)
        self.account = Account("$G")
        self.client = Client()
        self.jetstream = self.engine.enable(self.account)
        self.account.subscribe(b"_INBOX.>", b"1", self.client)
        self.begun, self.ended = [], {}
        self.requests = 0

    def crash(self, *, power):
        if power:
            self.disk.cut_power()
        else:
            self.disk.kill()
        self.disk.fault = None
        paths = {name: Path(f"/data/jetstream/$G/streams/{name}/msgs/mark") for name in "AB"}
        self.marked = {name: MarkFile(self.disk, path, 0).read().synced for name, path in paths.items()}
        self.start()

    def ask(self, subject, body=b""):
        """Send a request; the inbox its answer will come to."""
        self.requests += 1
        inbox = b"_INBOX.%d" % self.requests
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        self.account.publish(subject.encode(), inbox, b"", payload, self.client)
        return inbox

    def api(self, verb, body=b""):
        """Ask the API and wait for the answer."""
        inbox = self.ask("$JS.API." + verb, body)
        self.settle()
        return self.client.answers[inbox]

    def sync_some(self):
        """One step of one of the threads that sync."""
        commit = self.engine.commit
        if self.begun and self.random.random() < 0.7:
            begun = self.begun.pop(self.random.randrange(len(self.begun)))
            self.ended[begun.syncable] = begun.run()
        elif self.ended:
            ended, self.ended = self.ended, {}
            commit.finish(ended)
        else:
            begun = commit.begin(self.random.randint(1, 4))
            self.begun += [AnySync(syncable, self.random) for syncable in begun]

    def settle(self):
        while True:
            self.engine.flush()
            while self.begun or self.ended or self.engine.commit.wants_sync():
                self.sync_some()
            if not self.engine.has_ready():
                return

    @contextmanager
    def not_allowed(self, operations):
        """Fail when the thread that serves clients waits for the disk."""
        waited = []

        def fault(operation, path):
            if operation in operations:
                waited.append((operation, str(path)))

        self.disk.fault = fault
        yield
        self.disk.fault = None
        assert waited == []


def stream_config(name, **more):
    return {"name": name, "subjects": [f"{name.lower()}.>"], **more}


def consumer_body(stream, name, **more):
    return {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit", **more}}


REQUESTS = [
    ("STREAM.CREATE.A", stream_config("A")),
    ("STREAM.CREATE.B", stream_config("B", retention="workqueue", first_seq=5)),
    ("CONSUMER.DURABLE.CREATE.A.c", consumer_body("A", "c")),
    ("CONSUMER.CREATE.A.e", {"stream_name": "A", "config": {"name": "e", "inactive_threshold": 10**12}}),
    ("CONSUMER.CREATE.A.m", consumer_body("A", "m", mem_storage=True)),
    ("STREAM.UPDATE.A", stream_config("A", max_msgs=50)),
    ("CONSUMER.DURABLE.CREATE.A.c", consumer_body("A", "c", max_deliver=9)),
    ("CONSUMER.PAUSE.A.c", {"pause_until": "2999-01-01T00:00:00Z"}),
    ("CONSUMER.RESET.A.c", {"seq": 1}),
    ("CONSUMER.DURABLE.CREATE.B.c", consumer_body("B", "c")),
    ("CONSUMER.DELETE.A.c", {}),
    ("CONSUMER.DELETE.A.e", {}),
    ("STREAM.DELETE.A", {}),
]


def test_no_request_about_streams_and_consumers_syncs_on_the_loop():
    machine = Machine()
    for verb, body in REQUESTS:
        with machine.not_allowed(SYNCS):
            inbox = machine.ask("$JS.API." + verb, body)
            machine.engine.flush()
        machine.settle()
        assert "error" not in machine.client.answers[inbox], (verb, machine.client.answers[inbox])
    assert machine.reports == []


def test_a_start_after_a_clean_stop_asks_little_of_the_disk_and_syncs_nothing(monkeypatch):
    machine = Machine()
    for stream in ("A", "B"):
        machine.api(f"STREAM.CREATE.{stream}", stream_config(stream))
        machine.api(f"CONSUMER.DURABLE.CREATE.{stream}.c", consumer_body(stream, "c"))
    machine.ask("a.x", b"stored")
    machine.settle()
    machine.engine.close()
    called = []
    machine.disk.fault = lambda operation, path: called.append((operation, path))
    for look in ("is_file", "is_folder"):
        asked = getattr(machine.disk, look)
        monkeypatch.setattr(
            machine.disk, look, lambda path, look=look, asked=asked: called.append((look, path)) or asked(path)
        )
    machine.start()
    assert set(machine.jetstream.streams["B"].consumers) == {"c"}
    assert not SYNCS.intersection(operation for operation, _ in called)
    for stream, most in (("A", 22), ("B", 9)):
        of_one = [(operation, path) for operation, path in called if stream in path.parts]
        assert len(of_one) <= most, "a start with many streams takes as long as what it asks of the disk for each"
    opened = [path.name for operation, path in called if operation == "open" and path.suffix == ".seg"]
    assert len(opened) <= 2, "no message is read of a stream without ids"


def test_a_new_stream_or_consumer_does_not_touch_the_disk_before_its_sync():
    machine = Machine()
    for verb, body in (REQUESTS[0], *REQUESTS[2:5]):
        with machine.not_allowed(EVERYTHING):
            inbox = machine.ask("$JS.API." + verb, body)
            machine.engine.flush()
        machine.settle()
        assert "error" not in machine.client.answers[inbox]
    machine.crash(power=True)
    assert set(machine.jetstream.streams["A"].consumers) == {"c", "e"}


@pytest.mark.parametrize("seed", range(20))
def test_the_first_message_id_is_durable_with_its_message_and_not_synced_on_the_loop(seed):
    machine = Machine(seed)
    machine.api(*REQUESTS[0])
    header = encode_headers([("Nats-Msg-Id", "one")])
    with machine.not_allowed(SYNCS):
        machine.account.publish(b"a.1", b"_INBOX.id", header, b"x", machine.client)
        machine.engine.flush()
    machine.disk.cut_at = machine.disk.operations + seed
    with suppress(PowerCut):
        machine.settle()
    acknowledged = b"_INBOX.id" in machine.client.answers
    machine.crash(power=True)
    machine.account.publish(b"a.1", b"_INBOX.id", header, b"x", machine.client)
    machine.settle()
    if acknowledged:
        assert machine.client.answers[b"_INBOX.id"] == {"stream": "A", "seq": 1, "duplicate": True}


def killed_before_a_sync(folder, seed):
    """Return a machine, started again, that was killed when it would sync that folder of a new stream or consumer."""
    machine = Machine(seed)

    def fault(operation, path):
        if operation == "sync_folder" and path.name == folder:
            raise PowerCut

    machine.disk.fault = fault
    with suppress(PowerCut):
        machine.api(*REQUESTS[0])
        machine.api(*REQUESTS[2])
    machine.crash(power=False)
    return machine


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fails", ["$G", "streams", "A", "consumers", "c"])
def test_what_a_start_finds_unsynced_is_durable_before_anything_in_it(fails, seed):
    machine = killed_before_a_sync(fails, seed)
    if "A" not in machine.jetstream.streams:
        return
    has_consumer = "c" in machine.jetstream.streams["A"].consumers
    machine.account.publish(b"a.1", b"_INBOX.one", b"", b"x", machine.client)
    machine.settle()
    assert machine.client.answers[b"_INBOX.one"] == {"stream": "A", "seq": 1}
    if has_consumer:
        assert "error" not in machine.api("CONSUMER.RESET.A.c", {"seq": 1})
    machine.crash(power=True)
    assert machine.jetstream.streams["A"].store.messages == 1
    assert ("c" in machine.jetstream.streams["A"].consumers) == has_consumer


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fails", ["$G", "streams", "A", "consumers", "c"])
def test_what_a_start_finds_unsynced_is_durable_when_it_is_created_again(fails, seed):
    machine = killed_before_a_sync(fails, seed)
    assert "error" not in machine.api(*REQUESTS[0])
    is_alone = fails not in ("consumers", "c")
    if not is_alone:
        assert "error" not in machine.api(*REQUESTS[2])
    machine.crash(power=True)
    assert is_alone or set(machine.jetstream.streams["A"].consumers) == {"c"}
    assert "A" in machine.jetstream.streams


def test_a_start_and_a_stop_sync_nothing_of_idle_streams_and_consumers():
    machine = Machine()
    for request in REQUESTS[0], REQUESTS[2]:
        machine.api(*request)
    machine.engine.close()
    synced = []
    machine.disk.fault = lambda operation, path: synced.append(path) if "sync" in operation else None
    machine.start()
    machine.settle()
    assert set(machine.jetstream.streams["A"].consumers) == {"c"}
    machine.engine.close()
    assert synced == []


@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_a_folder_that_has_the_name_of_a_new_one_stays(what):
    machine = Machine()
    verb, body = "STREAM.CREATE.A", stream_config("A")
    folder = Path("/data/jetstream/$G/streams/A")
    if what == "consumer":
        machine.api(verb, body)
        verb, body, folder = "CONSUMER.DURABLE.CREATE.A.c", consumer_body("A", "c"), folder / "consumers/c"
    machine.disk.make_folder(folder)
    machine.disk.close(machine.disk.open(folder / "of somebody else", create=True))
    assert machine.api(verb, body)["error"]["err_code"] == 10077
    assert machine.disk.names(folder) == ["of somebody else"]
    machine.disk.remove(folder / "of somebody else")
    assert "error" not in machine.api(verb, body), "an empty one is taken for what a crash left"


@pytest.mark.parametrize("interval_ns", [0, 120 * 10**9])
@pytest.mark.parametrize("verb", [verb for verb, _ in REQUESTS if ".A.m" not in verb and ".A.e" not in verb])
def test_an_answer_waits_until_the_metadata_is_durable(verb, interval_ns):
    machine = Machine(sync_interval_ns=interval_ns)
    body = None
    for other, body in REQUESTS:
        if other == verb:
            break
        machine.api(other, body)
    inbox = machine.ask("$JS.API." + verb, body)
    machine.engine.flush()
    assert inbox not in machine.client.answers
    machine.settle()
    assert "error" not in machine.client.answers[inbox]


def test_nobody_waits_for_the_sync_of_a_consumer_that_a_power_cut_may_take():
    machine = Machine()
    machine.api("STREAM.CREATE.A", stream_config("A"))
    for verb, body in REQUESTS[3:5]:
        inbox = machine.ask("$JS.API." + verb, body)
        machine.engine.flush()
        begun = machine.engine.commit.begin(names_max=0)
        with machine.not_allowed(SYNCS):
            machine.engine.commit.finish({syncable: sync(syncable) for syncable in begun})
        machine.engine.flush()
        assert "error" not in machine.client.answers[inbox]
    machine.crash(power=False)
    assert set(machine.jetstream.streams["A"].consumers) == {"e"}


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_point_leaves_an_ephemeral_consumer_that_was_answered_for(seed, power):
    update = ("CONSUMER.CREATE.A.e", {"stream_name": "A", "config": {"name": "e", "inactive_threshold": 10**13}})
    for cut in range(1, 60):
        machine = Machine(seed)
        machine.api(*REQUESTS[0])
        machine.ask("a.x", b"1")
        inboxes = [machine.ask("$JS.API." + REQUESTS[3][0], REQUESTS[3][1])]
        machine.disk.cut_at = machine.disk.operations + cut
        with suppress(PowerCut):
            machine.settle()
            inboxes.append(machine.ask("$JS.API." + update[0], update[1]))
            machine.settle()
        answers = [inbox in machine.client.answers for inbox in inboxes]
        is_cut = machine.disk.cut_at is None or machine.disk.operations >= machine.disk.cut_at
        machine.crash(power=power)
        assert machine.reports == []
        found = machine.jetstream.streams["A"].consumers.get("e")
        if answers[0] and not power:
            assert found is not None
        if answers[1:] == [True]:
            assert found is not None and found.config.inactive_threshold == 10**13
        if not is_cut:
            return
    raise AssertionError("the script needs more operations than were cut")


def test_an_ephemeral_consumer_waits_for_a_disk_that_stops_reading_at_a_start():
    machine = Machine()
    machine.api("STREAM.CREATE.A", stream_config("A"))
    machine.ask("$JS.API." + REQUESTS[3][0], REQUESTS[3][1])
    machine.engine.flush()
    begun = machine.engine.commit.begin(names_max=0)
    machine.engine.commit.finish({syncable: sync(syncable) for syncable in begun})
    reads = []

    def fault(operation, path):
        if operation == "read" and path.name.startswith("meta.json.") and "e" in path.parts:
            reads.append(path)
            if len(reads) > 1:
                raise OSError(errno.EIO, "the disk refuses")

    machine.disk.kill()
    machine.disk.fault = fault
    machine.start()
    assert len(reads) > 1
    assert machine.jetstream.streams["A"].consumers == {}
    assert len(machine.reports) == 1
    machine.crash(power=False)
    assert set(machine.jetstream.streams["A"].consumers) == {"e"}


def test_a_durable_consumer_that_was_not_answered_for_is_not_taken_for_one_that_was():
    machine = Machine()
    machine.api("STREAM.CREATE.A", stream_config("A"))
    machine.ask("$JS.API." + REQUESTS[2][0], REQUESTS[2][1])
    machine.disk.fault = lambda operation, path: (_ for _ in ()).throw(PowerCut) if operation == "sync" else None
    with suppress(PowerCut):
        machine.settle()
    machine.crash(power=False)
    assert machine.jetstream.streams["A"].consumers == {}


class History:
    """What was asked for and what was answered, by name: what may and what must be there after a crash."""

    def __init__(self, machine):
        self.machine = machine
        self.asked = {}  # name: [(inbox, what is there if it was done)]

    def ask(self, name, verb, body, outcome):
        # Noted first: the power may go in the middle of it.
        inbox = b"_INBOX.%d" % (self.machine.requests + 1)
        self.asked.setdefault(name, [(None, None)]).append((inbox, outcome))
        assert self.machine.ask("$JS.API." + verb, body) == inbox

    def possible(self, name):
        """What may be there: what the last answered request left, and anything asked for after that."""
        asked = self.asked.get(name, [(None, None)])
        answers = self.machine.client.answers
        last = max(place for place, (inbox, _) in enumerate(asked) if inbox is None or inbox in answers)
        return [outcome for _, outcome in asked[last:]]

    def acknowledged(self, name, answers):
        """The sequences of a stream that were acknowledged since it was last asked to go."""
        deleted = max(
            (int(inbox[7:]) for inbox, outcome in self.asked.get(name, ()) if inbox and not outcome), default=0
        )
        return {
            answer["seq"]
            for inbox, answer in answers.items()
            if answer.get("stream") == name and "seq" in answer and int(inbox[7:]) > deleted
        }


def run_script(machine, history, random):
    """Create, change and delete a few names over and over, without waiting for answers."""
    for number in range(12):
        stream = random.choice("AB")
        path = f"{stream}.c"
        choice = random.random()
        config = stream_config(stream, description=str(number), retention="workqueue" if stream == "B" else "limits")
        if choice < 0.4:
            config = stream_config(
                stream, description=str(number), retention="workqueue" if stream == "B" else "limits"
            )
            history.ask(stream, f"STREAM.CREATE.{stream}", config, str(number))
        elif choice < 0.6:
            config = stream_config(
                stream, description=str(number), retention="workqueue" if stream == "B" else "limits"
            )
            history.ask(stream, f"STREAM.UPDATE.{stream}", config, str(number))
        elif choice < 0.75:
            history.ask(stream, f"STREAM.DELETE.{stream}", b"", None)
        elif choice < 0.9:
            body = consumer_body(stream, "c", description=str(number))
            history.ask(path, f"CONSUMER.DURABLE.CREATE.{path}", body, str(number))
        else:
            history.ask(path, f"CONSUMER.DELETE.{path}", b"", None)
        machine.ask(f"{stream.lower()}.x", b"%d" % number)
        machine.engine.flush()
        for _ in range(random.randint(0, 6)):
            machine.sync_some()
    machine.settle()


def remove_by_hand(disk, folder):
    for path in disk.files():
        if folder in path.parents:
            disk.remove(path)
    disk.replace(folder, Path("/moved"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_stream_whose_folder_is_gone_is_missed(clean):
    machine = Machine()
    for name in "ABC":
        machine.api(f"STREAM.CREATE.{name}", stream_config(name))
    machine.api("STREAM.DELETE.C")
    for _ in range(2):
        if clean:
            machine.engine.close()
        machine.disk.kill()
        folder = Path("/data/jetstream/$G/streams/A")
        if machine.disk.is_folder(folder):
            remove_by_hand(machine.disk, folder)
        machine.reports.clear()
        machine.start()
        assert ["A" in text and "is missing" in text for text in machine.reports] == [True], "at every start"
        (fault,) = finish(machine.engine.store_faults())
        reason = "its folder is missing, although the stream was not deleted"
        assert fault == f"stream in A of account $G is set aside: {reason}"
    assert "error" not in machine.api("STREAM.CREATE.A", stream_config("A"))
    assert finish(machine.engine.store_faults()) == []
    machine.reports.clear()
    machine.crash(power=True)
    assert (machine.reports, sorted(machine.jetstream.streams)) == ([], ["A", "B"])


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_at_any_point_leaves_streams_and_consumers_whole_or_not_at_all(seed, power):
    cut = 0
    while True:
        cut += 1 if cut < 40 else 3
        machine = Machine(seed)
        history = History(machine)
        machine.disk.cut_at = cut
        try:
            run_script(machine, history, Random(seed))
        except PowerCut:
            pass
        else:
            break
        check(machine, history, power)


def check(machine, history, power):
    answers = dict(machine.client.answers)
    refused = {inbox for inbox, answer in answers.items() if "error" in answer}
    for name, asked in history.asked.items():
        # A request that was refused changed nothing.
        history.asked[name] = [(inbox, outcome) for inbox, outcome in asked if inbox not in refused]
    streams = {name: history.possible(name) for name in "AB"}
    consumers = {name: history.possible(f"{name}.c") for name in "AB"}
    machine.crash(power=power)
    for name in "AB":
        stream = machine.jetstream.streams.get(name)
        if stream is not None and stream.store.lost:
            # A power cut that takes the mark too leaves nothing that tells who was promised what (decision 5).
            assert power and not machine.marked[name]
            assert not history.acknowledged(name, answers) & set(stream.store.lost)
            machine.reports = [text for text in machine.reports if f"/{name}/msgs can not be read" not in text]
    assert machine.reports == []
    for name in "AB":
        stream = machine.jetstream.streams.get(name)
        assert (stream.config.description if stream else None) in streams[name]
        if stream is not None and None not in streams[name] and len(streams[name]) == 1:
            consumer = stream.consumers.get("c")
            assert (consumer.config.description if consumer else None) in [*consumers[name], None]
    machine.settle()
    # Every name is free or in use, and nothing is left of what went.
    for name in "AB":
        machine.api(f"STREAM.DELETE.{name}")
        assert "error" not in machine.api(f"STREAM.CREATE.{name}", stream_config(name))
    left = {part for path in machine.disk.files() for part in path.parts if ".deleted" in part}
    assert left == set()


def test_deleting_goes_in_steps_and_leaves_nothing():
    machine = Machine()
    machine.api("STREAM.CREATE.A", stream_config("A"))
    for number in range(300):
        machine.api(f"CONSUMER.DURABLE.CREATE.A.c{number}", consumer_body("A", f"c{number}"))
    inbox = machine.ask("$JS.API.STREAM.DELETE.A")
    machine.engine.flush()
    steps = 0
    removed = []

    def fault(operation, path):
        if operation == "remove":
            removed.append(path)

    machine.disk.fault = fault
    while machine.engine.commit.wants_sync():
        before = len(removed)
        for syncable in machine.engine.commit.begin():
            machine.engine.commit.finish({syncable: sync(syncable)})
        machine.engine.flush()
        steps += 1
        assert len(removed) - before <= 128
        assert inbox in machine.client.answers, "the answer waits for the first step only"
    assert steps > 4
    assert [path.name for path in machine.disk.files()] == ["streams.list"]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_that_goes_with_its_stream_takes_no_new_one_along(seed, retention):
    machine = Machine(seed)
    config, body = stream_config("A", retention=retention), consumer_body("A", "c")
    machine.api("STREAM.CREATE.A", config)
    machine.api("CONSUMER.DURABLE.CREATE.A.c", body)
    deleted = [("CONSUMER.DELETE.A.c", b""), ("STREAM.DELETE.A", b"")]
    made = [("STREAM.CREATE.A", config), ("CONSUMER.DURABLE.CREATE.A.c", body)]
    for verb, request in (deleted + made) * 3:
        machine.ask("$JS.API." + verb, request)
        machine.ask("a.x", b"1")
        if machine.random.random() < 0.5:
            machine.engine.flush()
        for _ in range(machine.random.randint(0, 8)):
            machine.sync_some()
    machine.settle()
    machine.engine.commit.retry()
    machine.settle()
    assert [answer for answer in machine.client.answers.values() if "error" in answer] == []
    assert machine.engine.commit.failures == {}
    assert {part for path in machine.disk.files() for part in path.parts if ".deleted" in part} == set()
    machine.crash(power=True)
    assert "c" in machine.jetstream.streams["A"].consumers


def test_a_sync_that_finds_its_stream_gone_is_no_failure():
    """The thread that syncs may be there before whoever deleted the stream has told anybody."""
    stream = StoreFolder(FaultyDisk(Random(1)), Path("/data")).stream("$G", "A")
    stream.write_meta(b"{}")
    store = stream.open_store()
    consumer = stream.consumer("c")
    consumer.stage_meta(b"{}")
    journal = consumer.open_journal()
    journal.load()
    journal.delivered_run(1, [1], 1)
    store.append(b"a", b"", b"1", 1)
    stream.stage_meta(b'{"new":1}')
    journal.flush()
    store.flush()
    stream.removal().flush()
    for syncable in (consumer, journal, store, stream):
        assert sync(syncable) is None
        assert syncable.failure is None


def test_a_removal_that_was_refused_takes_no_new_consumer_along():
    machine = Machine()
    body = consumer_body("A", "c")
    machine.api("STREAM.CREATE.A", stream_config("A", retention="workqueue"))
    machine.api("CONSUMER.DURABLE.CREATE.A.c", body)

    def fault(operation, path):
        if operation == "replace" and path.name == "c":
            raise OSError(errno.EIO, "as asked", str(path))

    machine.disk.fault = fault
    assert "error" in machine.api("CONSUMER.DELETE.A.c")
    assert "error" in machine.api("CONSUMER.DURABLE.CREATE.A.c", body)
    machine.disk.fault = None
    assert "error" not in machine.api("CONSUMER.DURABLE.CREATE.A.c", body)
    machine.engine.commit.retry()
    machine.settle()
    assert machine.engine.commit.failures == {}
    machine.crash(power=True)
    assert "c" in machine.jetstream.streams["A"].consumers


@pytest.mark.parametrize("operation", ["sync", "sync_folder", "replace", "add_folder", "create", "write"])
@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_what_the_disk_refuses_to_make_durable_is_not_there(what, operation):
    machine = Machine()
    if what == "consumer":
        machine.api("STREAM.CREATE.A", stream_config("A"))
    failing = True

    def fault(name, path):
        if failing and name == operation and (name != "replace" or path.suffix == ".tmp"):
            raise OSError(errno.EIO, "as asked", str(path))

    machine.disk.fault = fault
    if what == "stream":
        inbox = machine.ask("$JS.API.STREAM.CREATE.A", stream_config("A"))
        published = machine.ask("a.x", b"1")
    else:
        inbox = machine.ask("$JS.API.CONSUMER.DURABLE.CREATE.A.c", consumer_body("A", "c"))
    for _ in range(40):
        machine.engine.flush()
        machine.sync_some()
    failing = False
    machine.settle()
    assert machine.client.answers[inbox]["error"]["err_code"] == 10077
    if what == "stream":
        assert "error" in machine.client.answers[published]
        assert "A" not in machine.jetstream.streams
    else:
        assert "c" not in machine.jetstream.streams["A"].consumers
    machine.crash(power=True)
    if what == "stream":
        assert "error" not in machine.api("STREAM.CREATE.A", stream_config("A"))
    else:
        assert "error" not in machine.api("CONSUMER.DURABLE.CREATE.A.c", consumer_body("A", "c"))


@pytest.mark.parametrize("cut", range(1, 7))
@pytest.mark.parametrize("seed", range(12))
def test_a_name_is_free_after_a_cut_while_what_a_crash_left_of_its_stream_goes(seed, cut):
    machine = Machine(seed)
    streams = Path("/data/jetstream/$G/streams")

    def fault(operation, path):
        if operation == "sync" and path.parent == streams / "A":
            raise PowerCut

    machine.disk.fault = fault
    with pytest.raises(PowerCut):
        machine.api(*REQUESTS[0])
    machine.disk.fault = None
    machine.disk.kill()
    for folder in (streams / "A", streams, *streams.parents):
        machine.disk.sync_folder(folder)
    assert machine.disk.names(streams / "A") == ["meta.json.tmp", "msgs"]
    machine.disk.cut_at = machine.disk.operations + cut
    with suppress(PowerCut):
        machine.start()
    machine.crash(power=True)
    assert machine.reports == []
    assert "error" not in machine.api(*REQUESTS[0])
