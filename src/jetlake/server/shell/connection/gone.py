"""What the parts of a connection know instead of it once it is gone."""

from __future__ import annotations

from typing import Any

from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["GONE"]


class _Gone(Subscriber):
    """A connection that is gone, for its parts: they must not keep it alive.

    A connection that has ended is freed as soon as monitoring forgets it, and not by the next full garbage collection:
    between two of those, clients may come and go by the hundred thousand.
    """

    closed = True

    def send(self, data: bytes) -> None:
        pass

    def end(self, error: str | None = None, *, reason: str) -> None:
        pass

    def drop(self, reason: str, *, at_once: bool = False) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass


GONE: Any = _Gone()
