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

    # No function of Python is called for an await: acknowledgements are awaited one by one.
    __await__ = staticmethod(_NOTHING.__iter__)


READY = Ready()
