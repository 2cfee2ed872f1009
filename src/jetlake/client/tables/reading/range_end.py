"""The next message of a range, asked of the stream's leader."""

from __future__ import annotations

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.client.tables.requests.survey import first_matching

__all__ = ["next_in_range"]


def next_in_range(options: ReadOptions, partition: ReadPartition, sequence: int) -> int | None:
    """Ask the stream's leader for the partition's next message from that sequence on; None when there is none.

    Whoever reads may have been served by a replica that lags; that nothing more came does not prove that there is
    nothing more.
    """
    settings = options.connection

    def ask(connection: SocketConnection) -> int | None:
        api = StreamApi.through(connection, settings)
        found = first_matching(api, partition.stream, partition.subjects, sequence)
        return found if found is not None and found < partition.end else None

    return retrying(settings, ask)
