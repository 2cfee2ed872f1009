"""Endings without deadlock: handlers and callbacks may end what they belong to, since nobody then waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Endings", "enter_worker"]

_worker: ContextVar[asyncio.Task[Any] | None] = ContextVar("jetlake_worker", default=None)


def enter_worker() -> None:
    """Mark the current task, and the tasks that it starts, as one that runs a user's handler or callback."""
    _worker.set(asyncio.current_task())


class Endings:
    """The workers of one connection that wait for an ending themselves.

    A worker that stops its own read, or closes its own client, would wait for itself; two that do so would wait for
    each other. Waiting for workers therefore leaves out those that wait here.
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
        """Wait until the tasks, which may become more, have ended, but for those that wait for an ending themselves."""
        while others := [task for task in tasks if not task.done() and task not in self._leaving]:
            if self._changed is None:
                self._changed = self._loop.create_future()
            await asyncio.wait([*others, self._changed], return_when=asyncio.FIRST_COMPLETED)
