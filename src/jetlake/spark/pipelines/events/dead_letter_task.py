"""The executors' half of dead letters: fetches the messages that events speak of, by their sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import StreamNotFoundError
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import StoredMessage
from jetlake.protocol.headers import writable_pairs
from jetlake.spark.options.connection_options import ConnectionOptions

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

__all__ = ["MESSAGE_COLUMNS", "Death", "letter_rows", "message_at", "message_row"]

T = TypeVar("T")

_MESSAGE = (
    StructType()
    .add("found", "boolean")
    .add("missing", "string")
    .add("incarnation", "string")
    .add("subject", "string")
    .add("timestamp", "timestamp")
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("data", "binary")
)

MESSAGE_COLUMNS = tuple(_MESSAGE.fieldNames())
"""What is known of the message that died: whether it is still there (`found`), why not (`missing`), which stream of
that name it was in (`incarnation`), and what it holds."""

_REMOVED = "the message was removed before it was fetched"
_ANOTHER = "the stream was made again since: its message of that sequence is another one"
_NO_STREAM = "the stream was deleted before the message was fetched"
# A message may come from another server of a cluster than the event, whose clock is not quite the same.
_CLOCKS_APART_NS = 1_000_000_000


class Death(NamedTuple):
    """An event that a message came to its end."""

    stream: str
    sequence: int
    died_us: int


def message_at(connection: Mapping[str, str]) -> UserDefinedFunctionLike:
    """Return a function of stream, sequence and the event's time in microseconds that gives the message that died.

    One request each: dead letters are few. A function of columns, not of partitions, for those ask what columns there
    are, which declarative pipelines forbid.
    """
    texts = dict(connection)

    def fetch(streams: pa.Array, sequences: pa.Array, times: pa.Array) -> pa.Array:
        options = ConnectionOptions.of(texts)
        columns = (streams.to_pylist(), sequences.to_pylist(), times.to_pylist())
        deaths = [Death(*place) for place in zip(*columns, strict=True)]
        rows = letter_rows(deaths, partial(_message, options), partial(_created_ns, options))
        return pa.array(rows, pa.struct(to_arrow_schema(_MESSAGE, timezone="UTC")))

    # What the server answers can change: never ask twice for one row.
    function: UserDefinedFunctionLike = arrow_udf(fetch, _MESSAGE).asNondeterministic()
    return function


def letter_rows(
    deaths: Sequence[Death],
    message: Callable[[str, int], StoredMessage | None],
    created_ns: Callable[[str], int | None],
) -> list[dict[str, Any]]:
    """Return what is known of the messages that died.

    Args:
        message: gives the message of a stream's sequence.
        created_ns: says when a stream was made; None when there is none. It is asked after the messages: a stream that
            is made again in between is then known to be younger than the deaths.
    """
    found = [message(death.stream, death.sequence) for death in deaths]
    made_ns = {stream: created_ns(stream) for stream in {death.stream for death in deaths}}
    return [_row(death, stored, made_ns[death.stream]) for death, stored in zip(deaths, found, strict=True)]


def _row(death: Death, stored: StoredMessage | None, made_ns: int | None) -> dict[str, Any]:
    # A stream that is gone, or was made after the death, can't be told from others of its name: the event's time is.
    incarnation = death.died_us if made_ns is None or made_ns // 1000 > death.died_us else made_ns // 1000
    missing = None
    if made_ns is None:
        missing = _NO_STREAM
    elif made_ns // 1000 > death.died_us:
        missing = _ANOTHER
    elif stored is None:
        missing = _REMOVED
    elif parse_time(stored.time) > death.died_us * 1000 + _CLOCKS_APART_NS:
        # As after a restore: the sequence was given to another message.
        missing = _ANOTHER
    row = message_row(None if missing else stored)
    return {**row, "found": missing is None, "missing": missing, "incarnation": str(incarnation)}


def _ask(options: ConnectionOptions, question: Callable[[StreamApi], T]) -> T | None:
    def ask(link: SocketConnection) -> T | None:
        try:
            return question(StreamApi.through(link, options))
        except StreamNotFoundError:
            return None

    return retrying(options, ask)


def _message(options: ConnectionOptions, stream: str, sequence: int) -> StoredMessage | None:
    return _ask(options, lambda api: api.message(stream, sequence))


def _created_ns(options: ConnectionOptions, stream: str) -> int | None:
    return _ask(options, lambda api: parse_time(api.stream_info(stream).created))


def message_row(message: StoredMessage | None) -> dict[str, Any]:
    """Return a message as columns; they are empty when there is none.

    Headers that nobody could write again are left out: one of them would keep a whole batch from its stream.
    """
    if message is None:
        return {"subject": None, "timestamp": None, "headers": [], "data": None}
    grouped: dict[str, list[str]] = {}
    for key, value in writable_pairs(message.hdrs):
        grouped.setdefault(_clean(key), []).append(_clean(value))
    return {
        "subject": message.subject,
        "timestamp": parse_time(message.time) // 1000,
        "headers": list(grouped.items()),
        "data": message.data,
    }


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
