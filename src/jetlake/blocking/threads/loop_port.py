"""The way into an event loop that runs in another thread: work goes in, results come out, until it is shut."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast
from weakref import WeakSet

from jetlake.blocking.threads.latch import Latch
from jetlake.errors import ConnectionClosedError, JetlakeError

__all__ = ["LoopPort", "Submitted"]

T = TypeVar("T")

_CANCEL_S = 2.0


class Submitted(Generic[T]):
    """A coroutine on its way through the loop. The loop's thread sets what it became, then `done`.

    Args:
        work: the coroutine.
        finished: called when it has ended.
        unclaimed: takes a result that is too late for its interrupted caller.

    Attributes:
        done: set when it has ended.
        error: what it raised.
        is_cancelled: whether it was cut off.
    """

    __slots__ = (
        "_finished",
        "_is_abandoned",
        "_running",
        "_task",
        "_unclaimed",
        "_value",
        "_work",
        "done",
        "error",
        "is_cancelled",
    )

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        finished: Callable[[Any], None] | None = None,
        unclaimed: Callable[[T], object] | None = None,
    ) -> None:
        self._work = work
        self._finished = finished
        self._unclaimed = unclaimed
        self._running: set[Submitted[Any]] = set()
        self._task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._is_abandoned = False
        self.done = Latch()
        self.error: BaseException | None = None
        self.is_cancelled = False

    @property
    def value(self) -> T:
        """What it returned, once it is done and has not failed."""
        return cast("T", self._value)

    def begin(self, loop: asyncio.AbstractEventLoop, running: set[Submitted[Any]]) -> None:
        """Run it; it is in the set as long as it runs."""
        if not self._is_abandoned:
            running.add(self)
            self._running = running
            self._task = loop.create_task(self._work)
            self._task.add_done_callback(self._end)

    def abandon(self) -> None:
        """Cancel it, unless it has ended; the caller has gone."""
        self._is_abandoned = True
        if self._task is None:
            self.discard()
        elif self._task.done():
            self._offer()
        else:
            # One turn later, so that work which has only to look has looked.
            self._task.get_loop().call_soon(self._task.cancel)

    def discard(self) -> None:
        """Drop what was never begun and never will be."""
        if self._task is None:
            self._work.close()
            self.cut_off("the call was cancelled")

    def cut_off(self, reason: str) -> None:
        """End it from outside, unless it has ended."""
        if not self.done.is_set:
            self.is_cancelled = True
            self.error = ConnectionClosedError(reason)
            self._settle()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.cut_off("the client was closed before the call had ended")
            return
        self.error = task.exception()
        if self.error is None:
            self._value = task.result()
        self._settle()

    def _settle(self) -> None:
        self._running.discard(self)
        self.done.set()
        if self._finished is not None:
            self._finished(self)
        if self._is_abandoned:
            self._offer()

    def _offer(self) -> None:
        if self._unclaimed is not None and self.error is None:
            unclaimed, self._unclaimed = self._unclaimed, None
            unclaimed(self.value)


class Queue(Protocol):
    """Work of other threads that waits for its turn."""

    async def emptied(self) -> None:
        """Wait until nothing waits; on the loop's thread."""


