"""The contract between a stream and what copies messages of other streams into it."""

from __future__ import annotations

from typing import Protocol

from jetlake.model.stream import StreamConfig, StreamSourceInfo
from jetlake.store.steps import Steps

__all__ = ["Copying", "NoCopying"]


class Copying(Protocol):
    """The mirror or the sources of a stream."""

    @property
    def is_caught_up(self) -> bool:
        """Whether a mirror has, but for a few messages, all of its origin's."""
        ...

    def prepare(self, config: StreamConfig) -> Steps[None]:
        """Do in steps what `configure` would otherwise do at once."""
        ...

    def configure(self, config: StreamConfig) -> None:
        """Begin, change or end copying as the stream's configuration says."""
        ...

    def info(self, now_ns: int) -> tuple[StreamSourceInfo | None, tuple[StreamSourceInfo, ...]]:
        """Return how the mirror and the sources are doing."""
        ...

    def save(self) -> None:
        """Save the positions of all durable copies, whose headers may be overwritten then."""
        ...

    def close(self, *, deleted: bool) -> None:
        """Stop copying; with `deleted`, the stream is deleted and nothing is left at the origins."""
        ...


class NoCopying:
    """The copying of a stream that copies nothing."""

    is_caught_up = False

    def prepare(self, config: StreamConfig) -> Steps[None]:
        """Do nothing, in no step."""
        yield from ()

    def configure(self, config: StreamConfig) -> None:
        """Do nothing."""

    def info(self, now_ns: int) -> tuple[StreamSourceInfo | None, tuple[StreamSourceInfo, ...]]:
        """Return no mirror and no sources."""
        return None, ()

    def save(self) -> None:
        """Do nothing: there are no positions."""

    def close(self, *, deleted: bool) -> None:
        """Do nothing."""
