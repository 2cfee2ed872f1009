"""Which rows of a repeated task the target stream has already, however long ago they were written.

A stream knows message ids for its duplicate window. A task may be repeated much later: the ledger knows where the
stream ended when the batch began, and later messages show which of the task's rows are stored. An id of kind `row`
names the partition and the row's number, which are stable only as long as the batch is split and ordered in the same
way. It also has a hash of the row's content, which identifies a row under another number, so that a batch that was
split differently is noticed before the task publishes anything.

The reasons are in decision 18 (docs/decisions).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.planning import ReadPartition
from jetlake.client.tables.readers import read_by_leader
from jetlake.client.tables.stream_api import StreamApi, retrying
from jetlake.errors import (
    ApiError,
    BatchWrittenError,
    NoRespondersError,
    PermissionsError,
    UnsupportedStreamError,
)
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig, StreamInfo
from jetlake.protocol.headers import find_value
from jetlake.protocol.subjects import compile_matcher
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.sink.ledger import UNKNOWN, Begun, Ledger, TaskId, written_error
from jetlake.spark.sink.outgoing import OutgoingBatch

__all__ = ["RepeatedTask", "check_all_brought", "check_kept", "ids_after", "keeps_all", "target_end"]

_log = logging.getLogger("jetlake.spark")

_HASH_DIGITS = 16

# The errors of a login that may only publish; a server that is away raises others.
_NOT_ALLOWED = (ApiError, NoRespondersError, PermissionsError, UnsupportedStreamError)

# How long a task waits for others that begin at the same time to say that stored rows, equal to its own, are theirs.
_CONFIRMATION_WAIT_S = 5.0
_CONFIRMATION_POLL_S = 0.1


def keeps_all(config: StreamConfig) -> bool:
    """Return whether a stream's messages stay until a request removes them, because no limit, TTL or roll-up does."""
    limits = (config.max_age, config.max_msgs, config.max_bytes)
    return _keeps_order(config) and not any(limit > 0 for limit in limits)


def _keeps_order(config: StreamConfig) -> bool:
    """Return whether a stream by itself removes messages from its beginning only."""
    removes = config.retention is not RetentionPolicy.LIMITS or config.allow_rollup_hdrs or config.allow_msg_ttl
    return not removes and config.max_msgs_per_subject <= 0


def target_end(options: SinkOptions, subject: str) -> tuple[str, int]:
    """Return the stream that takes that subject, and its last sequence; unknown where the login may not look."""
    settings = options.connection

    def look(connection: SocketConnection) -> tuple[str, int]:
        api = StreamApi.through(connection, settings)
        stream = options.stream or api.stream_of(subject)
        return stream, api.stream_info(stream).state.last_seq if stream else UNKNOWN

    try:
        return retrying(settings, look)
    except _NOT_ALLOWED as error:
        # A login that may publish need not be allowed to read; then only the stream's duplicate window helps.
        _log.warning("the stream of %s cannot be read, so a repeated batch may write rows twice: %s", subject, error)
        return "", UNKNOWN


def check_kept(options: SinkOptions, task: TaskId, begun: Begun) -> None:
    """Make sure that a stream which removes nothing by itself still has what the finished task wrote to it.

    Raises:
        BatchWrittenError: it was purged, so the batch comes again to be written again.
    """
    info = _info(options, begun)
    if info is None:
        return
    state = info.state
    if keeps_all(info.config) and state.first_seq > begun.after + 1 and state.last_seq > begun.after:
        raise written_error(task.query, task.batch, f"and stream {info.config.name} was purged since")


