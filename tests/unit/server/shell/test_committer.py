"""The committer: one sync at a time for each store, off the loop, and its outcome told on the loop."""

import asyncio
import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Commit
from jetlake.server.shell import committer as committer_module
from jetlake.server.shell.committer import Committer, LatencyHistogram, Pace, has_events


class Store:
    failure = None

    def __init__(self, error=None, *, changes_names=False):
        self.error = error
        self.changes_names = changes_names
        self.threads = []
        self.gate = threading.Event()
        self.gate.set()

    def flush(self):
        pass

    def sync(self):
        self.gate.wait(10)
        self.threads.append(threading.current_thread())
        if self.error is not None:
            raise self.error


async def run(store, waiters=1):
    commit = Commit(always=True)
    finished = asyncio.Event()
    committer = Committer(commit, asyncio.get_running_loop(), finished.set)
    outcomes = []
    for _ in range(waiters):
        commit.when_durable(store, outcomes.append)
    commit.mark(store)
    commit.flush()
    committer.kick()
    assert outcomes == []
    await asyncio.wait_for(finished.wait(), 10)
    await committer.stop()
    return outcomes, committer


async def test_waiters_are_released_after_a_sync_in_another_thread():
    store = Store()
    outcomes, committer = await run(store, waiters=3)
    assert outcomes == [None, None, None]
    assert store.threads != [threading.current_thread()]
    assert committer.latency.count == 1


async def test_errors_reach_the_waiters():
    error = JetlakeError("disk gone")
    outcomes, _ = await run(Store(error))
    assert outcomes == [error]


async def test_foreign_errors_are_translated():
    outcomes, _ = await run(Store(RuntimeError("odd")))
    assert isinstance(outcomes[0], JetlakeError)
    assert "odd" in str(outcomes[0])


async def test_one_sync_is_under_way_at_a_time():
    store, commit = Store(), Commit(always=True)
    store.gate.clear()
    rounds = []
    committer = Committer(commit, asyncio.get_running_loop(), lambda: rounds.append(1))
    for _ in range(5):
        commit.mark(store)
        commit.when_durable(store, lambda error: None)
        commit.flush()
        committer.kick()
    store.gate.set()
    while len(rounds) < 1:
        await asyncio.sleep(0.001)
    committer.kick()  # what came meanwhile shares the next
    while len(rounds) < 2:
        await asyncio.sleep(0.001)
    committer.kick()
    await committer.stop()
    assert len(store.threads) == 2


async def test_a_store_that_syncs_slowly_holds_no_other_up():
    commit, slow, quick = Commit(always=True), Store(), Store()
    slow.gate.clear()
    outcomes = []
    finished = asyncio.Event()
    committer = Committer(commit, asyncio.get_running_loop(), finished.set)
    for name, store in (("slow", slow), ("quick", quick)):
        commit.mark(store)
        commit.when_durable(store, lambda _error, name=name: outcomes.append(name))
    commit.flush()
    committer.kick()
    await asyncio.wait_for(finished.wait(), 10)
    assert outcomes == ["quick"]
    slow.gate.set()
    await committer.stop()
    assert outcomes == ["quick", "slow"]


async def test_every_store_is_synced_however_many_there_are():
    commit = Commit(always=True)
    stores = [Store() for _ in range(100)]
    outcomes = []
    committer = Committer(commit, asyncio.get_running_loop(), lambda: committer.kick())
    for store in stores:
        commit.mark(store)
        commit.when_durable(store, outcomes.append)
    commit.flush()
    committer.kick()
    async with asyncio.timeout(10):
        while len(outcomes) < 100:
            await asyncio.sleep(0.001)
    await committer.stop()
    assert outcomes == [None] * 100
    assert len({thread.name for store in stores for thread in store.threads}) <= 16


@pytest.mark.parametrize(("files_max", "most"), [(5, 5), (100, 16)])
async def test_no_more_syncs_are_under_way_than_files_may_be_open(files_max, most):
    commit = Commit(always=True)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: None, files_max)
    stores = [Store() for _ in range(20)]
    for store in stores:
        store.gate.clear()
        commit.mark(store)
    commit.flush()
    committer.kick()
    assert len(commit.begin()) == len(stores) - most
    for store in stores:
        store.gate.set()
    await committer.stop()


