"""Dead letters: messages that ran out of deliveries or were terminated, collected in a stream or folder, each once.

An advisory names the stream and sequence of a dead message; the executors fetch the message itself by its sequence. A
recreated stream gives its sequences to other messages, so a message younger than the advisory is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from jetlake.client.tables.option_values import duration_s
from jetlake.client.tables.stream_api import StreamApi, ask
from jetlake.errors import ConfigError, StreamNotFoundError
from jetlake.model.dead_letter import HEADER_PREFIX, MAX_DELIVERIES, TERMINATED
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import StoredMessage
from jetlake.protocol.headers import writable_pairs
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.console import collect_shown, print_rows
from jetlake.spark.pipelines.event_pipeline import EVENTS_STREAM, EventPipeline, event_options
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.sinks import Target, is_own_header, start_folder, start_stream
from jetlake.spark.pipelines.utc import utc_text

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

DEATHS = {
    "io.nats.jetstream.advisory.v1.max_deliver": MAX_DELIVERIES,
    "io.nats.jetstream.advisory.v1.terminated": TERMINATED,
}
"""The events that mean a message's end, and what we call it."""
_SUBJECTS = ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED")
_HEADERS = {
    "Stream": "stream",
    "Consumer": "consumer",
    "Sequence": "cast(sequence as string)",
    "Subject": "subject",
    "Reason": "reason",
    # A line break, which a worker may have written, would end the header.
    "Description": "nullif(translate(description, '\\r\\n', '  '), '')",
    "Deliveries": "cast(deliveries as string)",
    "Time": utc_text("died_at"),
    "Missing": "missing",
}


DEATH_COLUMNS = ("stream", "consumer", "sequence", "reason", "description", "deliveries", "died_at")
"""What is known of a death."""


def deaths(events: DataFrame) -> DataFrame:
    """Return the events of dead messages."""
    kinds = ", ".join(f"'{kind}', '{name}'" for kind, name in DEATHS.items())
    return events.select(
        sql.col("value.stream").alias("stream"),
        sql.col("value.consumer").alias("consumer"),
        sql.col("value.stream_seq").alias("sequence"),
        sql.expr(f"element_at(map({kinds}), value.type)").alias("reason"),
        sql.coalesce("value.reason", sql.lit("")).alias("description"),
        sql.col("value.deliveries").alias("deliveries"),
        sql.col("timestamp").alias("died_at"),
    ).where("reason is not null and stream is not null and consumer is not null and sequence is not null")


def dead_letters(events: DataFrame, connection: Mapping[str, str], once_within: str | None = None) -> DataFrame:
    """Dead messages, one row for each message and consumer.

    A stream that was deleted and made again gives its sequences to other messages: deaths of the same sequence count as
    one only when they are of the same stream.

    Args:
        once_within: for streaming queries, how long a death is remembered, so that it counts once.
    """
    found = deaths(events)
    if once_within is not None:
        found = found.withWatermark("died_at", once_within)
    letters = found.withColumn("message", message_at(connection)("stream", "sequence", sql.unix_micros("died_at")))
    letters = letters.select(*DEATH_COLUMNS, *(sql.col(f"message.{name}").alias(name) for name in MESSAGE_COLUMNS))
    keys = ["stream", "consumer", "sequence", "incarnation"]
    return letters.dropDuplicates(keys) if once_within is None else letters.dropDuplicatesWithinWatermark(keys)


def letters_as_messages(letters: DataFrame, subject: str) -> DataFrame:
    """Dead letters as rows for a stream: the message as it was, with headers that say what happened."""
    pairs = ", ".join(
        f"struct('{HEADER_PREFIX}{name}' as key, array({value}) as value)" for name, value in _HEADERS.items()
    )
    added = f"filter(array({pairs}), pair -> pair.value[0] is not null)"
    own = f"filter(map_entries(headers), pair -> {is_own_header('pair.key', HEADER_PREFIX)})"
    target = "concat('" + subject.replace("{stream}", "', stream, '").replace("{consumer}", "', consumer, '") + "')"
    return letters.select(
        sql.expr(target).alias("subject"),
        sql.expr(f"map_from_entries(concat({own}, {added}))").alias("headers"),
        sql.col("data"),
        sql.expr("concat_ws(':', stream, consumer, cast(sequence as string), incarnation)").alias("msg_id"),
    )