class RepeatedTask:
    """Finds the rows of a repeated task that the stream does not have.

    The rows of the batch in the stream were written by tasks with the same numbers. If each of these tasks has all of
    its stored rows again, every stored row is accounted for once, and the other rows are missing. If a task lacks one
    of its stored rows, the batch is a different one, or its rows were assigned to other tasks. No task knows the number
    of tasks, so each confirms its rows in the ledger; a stored row of an unconfirmed task may be any of its rows.

    Attributes:
        confirmed: the task's attempt if it brings all that is stored of it; else empty.

    Args:
        attempt: the attempt that the task belongs to.
        ids: what the rows' ids are made of: `row`, `column`, `source` or `none`.
    """

    def __init__(
        self, options: SinkOptions, ledger: Ledger, task: TaskId, begun: Begun, attempt: str, ids: str
    ) -> None:
        self._options = options
        self._ledger = ledger
        self._task = task
        self._begun = begun
        self._attempt = attempt
        self._ids = ids
        self.confirmed = attempt
        self._is_again = attempt != begun.attempt

    def missing(self, rows: list[OutgoingBatch], known: str, *, was_done: bool) -> list[OutgoingBatch]:
        """Return the rows that the stream does not have.

        Args:
            known: the digest of other rows that the task has written before.
            was_done: whether the task, or the whole batch, was done before, with other rows.

        Raises:
            BatchWrittenError: the batch is not the one that was begun, or is cut into other tasks, and it is not
                certain which of its rows are there.
        """
        must_prove = self._is_again and was_done and self._options.changed_batch == "fail"
        found = _look(self._options, self._begun) if self._ids != "none" else None
        if found is None:
            if must_prove:
                raise self._changed_error("it can't be found out which of its rows the stream has")
            self._ledger.add_task(self._task, self._attempt, known)
            return rows
        info, stored = found
        if must_prove and not _is_complete(info, self._begun, rows):
            raise self._changed_error(f"stream {info.config.name} does not keep, or take, all of its rows")
        by_id = frozenset(stored)
        rest = [batch.without(by_id) for batch in rows]
        if self._ids == "row":
            mine = {single for batch in rows for single in batch.message_id.to_pylist()}
            rest = self._by_content(rest, {key: value for key, value in stored.items() if key not in mine}, known)
        else:
            self._ledger.add_task(self._task, self._attempt, known)
        return [batch for batch in rest if len(batch)]

    def _by_content(self, rest: list[OutgoingBatch], stored: dict[bytes, int], known: str) -> list[OutgoingBatch]:
        """Leave out rows that the stream has under other numbers of the same task: a shuffle reorders rows."""
        begun, task = self._begun, self._task
        of_batch = f"{task.query}/{task.batch}/".encode()
        own: Counter[bytes] = Counter()
        others: dict[int, Counter[bytes]] = {}
        for single, sequence in stored.items():
            if not single.startswith(of_batch):
                continue
            partition = int(single[len(of_batch) :].split(b"/", 1)[0])
            if partition == task.partition:
                own[single[-_HASH_DIGITS:]] += 1
            elif begun.again_after == UNKNOWN or sequence <= begun.again_after:
                others.setdefault(partition, Counter())[single[-_HASH_DIGITS:]] += 1
        rest = list(_without_contents(rest, own))
        alien = sum(own.values())
        self._check_own(alien)
        self.confirmed = "" if alien else self._attempt
        self._ledger.add_task(task, self.confirmed, known)
        return self._check_others(rest, others) if self._is_again else rest

    def _check_own(self, alien: int) -> None:
        """Look at how many rows the stream has of this task that are not among its rows now."""
        if not alien:
            return
        if self._is_again and self._options.changed_batch == "fail":
            raise self._changed_error(f"{alien} rows that the task stored are not among its rows now")
        _log.warning(
            "task %d of batch %d of query %s has other rows than its previous attempt, which stored %d: rows whose "
            "values differ between attempts may be stored twice",
            *(self._task.partition, self._task.batch, self._task.query, alien),
        )

    def _check_others(self, rest: list[OutgoingBatch], others: dict[int, Counter[bytes]]) -> list[OutgoingBatch]:
        """Look for rows that the stream has of tasks which do not bring them in this attempt."""
        contents = {content for batch in rest for content in _contents(batch)}
        suspects = {partition for partition, stored in others.items() if not contents.isdisjoint(stored)}
        deadline = time.monotonic() + _CONFIRMATION_WAIT_S
        while suspects := {partition for partition in suspects if not self._is_confirmed(partition)}:
            if time.monotonic() >= deadline:
                break
            time.sleep(_CONFIRMATION_POLL_S)
        elsewhere = sum((others[partition] for partition in suspects), Counter[bytes]())
        if not suspects or self._options.changed_batch == "write":
            return rest
        if self._options.changed_batch == "skip":
            return list(_without_contents(rest, elsewhere))
        count = sum(content in elsewhere for batch in rest for content in _contents(batch))
        raise self._changed_error(f"other tasks have written {count} of its rows")

    def _is_confirmed(self, partition: int) -> bool:
        return self._ledger.is_confirmed(self._task._replace(partition=partition), self._attempt)

    def _changed_error(self, evidence: str) -> BatchWrittenError:
        task = self._task
        return _changed_error(task.query, task.batch, f"task {task.partition} has written nothing: {evidence}")


