"""Which rows of a task the target stream has from an attempt that broke off, however long ago that was."""

from __future__ import annotations

import logging

from jetlake.client.socket_connection import SocketConnection
from jetlake.errors import JetlakeError
from jetlake.protocol.headers import find_value
from jetlake.spark.connection import retrying
from jetlake.spark.leader_reader import read_by_leader
from jetlake.spark.ledger import Ledger
from jetlake.spark.options import SinkOptions, SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.stream_api import StreamApi

__all__ = ["StoredRows"]

_log = logging.getLogger("jetlake.spark")


class StoredRows:
    """Looks into the stream that a sink writes to.

    A stream knows message ids for its duplicate window. A task that died in the middle of its rows may be repeated much
    later: it has noted in the ledger where the stream ended when it began, and what was stored since says which of its
    rows are there. Nothing is known where the sink does not name its stream, gives no ids or keeps no ledger, where the
    login may not read the stream, and of rows that the stream has removed meanwhile.
    """

    def __init__(self, options: SinkOptions, ledger: Ledger) -> None:
        self._options = options
        self._ledger = ledger
        self._is_known = bool(options.stream and options.ledger and options.message_id != "none")

    def begin(self, query: str, batch: int, partition: int) -> frozenset[bytes]:
        """Message ids that an earlier attempt of the task may have stored; notes the beginning of a first attempt."""
        if not self._is_known:
            return frozenset()
        try:
            after = self._ledger.begun_after(query, batch, partition)
            if after is None:
                self._ledger.begin_task(query, batch, partition, self._last_sequence())
                return frozenset()
            return self._ids_after(after)
        except JetlakeError as error:
            # Whoever may publish need not be allowed to look; the stream's own memory is left then.
            _log.warning("what stream %s holds of a repeated task can't be looked up: %s", self._options.stream, error)
            return frozenset()

    def _last_sequence(self) -> int:
        return retrying(self._options.connection, self._look)

    def _look(self, connection: SocketConnection) -> int:
        settings = self._options.connection
        api = StreamApi(connection, settings.domain, settings.request_timeout_s)
        return api.stream_info(self._options.stream).state.last_seq

    def _ids_after(self, after: int) -> frozenset[bytes]:
        settings, stream = self._options.connection, self._options.stream
        options = SourceOptions(connection=settings, streams=(stream,))

        def read(connection: SocketConnection) -> frozenset[bytes]:
            found: set[bytes] = set()
            partition = ReadPartition(stream, after + 1, self._look(connection) + 1, (), "leader")
            for messages in read_by_leader(connection, partition, options, partition.first):
                ids = (find_value(block, b"Nats-Msg-Id") for block in messages.header.to_pylist() if block)
                found.update(bytes(single) for single in ids if single is not None)
            return frozenset(found)

        return retrying(settings, read)
