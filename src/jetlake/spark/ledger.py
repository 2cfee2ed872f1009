"""Which batches of a streaming query are written in full, kept on the server in a key-value bucket.

Message ids keep a repeated batch from being written twice for as long as the stream remembers them. A batch may be
repeated much later: the query was stopped between its last write and its commit log, and started the next day. What
the ledger says is for ever: a batch that is in it was acknowledged to the last row.
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


class _Entry(msgspec.Struct, frozen=True):
    """The last batch of a query that is written in full."""

    batch: int


class Ledger:
    """The finished batches of all queries that share a bucket; nothing is kept and asked for with an empty one."""

    def __init__(self, options: SinkOptions) -> None:
        self._settings = options.connection
        self._bucket = options.ledger
        self._stream = f"KV_{options.ledger}"

    def has(self, query: str, batch: int) -> bool:
        """Whether that batch of the query is written in full."""
        if not self._bucket:
            return False

        def look(connection: SocketConnection) -> bool:
            try:
                message = self._api(connection).last_message(self._stream, self._subject(query))
            except StreamNotFoundError:
                return False
            return message is not None and batch <= decode(_Entry, message.data).batch

        return retrying(self._settings, look)

    def add(self, query: str, batch: int) -> None:
        """Note that the batch is written in full.

        Raises:
            UnsupportedStreamError: the login may not make or write the bucket.
        """
        if not self._bucket:
            return

        def write(connection: SocketConnection) -> None:
            subject, entry = self._subject(query).encode(), encode(_Entry(batch))
            try:
                try:
                    answer = connection.request(subject, entry, self._settings.request_timeout_s)
                except NoRespondersError:
                    self._api(connection).create_stream(self._config())
                    answer = connection.request(subject, entry, self._settings.request_timeout_s)
                decode_pub_ack(answer.payload)
            except (ApiError, PermissionsError, NoRespondersError) as error:
                raise UnsupportedStreamError(
                    f"the finished batch {batch} could not be noted in the key-value bucket {self._bucket} ({error}): "
                    "allow it, name another bucket with option ledger, or do without by ledger=none"
                ) from error

        retrying(self._settings, write)

    def _api(self, connection: SocketConnection) -> StreamApi:
        return StreamApi(connection, self._settings.domain, self._settings.request_timeout_s)

    def _subject(self, query: str) -> str:
        return f"$KV.{self._bucket}.{query}"

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
