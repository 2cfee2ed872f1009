"""The thread behind a blocking client: it runs the event loop, and other threads submit work and wait for results.

Two objects, so that a client that was never closed can be collected: users hold the `LoopThread`, the loop holds the
`LoopPort` only. When the `LoopThread` is garbage while the loop runs, nothing can close the client any more, so it
sends its queued frames and closes itself.

Always true:

- Work is accepted under the port's lock (`_gate`) and never after `is_shut`, so everything that was accepted runs, or
  is cut off, before `has_ended`.
- Results are written by the loop's thread, before `done` is set; waiting threads only read them after it.
- Ctrl-C may interrupt a waiting thread at any point: the work is cancelled, and a result that comes too late goes to
  `unclaimed`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from threading import TIMEOUT_MAX, Lock
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast
from weakref import WeakSet, finalize

from jetlake.client.messages.callbacks import failure_of
from jetlake.errors import ConnectionClosedError, JetlakeError

if TYPE_CHECKING:
    from jetlake.blocking.send_queue import PublishQueue

T = TypeVar("T")
HandledT = TypeVar("HandledT")
ResultT = TypeVar("ResultT")

_EXIT_S = 5.0
_CANCEL_S = 2.0


class Worker(threading.Thread):
    """A thread that takes messages and calls the user's function with each.

    Attributes:
        ended: set when it has ended, or waits for the others itself, so that they need not wait for it.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.ended = Latch()

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        finally:
            del self._work
            self.ended.set()


