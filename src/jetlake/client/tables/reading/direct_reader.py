"""Reads a range by batches of direct gets: nothing is created on the server, and nothing is taken out of a queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.reading.leader_reader import read_by_leader
from jetlake.client.tables.reading.range_end import next_in_range
from jetlake.client.tables.requests.direct_gets import MergedGets
from jetlake.client.tables.requests.stream_api import StreamApi

__all__ = ["read_by_direct_get"]

# How long a replica may lag before the leader is read instead.
_LAG_CHECKS_MAX = 20
_LAG_PAUSE_S = 0.05


def read_by_direct_get(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on, in order.

    Raises:
        UnsupportedStreamError: the stream is gone or does not answer direct gets any more.
        ConnectionError, TimeoutError: the connection broke; reading can go on behind the last message.
    """
    api = StreamApi.through(connection, options.connection)

    def next_of(pattern: str, sequence: int) -> int | None:
        return next_in_range(options, replace(partition, subjects=(pattern,)), sequence)

    gets = MergedGets(api, partition.stream, partition.subjects, SequenceRange(first, partition.end), next_of)
    lag_checks = 0
    while not gets.done:
        messages = gets.next_messages()
        if len(messages):
            lag_checks = 0
            yield messages
            continue
        # The leader has more than the servers that answered: wait for these, then leave them.
        lag_checks += 1
        if lag_checks == _LAG_CHECKS_MAX:
            gets.close()
            yield from read_by_leader(connection, partition, options, gets.next_sequence)
            return
        if not gets.done:
            time.sleep(_LAG_PAUSE_S)
    gets.close()