def test_histogram():
    histogram = LatencyHistogram()
    for seconds in (0.00005, 0.0002, 0.0002, 0.7, 5.0):
        histogram.observe(seconds)
    assert histogram.counts[0] == 1
    assert histogram.counts[1] == 2
    assert histogram.counts[-2] == 1
    assert histogram.counts[-1] == 1
    assert histogram.count == 5
    assert round(histogram.sum_s, 4) == 5.7005


async def test_acknowledgements_leave_as_soon_as_the_sync_is_told(jetlake_server, jetlake_js, monkeypatch):
    """Not a turn of the loop later."""
    engine_loop, waiting = jetlake_server.engine_loop, []
    finish = engine_loop.committer._finish

    def finish_and_look():
        finish()
        waiting.append(len(engine_loop._dirty))

    await jetlake_js.create_stream("S", subjects=["s"])
    monkeypatch.setattr(engine_loop.committer, "_finish", finish_and_look)
    assert (await jetlake_js.publish("s", b"x")).seq == 1
    assert waiting and not any(waiting)


async def test_few_folders_are_synced_at_a_time_and_hold_no_store_up():
    commit = Commit(always=True)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: committer.kick())
    folders = [Store(changes_names=True) for _ in range(20)]
    stores = [Store() for _ in range(16)]
    durable = []
    for folder in folders:
        folder.gate.clear()
    for store in (*folders, *stores):
        commit.mark(store)
        commit.when_durable(store, lambda _error, store=store: durable.append(store))
    commit.flush()
    committer.kick()
    async with asyncio.timeout(30):
        while len(durable) < len(stores):
            await asyncio.sleep(0.001)
    assert set(durable) == set(stores)
    assert len(commit.begin()) == 18, "two are under way"
    for folder in folders:
        folder.gate.set()
    await committer.stop()
    assert set(durable) >= set(stores) and len(durable) == 18


async def test_the_disk_begins_with_what_is_synced_alone(monkeypatch):
    begun = []
    commit = Commit(always=True)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: committer.kick(), begin_writeback=begun.append)

    async def commit_all(*stores):
        ended = asyncio.Event()
        for store in stores:
            commit.mark(store)
        commit.when_durable(None, lambda _error: ended.set())
        commit.flush()
        committer.kick()
        await asyncio.wait_for(ended.wait(), 10)

    monkeypatch.setattr(committer_module, "_WRITEBACK_S", 60)
    only_subscription, other = Store(), Store()
    await commit_all(only_subscription)
    assert begun == [only_subscription]
    await commit_all(only_subscription, other)
    assert begun == [only_subscription], "two are flushed"
    only_subscription.gate.clear()
    commit.mark(only_subscription)
    commit.flush()
    committer.kick()
    commit.mark(other)
    commit.flush()
    assert begun == [only_subscription, only_subscription], "one is being synced"
    only_subscription.gate.set()
    await commit_all()
    monkeypatch.setattr(committer_module, "_WRITEBACK_S", 0)
    await commit_all(only_subscription)
    assert begun == [only_subscription] * 3
    await commit_all(only_subscription)
    assert begun == [only_subscription] * 3, "the last sync was slow"
    await committer.stop()


class ShortStore(Store):
    """Its sync is short, and takes as long as it is told to."""

    is_short = True

    def sync_if_short(self):
        if self.is_short:
            self.sync()
        return self.is_short


class ShortWorld:
    def __init__(self, **options):
        self.commit = Commit(always=True)
        self.has_events = False
        self.rounds = 0
        loop = asyncio.get_running_loop()
        self.committer = Committer(
            self.commit,
            loop,
            self.finished,
            sync_if_short=lambda store: store.sync_if_short(),
            has_events=lambda: self.has_events,
            **options,
        )
        self.committer._pace = quick_pace()

    def finished(self):
        self.rounds += 1

    def write(self, *stores):
        outcomes = []
        for store in stores:
            self.commit.mark(store)
            self.commit.when_durable(store, outcomes.append)
        self.commit.flush()
        return outcomes

    async def end(self, outcomes, count=1):
        async with asyncio.timeout(10):
            while len(outcomes) < count:
                await asyncio.sleep(0.001)
        await self.committer.stop()


