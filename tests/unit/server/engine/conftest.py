"""An engine with one account, a clock moved by hand and a client that is a list of frames: no socket, no file."""

import json

import pytest

from jetlake.protocol.headers import encode_headers
from jetlake.protocol.parser import ClientParser
from jetlake.server.engine.core.commit import sync
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.storage import MemoryStorage, MemoryStreamStorage
from jetlake.store.memory_store import MemoryStore
from jetlake.testing.clock import ManualClock


class Client(Subscriber):
    """A client that keeps what it was sent."""

    def __init__(self):
        self.no_responders = True
        self._parser = ClientParser()
        self._frames = []

    def send(self, data):
        self._frames.extend(self._parser.feed(data))

    def take(self):
        """What was sent since the last call."""
        frames, self._frames = self._frames, []
        return frames


class DurableStore(MemoryStore):
    """A memory store that counts as durable: acknowledgements wait until the test syncs, or fails to."""

    durable = True

    def __init__(self):
        super().__init__()
        self.flushes = 0
        self.syncs = 0
        self.flush_error = None
        self.sync_error = None

    def flush(self):
        self.flushes += 1
        if self.flush_error is not None:
            raise self.flush_error

    def sync(self):
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error


class DurableStorage(MemoryStorage):
    def create(self, account, config, created_ns, *, held=False):
        storage = MemoryStreamStorage()
        storage.store = DurableStore()
        return storage


class Harness:
    """One account's JetStream, driven by hand."""

    def __init__(self, storage=None, limits=None, *, server_limits=None, **options):
        self.clock = ManualClock()
        if server_limits is not None:
            options["limits"] = server_limits
        self.engine = Engine(self.clock, EngineOptions(**options), storage or MemoryStorage())
        self.account = Account("$G")
        self.jetstream = self.engine.enable(self.account, limits)
        self.client = Client()
        self.account.subscribe(b"_INBOX.>", b"1", self.client)
        self._requests = 0

    def publish(self, subject, payload=b"", headers=None, *, reply=b""):
        """Publish without ending the cycle."""
        block = b""
        if isinstance(headers, bytes):
            block = headers
        elif headers:
            block = encode_headers(headers)
        subject = subject.encode() if isinstance(subject, str) else subject
        self.account.publish(subject, reply, block, payload, self.client)

    def turn(self):
        """End the cycle, with the sync it asks for."""
        self.engine.flush()
        while self.engine.commit.wants_sync():
            for syncable in self.engine.commit.begin():
                self.engine.commit.finish({syncable: sync(syncable)})
            self.engine.flush()
        if self.engine.has_ready():
            self.turn()

    def request(self, subject, payload=b"", headers=None):
        """Publish with a reply, end the cycle, and return the frames that came back."""
        if isinstance(payload, (dict, list)):
            payload = json.dumps(payload).encode()
        self._requests += 1
        self.client.take()
        self.publish(subject, payload, headers, reply=b"_INBOX.r.%d" % self._requests)
        self.turn()
        return self.client.take()

    def api(self, verb, payload=b"", headers=None):
        """The JSON answer to an API request."""
        (frame,) = self.request("$JS.API." + verb, payload, headers)
        return json.loads(frame.payload)

    def store(self, subject, payload=b"", headers=None):
        """The JSON acknowledgement of a published message."""
        (frame,) = self.request(subject, payload, headers)
        return json.loads(frame.payload)

    def create(self, name="S", **config):
        answer = self.api("STREAM.CREATE." + name, {"name": name, "subjects": ["s.>"], **config})
        assert "error" not in answer, answer
        return self.jetstream.streams[name]

    def state(self, name="S"):
        return self.api("STREAM.INFO." + name)["state"]

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.engine.run_timers()
        self.turn()


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def durable():
    """A harness whose acknowledgements wait for the disk."""
    return Harness(DurableStorage())


@pytest.fixture
def make_harness():
    return Harness
