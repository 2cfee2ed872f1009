"""What `jetlake serve` sets for its process."""

import gc
import weakref

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
    while gc.get_count()[2] < process._DUE_BUSY:
        gc.collect(1)
    turns.count = 2000
    collection.run_due()
    assert node() is None


def make_garbage(number):
    """Cycles that only a look at older objects finds."""
    nodes = [[] for _ in range(number)]
    for node in nodes:
        node.append(node)
    gc.collect(1)


@pytest.fixture
def looks():
    """The number of objects that each look at the older ones began with."""
    sizes = []

    def watch(phase, info):
        if phase == "start" and info["generation"] == 2:
            sizes.append(len(gc.get_objects()))

    gc.callbacks.append(watch)
    yield sizes
    gc.callbacks.remove(watch)


def run_busy(collection, turns):
    turns.count += 1000
    assert collection.run_due() < 0.1


def run_quiet(collection):
    assert collection.run_due() == 1
    assert collection.run_due() == 1


def test_no_look_is_at_very_many_objects(turns, looks):
    collection = GarbageCollection(turns)
    collection.start()
    kept = []
    for count in (20_000, 100_000, 400_000, 30_000, 90_000, 150_000, 50_000):
        kept.append([[] for _ in range(count)])
        run_busy(collection, turns)
    assert looks
    assert max(looks) < 230_000
    assert len(kept) == 7


@pytest.mark.parametrize("count", [120_000, 400_000], ids=["seen", "unseen"])
def test_exempt_garbage_is_found_when_the_objects_have_doubled(turns, looks, count, monkeypatch):
    monkeypatch.setattr(process, "_ALL_QUIET_MAX", 800_000)
    collection = GarbageCollection(turns)
    collection.start()
    node = Node()
    node.self = node
    kept = [[] for _ in range(count)]
    run_busy(collection, turns)
    reference = weakref.ref(node)
    del node
    for _ in range(2):
        kept.append([[] for _ in range(100_000)])
        run_busy(collection, turns)
    assert reference() is not None
    run_quiet(collection)
    assert reference() is None
    assert max(looks) > count
    looks.clear()
    kept.append([[] for _ in range(count // 2)])
    run_quiet(collection)
    assert all(size < count for size in looks), "few are new"


def test_garbage_has_a_bound_on_a_server_that_is_never_quiet(turns, monkeypatch):
    monkeypatch.setattr(process, "_ALL_BUSY", (100_000, 0))
    collection = GarbageCollection(turns)
    collection.start()
    begun = gc.get_freeze_count()
    most = 0
    for _ in range(30):
        nodes = [[] for _ in range(60_000)]
        for node in nodes:
            node.append(node)
        gc.collect(1)
        run_busy(collection, turns)  # They become exempt, and then garbage.
        gc.freeze()
        collection._exempt += len(nodes)
        del node, nodes
        most = max(most, gc.get_freeze_count() + len(gc.get_objects()) - begun)
    assert most < 300_000


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
