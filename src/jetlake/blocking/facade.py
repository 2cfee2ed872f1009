"""How blocking classes are made of asyncio ones: each method runs on the loop's thread and the caller waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from jetlake.blocking.loop_thread import LoopThread

__all__ = ["Call", "Facade", "Made", "Wrapped"]

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


class Facade:
    """A blocking view of an asyncio object."""

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


class Call(Generic[P, R]):
    """The blocking form of a coroutine method: same arguments, same documentation, result instead of awaitable."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> Call[P, R]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, R]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return instance._thread.call(_awaited(self._method(instance._inner, *args, **kwargs)))

        return update_wrapper(call, self._method)


class Wrapped(Generic[P, R, W]):
    """As `Call`, for methods whose result has a blocking form of its own."""

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Awaitable[R]],
        wrap: Callable[[R, LoopThread], W],
    ) -> None:
        self._method = method
        self._wrap = wrap
        update_wrapper(self, method)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> Wrapped[P, R, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> W:
            result = instance._thread.call(_awaited(self._method(instance._inner, *args, **kwargs)))
            return self._wrap(result, instance._thread)

        return update_wrapper(call, self._method)


class Made(Generic[P, R, W]):
    """The blocking form of a plain method that only makes an object which has a blocking form of its own."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], wrap: Callable[[R, LoopThread], W]) -> None:
        self._method = method
        self._wrap = wrap
        update_wrapper(self, method)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> Made[P, R, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        if instance is None:
            return self

        def make(*args: P.args, **kwargs: P.kwargs) -> W:
            return self._wrap(self._method(instance._inner, *args, **kwargs), instance._thread)

        return update_wrapper(make, self._method)


async def _awaited(work: Awaitable[R]) -> R:
    return await work
