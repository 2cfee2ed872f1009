"""A bounded part of the histories of mirrors and sources, and that a broken promise is noticed at all."""

import errno
from collections import Counter

import pytest

from jetlake.model.source_names import SOURCE_HEADER, parse_source_header
from jetlake.protocol.headers import find_value
from jetlake.server.engine.sourcing.copies import Mirror
from jetlake.server.engine.sourcing.positions import Positions
from tests.simulation.copying_history import CopyingHistory, held
from tests.simulation.world import World

pytestmark = pytest.mark.usefixtures("small_segments")

STEPS = 150


# Those but the first broke promises once: what a power cut took before it was safe, from the end or out of the middle.
@pytest.mark.parametrize("seed", [1, 9, 34, 40, 44])
def test_a_history_keeps_every_promise(seed):
    history = CopyingHistory(seed)
    try:
        history.run(STEPS)
    except AssertionError as error:
        raise AssertionError(f"{error}\nreplay: CopyingHistory({seed}).run({STEPS})") from error
    assert history.published > 50 and len(history.copied) > 50


class TwoSources:
    """A stream with two sources, on a disk that can refuse to sync the stream's log."""

    def __init__(self, **config):
        self.world = World(1)
        for name in ("A", "B"):
            self.world.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"]})
        sources = [{"name": "A"}, {"name": "B"}]
        self.world.api("STREAM.CREATE.D", {"name": "D", "sources": sources, "subjects": ["own"], **config})
        self.world.advance(1)

    def publish(self, *names):
        for name in names:
            self.world.publish(f"{name}.x".encode())
        self.world.turn()

    def fail_one_sync(self):
        """Refuse the next sync of the stream's log, after which the server retries it with success."""
        left = 1

        def fault(operation, path):
            nonlocal left
            if operation == "sync" and left and path.parent.parent.name == "D":
                left -= 1
                raise OSError(errno.EIO, "simulated")

        self.world.disk.fault = fault
        self.publish("A", "B")
        assert not left
        self.world.disk.fault = None
        self.world.advance(1)

    def step(self, *names, seconds=4):
        """Publish while the sources ask for their origins again, one before the other."""
        for _ in range(seconds * 50):
            self.publish(*names)
            self.world.advance(0.02)

    def copies(self):
        """How often each message of each origin is in the stream."""
        headers = [find_value(message.header, SOURCE_HEADER) for message in held(self.stream.store)]
        copies = [parse_source_header(header) for header in headers if header]
        return Counter((copy.index_name[0], copy.sequence) for copy in copies)

    @property
    def stream(self):
        return self.world.jetstream.streams["D"]

    def restart(self, how):
        how()
        self.world.start()
        self.world.advance(1)
        self.world.advance(1)


@pytest.mark.parametrize("busy", [("A",), ("B",), ("A", "B")])
@pytest.mark.parametrize("end", ["go on", "stop", "kill"])
def test_a_failed_sync_makes_no_source_copy_twice(busy, end):
    two = TwoSources(duplicate_window=100_000_000)
    two.publish("A", "B")
    two.fail_one_sync()
    two.step(*busy)
    if end != "go on":
        two.restart(two.world.stop if end == "stop" else two.world.disk.kill)
    two.publish("A", "B")
    two.world.advance(1)
    expected = {(name, n) for name in "AB" for n in range(1, two.world.jetstream.streams[name].store.last_sequence + 1)}
    assert two.copies() == Counter(expected)


def test_copies_that_wait_in_memory_count_when_a_position_is_read_again():
    two = TwoSources()
    two.publish("A")
    store, positions = two.stream.store, two.stream.copying._positions
    line = b"Nats-Stream-Source: A 9 > > A.x %b\r\n" % positions.get("A > >").identity.encode()
    store.append(b"A.x", b"NATS/1.0\r\n" + line + b"\r\n", b"", two.world.clock.now_ns())
    positions.failed("A > >")
    positions.refresh()
    assert positions.get("A > >").sequence == 9


@pytest.mark.parametrize("config", [{}, {"persist_mode": "async"}])
def test_idle_sources_do_not_keep_the_files_of_removed_messages(config):
    two = TwoSources(max_msgs=5, **config)
    two.publish("A", "B")
    two.fail_one_sync()
    two.step(seconds=3)
    for _ in range(400):
        two.world.publish(b"own", b"x" * 100)
        two.world.advance(0.1)
    assert len(two.stream.store._index.blocks) < 5
    two.restart(two.world.disk.kill)
    two.publish("A", "B")
    two.world.advance(1)
    last = two.world.jetstream.streams["A"].store.last_sequence
    assert two.copies() == Counter({("A", last): 1, ("B", last): 1})


def find_a_broken_promise():
    for seed in range(21, 35):  # Many of them break each of these promises, and always the same ones.
        CopyingHistory(seed).run(STEPS)


def test_a_position_that_is_forgotten_is_noticed(monkeypatch):
    def read_nothing(self, *_):
        yield
        return {}

    monkeypatch.setattr(Positions, "_read_headers", read_nothing)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_position_that_is_not_saved_is_noticed(monkeypatch):
    monkeypatch.setattr(Positions, "_may_forget", lambda self, first, last: True)
    monkeypatch.setattr(Positions, "save", lambda self: None)
    with pytest.raises(AssertionError):
        find_a_broken_promise()


def test_a_copy_that_is_skipped_is_noticed(monkeypatch):
    start = Mirror.start
    monkeypatch.setattr(Mirror, "start", lambda self: start(self)._replace(sequence=start(self).sequence + 1))
    with pytest.raises(AssertionError):
        find_a_broken_promise()
