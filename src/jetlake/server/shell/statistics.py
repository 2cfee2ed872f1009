"""The counters of a server, for monitoring, and the report of internal errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.server.shell.log import Log

if TYPE_CHECKING:
    from jetlake.server.shell.connection.connection import Connection

__all__ = ["Defects", "MessageTotals", "ServerStatistics"]


class MessageTotals:
    """Messages and bytes, in and out."""

    __slots__ = ("in_bytes", "in_msgs", "out_bytes", "out_msgs")

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0

    def add(self, other: Connection) -> None:
        """Add the counts of a connection that has ended."""
        self.in_msgs += other.in_msgs
        self.in_bytes += other.in_bytes
        self.out_msgs += other.out_msgs
        self.out_bytes += other.out_bytes


class ServerStatistics:
    """Counts since the server's start.

    Attributes:
        total_connections: clients that ever connected.
        closed: the messages and bytes of connections that have ended.
        closed_by_account: the same by the account's name.
        slow_consumers: clients cut off because they read too slowly.
        stale_connections: clients cut off because they answered no ping.
        stalled: how often a publisher was not read from because its messages piled up.
        pressured_sends: sends to connections that had too much unwritten already.
    """

    __slots__ = (
        "closed",
        "closed_by_account",
        "pressured_sends",
        "slow_consumers",
        "stale_connections",
        "stalled",
        "total_connections",
    )

    def __init__(self) -> None:
        self.total_connections = self.slow_consumers = self.stale_connections = 0
        self.stalled = self.pressured_sends = 0
        self.closed = MessageTotals()
        self.closed_by_account: dict[str, MessageTotals] = {}


class Defects:
    """Internal errors, which should never happen: each is one line in the log, and the server continues.

    Attributes:
        count: how many there were.
    """

    def __init__(self, log: Log) -> None:
        self.count = 0
        self._log = log

    def report(self, where: str, error: Exception) -> None:
        """Log the error with the line of code that raised it, and count it."""
        self.count += 1
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        place = ""
        if traceback is not None:
            code = traceback.tb_frame.f_code
            place = f" ({Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name})"
        self._log.error(f"{where} - internal error: {type(error).__name__}: {error}{place}")
