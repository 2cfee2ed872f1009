"""A whole engine on a faulty disk, driven by random numbers, and a book of everything that it has promised.

No socket, no thread, no waiting: time is moved by hand, and a sync is a step like any other, so that anything can
happen between its begin and its end. A seed replays a world exactly.

The reasons are in decision 20 (docs/decisions).
"""

import errno
import json
from functools import partial
from pathlib import Path
from random import Random

from jetlake.protocol.frames import Msg
from jetlake.protocol.headers import encode_headers, find_value
from jetlake.protocol.parser import ClientParser
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.files.folders import FolderOwner
from jetlake.store.journal.file_journal import FileJournal
from jetlake.store.store_folder import StoreFolder
from jetlake.store.stream_folder import ConsumerFolder, SharedResources, StreamFolder
from jetlake.testing.clock import ManualClock
from tests.support.any_sync import AnySync
from tests.support.faulty_disk import FaultyDisk, PowerCut

ACK_WAIT_S = 30
SECOND_NS = 1_000_000_000


class SmallConsumerFolder(ConsumerFolder):
    """Journals that begin anew soon."""

    def open_journal(self, note):
        return FileJournal(
            self.disk,
            self.path,
            grown_bytes=400,
            tag=self.owner,
            owner=FolderOwner(self.make, self.ensure_made, note=note),
        )


class SmallStreamFolder(StreamFolder):
    """Segments that are soon full."""

    segment_bytes = 1200

    def open_store(self, *, before_sync, **_):
        store = super().open_store(segment_bytes=self.segment_bytes, tail_bytes=300, before_sync=before_sync)
        store.removals_per_step = 2
        return store

    def consumer(self, name):
        return SmallConsumerFolder(self.disk, super().consumer(name).path, self.names, self)

    def consumers(self, note):
        folders = [SmallConsumerFolder(self.disk, folder.path, self.names) for folder in super().consumers(note)]
        for folder in folders:
            folder.adopt()
        return folders


# As a server has it that syncs before it answers.
SHARED = SharedResources(marks_flushes=False)


class SmallStoreFolder(StoreFolder):
    def stream(self, account, name):
        folder = super().stream(account, name)
        return SmallStreamFolder(self.disk, folder.path, SHARED, self.names, folder.listed)

    def streams(self, account, note):
        folders = [
            SmallStreamFolder(self.disk, folder.path, SHARED, self.names, folder.listed)
            for folder in super().streams(account, note)
        ]
        for folder in folders:
            folder.adopt()
        return folders


class Client(Subscriber):
    """Keeps the messages that it was sent."""

    def __init__(self):
        self._parser = ClientParser()
        self.messages = []

    def send(self, data):
        self.messages += [frame for frame in self._parser.feed(data) if isinstance(frame, Msg)]


class ConsumerBook:
    """What one consumer has promised."""

    def __init__(self, name, pattern):
        self.name = name
        self.pattern = pattern
        self.confirmed = set()
        """Sequences whose acknowledgement was answered."""
        self.attempted = set()
        """Sequences for which an acknowledgement or a term was sent."""
        self.pending = {}
        """Sequence: ack subject of the last delivery, of what was delivered and may be acknowledged."""


class StreamBook:
    """What one stream has promised."""

    def __init__(self, name, prefix, config, consumers):
        self.name = name
        self.prefix = prefix
        self.config = config
        self.consumers = {name: ConsumerBook(name, pattern) for name, pattern in consumers.items()}
        self.acknowledged = {}
        """Sequence of the PubAck: payload."""
        self.seen = {}
        """Sequence: payload, of everything that anybody ever saw."""
        self.removing = set()
        """Sequences whose removal was asked for."""
        self.removed = set()
        """Sequences whose removal was answered."""
        self.is_purging = False
        """Whether a purge of everything waits: it takes what is stored when its turn comes."""
        self.ids = {}
        """Message id: the sequence that was acknowledged for it, and when."""

    @property
    def is_queue(self):
        return self.config.get("retention") in ("workqueue", "interest")

    @property
    def evicts(self):
        return self.config.get("discard") != "new" and self.config.keys() & {"max_msgs", "max_msgs_per_subject"}

    def see(self, sequence, payload):
        known = self.seen.setdefault(sequence, payload)
        assert known == payload, f"{self.name}: sequence {sequence} was {known!r} and is {payload!r}"

    def may_be_gone(self, sequence):
        """Whether somebody asked for its removal, a consumer is done with it, or newer ones took its place."""
        if sequence in self.removing or self.is_purging:
            return True
        if self.is_queue and any(sequence in consumer.attempted for consumer in self.consumers.values()):
            return True
        newer = [payload for number, payload in self.seen.items() if number > sequence]
        limit = self.config.get("max_msgs", -1)
        if 0 < limit <= len(newer):
            return True
        per_subject = self.config.get("max_msgs_per_subject", -1)
        if per_subject > 0:
            subject = self.seen[sequence].split(b" ", 1)[0]
            return sum(payload.split(b" ", 1)[0] == subject for payload in newer) >= per_subject
        return False


