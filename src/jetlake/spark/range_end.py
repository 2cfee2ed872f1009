"""Whether a range is read to its end, asked of the one server that knows."""

from __future__ import annotations

from jetlake.spark.connection import retrying
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.stream_api import StreamApi

__all__ = ["range_is_read"]


def range_is_read(options: SourceOptions, partition: ReadPartition, next_sequence: int) -> bool:
    """Whether the stream's leader has no message for the partition from that sequence on.

    Whoever reads may have been served by a replica that lags, so that nothing more came is no proof that there is
    nothing more.
    """
    connection_options = options.connection

    def ask(connection: object) -> bool:
        api = StreamApi(connection, connection_options.domain, connection_options.request_timeout_s)
        for subject in partition.subjects or (">",):
            message = api.next_message(partition.stream, next_sequence, subject)
            if message is not None and message.seq < partition.end:
                return False
        return True

    return retrying(connection_options, ask)
