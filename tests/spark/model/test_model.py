"""A bounded part of the histories: some seeds in memory, some on real servers, and that broken promises are noticed.

`make simulate-spark SEED=… HISTORIES=…` runs as many of them as one likes.
"""

from __future__ import annotations

import logging

import pytest
from run_spark import play
from worlds import FakeWorld, RealWorld

from jetlake.client.settings.options import build_options
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.reading.range_account import RangeAccount
from jetlake.spark.options import connection_options, connection_pool
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.ledger import Ledger

# Each of these once broke a promise: an idle poll between look and restore, a note that was not written, a head that
# moved while a batch was planned, messages under the sequences of others, a consumer that went with its stream, a
# stream that is no longer read.
TELLING = [6, 50, 54, 84, 195, 209, 329, 428, 5396, 80127]


@pytest.mark.parametrize("seed", TELLING)
def test_a_history_that_broke_a_promise_once(seed):
    play(seed)


def test_histories_in_memory():
    histories = [play(seed) for seed in range(20_000, 20_060)]
    assert sum(history.batch for history in histories) > 200
    assert sum(sum(history.committed.values()) for history in histories) > 500
    assert sum(history.alarms for history in histories) > 5


def test_histories_on_a_server_that_loses_its_index_of_subjects():
    for seed in range(40_000, 40_030):
        world = FakeWorld()
        world.server.loses_indexes = True
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


def assert_broken(promise, first_seed):
    """The history breaks the promise, or one behind it; others may fail before by what follows from the same defect."""
    for seed in range(first_seed, 300):
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
    monkeypatch.setattr(connection_pool, "_idle", {})
    for name, replicas in (("OUT", 3), ("", 1)):
        ledger = Ledger(SinkOptions.of({"ledger": f"of_{name}", **({"stream": name} if name else {})}))
        ledger.add_batch("query", 1)
        config = world.server.streams[f"KV_of_{name}"].config
        assert (config["num_replicas"], config["max_age"]) == (replicas, 366 * 86_400 * 10**9)
