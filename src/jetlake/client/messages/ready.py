"""An awaitable that is done already, for calls that may be awaited and need not be."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

__all__ = ["READY", "Ready"]

# An exhausted iterator stays exhausted, so all may share it.
_NOTHING = cast("Generator[Any, None, None]", iter(()))


class Ready:
    """Awaiting it gives None at once; leaving it alone is fine too."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return _NOTHING


READY = Ready()
