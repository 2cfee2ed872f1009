"""Blocking iteration: lists come from the loop's thread, and are handed out one by one in whichever thread asks."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Self, TypeVar

from jetlake.blocking.facade import Facade
from jetlake.blocking.threads.latch import Latch
from jetlake.blocking.threads.loop_port import Submitted
from jetlake.blocking.threads.loop_thread import LoopThread
from jetlake.client.settings.options import duration_s
from jetlake.errors import ConnectionClosedError, InvalidOptionError, RequestTimeoutError, SubscriptionClosedError
from jetlake.model.encoding.durations import Seconds

__all__ = ["ContinuousTaking", "Taking"]

T = TypeVar("T")
B = TypeVar("B", bound=list[Any])

_LAST_LOOK_S = 1.0


class _Fill(Submitted[list[T]]):
    """One look for more, and how many threads wait for it."""

    __slots__ = ("waiting",)

    def __init__(self, work: Coroutine[Any, Any, list[T]], finished: Callable[[Any], None]) -> None:
        super().__init__(work, finished)
        self.waiting = 0


class Taking(Facade, Generic[T]):
    """What subscriptions, continuous reads and watches share.

    A caller that finds nothing waits for the one look for more that is under way, with a timeout of its own. The loop's
    thread puts the result here, where it stays until it is taken, so an interrupted caller loses nothing.
    """

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._taken: deque[T] = deque()
        self._lock = threading.Lock()
        self._fill: _Fill[T] | None = None
        self._more = Latch()
        self._has_callback = False

    def next_batch(self) -> list[T]:
        """Return everything that is there, at least one; an empty list once it ended.

        Raises:
            JetlakeError: it ended for a reason.
        """
        return self._take_into([])

    def _take_into(self, batch: B) -> B:
        """Put everything that is there, at least one, into an empty list; nothing once it ended."""
        self._refuse_callback()
        while True:
            fresh: deque[T] = deque()
            if self._taken:
                # No call between the copy and its return: neither another thread nor Ctrl-C comes between.
                batch[:] = self._taken
                self._taken = fresh
                return batch
            if not self._wait(None):
                return batch

    def next(self, timeout: Seconds | None = None) -> T:
        """Return the next one.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            JetlakeError: it ended.
        """
        self._refuse_callback()
        deadline = None if timeout is None else time.monotonic() + duration_s("timeout", timeout)
        while True:
            taken = self._taken
            if taken:
                # No call between the look and the return, as above.
                first = taken[0]
                del taken[0]
                return first
            if not self._wait(deadline):
                raise SubscriptionClosedError(f"{self._inner!r} ended")

    def batches(self) -> Iterator[list[T]]:
        """Yield all that is there, again and again; the fastest way to take many."""
        while batch := self.next_batch():
            yield batch

    def __iter__(self) -> Iterator[T]:
        self._refuse_callback()
        return self._each()

    def _each(self) -> Iterator[T]:
        while True:
            taken = self._taken
            if taken:
                first = taken[0]
                del taken[0]
                yield first
            elif not self._wait(None):
                return

    def _refuse_callback(self) -> None:
        if self._has_callback:
            raise InvalidOptionError("a callback or handler gets all messages; leave it out to take them")

    def _wait(self, deadline: float | None) -> bool:
        """Wait until there may be more; False once it ended.

        Raises:
            RequestTimeoutError: the deadline has passed.
        """
        more = self._more
        fill = self._join_fill()
        if fill is None:
            return True
        try:
            is_there = more.wait(None if deadline is None else deadline - time.monotonic())
        except BaseException:
            self._leave_fill(fill)
            raise
        if not is_there:
            if self._leave_fill(fill):
                fill.done.wait(_LAST_LOOK_S)
            if not self._taken and (fill.is_cancelled or not fill.done.is_set):
                raise RequestTimeoutError(f"nothing came from {self._inner!r} in time")
        elif not fill.done.is_set:
            self._leave_fill(fill)  # An earlier look has brought something.
            return True
        if self._taken:
            return True
        if fill.error is not None:
            raise fill.error
        return bool(fill.value)

    def _join_fill(self) -> _Fill[T] | None:
        """Return the look for more that is under way, or a new one; None if there is something already."""
        with self._lock:
            fill = self._fill
            if fill is None:
                if self._taken:
                    return None
                fill = _Fill(self._inner.next_batch(), self._filled)
                try:
                    self._thread.port.submit(fill)
                except BaseException:
                    self._thread.port.abandon(fill)
                    raise
                self._fill = fill
                if fill.done.is_set:
                    self._fill = None  # It was quicker than the line above.
            fill.waiting += 1
            return fill

    def _leave_fill(self, fill: _Fill[T]) -> bool:
        """Wait no longer; the last caller to leave cancels the look, which gives True."""
        with self._lock:
            fill.waiting -= 1
            if fill.waiting:
                return False
            if self._fill is fill:
                self._fill = None
        self._thread.port.abandon(fill)
        return True

    def _filled(self, fill: Submitted[list[T]]) -> None:
        """Add the messages and wake all callers; on the loop's thread."""
        if fill.error is None:
            fresh = fill.value
            # No call between the look at the deque and its change: another thread may replace the deque meanwhile.
            self._taken.extend(fresh)
        if self._fill is fill:
            self._fill = None
        more, self._more = self._more, Latch()
        more.set()


class ContinuousTaking(Taking[T]):
    """A read that begins with `start` and ends with `stop`; usable as a context manager."""

    def start(self) -> Self:
        """Begin; entering the context manager and iterating do it too."""

        async def start() -> None:
            self._inner.start()

        self._thread.call(start())
        return self

    @abstractmethod
    def stop(self) -> object:
        """End the read."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        except ConnectionClosedError:
            pass