def is_here(store):
    return [thread is threading.current_thread() for thread in store.threads]


async def test_short_syncs_run_on_an_idle_loop_whose_disk_is_quick():
    world, first, second = ShortWorld(), ShortStore(), ShortStore()
    outcomes = world.write(first, second)
    assert not world.committer.kick(is_idle=True)
    assert outcomes == [None, None] and world.rounds == 1 and world.committer.latency.count == 2
    assert is_here(first) == is_here(second) == [True]
    await world.committer.stop()


async def test_a_loop_that_has_other_work_leaves_syncs_to_threads():
    world, store = ShortWorld(), ShortStore()
    outcomes = world.write(store)
    assert not world.committer.kick(is_idle=False)
    await world.end(outcomes)
    assert is_here(store) == [False]


async def test_events_are_handled_before_a_sync_and_do_not_hold_it_up():
    world, store = ShortWorld(), ShortStore()
    world.has_events = True
    outcomes = world.write(store)
    assert world.committer.kick(is_idle=True), "a turn comes first, in which the loop takes its events"
    assert world.committer.kick(is_idle=True), "and one that handles them"
    world.has_events = False
    more = world.write(store)
    assert not world.committer.kick(is_idle=True)
    assert (outcomes, more, is_here(store)) == ([None], [None], [True]), "both share the sync"
    world.has_events = True
    outcomes = world.write(store)
    assert [world.committer.kick(is_idle=True) for _ in range(3)] == [True, True, False], "the loop is busy"
    await world.end(outcomes)
    assert is_here(store) == [True, False]


async def test_what_is_not_short_goes_to_threads_beside_what_is():
    world, short, long = ShortWorld(), ShortStore(), ShortStore()
    long.is_short = False
    outcomes = world.write(long, short)
    world.committer.kick(is_idle=True)
    assert is_here(short) == [True]
    await world.end(outcomes, 2)
    assert is_here(long) == [False]


async def test_a_sync_beside_one_under_way_is_left_to_threads():
    world, slow, store = ShortWorld(), ShortStore(), ShortStore()
    slow.is_short = False
    slow.gate.clear()
    outcomes = world.write(slow)
    world.committer.kick(is_idle=True)
    more = world.write(store)
    world.committer.kick(is_idle=True)
    assert outcomes == []
    slow.gate.set()
    await world.end(more)
    assert is_here(store) == [False] and outcomes == [None]


@pytest.mark.parametrize(("count", "here"), [(3, 3), (8, 4), (9, 0)])
async def test_few_stores_are_synced_in_a_turn_of_the_loop(count, here):
    world = ShortWorld()
    stores = [ShortStore() for _ in range(count)]
    outcomes = world.write(*stores)
    world.committer.kick(is_idle=True)
    await world.end(outcomes, count)
    assert sum(is_here(store) == [True] for store in stores) == here


@pytest.mark.parametrize("error", [JetlakeError("disk gone"), RuntimeError("odd")])
async def test_errors_of_short_syncs_reach_the_waiters(error):
    world = ShortWorld()
    outcomes = world.write(ShortStore(error))
    world.committer.kick(is_idle=True)
    assert isinstance(outcomes[0], JetlakeError) and str(error) in str(outcomes[0])
    await world.committer.stop()


class Processor:
    """How long a thread has run, and waited for a processor."""

    def __init__(self):
        self.ran_s = self.waited_s = 0.0

    def pass_time(self, *, ran_s, waited_s):
        self.ran_s += ran_s
        self.waited_s += waited_s

    def run_times(self):
        return self.ran_s, self.waited_s


def quick_pace(run_times=lambda: (0.0, 0.0)):
    pace = Pace(run_times)
    for _ in range(30):
        pace.observe(0.0001, 0.0)
    return pace


def test_a_disk_is_quick_after_several_quick_syncs():
    pace = Pace(lambda: (0.0, 0.0))
    pace.observe(0.0001, 0.0)
    assert not pace.may_wait(0.0), "one says little"
    pace = quick_pace()
    assert pace.may_wait(0.0)
    for _ in range(30):
        pace.observe(0.001, 0.0)
    assert not pace.may_wait(0.0)


