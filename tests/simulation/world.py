"""The simulated world: an engine on a disk in memory, clients that are lists, and time that is moved by hand."""

import json
from pathlib import Path
from random import Random

from jetlake.protocol.frames import AckRun, Msg
from jetlake.protocol.parser import ClientParser, ServerParser
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from jetlake.testing.clock import ManualClock
from tests.support.any_sync import AnySync
from tests.support.faulty_disk import FaultyDisk


class Client(Subscriber):
    """A client that keeps what it was sent, as (subject, reply, header, payload)."""

    def __init__(self):
        self._parser = ClientParser()
        self._frames = []

    def send(self, data):
        self._frames += [frame for frame in self._parser.feed(data) if isinstance(frame, Msg)]

    def take(self):
        frames, self._frames = self._frames, []
        return frames


class World:
    """One machine: its disk and its clock go on, its server comes and goes."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.clock = ManualClock()
        self.disk = FaultyDisk(Random(seed + 1))
        self.starts = 0
        self.inboxes = 0
        self.start()

    def start(self):
        """Start a server on what the disk holds."""
        self.starts += 1
        folder = StoreFolder(self.disk, Path("/data"), marks_flushes=False)  # As a server that always syncs has it.
        storage = FolderStorage(folder, self._unreadable, lambda _line: None)
        self.engine = Engine(self.clock, EngineOptions(), storage)
        self.engine.random.seed(self.random.random())
        self.account = Account("$G", random=Random(self.random.random()))
        self.jetstream = self.engine.enable(self.account)
        self.client = Client()
        self.account.subscribe(b"_INBOX.>", b"1", self.client)

    def _unreadable(self, line):
        raise AssertionError(f"the server could not open what it had written: {line}")

    # What a shell does

    def turn(self):
        """Bring everything to rest: store, write, sync, deliver."""
        engine = self.engine
        for _ in range(10_000):
            engine.flush()
            if engine.commit.wants_sync():
                for syncable in engine.commit.begin():
                    engine.commit.finish({syncable: AnySync(syncable, self.random).run()})
            elif not engine.has_ready():
                return
        raise AssertionError("the engine does not come to rest")

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.engine.run_timers()
        self.turn()

    def stop(self):
        """A clean stop."""
        self.engine.close()

    # What a client does

    def inbox(self):
        self.inboxes += 1
        return b"_INBOX.%d" % self.inboxes

    def publish(self, subject, payload=b"", reply=b""):
        self.account.publish(subject, reply, b"", payload, self.client)

    def acknowledge(self, subjects, body):
        """Acknowledge with the bytes of one read, which a shell hands on as runs."""
        data = b"".join(b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body) for subject in subjects)
        for frame in ServerParser(ack_runs=True).feed(data):
            if isinstance(frame, AckRun):
                self.account.publish_acks(frame, self.client)
            else:
                self.publish(frame.subject, frame.payload)

    def api(self, verb, body=None):
        """The JSON answer to a request, and whatever else came meanwhile; None when there was no answer."""
        reply = self.inbox()
        self.publish(b"$JS.API." + verb.encode(), json.dumps(body).encode() if body is not None else b"", reply)
        self.turn()
        frames = self.client.take()
        answers = [json.loads(frame.payload) for frame in frames if frame.subject == reply]
        return (answers[0] if answers else None), [frame for frame in frames if frame.subject != reply]
