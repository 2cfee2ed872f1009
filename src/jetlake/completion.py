"""Names that `dir` leaves out, so that a prompt or notebook completes only what users call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["hides"]

K = TypeVar("K", bound=type[Any])


def hides(*names: str) -> Callable[[K], K]:
    """Decorate a class: leave these names out of `dir` of its objects; only other parts of the package use them."""

    def decorate(kind: K) -> K:
        hidden = getattr(kind, "_hidden_names", frozenset()) | frozenset(names)
        kind._hidden_names = hidden

        def shown(self: object) -> list[str]:
            return [name for name in object.__dir__(self) if name not in hidden]

        kind.__dir__ = shown  # type: ignore[assignment]
        return kind

    return decorate
