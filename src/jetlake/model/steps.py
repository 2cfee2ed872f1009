"""Long work in steps: a generator that yields wherever something else may go first, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

__all__ = ["Steps", "finish"]

Result = TypeVar("Result")

Steps = Generator[None, None, Result]
"""Work that gives way at every `yield`; whatever it works on may have changed when it continues."""


def finish(steps: Steps[Result]) -> Result:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
