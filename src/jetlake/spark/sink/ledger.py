"""Which batches and tasks of a streaming query are written in full, kept in a key-value bucket on the server.

Message ids keep a repeated batch from being written twice for as long as the stream remembers them. A batch may be
repeated much later, if the query was stopped between its last write and its commit log and started the next day. The
ledger does not forget. It keeps three kinds of entries for a query:

* under the query's name, the last batch whose tasks are all done;
* under `<query>.begun`, the batch that was started last, with its first and its current attempt, and the end of the
  target stream before each of the two. Messages after that end show which rows a broken attempt has stored;
* under `<query>.task.<partition>`, the last batch that the task has started, with a digest of its rows once it is done,
  and the last attempt in which every row that the stream has of the task was among its rows.

A batch number alone does not identify rows: a checkpoint that was set back gives the number to other messages, and
another partitioning gives the same rows to other tasks. Therefore a task is skipped only if its digest is equal.

The reasons are in decision 18 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from jetlake.errors import BatchWrittenError
from jetlake.model.encoding.codec import decode, encode
from jetlake.spark.key_value import KeyValue
from jetlake.spark.options.sink_options import SinkOptions

__all__ = ["UNKNOWN", "Begun", "Ledger", "TaskId", "written_error"]

UNKNOWN = -1
"""The end of a stream that the login may not read."""


class TaskId(NamedTuple):
    """The position of a task in its query."""

    query: str
    batch: int
    partition: int


class _Finished(msgspec.Struct, frozen=True):
    """The last batch that a query has written in full."""

    batch: int


class _Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last batch of a task; the digest is empty until the task is done.

    Attributes:
        attempt: the last attempt whose rows include all that the stream has of the task.
    """

    batch: int
    digest: str = ""
    attempt: str = ""
    partition: int = 0


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch that was begun.

    Attributes:
        attempt: the attempt that began it; empty when it is not known, which an earlier release did not note.
        stream: the stream that the first row goes to; empty when the login may not read it.
        after: that stream's last sequence before the first row.
        again: the attempt that repeats the batch now; empty when it is still the first.
        again_after: the stream's last sequence before the first row of that attempt.
    """

    batch: int
    attempt: str = ""
    stream: str = ""
    after: int = UNKNOWN
    again: str = ""
    again_after: int = UNKNOWN


def written_error(query: str, batch: int, evidence: str) -> BatchWrittenError:
    """Return the error for a batch that comes again on purpose."""
    return BatchWrittenError(
        f"batch {batch} of query {query} was written before, {evidence}: its checkpoint was rolled back, or restored "
        "from a copy. To write its rows again under new ids, set option runId to a new name and keep it; to skip rows "
        "that are already written, restore the newer checkpoint"
    )


class Ledger:
    """The finished work of all queries that share a bucket; knows and keeps nothing when the options name none."""

    def __init__(self, options: SinkOptions) -> None:
        self._values = KeyValue(options.connection, options.ledger, options.stream)

    def has_batch(self, query: str, batch: int) -> bool:
        """Return whether all tasks of a batch with that number are done, whatever its rows were.

        Only the last batch of a query can come again after a crash: the next one begins when it is in Spark's log.

        Raises:
            BatchWrittenError: an earlier batch comes again; the checkpoint was rolled back.
        """
        value = self._values.read(query)
        last = decode(_Finished, value.data).batch if value is not None else UNKNOWN
        if batch < last:
            raise written_error(query, batch, f"and the query has written batch {last} since")
        return batch == last

    def task_digest(self, task: TaskId) -> str | None:
        """Return the digest of the rows that the task has written; empty when it only began, None when it never did."""
        entry = self._task(task)
        return entry.digest if entry is not None else None

    def is_confirmed(self, task: TaskId, attempt: str) -> bool:
        """Return whether the task of that attempt brings all the rows that the stream has of it."""
        entry = self._task(task)
        return entry is not None and entry.attempt == attempt

    def unconfirmed(self, query: str, batch: int, attempt: str) -> dict[int, str]:
        """Return the tasks that began the batch and have not brought their rows in that attempt, with their digests."""
        entries = [decode(_Task, value) for value in self._values.values(f"{query}.task.*")]
        return {entry.partition: entry.digest for entry in entries if entry.batch == batch and entry.attempt != attempt}

    def begun_before(self, query: str, batch: int, attempt: str) -> Begun | None:
        """Return the beginning of a batch that an earlier attempt has begun; None when this one is the first."""
        value = self._values.read(f"{query}.begun")
        begun = decode(Begun, value.data) if value is not None else None
        return begun if begun is not None and begun.batch == batch and begun.attempt != attempt else None

    def begin_batch(self, task: TaskId, attempt: str, *, is_new: bool, look: Callable[[], tuple[str, int]]) -> Begun:
        """Note that an attempt begins with the batch, unless another of its tasks has done so.

        Args:
            is_new: whether the ledger knows nothing else of the batch.
            look: gives the target stream and its last sequence.

        Raises:
            BatchWrittenError: the query has begun a later batch; the checkpoint was rolled back.
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        if not self._values.bucket:
            return Begun(task.batch, attempt)
        key = f"{task.query}.begun"
        while True:
            value = self._values.read(key)
            begun = decode(Begun, value.data) if value is not None else None
            if begun is None or begun.batch < task.batch:
                noted = Begun(task.batch, attempt, *look()) if is_new else Begun(task.batch, again=attempt)
            elif begun.batch > task.batch:
                raise written_error(task.query, task.batch, f"and the query has begun batch {begun.batch} since")
            elif attempt in (begun.attempt, begun.again):
                return begun
            else:
                noted = msgspec.structs.replace(begun, again=attempt, again_after=look()[1])
            self._values.beside = self._values.beside or noted.stream
            # Tasks of one attempt begin at the same time: the first one's word counts.
            if self._values.write(key, encode(noted), value.revision if value is not None else 0):
                return noted

    def add_task(self, task: TaskId, attempt: str, digest: str) -> None:
        """Note that the task brings all the rows that the stream has of it, and a digest once they are all written.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        entry = _Task(task.batch, digest, attempt, task.partition)
        self._values.write(f"{task.query}.task.{task.partition}", encode(entry))

    def add_batch(self, query: str, batch: int) -> None:
        """Note that all tasks of the batch are done.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._values.write(query, encode(_Finished(batch)))

    def _task(self, task: TaskId) -> _Task | None:
        value = self._values.read(f"{task.query}.task.{task.partition}")
        entry = decode(_Task, value.data) if value is not None else None
        return entry if entry is not None and entry.batch == task.batch else None