class LoopThread:
    """An event loop in a thread of its own; a daemon, so it never keeps a program alive.

    Every object of a client that users hold refers to this one, and the loop does not.
    """

    def __init__(self, name: str, noun: str = "client") -> None:
        self.port = LoopPort(asyncio.new_event_loop(), name, noun)
        self._workers: set[Worker] = set()
        self.port.thread.start()

    def call(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; see `LoopPort.call`."""
        return self.port.call(work, unclaimed)

    def call_soon(self, action: Callable[[], object]) -> None:
        """Run a function on the loop, without waiting; see `LoopPort.post`."""
        self.port.post(action)

    def keep(self, name: str) -> None:
        """Close the client or server on the loop when the last reference to this object goes."""
        finalize(self, _unreferenced, self.port, name).atexit = False

    def start_worker(self, work: Callable[[], None], name: str) -> Worker:
        """Run a function that takes messages in a thread of its own."""
        worker = Worker(work, name)
        self._workers = {known for known in self._workers if not known.ended.is_set} | {worker}
        worker.start()
        return worker

    def join(self, workers: Iterable[Worker] | None = None, timeout_s: float | None = None) -> bool:
        """Wait until these workers (or all) have ended, or wait here themselves; False if time ran out."""
        current = threading.current_thread()
        if isinstance(current, Worker):
            current.ended.set()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for worker in self._workers if workers is None else workers:
            if not worker.ended.wait(None if deadline is None else deadline - time.monotonic()):
                return False
        return True

    def stop(self) -> None:
        """End the loop and wait for the thread."""
        self.port.shut()
        if threading.current_thread() is not self.port.thread:
            self.port.has_ended.wait()


def _unreferenced(port: LoopPort, name: str) -> None:
    if not port.is_shut:
        port.leave()
        _warn(port.noun, name)


def _warn(noun: str, name: str) -> None:
    ending = "drain() or close()" if noun == "client" else "or stop()"
    warnings.warn(f"the {noun} {name!r} was never closed: use `with`, {ending}", ResourceWarning, stacklevel=2)


@atexit.register
def _leave_all() -> None:
    """Close all clients when the program ends, after sending their queued frames."""
    ports = open_ports()
    deadline = time.monotonic() + _EXIT_S
    for port in ports:
        port.leave()
    for port in ports:
        port.has_ended.wait(deadline - time.monotonic())
        _warn(port.noun, port.thread.name)


class Submitted(Generic[T]):
    """A coroutine submitted to the loop. The loop's thread sets its result or error, then `done`.

    Args:
        work: the coroutine.
        finished: called when it has ended.
        unclaimed: takes a result that is too late for its interrupted caller.

    Attributes:
        done: set when it has ended.
        error: the exception that it raised.
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
        """The result, once it is done and has not failed."""
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
            # One turn later, so that work which does not have to wait still ends by itself.
            self._task.get_loop().call_soon(self._task.cancel)

    def discard(self) -> None:
        """Drop work that was never begun."""
        if self._task is None:
            self._work.close()
            self.cut_off("the call was cancelled")

    def cut_off(self, reason: str) -> None:
        """End it from outside, unless it has ended."""
        if not self.done.is_set:
            self.is_cancelled = True
            self.error = ConnectionClosedError(reason)
            self._finish()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.cut_off("the client was closed before the call had ended")
            return
        self.error = task.exception()
        if self.error is None:
            self._value = task.result()
        self._finish()

    def _finish(self) -> None:
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


class LoopPort:
    """Hands work to the loop, from any thread.

    It refuses work once the loop is to end, and in a process that was forked from the one that runs the loop.

    Attributes:
        thread: where the loop runs.
        loop: the event loop.
        noun: what runs on the loop, for messages: a client or a server.
        is_shut: whether it accepts no more work.
        has_ended: set when the loop's thread has ended.
        shutdown: sends queued frames and closes the connection of a client that was never closed.
        sockets: gives the open sockets' file descriptors.
        is_closed: tells whether the client on the loop is closed, which comes before the end of the loop.
        cut_off: releases a socket to which bytes are still to be written when the loop ends.
        queues: the publish queues, which have to be emptied before the loop may end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, noun: str = "client") -> None:
        self.loop = loop
        self.noun = noun
        self.is_shut = False
        self.has_ended = Latch()
        self.shutdown: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.sockets: Callable[[], list[int]] = list
        self.is_closed: Callable[[], bool] = bool
        self.cut_off: Callable[[], object] = list
        # Re-entrant, since the garbage collection of a client may come in the middle of a call.
        self._gate = threading.RLock()
        self.queues: WeakSet[PublishQueue] = WeakSet()
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
        # Under the lock, so that accepted work runs before the end of the loop.
        with self._gate:
            if self.is_shut:
                self.refuse()
            try:
                self.loop.call_soon_threadsafe(action)
            except BaseException:
                # Interrupted, maybe before the loop was woken for the action.
                self.loop.call_soon_threadsafe(_look)
                raise

    def refuse(self) -> NoReturn:
        """Raise the reason why it accepts no more work."""
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
                f"a blocking call from the {self.noun}'s own thread would block forever; use another thread"
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
        """Cancel work whose caller has gone."""
        try:
            self.post(submitted.abandon)
        except ConnectionClosedError:
            submitted.discard()

    # The end

    async def empty_queues(self) -> None:
        """Wait until all queued messages have entered their windows, or were refused."""
        for queue in list(self.queues):
            await queue.emptied()

    def shut(self) -> None:
        """Accept no more work, and end the loop once the accepted work has begun."""
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
            self.cut_off()
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            for submitted in list(self._running):
                submitted.cut_off(self._refusal)
            self.has_ended.set()

    def forked(self) -> None:
        """Refuse everything in a process that has a copy of this object, but not the loop's thread.

        The copied sockets are closed without a message to the server, so that the other process keeps its connection.
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
        # Finalizers would work on sockets that the other process still uses.
        _kept.append(self)


_ports: WeakSet[LoopPort] = WeakSet()
_kept: list[object] = []


def open_ports() -> list[LoopPort]:
    """Return the ports that are not shut."""
    return [port for port in _ports if not port.is_shut]


def _forked() -> None:
    for port in open_ports():
        port.forked()


if hasattr(os, "register_at_fork"):  # Where processes can be forked.
    os.register_at_fork(after_in_child=_forked)


def _look() -> None:
    """Do nothing but wake the loop."""


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_S)


class Latch:
    """An event that stays set. Unlike `threading.Event`, Ctrl-C at any point of `wait` leaves it usable."""

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: list[Lock] = []

    def set(self) -> None:
        """Set the latch, and wake all waiters."""
        self.is_set = True
        # Each waiter has a lock of its own, so an interrupted one blocks no other.
        while self._waiters:
            try:
                self._waiters.pop().release()
            except IndexError:
                return  # Another thread sets it too.

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False if the time ran out before."""
        if self.is_set:
            return True
        waiter = Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if not self.is_set:
            waiter.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), TIMEOUT_MAX))
        return self.is_set


async def call_in_thread(handler: Callable[[HandledT], ResultT], handled: HandledT) -> ResultT:
    """Call a handler in a thread, and return its result.

    Raises:
        Exception: the handler's; `SystemExit` becomes an error too, since it must not end the event loop.
    """

    def work() -> ResultT:
        try:
            return handler(handled)
        except Exception:
            raise
        except BaseException as error:
            raise failure_of(error, handled) from error

    return await asyncio.to_thread(work)
