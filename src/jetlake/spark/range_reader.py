"""Reads a range of one stream, whichever way the plan says, and goes on when a connection breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from jetlake.errors import PullStatusError
from jetlake.spark.connection import leased
from jetlake.spark.consumer_reader import read_by_consumer
from jetlake.spark.direct_reader import read_by_direct_get
from jetlake.spark.leader_reader import read_by_leader
from jetlake.spark.message_columns import MessageColumns
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition

__all__ = ["read_range"]

Reader = Callable[..., Iterator[MessageColumns]]

_READERS: dict[str, Reader] = {
    "consumer": read_by_consumer,
    "direct": read_by_direct_get,
    "leader": read_by_leader,
}


def read_range(partition: ReadPartition, options: SourceOptions) -> Iterator[MessageColumns]:
    """The partition's messages in order, each exactly once; a broken connection is replaced and reading goes on."""
    reader = _READERS[partition.reader]
    next_sequence = partition.first
    deadline = time.monotonic() + options.connection.retry_for_s
    pause_s = 0.05
    while next_sequence < partition.end:
        try:
            with leased(options.connection) as connection:
                for messages in reader(connection, partition, options, next_sequence):
                    next_sequence = int(messages.sequence[-1]) + 1
                    yield messages
                    deadline = time.monotonic() + options.connection.retry_for_s
                    pause_s = 0.05
                return
        except (ConnectionError, TimeoutError, PullStatusError):
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)
