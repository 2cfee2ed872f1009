"""A bounded part of the histories: some seeds in memory, some on real servers, and that broken promises are noticed.

`make simulate-spark SEED=… HISTORIES=…` runs as many of them as one likes.
"""

from __future__ import annotations

import logging
from random import Random

import pytest

from jetlake.client.settings.options import build_options
from jetlake.client.tables.message_gets import MergedGets
from jetlake.client.tables.planning import SequenceRange, StreamOffset
from jetlake.client.tables.range_reader import RangeAccount
from jetlake.client.tables.stream_api import StreamApi
from jetlake.spark.options import connection_options
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.ledger import Ledger
from jetlake.spark.sink.stored_rows import RepeatedTask
from tests.spark.model.run_spark import play
from tests.spark.model.worlds import FakeWorld, RealWorld

# Each of these once broke a promise: an idle poll between look and restore, a note that was not written, a head that
# moved while a batch was planned, messages under the sequences of others, a consumer that went with its stream, a
# stream that is no longer read, a task that was repeated after a purge.
TELLING = [6, 50, 54, 84, 101, 195, 209, 329, 428, 5396, 80127]


@pytest.mark.parametrize("seed", TELLING)
def test_a_history_that_broke_a_promise_once(seed):
    play(seed)


def test_histories_in_memory():
    histories = [play(seed) for seed in range(20_000, 20_060)]
    assert sum(history.batch for history in histories) > 200
    assert sum(sum(history.committed.values()) for history in histories) > 500
    assert sum(history.alarms for history in histories) > 5
    assert sum(history.rollbacks for history in histories) > 10
    assert sum(history.refusals for history in histories) > 5
    assert sum(history.by_content for history in histories) < len(histories) / 3


def test_histories_on_a_server_that_loses_its_index_of_subjects():
    for seed in range(40_000, 40_030):
        world = FakeWorld()
        world.server.loses_indexes = True
        play(seed, world)


def test_histories_on_a_server_whose_mirrors_hold_less_than_their_origins():
    for seed in range(50_000, 50_030):
        world = FakeWorld()
        world.server.mirrors = Random(seed)
        play(seed, world)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Losses are told in the log, and histories have many."""
    caplog.set_level(logging.ERROR, "jetlake")


@pytest.fixture
def world(server):
    world = RealWorld(server.url, server.admin())
    world.clear()
    yield world
    world.clear()


@pytest.mark.parametrize("seed", range(30_000, 30_006))
def test_a_history_on_a_real_server(world, seed):
    play(seed, world)


def test_a_loss_that_is_not_told_is_noticed(monkeypatch):
    monkeypatch.setattr(RangeAccount, "_lose", lambda *_: None)
    assert_broken("as lost, and these are", 69)


def test_a_range_that_is_read_again_is_noticed(monkeypatch):
    monkeypatch.setattr(StreamOffset, "position", property(lambda offset: offset))
    monkeypatch.setattr(
        StreamOffset, "range_after", lambda end, _: (end.batch.first if end.batch else end.next, end.next)
    )
    assert_broken("was read twice", 4)


def test_rows_that_are_written_twice_are_noticed(monkeypatch):
    monkeypatch.setattr(RepeatedTask, "missing", lambda task, rows, *_, **__: rows)
    assert_broken("in the target more than once", 20_000)


def test_a_batch_that_is_skipped_for_its_number_is_noticed(monkeypatch):
    monkeypatch.setattr(RepeatedTask, "missing", lambda task, rows, *_, was_done: [] if was_done else rows)
    assert_broken("were committed and are not in the target", 20_000)


def assert_broken(promise, first_seed):
    """The history breaks the promise, or one behind it; others may fail before by what follows from the same defect."""
    for seed in range(first_seed, first_seed + 300):
        try:
            play(seed)
        except AssertionError as error:
            if promise in str(error):
                return
    raise AssertionError(f"no history says: {promise}")


def test_the_ledger_has_as_many_replicas_as_the_stream_that_is_written_to(monkeypatch):
    world = FakeWorld()
    world.create({"name": "OUT", "subjects": ["OUT.>"], "num_replicas": 3})
    options = build_options(world.url)
    monkeypatch.setattr(
        connection_options, "open_connection", lambda _: world.open_connection(lambda sock: sock, options)
    )
    monkeypatch.setattr(connection_options, "_idle", {})
    for name, replicas in (("OUT", 3), ("", 1)):
        ledger = Ledger(SinkOptions.of({"ledger": f"of_{name}", **({"stream": name} if name else {})}))
        ledger.add_batch("query", 1)
        config = world.server.streams[f"KV_of_{name}"].config
        assert (config["num_replicas"], config["max_age"]) == (replicas, 366 * 86_400 * 10**9)


class NearMirror(Random):
    """Lets a whole mirror answer every direct get, as one that is nearer than its origin does."""

    def random(self) -> float:
        return 1.0

    def choice(self, lacks):
        return "nothing"


class CountingSocket:
    """Counts the messages of direct gets that are received."""

    def __init__(self, sock) -> None:
        self._sock = sock
        self.messages = 0

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def recv_into(self, buffer) -> int:
        size = self._sock.recv_into(buffer)
        self.messages += bytes(buffer[:size]).count(b"Nats-Sequence: ")
        return size


def test_a_mirror_that_always_answers_sends_little_in_vain():
    world = FakeWorld()
    world.create({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    for _ in range(3000):
        world.publish("S.a", b"x")
    connection = world.open_connection(CountingSocket, build_options(world.url))
    for mirrors, received in ((NearMirror(), 1000 + 3000 // 512 + 1), (None, 3000)):
        world.server.mirrors = mirrors
        connection.sock.messages = 0
        gets = MergedGets(StreamApi(connection), "S", (), SequenceRange(1, 3001))
        sequences: list[int] = []
        while not gets.done:
            sequences += gets.next_messages(1000).sequence.tolist()
        assert sequences == [*range(1, 3001)]
        assert connection.sock.messages <= received
