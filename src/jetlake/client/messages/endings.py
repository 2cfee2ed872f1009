"""Endings without deadlock: a handler may end its own read or client, since the ending then does not wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Endings", "end_all", "enter_worker"]

_worker: ContextVar[asyncio.Task[Any] | None] = ContextVar("jetlake_worker", default=None)


def enter_worker() -> None:
    """Mark the current task, and the tasks that it starts, as one that runs a user's handler or callback."""
    _worker.set(asyncio.current_task())


async def end_all(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run drains and stops together, and return when all have ended; the first error is raised.

    Each one begins, even if the caller is cancelled before its turn has come. `asyncio.gather` would drop it, and leave
    a subscription that continues while its owner is already marked as stopped.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(ending) for ending in endings]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            loop.call_soon(task.cancel)  # Behind the first turn of the task, which is in the queue already.
        await asyncio.wait(tasks)
        raise
    for error in [task.exception() for task in tasks if not task.cancelled()]:
        if error is not None:
            raise error


class Endings:
    """The workers of one connection that wait for an ending themselves.

    A worker that stops its own read, or closes its own client, would wait for itself; two that do so would wait for
    each other. Waiting for workers therefore leaves out the workers that wait here.
    """

    __slots__ = ("_changed", "_leaving", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._leaving: Counter[asyncio.Future[Any]] = Counter()
        self._changed: asyncio.Future[None] | None = None

    @contextmanager
    def leaving(self, *, is_child_included: bool = True) -> Iterator[None]:
        """Exclude the current worker from what `finished` waits for, while the block runs.

        Args:
            is_child_included: also when the current task was only started by a worker, which perhaps does not wait for
                it.
        """
        worker = _worker.get()
        if worker is None or not (is_child_included or worker is asyncio.current_task()):
            yield
            return
        self._leaving[worker] += 1
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)
        try:
            yield
        finally:
            self._leaving[worker] -= 1
            if not self._leaving[worker]:
                del self._leaving[worker]

    async def finished(self, tasks: Collection[asyncio.Future[Any]]) -> None:
        """Wait until the tasks, which may become more, have ended, except tasks that wait for an ending themselves."""
        while others := [task for task in tasks if not task.done() and task not in self._leaving]:
            if self._changed is None:
                self._changed = self._loop.create_future()
            await asyncio.wait([*others, self._changed], return_when=asyncio.FIRST_COMPLETED)
