"""What of a streaming query's batches is written in full, kept on the server in a key-value bucket.

Message ids keep a repeated batch from being written twice for as long as the stream remembers them. A batch may be
repeated much later: the query was stopped between its last write and its commit log, and started the next day. What
the ledger says is for ever. It knows the last batch of a query whose tasks are all done, and of every task the last
batch that it has done, with a digest of what it wrote: a task that comes again with the same rows has nothing to do.
Only a task that died in the middle of its rows depends on the stream's memory.
"""

from __future__ import annotations

import msgspec

from jetlake.client.socket_connection import SocketConnection
from jetlake.errors import ApiError, NoRespondersError, PermissionsError, StreamNotFoundError, UnsupportedStreamError
from jetlake.model.codec import decode, encode
from jetlake.model.enums import DiscardPolicy
from jetlake.model.publish import decode_pub_ack
from jetlake.model.stream import StreamConfig
from jetlake.spark.connection import retrying
from jetlake.spark.options import SinkOptions
from jetlake.spark.stream_api import StreamApi

__all__ = ["Ledger"]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last batch that a query, or one of its tasks, has written in full."""

    batch: int
    digest: str = ""


class Ledger:
    """The finished work of all queries that share a bucket; knows and keeps nothing when the options name none."""

    def __init__(self, options: SinkOptions) -> None:
        self._settings = options.connection
        self._bucket = options.ledger
        self._stream = f"KV_{options.ledger}"

    def has_batch(self, query: str, batch: int) -> bool:
        """Whether all tasks of that batch are done."""
        entry = self._read(query)
        return entry is not None and batch <= entry.batch

    def task_digest(self, query: str, batch: int, partition: int) -> str:
        """The digest of what the task has written for that batch; empty when it is not known to be done."""
        entry = self._read(f"{query}.{partition}")
        return entry.digest if entry is not None and entry.batch == batch else ""

    def add_batch(self, query: str, batch: int) -> None:
        """Note that all tasks of the batch are done.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._write(query, _Entry(batch))

    def add_task(self, query: str, batch: int, partition: int, digest: str) -> None:
        """Note that one task of the batch is done.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        self._write(f"{query}.{partition}", _Entry(batch, digest))

    def _read(self, key: str) -> _Entry | None:
        if not self._bucket:
            return None

        def look(connection: SocketConnection) -> _Entry | None:
            try:
                message = self._api(connection).last_message(self._stream, self._subject(key))
            except StreamNotFoundError:
                return None
            return decode(_Entry, message.data) if message is not None else None

        return retrying(self._settings, look)

    def _write(self, key: str, entry: _Entry) -> None:
        if not self._bucket:
            return

        def write(connection: SocketConnection) -> None:
            subject, value = self._subject(key).encode(), encode(entry)
            try:
                try:
                    answer = connection.request(subject, value, self._settings.request_timeout_s)
                except NoRespondersError:
                    self._api(connection).create_stream(self._config())
                    answer = connection.request(subject, value, self._settings.request_timeout_s)
                decode_pub_ack(answer.payload)
            except (ApiError, PermissionsError, NoRespondersError) as error:
                raise UnsupportedStreamError(
                    f"the finished batch {entry.batch} could not be noted in the key-value bucket {self._bucket} "
                    f"({error}): allow it, name another bucket with option ledger, or do without by ledger=none"
                ) from error

        retrying(self._settings, write)

    def _api(self, connection: SocketConnection) -> StreamApi:
        return StreamApi(connection, self._settings.domain, self._settings.request_timeout_s)

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{key}"

    def _config(self) -> StreamConfig:
        """A bucket as every key-value client knows it, with one value a key."""
        return StreamConfig.of(
            self._stream,
            description="finished batches of Spark queries",
            subjects=[f"$KV.{self._bucket}.>"],
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
