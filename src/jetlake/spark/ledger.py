"""What of a streaming query's batches is written in full, kept on the server in a key-value bucket.

Message ids keep a repeated batch from being written twice for as long as the stream remembers them. A batch may be
repeated much later: the query was stopped between its last write and its commit log, and started the next day. What
the ledger says is for ever. It knows the last batch of a query whose tasks are all done, and of every task the last
batch that it has done, with a digest of what it wrote: a task that comes again with the same rows has nothing to do.
Of every task it also knows where the target stream ended when its last batch began: what was stored since tells a task
that died in the middle of its rows which of them are there.
"""

from __future__ import annotations

import msgspec

from jetlake.model.codec import decode, encode
from jetlake.spark.key_value import KeyValue
from jetlake.spark.options import SinkOptions

__all__ = ["Ledger"]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last batch that a query, or one of its tasks, has written in full or begun to write."""

    batch: int
    digest: str = ""
    after: int = 0


class Ledger:
    """The finished work of all queries that share a bucket; knows and keeps nothing when the options name none."""

    def __init__(self, options: SinkOptions) -> None:
        self._values = KeyValue(options.connection, options.ledger)

    def has_batch(self, query: str, batch: int) -> bool:
        """Whether all tasks of that batch are done."""
        entry = self._read(query)
        return entry is not None and batch <= entry.batch

    def task_digest(self, query: str, batch: int, partition: int) -> str:
        """The digest of what the task has written for that batch; empty when it is not known to be done."""
        entry = self._read(f"{query}.{partition}")
        return entry.digest if entry is not None and entry.batch == batch else ""

    def begun_after(self, query: str, batch: int, partition: int) -> int | None:
        """The target stream's last sequence when the task began with that batch; None when it never did."""
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
