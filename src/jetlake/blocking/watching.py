"""Blocking forms of watches, whose handlers run in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from jetlake.blocking.facade import Call, Facade, Method
from jetlake.blocking.taking import ContinuousTaking
from jetlake.blocking.threads.loop_thread import LoopThread, Worker
from jetlake.client.messages.failures import failure_of
from jetlake.client.ordered.watch import Watch as AsyncWatch
from jetlake.client.settings.options import duration_s
from jetlake.errors import ConnectionClosedError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds

__all__ = ["Watch", "Watched"]

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")


class Watch(ContinuousTaking[T]):
    """The blocking form of a watch: use it as a context manager and iterate over it, or give a handler."""

    _inner: AsyncWatch[T]

    stop = Call(AsyncWatch.stop)

    def __init__(self, inner: AsyncWatch[T], thread: LoopThread, handler: Callable[[T], object] | None = None) -> None:
        super().__init__(inner, thread)
        self._handler = handler
        self._has_callback = handler is not None
        self._worker: Worker | None = None
        self._error: Exception | None = None

    def start(self) -> Self:
        """Begin; entering the context manager, `current` and iterating do it too."""
        super().start()
        with self._lock:
            if self._handler is not None and self._worker is None:
                self._worker = self._thread.start_worker(partial(self._work, self._handler), "jetlake-watch")
        return self

    def _work(self, handler: Callable[[T], object]) -> None:
        try:
            for value in self._each():
                try:
                    handler(value)
                except BaseException as error:
                    self._thread.call_soon(partial(self._inner.report, failure_of(error, value)))
        except ConnectionClosedError:
            pass
        except Exception as error:
            self._error = error

    def wait(self, timeout: Seconds | None = None) -> None:
        """With a handler: wait until the watch ends; whatever ended it is raised.

        Raises:
            RequestTimeoutError: `timeout` seconds have passed.
        """
        self.start()
        workers = [] if self._worker is None else [self._worker]
        if not self._thread.join(workers, None if timeout is None else duration_s("timeout", timeout)):
            raise RequestTimeoutError(f"the watch goes on after {timeout} s")
        if self._error is not None:
            raise self._error

    def current(self) -> list[T]:
        """Return what there was when the watch began and was not taken yet; it may be nothing.

        Raises:
            ConsumeError: the watch ended.
        """
        self._refuse_callback()
        # What an interrupted caller leaves behind is taken by the next one.
        self._thread.call(self._take_current())
        fresh: deque[T] = deque()
        values = [*self._taken]
        self._taken = fresh
        return values

    async def _take_current(self) -> None:
        self._taken.extend(await self._inner.current())


class Watched(Method, Generic[P, W]):
    """The blocking form of a method that makes a watch: its handler, if there is one, runs in a thread."""

    def __init__(self, method: Callable[Concatenate[Any, P], Any], kind: Callable[..., W]) -> None:
        super().__init__(method)
        self._kind = kind

    @overload
    def __get__(self, instance: None, owner: type) -> Watched[P, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(
        self, instance: Facade, *args: Any, handler: Callable[[Any], object] | None = None, **options: Any
    ) -> Any:
        return self._kind(self._method(instance._inner, *args, **options), instance._thread, handler)
