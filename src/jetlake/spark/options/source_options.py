"""The options of a read, and how many tasks they and the cluster allow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from jetlake.client.tables.option_values import (
    boolean,
    byte_size,
    choice,
    count,
    duration_s,
    names,
    positive,
    subject_filters,
    text,
)
from jetlake.client.tables.positions import EARLIEST, LATEST, Positions, parse_positions
from jetlake.errors import ConfigError
from jetlake.spark.options.connection_options import ConnectionOptions, build_with_connection
from jetlake.spark.options.option_table import (
    NO_AVRO_SCHEMA,
    NO_PROTOBUF_SCHEMA,
    bucket_name,
    consumer_name,
    option,
    stream_patterns,
)

_FROM_EARLIEST = Positions(EARLIEST)
_TO_LATEST = Positions(LATEST)
_parse_starting = parse_positions(EARLIEST)
_parse_ending = parse_positions(LATEST)


def _filters(value: str) -> tuple[str, ...]:
    """Subject filters; one that another one covers is left out, for the server refuses such pairs."""
    return subject_filters(names(value))


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where to where, in which tasks, and how payloads are decoded."""

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    streams: tuple[str, ...] = option(
        "stream",
        stream_patterns,
        (),
        "required",
        'Name of the stream, or of several separated by commas. `.load("ORDERS")` does the same. `*` stands for any '
        "characters: `ORDERS_*` reads all streams with such names, and a streaming query picks up new ones.",
    )
    discovery_interval_s: float = option(
        "discoveryInterval", duration_s, 10.0, "10s", "How often a streaming query looks for new streams of a pattern."
    )
    subjects: tuple[str, ...] = option(
        "subjects",
        _filters,
        (),
        "all",
        "Read only messages whose subject matches one of these, separated by commas (or a JSON array); wildcards "
        "`*` and `>` as usual. The server filters.",
    )
    starting: Positions = option(  # noqa: RUF009 - a frozen value
        "startingPosition",
        _parse_starting,
        _FROM_EARLIEST,
        "earliest",
        "Where a batch read, or a new streaming query, starts: `earliest`, `latest`, `seq:N`, "
        "`time:2026-01-31T12:00:00Z`, `-10 minutes`, `last:N`; or a JSON object with one for each stream. A query "
        "that has a checkpoint resumes there.",
    )
    ending: Positions = option(  # noqa: RUF009
        "endingPosition",
        _parse_ending,
        _TO_LATEST,
        "latest",
        "Where a batch read ends, exclusive for times and inclusive for `seq:N`; not for streaming.",
    )
    archive: str = option(
        "archive",
        text,
        "",
        "none",
        "Folder of an archive of the stream (`jetlake pipeline archive`, Parquet, Delta or Iceberg): a batch read "
        "takes what is archived from there and the rest from the stream. Every executor must reach it. An archive of "
        "decoded payloads is read by the same `payloadFormat`.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        True,
        "true",
        "Fail when messages were removed before they were read, or the stream was recreated. With `false` the query "
        "continues and counts them as `lost` in its offsets.",
    )
    ledger: str = option(
        "ledger",
        bucket_name,
        "jetlake_spark",
        "jetlake_spark",
        "Key-value bucket in which tasks record lost messages, with `failOnDataLoss=false`, so that the query's "
        "`lost` counts it; made when the first message is lost. `none` does without: such losses are then only logged.",
    )
    reader: str = option(
        "reader",
        choice("auto", "consumer", "direct", "leader"),
        "auto",
        "auto",
        "How tasks read: `consumer` (an ephemeral pull consumer; limits streams only), `direct` (batches of direct "
        "gets; the stream needs `allow_direct`, the server 2.11), `leader` (one request a message: slow, and works "
        "everywhere), `auto` (a consumer for large ranges of limits streams, else direct gets).",
    )
    direct_below: int = option(
        "directGetBelow",
        count,
        20_000,
        "20000",
        "With `reader=auto`: ranges of fewer messages than this are read by direct gets where the stream allows it.",
    )
    guarantee: str = option(
        "guarantee",
        choice("exactlyOnce", "atLeastOnce"),
        "exactlyOnce",
        "exactlyOnce",
        "`atLeastOnce` takes messages of a work queue or interest stream from a shared durable consumer and "
        "acknowledges them one by one: for queues that others read too, and for servers or permissions that allow no "
        "purge or reset. Streaming only.",
    )
    consumer: str = option(
        "consumer",
        consumer_name,
        "",
        "from stream and subjects",
        "Name of the durable consumer that keeps the position of a streaming query in a work queue or interest stream.",
    )
    take_over: bool = option(
        "consumerTakeover",
        boolean,
        False,
        "false",
        "Take the durable consumer over from another query (one whose checkpoint is gone). If that one still runs, it "
        "stops before its next batch and releases nothing more; the batch that it is at may be in both sinks.",
    )
    lag_consumer: str = option(
        "lagConsumer",
        consumer_name,
        "",
        "none",
        "Name of a durable consumer that a streaming query keeps behind its last finished batch, in every limits "
        "stream that it reads: what NATS tools show as pending is the query's lag. Each query needs a name of its own; "
        "work queues and interest streams have option `consumer` for it.",
    )
    max_messages: int = option(
        "maxMessagesPerTrigger",
        positive,
        0,
        "all",
        "Most messages in one micro-batch, shared by the streams in proportion. With `subjects`, exactly so many that "
        "match. Deleted messages do not count once there are as many of them as the limit allows.",
    )
    max_bytes: int = option(
        "maxBytesPerTrigger",
        byte_size,
        0,
        "all",
        "Most bytes in one micro-batch, by the sizes of its messages (subject, headers and payload), but one message "
        "at least.",
    )
    min_messages: int = option(
        "minMessagesPerTrigger",
        positive,
        0,
        "1",
        "Wait for this number of messages, but no longer than `maxTriggerDelay`. Not for AvailableNow.",
    )
    max_trigger_delay_s: float = option(
        "maxTriggerDelay", duration_s, 900.0, "15m", "Longest wait for `minMessagesPerTrigger`."
    )
    messages_per_partition: int = option(
        "messagesPerPartition", positive, 100_000, "100000", "Cut a range into tasks of about this number of messages."
    )
    bytes_per_partition: int = option(
        "bytesPerPartition", byte_size, 128 << 20, "128m", "Cut a range into tasks of about this number of bytes."
    )
    min_partitions: int = option(
        "minPartitions", positive, 1, "1", "Cut every stream's range into at least this number of tasks."
    )
    max_partitions: int = option(
        "maxPartitions",
        positive,
        0,
        "the cluster's cores, or 8",
        "Cut every stream's range into at most this number of tasks. The cluster's cores are known in a session of "
        "`jetlake.spark.session()`.",
    )
    poll_interval_s: float = option(
        "pollInterval", duration_s, 0.02, "20ms", "How often a streaming query asks the server for new messages."
    )
    rows_per_batch: int = option(
        "arrowBatchRows", positive, 16384, "16384", "Most rows that go to Spark in one Arrow batch."
    )
    payload_format: str = option(
        "payloadFormat",
        choice("raw", "json", "avro", "protobuf", "variant"),
        "raw",
        "raw",
        "`raw` gives column `data` as bytes; `json`, `avro` and `protobuf` decode it into the struct column `value`, "
        "`variant` any JSON into a VARIANT. Column `data` may be named in a schema beside `value`.",
    )
    payload_schema: str = option(
        "payloadSchema",
        text,
        "",
        "from the schema",
        "Fields of `value` for `payloadFormat=json`, as DDL: `id bigint, amount double`; or `bucket:orders.>`, the "
        "JSON Schema of a subject in the bucket of schemas. Not needed when `.schema(...)` has a `value` column.",
    )
    avro_schema: str = option(
        "avroSchema",
        text,
        "",
        "none",
        "The writer's schema as JSON text, for `payloadFormat=avro`; or `bucket:orders.>`, the schema of that subject "
        "in the bucket of schemas.",
    )
    avro_reader_schema: str = option(
        "avroReaderSchema",
        text,
        "",
        "`avroSchema`",
        "The schema to read Avro records by, where it is not the writer's: Avro's rules for renamed, added and removed "
        "fields hold.",
    )
    protobuf_schema: str = option(
        "protobufSchema",
        text,
        "",
        "none",
        "The descriptor set of `protoc --include_imports --descriptor_set_out` in Base64, for "
        "`payloadFormat=protobuf`; or `bucket:orders.>`, the schema of that subject in the bucket of schemas.",
    )
    protobuf_message: str = option(
        "protobufMessage",
        text,
        "",
        "the last of the set",
        "Full name of the message in `protobufSchema`.",
    )
    bad_rows: str = option(
        "badRows",
        choice("fail", "column"),
        "fail",
        "fail",
        "A payload that cannot be decoded: `fail` names stream and sequence in an error, `column` leaves `value` null "
        "and fills the columns `bad_data` and `bad_reason`.",
    )

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError(
                "option stream is missing: name the stream to read, or give it to load(...); a table keeps its options "
                "when CREATE TABLE lists no columns"
            )
        if self.max_partitions and self.min_partitions > self.max_partitions:
            raise ConfigError(
                f"option minPartitions={self.min_partitions} is more than maxPartitions={self.max_partitions}"
            )
        if self.max_messages and self.min_messages > self.max_messages:
            raise ConfigError(
                f"option minMessagesPerTrigger={self.min_messages} can never be reached with "
                f"maxMessagesPerTrigger={self.max_messages}"
            )
        if self.payload_format == "avro" and not self.avro_schema:
            raise ConfigError(NO_AVRO_SCHEMA)
        if self.payload_format == "protobuf" and not self.protobuf_schema:
            raise ConfigError(NO_PROTOBUF_SCHEMA)
        for name, positions in (("startingPosition", self.starting), ("endingPosition", self.ending)):
            for stream, _ in positions.by_stream:
                if stream not in self.streams and not self.has_patterns:
                    raise ConfigError(f"option {name} names stream {stream!r}, which option stream does not")
        if (len(self.streams) > 1 or self.has_patterns) and self.archive:
            raise ConfigError("option archive holds one stream: read each stream by itself, and union the DataFrames")
        if (len(self.streams) > 1 or self.has_patterns) and self.guarantee == "atLeastOnce":
            raise ConfigError("guarantee=atLeastOnce reads one stream: give each stream a query of its own")

    @property
    def has_patterns(self) -> bool:
        """Whether the streams' names hold patterns."""
        return any("*" in name for name in self.streams)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the options of a read.

        Raises:
            ConfigError: the first option that is unknown or unusable, with the reason.
        """
        return build_with_connection(cls, options, path="stream", doing="reading")


CORES_VARIABLE = "JETLAKE_SPARK_CORES"
"""The environment variable by which the session of `jetlake.spark.session()` reports the cluster's cores to Spark's
Python processes, which know nothing of the cluster. Other sessions do not set it."""

PARTITIONS_UNKNOWN = 8
"""The most tasks of a range where the cluster's cores are unknown."""


def pinned_partitions(options: SourceOptions) -> int | None:
    """Return the cluster's cores, for a batch's offset; None where the options decide, or the cores are unknown."""
    cores = os.environ.get(CORES_VARIABLE, "")
    return int(cores) if not options.max_partitions and cores.isdigit() and int(cores) > 0 else None


def partitions_max(options: SourceOptions, pinned: int | None = None) -> int:
    """Return the most tasks of a range.

    Args:
        pinned: the number in the batch's offset, so that a batch is cut the same way when any cluster repeats it.
    """
    return max(pinned or options.max_partitions or PARTITIONS_UNKNOWN, options.min_partitions)
