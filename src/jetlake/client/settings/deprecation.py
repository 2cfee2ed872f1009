"""The mark of the older API: type checkers show it, and nothing is said at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["OLDER_API", "deprecated"]

OLDER_API = "the older workflow (NATS ADR-37): use Stream.create_consumer with Consumer.consume or fetch instead"

if TYPE_CHECKING:
    from typing_extensions import deprecated
else:
    FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

    def deprecated(message: str, *, category: None) -> Callable[[FunctionT], FunctionT]:
        """Mark a function as `typing_extensions.deprecated` does, without a dependency on that package."""

        def mark(function: FunctionT) -> FunctionT:
            function.__deprecated__ = message
            return function

        return mark
