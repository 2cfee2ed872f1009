"""What `jetlake serve` sets for its process."""

import gc
import time
import weakref
from itertools import count

import pytest

from jetlake.server import process
from jetlake.server.process import GarbageCollection, without_collections


class Node:
    """A link of a cycle."""


class Turns:
    """The turns of a loop that a test counts."""

    count = 0

    def __call__(self):
        return self.count


@pytest.fixture
def turns():
    thresholds = gc.get_threshold()
    yield Turns()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def garbage():
    """A cycle that has survived the young generations, and is garbage now."""
    node = Node()
    node.self = node
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(node)


def test_a_quiet_server_collects_its_garbage(turns):
    collection = GarbageCollection(turns)
    collection.start()
    node = garbage()
    turns.count = 10
    collection.run_due()
    assert node() is None


def test_a_busy_server_puts_a_full_collection_off_until_there_is_much_to_collect(turns):
    collection = GarbageCollection(turns)
    collection.start()
    node = garbage()
    turns.count = 1000
    collection.run_due()
    assert node() is not None
    while gc.get_count()[2] < 300:
        gc.collect(1)
    turns.count = 2000
    collection.run_due()
    assert node() is None


def make_garbage(number):
    """Cycles that only a full collection finds."""
    nodes = [[] for _ in range(number)]
    for node in nodes:
        node.append(node)
    gc.collect(1)


def test_garbage_does_not_put_its_own_collection_off(turns, monkeypatch):
    monkeypatch.setattr(process, "_DUE_BUSY", 10)
    monkeypatch.setattr(time, "perf_counter", count(1, 60).__next__)  # Every collection takes a minute.
    collection = GarbageCollection(turns)
    collection.start()
    most = 0
    for _ in range(30):
        make_garbage(20_000)
        most = max(most, len(gc.get_objects()))
        turns.count += 1000
        collection.run_due()
    assert most < 150_000, "a busy server"
    make_garbage(20_000)
    collection.run_due()
    assert len(gc.get_objects()) < 10_000, "a quiet one"


def test_many_objects_put_a_collection_off_in_proportion(turns, monkeypatch):
    monkeypatch.setattr(process, "_DUE_BUSY", 1)
    collection = GarbageCollection(turns)
    collection.start()
    kept = [[] for _ in range(200_000)]
    turns.count += 1000
    collection.run_due()
    node = garbage()
    make_garbage(20_000)
    turns.count += 1000
    collection.run_due()
    assert node() is not None, "a tenth is new"
    make_garbage(60_000)
    turns.count += 1000
    collection.run_due()
    assert node() is None
    assert len(kept) == 200_000


def test_new_objects_alone_start_no_full_collection(turns):
    GarbageCollection(turns).start()
    full = []
    watch = lambda phase, info: full.append(phase) if info["generation"] == 2 else None  # noqa: E731
    gc.callbacks.append(watch)
    try:
        objects = [[] for _ in range(300_000)]
    finally:
        gc.callbacks.remove(watch)
    assert len(objects) == 300_000
    assert not full


def test_nothing_is_collected_before_the_server_has_started(turns):
    with without_collections():
        assert not gc.isenabled()
        GarbageCollection(turns).start()
        assert gc.isenabled()
    with without_collections():
        pass
    assert gc.isenabled(), "also after a start that failed"


def test_a_process_that_ends_does_not_take_its_objects_apart(turns):
    with without_collections():
        node = garbage()
    gc.collect()  # as Python's end does
    assert node() is not None


def test_no_collection_but_the_full_one_looks_at_many_objects(turns):
    GarbageCollection(turns).start()
    sizes = []

    def watch(phase, info):
        if phase == "start":
            sizes.append(sum(len(gc.get_objects(generation=number)) for number in range(info["generation"] + 1)))

    gc.callbacks.append(watch)
    try:
        objects = [[] for _ in range(20_000)]
    finally:
        gc.callbacks.remove(watch)
    assert len(objects) == 20_000
    assert len(sizes) > 10
    assert max(sizes) < 5000
