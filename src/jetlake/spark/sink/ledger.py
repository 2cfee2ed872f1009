"""What of a streaming query's batches is written in full, kept on the server in a key-value bucket.

Message ids keep a repeated batch from being written twice for as long as the stream remembers them. A batch may be
repeated much later: the query was stopped between its last write and its commit log, and started the next day. What
the ledger says is for ever. It knows the last batch of a query whose tasks are all done, and of every task the last
batch that it has done, with a digest of what it wrote: a task that comes again with the same rows has nothing to do.
Of every task it also knows where the target stream ended when its last batch began: what was stored since tells a task
that died in the middle of its rows which of them are there.

The reasons are in decision 18 (docs/decisions).
"""

from __future__ import annotations

import msgspec

from jetlake.errors import BatchWrittenError
from jetlake.model.encoding.codec import decode, encode
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.requests.key_value import KeyValue

__all__ = ["Ledger", "written_error"]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last batch that a query, or one of its tasks, has written in full or begun to write."""

    batch: int
    digest: str = ""
    after: int = 0


def written_error(query: str, batch: int, evidence: str) -> BatchWrittenError:
    """Return the error for a batch that comes again on purpose."""
    return BatchWrittenError(
        f"batch {batch} of query {query} was written before, {evidence}: its checkpoint was rolled back, or restored "
        "from a copy. To write its rows again, under new ids, give option runId a new name and keep it; to leave out "
        "what is written, restore the newer checkpoint"
    )


class Ledger:
    """The finished work of all queries that share a bucket; knows and keeps nothing when the options name none."""

    def __init__(self, options: SinkOptions) -> None:
        self._values = KeyValue(options.connection, options.ledger, options.stream)

    def follow(self, stream: str) -> None:
        """Keep the bucket, should it be made, as safe as the stream that is written to."""
        self._values.beside = self._values.beside or stream

    def has_batch(self, query: str, batch: int) -> bool:
        """Return whether all tasks of that batch are done.

        Only the last batch of a query can come again after a crash: the next one begins when it is in Spark's log.

        Raises:
            BatchWrittenError: an earlier batch comes again; somebody has rolled the checkpoint back.
        """
        entry = self._read(query)
        if entry is not None and batch < entry.batch:
            raise written_error(query, batch, f"and the query has written batch {entry.batch} since")
        return entry is not None and batch == entry.batch

    def task_digest(self, query: str, batch: int, partition: int) -> str:
        """Return the digest of what the task has written for that batch; empty when it is not known to be done."""
        entry = self._read(f"{query}.{partition}")
        return entry.digest if entry is not None and entry.batch == batch else ""

    def begun_after(self, query: str, batch: int, partition: int) -> int | None:
        """Return the target stream's last sequence when the task began with that batch; None when it never did."""
        entry = self._read(f"{query}.{partition}.begun")
        return entry.after if entry is not None and entry.batch == batch else None

    def begin_task(self, query: str, batch: int, partition: int, after: int) -> None:
        """Note where the target stream ends before the task writes.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._values.write(f"{query}.{partition}.begun", encode(_Entry(batch, after=after)))

    def add_batch(self, query: str, batch: int) -> None:
        """Note that all tasks of the batch are done.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._values.write(query, encode(_Entry(batch)))

    def add_task(self, query: str, batch: int, partition: int, digest: str) -> None:
        """Note that one task of the batch is done.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._values.write(f"{query}.{partition}", encode(_Entry(batch, digest)))

    def _read(self, key: str) -> _Entry | None:
        value = self._values.read(key)
        return decode(_Entry, value) if value is not None else None
