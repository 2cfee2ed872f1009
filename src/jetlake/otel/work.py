"""Work that has a span: it ends once, with an error or without, and is counted then."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

__all__ = ["Work", "error_type"]

T = TypeVar("T")


class Work:
    """Work between the beginning of a span and its end.

    Args:
        span: the span, which has begun.
        count: called at the end with the seconds that it took, and the error if there was one.
    """

    __slots__ = ("_began_s", "_count", "span")

    def __init__(self, span: Span, count: Callable[[float, BaseException | None], None]) -> None:
        self.span = span
        self._count = count
        self._began_s = time.perf_counter()

    def current(self) -> AbstractContextManager[Span]:
        """Make the span the current one for a block."""
        return trace.use_span(self.span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    async def finish(self, rest: Awaitable[T]) -> T:
        """Wait for the rest of the work, and end with it."""
        try:
            with self.current():
                result = await rest
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return result

    def end(self, error: BaseException | None = None) -> None:
        """End the span, and count the work."""
        if error is not None:
            self.span.record_exception(error)
            self.span.set_attributes(error_type(error))
            self.span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self.span.end()
        self._count(time.perf_counter() - self._began_s, error)


def error_type(error: BaseException | None) -> dict[str, str]:
    """Return the attribute that says what went wrong; none when nothing did."""
    return {} if error is None else {"error.type": type(error).__name__}