class LoopPort:
    """Hands work to the loop, from any thread.

    It refuses work once the loop is to end, and in a process that was forked from the one that runs the loop: what it
    takes has an end.

    Attributes:
        thread: where the loop runs.
        loop: the event loop.
        noun: what runs on the loop, for messages: a client or a server.
        is_shut: whether it takes no more.
        has_ended: set when the loop's thread has ended.
        shutdown: writes what waits and closes the connection of a client that was never closed.
        sockets: gives the open sockets' file descriptors.
        queues: what has to be emptied before the loop may end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, noun: str = "client") -> None:
        self.loop = loop
        self.noun = noun
        self.is_shut = False
        self.has_ended = Latch()
        self.shutdown: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.sockets: Callable[[], list[int]] = list
        # Re-entrant, since the garbage collection of a client may come in the middle of a call.
        self._gate = threading.RLock()
        self.queues: WeakSet[Queue] = WeakSet()
        self._running: set[Submitted[Any]] = set()
        self._refusal = f"the {noun} is closed"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _ports.add(self)

    # Work

    def post(self, action: Callable[[], object]) -> None:
        """Run a function on the loop, without waiting.

        Raises:
            ConnectionClosedError: the client was closed.
        """
        # Under the gate, so that everything that was taken stands before the end.
        with self._gate:
            if self.is_shut:
                self.refuse()
            try:
                self.loop.call_soon_threadsafe(action)
            except BaseException:
                # Interrupted, maybe before the loop was woken for what it has to do now.
                self.loop.call_soon_threadsafe(_look)
                raise

    def refuse(self) -> NoReturn:
        """Say why it takes no more."""
        raise ConnectionClosedError(self._refusal)

    def submit(self, submitted: Submitted[Any]) -> None:
        """Run a coroutine on the loop, without waiting.

        Raises:
            ConnectionClosedError: the client was closed.
        """
        self.post(partial(submitted.begin, self.loop, self._running))

    def call(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; Ctrl-C cancels it.

        Args:
            unclaimed: takes a result that is too late for its interrupted caller.

        Raises:
            ConnectionClosedError: the client was closed.
            JetlakeError: called from the loop's own thread, which would wait for itself for ever.
        """
        if threading.current_thread() is self.thread:
            work.close()
            raise JetlakeError(
                f"a blocking call from the {self.noun}'s own thread would wait for ever; use another thread"
            )
        submitted = Submitted(work, unclaimed=unclaimed)
        try:
            self.submit(submitted)
            submitted.done.wait()
        except BaseException:
            self.abandon(submitted)
            raise
        if submitted.error is not None:
            raise submitted.error
        return submitted.value

    def abandon(self, submitted: Submitted[Any]) -> None:
        """Cancel what nobody waits for any more."""
        try:
            self.post(submitted.abandon)
        except ConnectionClosedError:
            submitted.discard()

    # The end

    async def empty_queues(self) -> None:
        """Wait until everything that was queued has had its turn."""
        for queue in list(self.queues):
            await queue.emptied()

    def shut(self) -> None:
        """Take no more, and end the loop once what was taken has begun."""
        with self._gate:
            if not self.is_shut:
                self.is_shut = True
                self.loop.call_soon_threadsafe(self.loop.stop)

    def leave(self) -> None:
        """Run `shutdown` and stop the loop after it; from any thread, without waiting."""
        try:
            self.post(self._begin_shutdown)
        except ConnectionClosedError:
            pass

    def _begin_shutdown(self) -> None:
        assert self.shutdown is not None
        self._leaving = self.loop.create_task(self.shutdown())
        self._leaving.add_done_callback(lambda _: self.shut())

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            for submitted in list(self._running):
                submitted.cut_off(self._refusal)
            self.has_ended.set()

    def forked(self) -> None:
        """Refuse everything in a process that has a copy of this object, but not the loop's thread.

        The copied sockets are let go without a word to the server, so that the connection ends with its own process.
        """
        self._gate = threading.RLock()
        self.is_shut = True
        self.has_ended.set()
        again = "connect again" if self.noun == "client" else "start another"
        self._refusal = f"the {self.noun} belongs to process {os.getppid()}, which forked this one: {again} here"
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in self.sockets():
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        # Finalizers would work on what the other process still uses.
        _kept.append(self)


_ports: WeakSet[LoopPort] = WeakSet()
_kept: list[object] = []


def open_ports() -> list[LoopPort]:
    """Return those that nobody has shut."""
    return [port for port in _ports if not port.is_shut]


def _forked() -> None:
    for port in open_ports():
        port.forked()


if hasattr(os, "register_at_fork"):  # Where processes can be forked.
    os.register_at_fork(after_in_child=_forked)


def _look() -> None:
    """Nothing but a turn of the loop."""


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_S)
