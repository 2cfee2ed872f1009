"""Names in order for lists that are requested page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.store.steps import Steps, sort_in_steps

__all__ = ["SortedNames"]


class SortedNames:
    """The names of an account's streams or a stream's consumers, sorted when they are asked for after a change.

    Args:
        names: returns the names in any order.

    Attributes:
        changes: how often `changed` was called.
    """

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names
        self.changes = 0
        self._sorted: tuple[int, list[str]] = (-1, [])  # the number of changes before it was sorted, and the names

    def changed(self) -> None:
        """Note that a name was added or removed."""
        self.changes += 1

    def get(self) -> Steps[list[str]]:
        """Return the names in order, in a list that is not to be changed."""
        changes = self.changes
        if self._sorted[0] != changes:
            self._sorted = (changes, (yield from sort_in_steps(list(self._names()))))
        return self._sorted[1]