class World:
    """An engine, its disk, its one client, and the book.

    Attributes:
        faults: how often the disk was made to fail without a crash.
        crashes: how often the engine was started anew after a crash.
    """

    def __init__(self, seed):
        self.random = Random(seed)
        self.disk = FaultyDisk(Random(seed + 1))
        self.clock = ManualClock()
        self.options = EngineOptions()
        self.crashes = 0
        self.faults = 0
        self._payloads = 0
        self._requests = 0
        self._waiting = {}
        self._begun, self._ended = [], {}
        random = self.random
        limits = random.choice(
            [{}, {}, {"max_msgs": 12}, {"max_msgs_per_subject": 3}, {"discard": "new", "max_msgs": 40}]
        )
        self.streams = [
            StreamBook("S", b"s", limits, {"all": b"s.>", "one": b"s.1"}),
            StreamBook("W", b"w", {"retention": random.choice(["workqueue", "interest"])}, {"work": b"w.>"}),
        ]
        self.start()
        for stream in self.streams:
            self.create(stream)

    # The engine

    def start(self):
        """A new process on the same disk."""
        self._waiting.clear()
        self._begun, self._ended = [], {}
        storage = FolderStorage(SmallStoreFolder(self.disk, Path("/data")), lambda text: None)
        self.engine = Engine(self.clock, self.options, storage)
        if self.random.random() < 0.5:
            self.engine.long_work.slice_ns = 0  # One step a turn, so that everything else happens in between.
        self.account = Account("$G")
        self.client = Client()
        self.jetstream = self.engine.enable(self.account)
        self.account.subscribe(b"_INBOX.>", b"1", self.client)

    def create(self, stream):
        config = {"name": stream.name, "subjects": [f"{stream.prefix.decode()}.>"], **stream.config}
        self.ask(f"STREAM.CREATE.{stream.name}", config)
        for consumer in stream.consumers.values():
            config = {
                "durable_name": consumer.name,
                "ack_policy": "explicit",
                "ack_wait": ACK_WAIT_S * SECOND_NS,
                "filter_subject": consumer.pattern.decode(),
                "max_ack_pending": 100_000,
            }
            body = {"stream_name": stream.name, "config": config}
            self.ask(f"CONSUMER.CREATE.{stream.name}.{consumer.name}", body)

    def ask(self, verb, body=None):
        """An API request, carried through; its answer."""
        answers = []
        self.send(f"$JS.API.{verb}".encode(), json.dumps(body).encode() if body else b"", answers.append)
        self.settle()
        assert answers, f"{verb}: no answer"
        answer = json.loads(answers[0].payload)
        assert "error" not in answer, (verb, answer)
        return answer

    def send(self, subject, payload=b"", on_answer=None, header=b""):
        """Publish; `on_answer` gets the message that comes back, if one ever does."""
        self._requests += 1
        reply = b"_INBOX.%d" % self._requests
        if on_answer is not None:
            self._waiting[reply] = on_answer
        self.account.publish(subject, reply if on_answer is not None else b"", header, payload, self.client)

    def read(self):
        """Look at everything that the client was sent."""
        messages, self.client.messages = self.client.messages, []
        for message in messages:
            if message.reply.startswith(b"$JS.ACK."):
                self._delivered(message)
            else:
                # The subscription's subject is what the answer came to.
                waiting = self._waiting.pop(message.subject, None)
                if waiting is not None:
                    waiting(message)

    def settle(self):
        """Turn the cycle until nothing is left to do."""
        while True:
            self.engine.flush()
            while self._begun or self._ended or self.engine.commit.wants_sync():
                self.sync_step()
            self.read()
            if not self.engine.has_ready() and self.engine.commit.is_quiet():
                return

    def sync_step(self):
        """The next segment index of work of the thread that syncs."""
        commit = self.engine.commit
        if not self._begun and not self._ended:
            self._begin_syncs()
        elif self._begun and self.random.random() < 0.7:
            begun = self._begun.pop(self.random.randrange(len(self._begun)))
            self._ended[begun.syncable] = begun.run()
        elif self._ended:
            ended, self._ended = self._ended, {}
            commit.finish(ended)
        else:
            self._begin_syncs()

    def _begin_syncs(self):
        self._begun += [AnySync(syncable, self.random) for syncable in self.engine.commit.begin()]

    # What happens

    def step(self):
        """One random thing."""
        action = self.random.choices(
            [
                self.publish,
                self.pull,
                self.acknowledge,
                self.remove,
                self.purge,
                self.turn,
                self.sync_step,
                self.pass_time,
            ],
            [30, 12, 25, 4, 1, 20, 25, 3],
        )[0]
        action()
        self.read()

    def turn(self):
        self.engine.flush()

    def pass_time(self):
        self.clock.advance(self.random.choice([0.05, 0.2, 1, ACK_WAIT_S + 1]))
        self.engine.run_timers()
        self.engine.flush()

    def publish(self):
        stream = self.random.choice(self.streams)
        for _ in range(self.random.randint(1, 5)):
            subject = b"%s.%d" % (stream.prefix, self.random.randint(0, 4))
            self._payloads += 1
            payload = subject + b" %d " % self._payloads + b"." * self.random.choice([0, 3, 40, 500])
            header = message_id = b""
            if self.random.random() < 0.4:
                message_id = b"id-%d" % self._payloads
                header = encode_headers([("Nats-Msg-Id", message_id.decode())])
            self.send(subject, payload, self._noting(stream, payload, message_id), header)
        if self.random.random() < 0.7:
            self.engine.flush()

    def _noting(self, stream, payload, message_id):
        def note(message):
            answer = json.loads(message.payload) if message.payload else {"error": "nobody"}
            if "error" not in answer:
                sequence = answer["seq"]
                assert not answer.get("duplicate"), answer
                stream.see(sequence, payload)
                stream.acknowledged[sequence] = payload
                if message_id:
                    stream.ids[message_id] = (sequence, self.clock.now_ns())

        return note

    def pull(self):
        stream = self.random.choice(self.streams)
        consumer = self.random.choice(list(stream.consumers.values()))
        body = b'{"batch":%d,"no_wait":true}' % self.random.choice([1, 5, 20])
        self.send(
            b"$JS.API.CONSUMER.MSG.NEXT.%s.%s" % (stream.name.encode(), consumer.name.encode()), body, lambda _: None
        )
        self.engine.flush()

    def _delivered(self, message):
        _, _, stream_name, consumer_name, _, sequence, *_ = message.reply.split(b".")
        stream = next(stream for stream in self.streams if stream.name.encode() == stream_name)
        consumer = stream.consumers[consumer_name.decode()]
        sequence = int(sequence)
        stream.see(sequence, message.payload)
        assert sequence not in consumer.confirmed, f"{stream.name} {consumer.name}: {sequence} comes again"
        assert sequence not in stream.removed, f"{stream.name}: {sequence} was removed and is delivered"
        consumer.pending[sequence] = message.reply

    def acknowledge(self):
        stream = self.random.choice(self.streams)
        consumer = self.random.choice(list(stream.consumers.values()))
        if not consumer.pending:
            return
        for _ in range(min(self.random.choice([1, 1, 8]), len(consumer.pending))):
            sequence = self.random.choice(list(consumer.pending))
            subject = consumer.pending.pop(sequence)
            word = self.random.choices([b"+ACK", b"", b"-NAK", b"+TERM", b"+WPI"], [60, 10, 10, 5, 5])[0]
            if word == b"+WPI":
                consumer.pending[sequence] = subject
                self.send(subject, word)
                continue
            if word != b"-NAK":
                consumer.attempted.add(sequence)
            confirms = word in (b"+ACK", b"") and self.random.random() < 0.7
            on_answer = (
                (lambda message, sequence=sequence: self._confirmed(consumer, sequence, message)) if confirms else None
            )
            self.send(subject, word, on_answer)
        if self.random.random() < 0.7:
            self.engine.flush()

    @staticmethod
    def _confirmed(consumer, sequence, message):
        # An empty answer confirms; one with a status says that nobody was there, or that it failed.
        if not message.header:
            consumer.confirmed.add(sequence)

    def remove(self):
        stream = self.random.choice(self.streams)
        if stream.acknowledged:
            sequence = self.random.choice(list(stream.acknowledged))
            stream.removing.add(sequence)

            def note(message):
                if json.loads(message.payload).get("success"):
                    stream.removed.add(sequence)

            body = json.dumps({"seq": sequence, "no_erase": self.random.random() < 0.5}).encode()
            self.send(f"$JS.API.STREAM.MSG.DELETE.{stream.name}".encode(), body, note)

    def purge(self):
        stream = self.random.choice(self.streams)
        below = self.random.choice([0, max(stream.seen, default=1)])
        self.engine.store_received()
        gone = {sequence for sequence in stream.seen if not below or sequence < below}
        everything = set(range(1, self.jetstream.streams[stream.name].store.last_sequence + 1))
        stream.removing |= {sequence for sequence in everything if not below or sequence < below}
        stream.is_purging = stream.is_purging or not below

        def note(message):
            if not below:
                stream.is_purging = False
                last = self.jetstream.streams[stream.name].store.last_sequence
                stream.removing.update(range(1, last + 1))
            if json.loads(message.payload).get("success"):
                stream.removed.update(gone)

        self.send(
            f"$JS.API.STREAM.PURGE.{stream.name}".encode(), json.dumps({"seq": below} if below else {}).encode(), note
        )

    # Bad days

    def fail(self, operations, number, times):
        """Let the disk refuse the next so many of these operations."""
        left = times

        def fault(operation, path):
            nonlocal left
            if left and operation in operations:
                left -= 1
                self.faults += 1
                raise OSError(number, "as asked", str(path))

        self.disk.fault = fault

    def heal(self):
        self.disk.fault = None
        self.disk.capacity = None

    def crash(self, *, power):
        """The process dies, perhaps with the machine; a new one starts on what is left."""
        self.crashes += 1
        self.client.messages = []
        self.heal()
        if power:
            self.disk.cut_power()
        else:
            self.disk.kill()
        for stream in self.streams:
            for consumer in stream.consumers.values():
                consumer.pending.clear()
        self.start()

    def restart(self):
        """A clean stop, and a new process."""
        self.engine.close()
        self.read()
        for stream in self.streams:
            for consumer in stream.consumers.values():
                consumer.pending.clear()
        assert self.disk.open_handles() == 0
        self.start()

    # What must hold

    def check(self):
        """Everything promised is there, in order, once, and consumers stand where their confirmed acks left them."""
        for stream in self.streams:
            stored = self._check_stored(stream)
            for consumer in stream.consumers.values():
                self._check_consumer(stream, consumer, stored)
            self._check_ids(stream)
            stream.removing.update(sequence for sequence in stream.seen if stream.is_purging)
            stream.is_purging = False

    def _check_stored(self, stream):
        stored = {}
        store = self.jetstream.streams[stream.name].store
        following = 1
        while True:
            run = store.read(following, None, 100, 1 << 20)
            if not run.messages:
                break
            for message in run.messages:
                assert message.sequence >= following, "out of order"
                following = message.sequence + 1
                stored[message.sequence] = message.payload
                stream.see(message.sequence, message.payload)
            following = max(following, run.next_sequence)
        assert len(set(stored.values())) == len(stored), "stored twice"
        assert store.messages == len(stored)
        assert store.last_sequence >= max(stream.seen, default=0), "a sequence will be handed out again"
        for sequence, payload in stream.acknowledged.items():
            if sequence not in stored:
                assert stream.may_be_gone(sequence), (
                    f"{stream.name}: {sequence} {payload[:20]!r} was acknowledged and is lost"
                )
        back = stream.removed & stored.keys()
        assert not back, f"{stream.name}: {back} were removed and are back"
        if stream.is_queue:
            for consumer in stream.consumers.values():
                done = consumer.confirmed & stored.keys()
                assert not done, f"{stream.name}: {done} were acknowledged and are back"
        return stored

    def _check_consumer(self, stream, consumer, stored):
        """Give it the time to find everything due again, and take all that it has."""
        self.clock.advance(ACK_WAIT_S + 1)
        self.engine.run_timers()
        consumer.pending.clear()
        path = b"%s.%s" % (stream.name.encode(), consumer.name.encode())
        self.send(b"$JS.API.CONSUMER.MSG.NEXT." + path, b'{"batch":100000,"no_wait":true}', lambda _: None)
        self.settle()
        delivered = set(consumer.pending)  # `_delivered` has looked at each
        literal = not consumer.pattern.endswith(b">")
        wanted = {
            sequence
            for sequence, payload in stored.items()
            if not literal or payload.split(b" ", 1)[0] == consumer.pattern
        }
        missing = wanted - delivered - consumer.attempted
        if stream.evicts:
            # What a limit has pushed out counts as done, also when the newer message is lost with the power and the
            # older one is therefore still there.
            missing = set()
        assert not missing, f"{stream.name} {consumer.name}: {sorted(missing)} are never delivered"
        assert delivered <= wanted, f"{stream.name} {consumer.name}: {sorted(delivered - wanted)} are not stored"

    def _check_ids(self, stream):
        """A publisher that tries again with the id of an acknowledged message is told so, whatever became of it."""
        recent = [
            (message_id, sequence)
            for message_id, (sequence, time_ns) in stream.ids.items()
            if self.clock.now_ns() - time_ns < 60 * SECOND_NS
        ]
        answers = {}
        for message_id, sequence in recent:
            header = encode_headers([("Nats-Msg-Id", message_id.decode())])
            assert find_value(header, b"Nats-Msg-Id") == message_id
            subject = stream.seen[sequence].split(b" ", 1)[0]
            self.send(subject, b"again", partial(answers.__setitem__, message_id), header)
        self.settle()
        for message_id, sequence in recent:
            answer = json.loads(answers[message_id].payload)
            assert answer.get("duplicate"), f"{stream.name}: {message_id!r} was taken twice: {answer}"
            assert answer["seq"] == sequence