def check_all_brought(options: SinkOptions, ledger: Ledger, query: str, batch: int, attempt: str) -> None:
    """Make sure, when all tasks of a repeated batch are done, that they brought all that the stream has of it.

    Tasks that are no more, or have no rows any more, had rows that the batch lacks now: they would come again in a
    later batch, under other ids.

    Raises:
        BatchWrittenError: the stream has other rows of the batch.
    """
    begun = ledger.begun_before(query, batch, attempt) if options.changed_batch == "fail" else None
    gone = ledger.unconfirmed(query, batch, attempt) if begun is not None else {}
    if begun is None or not gone:
        return
    found = _look(options, begun)
    if found is None:
        # A digest begins with the number of rows.
        gone = {partition: digest for partition, digest in gone.items() if digest and not digest.startswith("0:")}
    else:
        prefixes = {partition: f"{query}/{batch}/{partition}/".encode() for partition in gone}
        gone = {part: "" for part, prefix in prefixes.items() if any(single.startswith(prefix) for single in found[1])}
    if gone:
        raise _changed_error(query, batch, f"the stream has rows of its task {min(gone)}, which has none now")


def _changed_error(query: str, batch: int, evidence: str) -> BatchWrittenError:
    return BatchWrittenError(
        f"batch {batch} of query {query} was started before with other rows, or was split into other tasks "
        f"({evidence}). Repeat the batch with the checkpoint and the partitioning that it had (minPartitions, "
        "maxPartitions, repartition, spark.sql.shuffle.partitions, adaptive execution); or set option changedBatch for "
        "this batch: skip leaves out rows whose content the batch has stored, write publishes them, maybe a second time"
    )


def _without_contents(batches: Iterable[OutgoingBatch], stored: Counter[bytes]) -> Iterator[OutgoingBatch]:
    """Yield the batches without as many rows of each content as are stored, which are taken off the count."""
    for batch in batches:
        left_out = set()
        for single, content in zip(batch.message_id.to_pylist(), _contents(batch), strict=True):
            if stored[content] > 0:
                stored[content] -= 1
                left_out.add(single)
        yield batch.without(frozenset(left_out)) if left_out else batch


def _contents(batch: OutgoingBatch) -> list[bytes]:
    """Return the hash of each row's content, which its id of kind `row` ends with."""
    return [single[-_HASH_DIGITS:] for single in batch.message_id.to_pylist()]


def _is_complete(info: StreamInfo, begun: Begun, rows: Sequence[OutgoingBatch]) -> bool:
    """Return whether the stream takes all these rows, and still has all that was stored since the batch began."""
    matchers = [compile_matcher(pattern.encode()) for pattern in info.config.subjects]
    subjects = {subject for batch in rows for subject in batch.subject.unique().to_pylist()}
    takes_all = all(any(match(subject) for match in matchers) for subject in subjects)
    return takes_all and _keeps_order(info.config) and info.state.first_seq <= begun.after + 1


def _info(options: SinkOptions, begun: Begun) -> StreamInfo | None:
    """Return the state of the batch's stream; None where it is not known."""
    settings = options.connection
    if not begun.stream or begun.after == UNKNOWN:
        return None
    try:
        return retrying(settings, lambda connection: StreamApi.through(connection, settings).stream_info(begun.stream))
    except _NOT_ALLOWED:
        return None


def _look(options: SinkOptions, begun: Begun) -> tuple[StreamInfo, dict[bytes, int]] | None:
    """Return the stream's state and the ids that it holds since the batch began; None where it is not known."""
    info = _info(options, begun)
    if info is None:
        return None
    try:
        return info, _ids_and_sequences(options, begun.stream, begun.after)
    except _NOT_ALLOWED as error:
        _log.warning("cannot look up which rows of a repeated task are in stream %s: %s", begun.stream, error)
        return None


def ids_after(options: SinkOptions, after: int) -> frozenset[bytes]:
    """Return the message ids that the sink's stream holds behind a sequence."""
    return frozenset(_ids_and_sequences(options, options.stream, after))


def _ids_and_sequences(options: SinkOptions, stream: str, after: int) -> dict[bytes, int]:
    settings = options.connection
    source = SourceOptions(connection=settings, streams=(stream,))

    def read(connection: SocketConnection) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        last = StreamApi.through(connection, settings).stream_info(stream).state.last_seq
        partition = ReadPartition(stream, after + 1, last + 1, (), "leader")
        for messages in read_by_leader(connection, partition, source, partition.first):
            for block, sequence in zip(messages.header.to_pylist(), messages.sequence.tolist(), strict=True):
                single = find_value(block, b"Nats-Msg-Id") if block else None
                if single is not None:
                    found[bytes(single)] = sequence
        return found

    return retrying(settings, read)
