"""The committer: one thread that syncs what the engine wrote, while the loop goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from jetlake.errors import JetlakeError
from jetlake.server.engine.commit import Commit, Syncable

__all__ = ["Committer", "LatencyHistogram"]


class LatencyHistogram:
    """How long syncs took: counts per upper bound, as Prometheus wants them."""

    BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.count = 0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.sum_s += seconds
        for index, bound in enumerate(self.BOUNDS_S):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1


class Committer:
    """Runs the syncs of a `Commit`, one at a time.

    Args:
        commit: the engine's; touched on the loop only.
        finished: called on the loop after a sync's waiters were released.
    """

    def __init__(self, commit: Commit, loop: asyncio.AbstractEventLoop, finished: Callable[[], None]) -> None:
        self.latency = LatencyHistogram()
        self._commit = commit
        self._loop = loop
        self._finished = finished
        self._work: SimpleQueue[list[Syncable] | None] = SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="jetlake-commit", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Begin a sync if one is due and none is under way."""
        if not self._busy and self._commit.wants_sync():
            self._busy = True
            self._work.put(self._commit.begin())

    def _run(self) -> None:
        while (syncables := self._work.get()) is not None:
            started = time.perf_counter()
            errors: dict[Syncable, JetlakeError] = {}
            for syncable in syncables:
                try:
                    syncable.sync()
                except JetlakeError as error:
                    errors[syncable] = error
                except Exception as error:  # whatever a disk does, it must not end this thread
                    errors[syncable] = JetlakeError(f"sync failed: {error}")
            elapsed_s = time.perf_counter() - started
            try:
                self._loop.call_soon_threadsafe(self._finish, errors, elapsed_s)
            except RuntimeError:
                return  # the loop has gone

    def _finish(self, errors: dict[Syncable, JetlakeError], elapsed_s: float) -> None:
        self._busy = False
        self.latency.observe(elapsed_s)
        self._commit.finish(errors)
        self._finished()

    async def stop(self) -> None:
        """End the thread; a sync under way is waited for, and its waiters are released, first."""
        while self._busy:
            await asyncio.sleep(0.001)
        self._work.put(None)
        self._thread.join()
