"""The executors' half of dead letters: fetches the messages that events speak of, by their sequences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from jetlake.client.socket_connection import SocketConnection
from jetlake.errors import BadHeaderError, StreamNotFoundError
from jetlake.model.replies import StoredMessage
from jetlake.model.times import parse_time
from jetlake.protocol.headers import Headers
from jetlake.spark.connection import retrying
from jetlake.spark.options import ConnectionOptions
from jetlake.spark.stream_api import StreamApi

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

__all__ = ["MESSAGE_COLUMNS", "message_at", "message_row"]

_MESSAGE = (
    StructType()
    .add("found", "boolean")
    .add("subject", "string")
    .add("timestamp", "timestamp")
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("data", "binary")
)

MESSAGE_COLUMNS = tuple(_MESSAGE.fieldNames())
"""What is known of the message that died, if it is still there (`found`)."""


def message_at(connection: Mapping[str, str]) -> UserDefinedFunctionLike:
    """A function of stream and sequence that gives the message there, one request each: dead letters are few.

    A function of columns, not of partitions, for those ask what columns there are, which declarative pipelines forbid.
    """
    texts = dict(connection)

    def fetch(streams: pa.Array, sequences: pa.Array) -> pa.Array:
        options = ConnectionOptions.of(texts)
        places = zip(streams.to_pylist(), sequences.to_pylist(), strict=True)
        rows = [message_row(retrying(options, partial(_message, options, *place))) for place in places]
        return pa.array(rows, pa.struct(to_arrow_schema(_MESSAGE, timezone="UTC")))

    # What the server answers can change: never ask twice for one row.
    function: UserDefinedFunctionLike = arrow_udf(fetch, _MESSAGE).asNondeterministic()
    return function


def _message(options: ConnectionOptions, stream: str, sequence: int, link: SocketConnection) -> StoredMessage | None:
    try:
        return StreamApi(link, options.domain, options.request_timeout_s).message(stream, sequence)
    except StreamNotFoundError:
        return None


def message_row(message: StoredMessage | None) -> dict[str, Any]:
    """A message as columns; they are empty when there is none."""
    if message is None:
        return {"found": False, "subject": None, "timestamp": None, "headers": [], "data": None}
    grouped: dict[str, list[str]] = {}
    try:
        pairs = Headers(message.hdrs).items() if message.hdrs else ()
    except BadHeaderError:
        pairs = ()
    for key, value in pairs:
        grouped.setdefault(_clean(key), []).append(_clean(value))
    return {
        "found": True,
        "subject": message.subject,
        "timestamp": parse_time(message.time) // 1000,
        "headers": list(grouped.items()),
        "data": message.data,
    }


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
