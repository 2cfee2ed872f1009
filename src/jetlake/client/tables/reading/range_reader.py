"""Reads a range to its end, whatever happens to connections, and accounts for every sequence of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.reading.consumer_reader import read_by_consumer
from jetlake.client.tables.reading.direct_reader import read_by_direct_get
from jetlake.client.tables.reading.leader_reader import read_by_leader
from jetlake.client.tables.reading.range_account import RangeAccount
from jetlake.client.tables.requests.identity import check_not_restored
from jetlake.client.tables.requests.patience import BROKEN, Patience, retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.client.tables.requests.survey import count_matching
from jetlake.errors import PullStatusError, StreamNotFoundError, StreamRecreatedError, UnsupportedStreamError
from jetlake.model.stream import StreamInfo

__all__ = ["read_range"]

T = TypeVar("T")

_READERS = {
    "consumer": read_by_consumer,
    "direct": read_by_direct_get,
    "leader": read_by_leader,
}


def read_range(
    partition: ReadPartition, options: ReadOptions, on_lost: Callable[[int], object] | None = None
) -> Iterator[MessageColumns]:
    """Yield the partition's messages, each exactly once, in order; a connection that breaks is replaced.

    Args:
        on_lost: called at the end with the number of messages that are lost, if there are any.

    Raises:
        DataLossError: messages of the range are lost, and the options say that this is an error.
        SparkError, ApiError: the stream cannot be read any more.
    """
    reader = _READERS[partition.reader]
    patience = Patience(options.connection)
    account = RangeAccount(
        partition,
        lambda: _ask(partition, options, lambda api: _stream_info(api, partition)),
        lambda first, end: _ask(partition, options, lambda api: _count(api, partition, first, end)),
        fail=options.fail_on_data_loss,
    )
    next_sequence = partition.first
    while next_sequence < partition.end:
        try:
            with options.connection.lease() as connection:
                for messages in reader(connection, partition, options, next_sequence):
                    account.take(messages.sequence)
                    next_sequence = int(messages.sequence[-1]) + 1
                    yield messages
                    patience.succeeded()
                break
        except (*BROKEN, PullStatusError) as error:
            patience.pause(error)
        except StreamNotFoundError:
            raise _deleted(partition) from None
    account.close()
    if account.lost and on_lost is not None:
        on_lost(account.lost)


def _ask(partition: ReadPartition, options: ReadOptions, question: Callable[[StreamApi], T]) -> T:
    settings = options.connection
    try:
        return retrying(
            settings,
            lambda connection: question(StreamApi.through(connection, settings)),
        )
    except StreamNotFoundError:
        raise _deleted(partition) from None


def _stream_info(api: StreamApi, partition: ReadPartition) -> StreamInfo:
    try:
        planned = StreamOffset(partition.created, partition.end, seen=partition.seen)
        return check_not_restored(api, partition.stream, planned)
    except StreamRecreatedError as error:
        raise StreamRecreatedError(f"while it was read, {error}. Then start the query again") from None


def _count(api: StreamApi, partition: ReadPartition, first: int, end: int) -> int | None:
    if not partition.may_count:
        return None
    counts = count_matching(api, partition.stream, partition.subjects, [first, end])
    return counts[0] if counts is not None else None


def _deleted(partition: ReadPartition) -> UnsupportedStreamError:
    return UnsupportedStreamError(f"stream {partition.stream} was deleted while it was read")
