"""The sink as Spark sees it: rows published by tasks, batches noted by the driver."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import JetlakeError
from jetlake.model.encoding.durations import nanoseconds, seconds
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.garbage import spare_imports
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.ledger import Ledger
from jetlake.spark.sink.outgoing import OutgoingBatch
from jetlake.spark.sink.publisher import Publisher
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds
from jetlake.spark.sink.stored_rows import StoredRows

__all__ = ["BatchWriter", "StreamWriter", "Written", "warn_of_short_memory"]

_log = logging.getLogger("jetlake.spark")

# A batch write that stands for a micro-batch of a query, as pipelines name it.
_MICRO_BATCH = re.compile(r"([\w-]+)/(\d+)")
_NULL_MAPS_WORTH_SAYING = 1000
_WINDOW_MIN_NS = nanoseconds(120)

# Streams whose window was looked at; one entry for each stream that this process writes to.
_windows_known: set[str] = set()


@dataclass
class Written(WriterCommitMessage):
    """What one task did.

    Attributes:
        rows: rows that it published.
        duplicates: those of them that the stream had already.
        query: id of the streaming query; empty for a batch write.
    """

    rows: int
    duplicates: int
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame; a task that is repeated is deduplicated by its ids, a job that is run again is not."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._encoder = RowEncoder(schema, options)
        self._run = options.run_id or next_nuid()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one task's rows; returns when all are acknowledged."""
        spare_imports()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        messages = _messages(iterator, self._encoder, RowIds(self._run, partition))
        publisher = Publisher(self._options, repeatable=self._encoder.is_repeatable)
        named = _MICRO_BATCH.fullmatch(self._options.run_id)
        if named is None:
            publisher.publish_all(messages)
            return Written(publisher.count, publisher.duplicates)
        # One batch may be written to several streams, and each of them has rows and sequences of its own.
        place = _Place(".".join(filter(None, (named[1], self._options.stream))), int(named[2]), partition)
        return _publish_rest(self._options, Ledger(self._options), place, messages, publisher)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a streaming query, each row once however often its batch is repeated."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._encoder = RowEncoder(schema, options)
        self._ledger = Ledger(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one task's rows of a micro-batch; returns when all are acknowledged."""
        spare_imports()
        context = TaskContext.get()
        assert context is not None
        query = _run_of(context.getLocalProperty("sql.streaming.queryId") or "", self._options.run_id)
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        partition = context.partitionId()
        messages = _messages(iterator, self._encoder, RowIds(f"{query}/{batch}", partition))
        ledger = self._ledger
        if ledger.has_batch(query, batch):
            StoredRows(self._options, ledger).check_kept(query, batch, partition)
            return _skipped(query, batch, sum(map(len, messages)))
        known = ledger.task_digest(query, batch, partition)
        if known:
            # The task was done before and comes again, which is rare; only then its rows are looked at first.
            kept = list(messages)
            if _digest(kept) == known:
                return _skipped(query, batch, sum(map(len, kept)))
            messages = iter(kept)
        publisher = Publisher(self._options, repeatable=self._encoder.is_repeatable)
        return _publish_rest(self._options, ledger, _Place(query, batch, partition), messages, publisher)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Note that the batch is written in full; Spark may call this again for the same batch."""
        for message in messages:
            if isinstance(message, Written) and message.query:
                self._ledger.add_batch(message.query, batchId)
                return

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo: what was published keeps its ids, and a repeated batch is deduplicated by them."""


def _run_of(query: str, run_id: str) -> str:
    """Return the name of a query's run in ids and ledger: another one for every name that the user gives."""
    return f"{query}-{hashlib.blake2b(run_id.encode(), digest_size=6).hexdigest()}" if run_id else query


class _Place(NamedTuple):
    """The task's place in its query."""

    query: str
    batch: int
    partition: int


def _publish_rest(
    options: SinkOptions, ledger: Ledger, place: _Place, messages: Iterator[OutgoingBatch], publisher: Publisher
) -> Written:
    """Publish the rows that the stream does not have from an attempt before, and note that the task is done."""
    stored = StoredRows(options, ledger).begin(*place)
    digest = _new_digest()
    there = 0

    def missing() -> Iterator[OutgoingBatch]:
        nonlocal there
        for batch in messages:
            # Of all rows, as a task computes it that comes again when this one is done.
            digest.update(batch.content())
            rest = batch.without(stored) if stored else batch
            there += len(batch) - len(rest)
            if len(rest):
                yield rest

    publisher.publish_all(missing())
    if not stored:
        warn_of_short_memory(options, publisher.stream)
    if publisher.duplicates:
        _log.warning(
            "%d rows of batch %d were not stored: the stream knows their ids", publisher.duplicates, place.batch
        )
    ledger.follow(publisher.stream)
    ledger.add_task(*place, digest.hexdigest())
    return Written(publisher.count + there, publisher.duplicates + there, place.query)


def warn_of_short_memory(options: SinkOptions, stream: str) -> None:
    """Say once in a process that a stream forgets message ids so soon that repeated tasks may write rows twice."""
    if not stream or options.message_id == "none" or stream in _windows_known:
        return
    _windows_known.add(stream)
    settings = options.connection
    try:
        with settings.lease() as connection:
            config = StreamApi.through(connection, settings).stream_info(stream).config
    except (JetlakeError, OSError):
        # Whoever may publish need not be allowed to look at the stream; the rows are written either way.
        return
    if config.duplicate_window < _WINDOW_MIN_NS:
        _log.warning(
            "stream %s remembers message ids for %g s only: a task that is repeated later may write rows twice; set "
            "its duplicate_window to the time that a restart of the query may take",
            stream,
            seconds(config.duplicate_window),
        )


def _skipped(query: str, batch: int, rows: int) -> Written:
    _log.warning(
        "batch %d of query %s was written before the restart: %d rows are not written again", batch, query, rows
    )
    return Written(0, rows, query)


def _new_digest() -> hashlib.blake2b:
    """Return the hash by which a task knows that it wrote the same before."""
    return hashlib.blake2b(digest_size=16)


def _digest(messages: list[OutgoingBatch]) -> str:
    digest = _new_digest()
    for batch in messages:
        digest.update(batch.content())
    return digest.hexdigest()


def _messages(iterator: Iterator[pa.RecordBatch], encoder: RowEncoder, ids: RowIds) -> Iterator[OutgoingBatch]:
    first_row = 0
    null_maps = 0
    for batch in iterator:
        yield from encoder.encode(batch, ids, first_row)
        first_row += batch.num_rows
        null_maps = _count_null_maps(batch, null_maps)


def _count_null_maps(batch: pa.RecordBatch, null_maps: int) -> int:
    """Say once that null maps make Spark slow: it sizes every batch after every row, and each null costs the rows
    before it.
    """
    if "headers" not in batch.schema.names:
        return null_maps
    counted: int = null_maps + batch.column("headers").null_count
    if null_maps < _NULL_MAPS_WORTH_SAYING <= counted:
        _log.warning(
            "column headers is null in %d rows and more, which slows Spark down by a factor of ten and more: write "
            "coalesce(headers, map()) instead, drop the column, or set spark.sql.execution.arrow.maxBytesPerBatch to "
            "2147483647",
            counted,
        )
    return counted
