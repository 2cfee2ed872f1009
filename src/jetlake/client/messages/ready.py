"""Awaitables that are no coroutines of Python, and that `asyncio.create_task` takes all the same."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, TypeVar, cast

from jetlake.completion import hides

__all__ = ["READY", "Deferred", "Ready"]

ResultT = TypeVar("ResultT")

# An exhausted iterator stays exhausted, so all may share it.
_NOTHING = cast("Generator[Any, None, None]", iter(()))


@hides("close", "send", "throw")
class Ready(Coroutine[Any, Any, None]):
    """The result of a call that may be awaited and need not be: awaiting it gives None at once.

    `asyncio.create_task` takes it too, for programs that pass on every call without looking.
    """

    __slots__ = ()

    # No function of Python is called for an await: acknowledgements are awaited one by one.
    __await__ = staticmethod(_NOTHING.__iter__)

    def send(self, value: Any) -> NoReturn:
        """End at once: a task asks so for the first step."""
        raise StopIteration

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None) -> NoReturn:
        """Raise the exception: a task that is cancelled before its first step asks so."""
        raise value if value is not None else kind

    def close(self) -> None:
        """Do nothing: nothing has begun."""


READY = Ready()


@hides("close", "send", "throw")
class Deferred(Coroutine[Any, Any, ResultT]):
    """Work that begins when it is awaited, or when the task that was made of it has its first turn."""

    __slots__ = ("_steps",)

    _steps: Generator[Any, Any, ResultT]

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, ResultT]:
        """Begin the work, and wait for its result."""

    def _begun(self) -> Generator[Any, Any, ResultT]:
        try:
            return self._steps
        except AttributeError:
            self._steps = self.__await__()
            return self._steps

    def send(self, value: Any) -> Any:
        """Do the next step, for a task."""
        return self._begun().send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None) -> Any:
        """Raise an exception in the work, for a task that is cancelled."""
        return self._begun().throw(value if value is not None else kind)

    def close(self) -> None:
        """End the work of a task, if it has begun."""
        if hasattr(self, "_steps"):
            self._steps.close()