def test_a_slow_sync_suspends_waiting_for_twenty_times_its_time():
    pace = quick_pace()
    pace.observe(0.5, 100.0)
    for _ in range(30):
        pace.observe(0.0001, 100.0)
    assert not pace.may_wait(109.9) and pace.may_wait(110.1)


def test_a_thread_that_waits_for_a_processor_waits_for_no_disk():
    processor = Processor()
    pace = quick_pace(processor.run_times)
    processor.pass_time(ran_s=0.1, waited_s=0.01)
    assert pace.may_wait(1.0)
    processor.pass_time(ran_s=0.1, waited_s=0.1)
    assert pace.may_wait(1.1), "it does not look all the time"
    assert not pace.may_wait(2.0)
    processor.pass_time(ran_s=0.0001, waited_s=0.0)
    assert not pace.may_wait(3.0), "too little to say more"
    processor.pass_time(ran_s=0.1, waited_s=0.0)
    assert pace.may_wait(4.0)


async def test_a_loop_that_does_not_say_what_waits_for_it_never_waits():
    with closing(asyncio.SelectorEventLoop()) as loop:
        assert has_events(loop) is None


def test_events_of_uvloop_are_seen():
    uvloop = pytest.importorskip("uvloop")

    async def run():
        loop = asyncio.get_running_loop()
        asks = has_events(loop)
        reader, writer = os.pipe()
        loop.add_reader(reader, lambda: None)
        await asyncio.sleep(0.01)
        before = asks()
        os.write(writer, b"x")
        after = asks()
        loop.remove_reader(reader)
        os.close(reader)
        os.close(writer)
        return before, after

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == (False, True)


async def commit_alone(commit, committer, store):
    ended = asyncio.Event()
    commit.mark(store)
    commit.when_durable(store, lambda _error: ended.set())
    commit.flush()
    committer.kick()
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_folder_does_not_keep_the_thread_that_is_quick_to_wake():
    commit, store, folder = Commit(always=True), Store(), Store(changes_names=True)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: committer.kick())
    await commit_alone(commit, committer, store)
    folder.gate.clear()
    commit.mark(folder)
    commit.flush()
    committer.kick()
    for _ in range(3):
        await commit_alone(commit, committer, store)
    folder.gate.set()
    await committer.stop()
    assert len({thread.ident for thread in store.threads}) == 1
    assert folder.threads and folder.threads[0].ident != store.threads[0].ident


async def test_a_signal_ends_no_thread_that_waits_for_a_sync():
    """The system may give a signal of the process to any of its threads."""
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
    try:
        commit, store = Commit(always=True), Store()
        committer = Committer(commit, asyncio.get_running_loop(), lambda: committer.kick())
        await commit_alone(commit, committer, store)
        for count in range(1, 4):
            signal.pthread_kill(store.threads[-1].ident, signal.SIGUSR2)
            async with asyncio.timeout(10):
                while len(heard) < count:
                    await asyncio.sleep(0.001)
            await commit_alone(commit, committer, store)
        await committer.stop()
        assert len(store.threads) == 4
    finally:
        signal.signal(signal.SIGUSR2, before)


async def test_stores_are_synced_where_the_system_has_no_handle_left(monkeypatch):
    def refuse(*_arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refuse, raising=False)
    outcomes, _ = await run(Store())
    assert outcomes == [None]


async def test_a_stop_gives_all_handles_back():
    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir()))
    for _ in range(3):
        await run(Store())
    assert len(list(handles.iterdir())) == before


async def test_with_an_interval_no_flush_is_followed_by_a_sync():
    begun = []
    commit = Commit(always=False)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: None, begin_writeback=begun.append)
    commit.mark(Store())
    commit.flush()
    assert begun == []
    await committer.stop()


async def test_a_loop_that_waits_itself_has_no_use_for_an_early_write():
    begun = []
    world = ShortWorld(begin_writeback=begun.append)
    outcomes = world.write(ShortStore())
    world.committer.kick(is_idle=True)
    assert outcomes == [None] and begun == []
    world.committer._pace = Pace(lambda: (0.0, 0.0))
    store = ShortStore()
    outcomes = world.write(store)
    world.committer.kick(is_idle=True)
    await world.end(outcomes)
    assert begun == [store]
