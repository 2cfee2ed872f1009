"""What readers must know: a way to the servers, which messages are wanted, and what a loss means."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from jetlake.client.connection.socket_connection import SocketConnection

__all__ = ["Link", "ReadOptions"]


class Link(Protocol):
    """A way to the servers of a stream."""

    @property
    def api_prefix(self) -> str:
        """What the subjects of the JetStream API begin with."""

    @property
    def request_timeout_s(self) -> float:
        """How long to wait for one answer of the server."""

    @property
    def retry_for_s(self) -> float:
        """How long to go on trying when the server is away."""

    def lease(self) -> AbstractContextManager[SocketConnection]:
        """Give a connection for as long as the block runs; one in which the block fails is closed."""


class ReadOptions(Protocol):
    """Which messages are wanted and how they are read; the options of Spark's source are such."""

    @property
    def connection(self) -> Link:
        """The way to the servers."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Filters; none means all."""

    @property
    def fail_on_data_loss(self) -> bool:
        """Whether messages that are gone before they were read are an error."""

    @property
    def reader(self) -> str:
        """`auto`, `consumer`, `direct` or `leader`."""

    @property
    def direct_below(self) -> int:
        """Ranges of fewer messages than this are read by direct gets, with `auto`."""
