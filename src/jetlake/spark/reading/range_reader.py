"""Reads a range to its end, whatever happens to connections, and accounts for every sequence of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from jetlake.errors import PullStatusError, StreamNotFoundError, StreamRecreatedError, UnsupportedStreamError
from jetlake.model.stream import StreamInfo
from jetlake.spark.columns.message_columns import MessageColumns
from jetlake.spark.options.options import SourceOptions
from jetlake.spark.plan.offsets import StreamOffset
from jetlake.spark.plan.partition import ReadPartition
from jetlake.spark.reading.consumer_reader import read_by_consumer
from jetlake.spark.reading.direct_reader import read_by_direct_get
from jetlake.spark.reading.leader_reader import read_by_leader
from jetlake.spark.reading.range_account import RangeAccount
from jetlake.spark.requests.connection import BROKEN, Patience, leased, retrying
from jetlake.spark.requests.identity import check_not_restored
from jetlake.spark.requests.loss_notes import LossNotes
from jetlake.spark.requests.stream_api import StreamApi
from jetlake.spark.requests.survey import count_matching

__all__ = ["read_range"]

T = TypeVar("T")

_READERS = {
    "consumer": read_by_consumer,
    "direct": read_by_direct_get,
    "leader": read_by_leader,
}


def read_range(partition: ReadPartition, options: SourceOptions) -> Iterator[MessageColumns]:
    """The partition's messages, each exactly once, in order; a connection that breaks is replaced.

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
            with leased(options.connection) as connection:
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
    if account.lost and partition.note:
        LossNotes(options).add(partition.note, account.lost)


def _ask(partition: ReadPartition, options: SourceOptions, question: Callable[[StreamApi], T]) -> T:
    settings = options.connection
    try:
        return retrying(
            settings,
            lambda connection: question(StreamApi(connection, settings.domain, settings.request_timeout_s)),
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
