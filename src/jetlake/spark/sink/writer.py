"""The sink as Spark sees it: rows published by tasks, batches noted by the driver."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import JetlakeError
from jetlake.model.encoding.durations import nanoseconds, seconds
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.garbage import spare_imports
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.ledger import Begun, Ledger, TaskId
from jetlake.spark.sink.outgoing import OutgoingBatch
from jetlake.spark.sink.publisher import Publisher
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds
from jetlake.spark.sink.stored_rows import RepeatedTask, check_all_brought, check_kept, target_end

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
        duplicates: how many of them the stream had already.
        query: the query, or the named batch write, in the ledger; empty for a write without a name.
        batch: its batch.
        attempt: the attempt that the task belongs to.
    """

    rows: int
    duplicates: int
    query: str = ""
    batch: int = 0
    attempt: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame; a job that is run again under the same name writes what is missing."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._encoder = RowEncoder(schema, options)
        self._attempt = next_nuid()
        self._run, self._batch = _named_run(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one task's rows; returns when all are acknowledged."""
        spare_imports()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if self._run:
            task = TaskId(self._run, self._batch, partition)
            return _Task(self._options, self._encoder, task, self._attempt).write(iterator)
        publisher = Publisher(self._options, repeatable=self._encoder.is_repeatable)
        publisher.publish_all(_messages(iterator, self._encoder, RowIds(self._attempt, partition)))
        return Written(publisher.count, publisher.duplicates)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note that a job with a name is written in full.

        Raises:
            BatchWrittenError: the stream has rows of the job from an earlier attempt that it does not have any more.
        """
        _finish(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a streaming query, each row once however often its batch is repeated."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._encoder = RowEncoder(schema, options)
        # Spark makes a writer for each attempt of a batch, on the driver, and hands it to the tasks.
        self._attempt = next_nuid()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one task's rows of a micro-batch; returns when all are acknowledged."""
        spare_imports()
        context = TaskContext.get()
        assert context is not None
        query = _run_of(context.getLocalProperty("sql.streaming.queryId") or "", self._options.run_id)
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        task = TaskId(query, batch, context.partitionId())
        return _Task(self._options, self._encoder, task, self._attempt).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Note that the batch is written in full; Spark may call this again for the same batch.

        Raises:
            BatchWrittenError: the stream has rows of the batch from an earlier attempt that it does not have any more.
        """
        _finish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: published rows keep their ids, and a repeated batch is deduplicated by them."""


def _finish(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Note that all tasks are done, by their commit messages, because Spark commits with another writer object."""
    for message in messages:
        if isinstance(message, Written) and message.query:
            ledger = Ledger(options)
            check_all_brought(options, ledger, message.query, message.batch, message.attempt)
            ledger.add_batch(message.query, message.batch)
            return


def _run_of(query: str, run_id: str) -> str:
    """Return the name of a query's run in ids and ledger: another one for every name that the user gives."""
    return f"{query}-{_short_hash(run_id)}" if run_id else query


def _named_run(options: SinkOptions) -> tuple[str, int]:
    """Return the query and the batch that a batch write stands for in ids and ledger; no query without a name.

    One batch may be written to several streams, and each of them has rows and sequences of its own.
    """
    if not options.run_id:
        return "", 0
    named = _MICRO_BATCH.fullmatch(options.run_id)
    query, batch = (named[1], int(named[2])) if named else (f"run-{_short_hash(options.run_id)}", 0)
    return ".".join(filter(None, (query, options.stream))), batch


def _short_hash(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=6).hexdigest()


class _Task:
    """The rows of one task of a batch, written once however often the task is repeated."""

    def __init__(self, options: SinkOptions, encoder: RowEncoder, task: TaskId, attempt: str) -> None:
        self._options = options
        self._encoder = encoder
        self._task = task
        self._attempt = attempt
        self._ledger = Ledger(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows that the stream does not have from an attempt before, and note that the task is done.

        Raises:
            BatchWrittenError: the batch was written before, and is not certainly the same one.
        """
        task, ledger = self._task, self._ledger
        is_finished = ledger.has_batch(task.query, task.batch)
        messages = _messages(iterator, self._encoder, RowIds(f"{task.query}/{task.batch}", task.partition))
        first = next(messages, None)
        if first is None:
            return self._written(0, 0)
        known = ledger.task_digest(task)
        begun = ledger.begin_batch(
            task,
            self._attempt,
            is_new=not is_finished and known is None,
            look=lambda: target_end(self._options, first.subject[0].as_py().decode()),
        )
        rows = chain([first], messages)
        if known is None and not is_finished and begun.attempt == self._attempt:
            ledger.add_task(task, self._attempt, "")
            digest = _Digest(self._encoder.id_from)
            written = self._publish(map(digest.add, rows))
            ledger.add_task(task, self._attempt, str(digest))
            return written
        # A task that comes again is rare; only then its rows are looked at before they are published.
        return self._write_again(list(rows), begun, known or "", is_finished=is_finished)

    def _write_again(self, rows: list[OutgoingBatch], begun: Begun, known: str, *, is_finished: bool) -> Written:
        # sometimes: the rows of a task come again
        task, count = self._task, sum(map(len, rows))
        digest = _Digest(self._encoder.id_from)
        for batch in rows:
            digest.add(batch)
        if known == str(digest):
            if is_finished:
                check_kept(self._options, task, begun)
            self._ledger.add_task(task, self._attempt, known)
            _log.warning(
                "task %d of batch %d of query %s was written before: %d rows are not written again",
                *(task.partition, task.batch, task.query, count),
            )
            return self._written(0, count)
        repeated = RepeatedTask(self._options, self._ledger, task, begun, self._attempt, self._encoder.id_from)
        rest = repeated.missing(rows, known, was_done=is_finished or bool(known))
        written = self._publish(iter(rest))
        there = count - sum(map(len, rest))
        self._ledger.add_task(task, repeated.confirmed, str(digest))
        return self._written(written.rows + there, written.duplicates + there)

    def _publish(self, rows: Iterator[OutgoingBatch]) -> Written:
        publisher = Publisher(self._options, repeatable=self._encoder.is_repeatable)
        publisher.publish_all(rows)
        warn_of_short_memory(self._options, publisher.stream)
        if publisher.duplicates:
            _log.warning(
                "%d rows of batch %d were not stored: the stream knows their ids",
                publisher.duplicates,
                self._task.batch,
            )
        return self._written(publisher.count, publisher.duplicates)

    def _written(self, rows: int, duplicates: int) -> Written:
        return Written(rows, duplicates, self._task.query, self._task.batch, self._attempt)


class _Digest:
    """A digest of rows by which a task knows that it wrote the same before, in whatever order."""

    def __init__(self, ids: str) -> None:
        self._has_row_ids = ids == "row"
        self._rows = 0
        self._sum = 0

    def add(self, batch: OutgoingBatch) -> OutgoingBatch:
        """Add rows, and return them."""
        self._rows += len(batch)
        self._sum += batch.sum_of_hashes(in_ids=self._has_row_ids)
        return batch

    def __str__(self) -> str:
        return f"{self._rows}:{self._sum % (1 << 64):016x}"


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
        # A login that may publish need not be allowed to read the stream; the rows are written either way.
        return
    if config.duplicate_window < _WINDOW_MIN_NS:
        _log.warning(
            "stream %s remembers message ids for %g s only: a task that is repeated later may write rows twice; set "
            "its duplicate_window to the time that a restart of the query may take",
            stream,
            seconds(config.duplicate_window),
        )


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
