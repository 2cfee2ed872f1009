"""Reads a range of one stream, whichever way the plan says, and goes on when a connection breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from jetlake.errors import PullStatusError, StreamNotFoundError, UnsupportedStreamError
from jetlake.spark.connection import BROKEN, Patience, leased, retrying
from jetlake.spark.consumer_reader import read_by_consumer
from jetlake.spark.data_loss import data_loss_error
from jetlake.spark.direct_reader import read_by_direct_get
from jetlake.spark.leader_reader import read_by_leader
from jetlake.spark.message_columns import MessageColumns
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.stream_api import StreamApi

__all__ = ["read_range"]

_log = logging.getLogger("jetlake.spark")

Reader = Callable[..., Iterator[MessageColumns]]

_READERS: dict[str, Reader] = {
    "consumer": read_by_consumer,
    "direct": read_by_direct_get,
    "leader": read_by_leader,
}


def read_range(partition: ReadPartition, options: SourceOptions) -> Iterator[MessageColumns]:
    """The partition's messages, each exactly once, in order; a connection that breaks is replaced.

    Raises:
        DataLossError: the range begins with messages that are gone, and the options say that this is an error.
        SparkError, ApiError: the stream cannot be read any more.
    """
    reader = _READERS[partition.reader]
    patience = Patience(options.connection)
    first_found: int | None = None
    next_sequence = partition.first
    while next_sequence < partition.end:
        try:
            with leased(options.connection) as connection:
                for messages in reader(connection, partition, options, next_sequence):
                    if first_found is None:
                        first_found = int(messages.sequence[0])
                        _check_beginning(partition, options, first_found)
                    next_sequence = int(messages.sequence[-1]) + 1
                    yield messages
                    patience.succeeded()
                break
        except (*BROKEN, PullStatusError) as error:
            patience.pause(error)
        except StreamNotFoundError:
            raise UnsupportedStreamError(f"stream {partition.stream} was deleted while it was read") from None
    if first_found is None:
        _check_beginning(partition, options, partition.end)


def _check_beginning(partition: ReadPartition, options: SourceOptions, first_found: int) -> None:
    """Find out whether a gap at the beginning of the range comes from messages that went away since it was planned."""
    if first_found == partition.first or not partition.guards_beginning:
        return
    settings = options.connection
    state = retrying(
        settings, lambda connection: StreamApi(connection, settings.domain).stream_info(partition.stream)
    ).state
    if state.first_seq > partition.first:
        error = data_loss_error(partition.stream, partition.first, min(state.first_seq, first_found))
        if options.fail_on_data_loss:
            raise error
        _log.warning("%s (going on, as the option says)", error)
