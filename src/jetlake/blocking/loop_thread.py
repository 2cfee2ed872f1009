"""The thread behind a blocking client: it runs the event loop, and other threads hand it work and wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from jetlake.errors import ConnectionClosedError, JetlakeError

if TYPE_CHECKING:
    from jetlake.client.connection import Connection
    from jetlake.client.message import Message

__all__ = ["LoopThread", "ThreadOutlet"]

T = TypeVar("T")

_QUEUED_BYTES_MAX = 1024 * 1024


class LoopThread:
    """An event loop in a thread of its own; a daemon, so it never keeps a program alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._workers: set[threading.Thread] = set()
        self._workers_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            _cancel_all(self._loop)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; Ctrl-C cancels it.

        Raises:
            ConnectionClosedError: the client was closed.
            JetlakeError: called from the loop's own thread, which would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise JetlakeError("a blocking call from the client's own thread would wait for ever; use another thread")
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise ConnectionClosedError("the client is closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop, without waiting.

        Raises:
            ConnectionClosedError: the client was closed.
        """
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise ConnectionClosedError("the client is closed") from None

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run a function on the loop, without waiting.

        Raises:
            ConnectionClosedError: the client was closed.
        """
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            raise ConnectionClosedError("the client is closed") from None

    def start_worker(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Run a function that takes messages in a thread of its own."""

        def run() -> None:
            try:
                work()
            finally:
                self._workers.discard(worker)

        worker = threading.Thread(target=run, name=name, daemon=True)
        # Whoever waits for the workers sees none that has not begun.
        with self._workers_lock:
            self._workers.add(worker)
            worker.start()
        return worker

    def join_workers(self, timeout_s: float) -> bool:
        """Wait until the workers have ended, but for the one that waits here itself; False if time ran out."""
        deadline = time.monotonic() + timeout_s
        with self._workers_lock:
            workers = list(self._workers)
        for worker in workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, deadline - time.monotonic()))
                if worker.is_alive():
                    return False
        return True

    def stop(self) -> None:
        """End the loop and wait for the thread."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class ThreadOutlet:
    """Where messages of a blocking client send their answers: from any thread, many with one wake-up of the loop."""

    def __init__(self, thread: LoopThread, connection: Connection) -> None:
        self._thread = thread
        self._connection = connection
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._is_scheduled = False

    def send(self, frame: bytes) -> None:
        """Queue a frame for the loop; whoever queues too much waits for the socket.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self._connection.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._thread.call_soon(self._write)
        if self._bytes > _QUEUED_BYTES_MAX and threading.current_thread() is not self._thread._thread:
            self._thread.call(self._connection.relieve())

    def _write(self) -> None:
        # First the flag: what is queued after this line schedules a write of its own.
        self._is_scheduled = False
        self._bytes = 0
        frames = self._frames
        try:
            while frames:
                self._connection.send(frames.popleft())
        except JetlakeError as error:
            frames.clear()
            self._connection.signal(error)

    def flush(self) -> None:
        """Write what is queued; on the loop's thread."""
        self._write()

    async def request_raw(self, subject: bytes, header: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Publish and wait for the answer; on the loop's thread."""
        return await self._connection.request_raw(subject, header, payload, timeout_s)

    def request_and_wait(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Publish and wait for the answer, from any other thread."""
        return self._thread.call(self._connection.request_raw(subject, b"", payload, timeout_s))
