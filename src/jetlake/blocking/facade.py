"""The parts of which blocking classes are made: each method runs on the loop's thread while the caller waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, Concatenate, Generic, Never, ParamSpec, TypeVar, overload

from jetlake.blocking.loop_thread import LoopThread

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


class View(Generic[R]):
    """An attribute of the asyncio object, read through the facade.

    Args:
        documentation: the attribute's docstring.
    """

    def __init__(self, documentation: str) -> None:
        self.__doc__ = documentation

    def __set_name__(self, owner: type, name: str) -> None:
        self._read: Callable[[Any], R] = attrgetter(f"_inner.{name}")

    @overload
    def __get__(self, instance: None, owner: type) -> View[R]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> R: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self if instance is None else self._read(instance)

    def __set__(self, instance: Facade, value: Never) -> None:
        raise AttributeError(f"{type(instance).__name__} only reads this attribute")


def blocking_doc(function: Callable[..., Any]) -> str:
    """Return the documentation of a function's blocking form: a pointer to the asyncio one, then its own text."""
    name = f"{function.__module__}.{function.__qualname__}"
    return f"Run `{name}` on the client's thread and wait for its result.\n\n{function.__doc__ or ''}"


class Method(ABC):
    """The base of blocking methods, which have the arguments and the documentation of the asyncio ones.

    Args:
        method: the asyncio class's method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(self, method)
        self.__doc__ = blocking_doc(method)

    @abstractmethod
    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        """Call the method for this object."""

    def _bound(self, instance: Facade | None) -> Any:
        if instance is None:
            return self
        bound = update_wrapper(partial(self._call, instance), self._method.__get__(instance._inner))
        bound.__doc__ = self.__doc__
        return bound

    def __call__(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        """As any function of a class: `Consumer.fetch(consumer, 10)`."""
        return self._call(instance, *args, **kwargs)


class Call(Method, Generic[P, R]):
    """The blocking form of a coroutine method: same arguments, result instead of awaitable."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        super().__init__(method)

    @overload
    def __get__(self, instance: None, owner: type) -> Call[P, R]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, R]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        return instance._thread.call(_awaited(self._method, instance._inner, args, kwargs))


class Wrapped(Method, Generic[P, R, W]):
    """As `Call`, for methods whose result has a blocking form of its own.

    Args:
        unclaimed: takes a result that is too late for its interrupted caller.
    """

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Awaitable[R]],
        wrap: Callable[[R, LoopThread], W],
        unclaimed: Callable[[R], object] | None = None,
    ) -> None:
        super().__init__(method)
        self._wrap = wrap
        self._unclaimed = unclaimed

    @overload
    def __get__(self, instance: None, owner: type) -> Wrapped[P, R, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        result = instance._thread.call(_awaited(self._method, instance._inner, args, kwargs), self._unclaimed)
        return self._wrap(result, instance._thread)


class Made(Method, Generic[P, R, W]):
    """The blocking form of a plain method that only makes an object which has a blocking form of its own."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], wrap: Callable[[R, LoopThread], W]) -> None:
        super().__init__(method)
        self._wrap = wrap

    @overload
    def __get__(self, instance: None, owner: type) -> Made[P, R, W]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, W]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        return self._wrap(self._method(instance._inner, *args, **kwargs), instance._thread)


class Collect(Method, Generic[P, R]):
    """The blocking form of a method that gives an async iterator: all of it, as a list."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        super().__init__(method)

    @overload
    def __get__(self, instance: None, owner: type) -> Collect[P, R]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, list[R]]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        async def gather() -> list[Any]:
            return [item async for item in self._method(instance._inner, *args, **kwargs)]

        return instance._thread.call(gather())


async def _awaited(method: Callable[..., Awaitable[R]], inner: Any, args: Any, kwargs: Any) -> R:
    # Called on the loop's thread, so that a closed client leaves no coroutine that was never awaited.
    return await method(inner, *args, **kwargs)
