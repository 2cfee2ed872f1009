"""Which rows of a task the target stream has from an attempt that broke off, however long ago that was."""

from __future__ import annotations

import logging

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.reading.leader_reader import read_by_leader
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import JetlakeError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig, StreamInfo
from jetlake.protocol.headers import find_value
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.sink.ledger import Ledger, written_error

__all__ = ["StoredRows", "ids_after", "keeps_all"]

_log = logging.getLogger("jetlake.spark")


def keeps_all(config: StreamConfig) -> bool:
    """Return whether a stream's messages stay until somebody removes them: no limit, life or roll-up does."""
    limits = (config.max_age, config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    removes = config.retention is not RetentionPolicy.LIMITS or config.allow_rollup_hdrs or config.allow_msg_ttl
    return not removes and not any(limit > 0 for limit in limits)


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
            return ids_after(self._options, after)
        except JetlakeError as error:
            # Whoever may publish need not be allowed to look; the stream's own memory is left then.
            _log.warning("what stream %s holds of a repeated task can't be looked up: %s", self._options.stream, error)
            return frozenset()

    def check_kept(self, query: str, batch: int, partition: int) -> None:
        """Make sure that a stream which removes nothing by itself still has what the finished task wrote to it.

        Raises:
            BatchWrittenError: it was purged, so the batch comes again to be written again.
        """
        after = self._ledger.begun_after(query, batch, partition) if self._is_known else None
        if after is None:
            return
        try:
            info = retrying(self._options.connection, self._info)
        except JetlakeError:
            return
        state = info.state
        if keeps_all(info.config) and state.first_seq > after + 1 and state.last_seq > after:
            raise written_error(query, batch, f"and stream {info.config.name} was purged since")

    def _last_sequence(self) -> int:
        return retrying(self._options.connection, self._look)

    def _look(self, connection: SocketConnection) -> int:
        return self._info(connection).state.last_seq

    def _info(self, connection: SocketConnection) -> StreamInfo:
        settings = self._options.connection
        return StreamApi.through(connection, settings).stream_info(self._options.stream)


def ids_after(options: SinkOptions, after: int) -> frozenset[bytes]:
    """Return the message ids that the sink's stream holds behind a sequence."""
    settings, stream = options.connection, options.stream
    source = SourceOptions(connection=settings, streams=(stream,))

    def read(connection: SocketConnection) -> frozenset[bytes]:
        found: set[bytes] = set()
        last = StreamApi.through(connection, settings).stream_info(stream).state.last_seq
        partition = ReadPartition(stream, after + 1, last + 1, (), "leader")
        for messages in read_by_leader(connection, partition, source, partition.first):
            ids = (find_value(block, b"Nats-Msg-Id") for block in messages.header.to_pylist() if block)
            found.update(bytes(single) for single in ids if single is not None)
        return frozenset(found)

    return retrying(settings, read)