def run_crashes(seed, epochs=4, steps=60):
    """One world with so many crashes; it is checked after each. Returns the world."""
    world = World(seed)
    random = world.random
    for _ in range(epochs):
        world.disk.cut_at = world.disk.operations + random.randint(1, 150)
        try:
            for _ in range(steps):
                world.step()
        except PowerCut:
            pass
        world.read()
        world.crash(power=random.random() < 0.8)
        world.check()
        if random.random() < 0.3:
            world.restart()
            world.check()
    return world


FAULTS = [
    ("full disk", {"write", "create"}, errno.ENOSPC),
    ("failing writes", {"write"}, errno.EIO),
    ("failing sync", {"sync"}, errno.EIO),
    ("failing writeback", {"writeback"}, errno.EIO),
    ("failing sync of folders", {"sync_folder"}, errno.EIO),
    ("failing reads", {"read"}, errno.EIO),
    ("everything fails", {"write", "writeback", "sync", "sync_folder", "replace", "remove", "read"}, errno.EIO),
]
"""What a disk can refuse while the server goes on: a name, the operations, the error."""


def run_faults(seed, epochs=3, steps=40):
    """One world whose disk refuses this and that, with a crash after each bad spell; checked after each."""
    world = World(seed)
    world.disk.drops_failed_syncs = True
    random = world.random
    for _ in range(epochs):
        for _ in range(steps // 2):
            world.step()
        _, operations, number = random.choice(FAULTS)
        if number == errno.ENOSPC and random.random() < 0.5:
            world.disk.block_bytes = random.choice([1, 256])
            world.disk.capacity = world.disk.used() + random.randint(-200, 400)
        else:
            world.fail(operations, number, random.choice([1, 2, 5, 1000]))
        for _ in range(steps):
            world.step()
        world.heal()
        for _ in range(steps // 2):
            world.step()
        world.crash(power=random.random() < 0.8)
        world.check()
    return world
