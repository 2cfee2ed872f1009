"""The executors' half of dead letters: fetches the messages that events speak of, by their sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
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

__all__ = ["LETTER_SCHEMA", "FetchLetters", "letter"]

LETTER_SCHEMA = (
    StructType()
    .add("stream", "string")
    .add("consumer", "string")
    .add("sequence", "long")
    .add("reason", "string")
    .add("description", "string")
    .add("deliveries", "long")
    .add("died_at", "timestamp")
    .add("found", "boolean")
    .add("subject", "string")
    .add("timestamp", "timestamp")
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("data", "binary")
)
"""A dead letter: what happened to which message, and the message, if it is still there (`found`)."""


@dataclass(frozen=True)
class FetchLetters:
    """Adds to each event the message that it speaks of.

    Attributes:
        connection: options of the connection as texts.
    """

    connection: tuple[tuple[str, str], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Ask for every message, one request each: dead letters are few."""
        options = ConnectionOptions.of(dict(self.connection))
        arrow_schema = to_arrow_schema(LETTER_SCHEMA, timezone="UTC")
        for batch in batches:
            letters = []
            for event in batch.to_pylist():
                place = (event["stream"], event["sequence"])
                message = retrying(options, lambda link, place=place: _message(link, options, *place))  # type: ignore[misc]
                letters.append(letter(event, message))
            yield pa.RecordBatch.from_pylist(letters, schema=arrow_schema)


def _message(link: SocketConnection, options: ConnectionOptions, stream: str, sequence: int) -> StoredMessage | None:
    try:
        return StreamApi(link, options.domain, options.request_timeout_s).message(stream, sequence)
    except StreamNotFoundError:
        return None


def letter(event: dict[str, Any], message: StoredMessage | None) -> dict[str, Any]:
    """The row of one dead letter; without a message the columns of the message are empty."""
    if message is None:
        return {**event, "found": False, "subject": None, "timestamp": None, "headers": [], "data": None}
    grouped: dict[str, list[str]] = {}
    try:
        pairs = Headers(message.hdrs).items() if message.hdrs else ()
    except BadHeaderError:
        pairs = ()
    for key, value in pairs:
        grouped.setdefault(_clean(key), []).append(_clean(value))
    return {
        **event,
        "found": True,
        "subject": message.subject,
        "timestamp": parse_time(message.time) // 1000,
        "headers": list(grouped.items()),
        "data": message.data,
    }


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
