"""The thread behind a blocking client: it runs the event loop, and other threads hand it work and wait."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from weakref import finalize

from jetlake.blocking.threads.latch import Latch
from jetlake.blocking.threads.loop_port import LoopPort, open_ports

__all__ = ["LoopThread", "Worker"]

_EXIT_S = 5.0


class Worker(threading.Thread):
    """A thread that takes messages and calls the user's function with each.

    Attributes:
        ended: set when it has ended, or waits for the others itself: nobody has to wait for it any more.
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

    Everything that a user holds of a client holds this object, and the loop does not: when it is garbage while the
    loop runs, nobody can close the client any more, so it writes what waits and closes itself.
    """

    def __init__(self, name: str, noun: str = "client") -> None:
        self.port = LoopPort(asyncio.new_event_loop(), name, noun)
        # Bound once, so that a call through the thread is one call.
        self.call = self.port.call
        self.call_soon = self.port.post
        self._workers: set[Worker] = set()
        self.port.thread.start()

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
    """Leave when the program ends: what was published and waits is sent first."""
    ports = open_ports()
    deadline = time.monotonic() + _EXIT_S
    for port in ports:
        port.leave()
    for port in ports:
        port.has_ended.wait(deadline - time.monotonic())
        _warn(port.noun, port.thread.name)