@dataclass(frozen=True)
class DeadLetters(EventPipeline):
    """Collects the dead letters of some streams.

    Attributes:
        streams: of which streams.
        subject: where they are published, with `{stream}` and `{consumer}`; empty for `<target>.{stream}.{consumer}`.
        remember: how long a death is remembered, so that a repeated event counts once.
    """

    kind = "dead-letters"

    streams: tuple[str, ...]
    target: Target
    events: str = EVENTS_STREAM
    subject: str = ""
    remember: str = "1 day"
    start: str = "earliest"

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError("name the stream whose dead letters to collect")
        if "'" in self.subject or "\\" in self.subject:
            raise ConfigError(f"{self.subject!r} is not a valid subject")
        try:
            duration_s(self.remember)
        except ValueError as error:
            raise ConfigError(f"remember {self.remember!r} can't be used: {error}") from None
        if self.target.kind == "stream" and self.target.value in self.streams:
            raise ConfigError(f"stream {self.target.value} can't store its own dead letters: choose another one")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"dead letters of {', '.join(self.streams)}"

    @property
    def publish_subject(self) -> str:
        """The subject of letters that go to a stream, with its places still open."""
        return self.subject or f"{self.target.value}.{{stream}}.{{consumer}}"

    def source_options(self) -> dict[str, str]:
        """Return the source options that select the events."""
        return event_options(self.events, _SUBJECTS, self.streams)

    def run(self, run: Run) -> None:
        """Collect."""
        settings = run.settings
        if self.target.kind == "console":
            self._show(run)
            return
        remember = f"{round(duration_s(self.remember) * 1000)} milliseconds"
        letters = dead_letters(self.follow(run), settings.connection, remember)
        checkpoint = self.checkpoint(settings)
        if self.target.kind == "stream":
            example = self.publish_subject.replace("{stream}", "*").replace("{consumer}", "*")
            self.ensure_target(run, example)
            messages = letters_as_messages(letters, self.publish_subject)
            query = start_stream(run, messages, self.target, name=self.name, owner=self.kind, checkpoint=checkpoint)
        else:
            rows = letters.drop("incarnation")
            query = start_folder(run, rows, self.target, name=self.name, owner=self.kind, checkpoint=checkpoint)
        run.watch([query])

    def _show(self, run: Run) -> None:
        """Print what there is."""
        if run.settings.follow:
            raise ConfigError("the console only shows existing dead letters: with --follow, choose a stream or folder")
        events = self.read(run.spark, run.settings)
        found = dead_letters(events, run.settings.connection).drop("headers", "data", "incarnation")
        letters = collect_shown(found.orderBy("died_at"))
        run.batch_done("", 0, len(letters), 0.0, 0)
        print_rows(letters)


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
_ANOTHER = "the stream was recreated since: its message of that sequence is another one"
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
    # A stream that is gone or younger than the death can't be told from others of its name: use the event's time.
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
    try:
        return ask(options, question)
    except StreamNotFoundError:
        return None


def _message(options: ConnectionOptions, stream: str, sequence: int) -> StoredMessage | None:
    return _ask(options, lambda api: api.message(stream, sequence))


def _created_ns(options: ConnectionOptions, stream: str) -> int | None:
    return _ask(options, lambda api: parse_time(api.stream_info(stream).created))


def message_row(message: StoredMessage | None) -> dict[str, Any]:
    """Return a message as columns; they are empty when there is none.

    Headers that cannot be written again are left out: one of them would keep a whole batch from its stream.
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
