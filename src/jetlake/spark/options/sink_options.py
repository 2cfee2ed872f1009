"""The options of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jetlake.client.payloads.schema import SchemaSet
from jetlake.client.tables.option_values import boolean, choice, positive, text, timeout_s
from jetlake.client.tables.stored_schemas import is_stored, read_schemas, stored_schema
from jetlake.errors import ConfigError
from jetlake.protocol.subjects import is_valid_publish
from jetlake.spark.options.connection_options import ConnectionOptions, build_with_connection
from jetlake.spark.options.option_table import NO_AVRO_SCHEMA, NO_PROTOBUF_SCHEMA, bucket_name, option, stream_names

__all__ = ["SinkOptions"]


def _subject(value: str) -> str:
    if not is_valid_publish(value.encode()):
        raise ValueError("it is not a subject to publish to (no wildcards, no blanks, no empty tokens)")
    return value


@dataclass(frozen=True)
class SinkOptions:
    """Where to write, what of each row, under which message id, and how hard to try."""

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    subject: str = option(
        "subject", _subject, "", "column `subject`", "Subject of every message; without it, column `subject` is used."
    )
    allow_system_subjects: bool = option(
        "allowSystemSubjects",
        boolean,
        False,
        "false",
        "Publish to subjects that begin with `$` too. They are requests to the server (`$JS.API.…` may delete streams) "
        "or keys of a bucket (`$KV.…`), so rows with such subjects are refused by default.",
    )
    stream: str = option(
        "stream",
        lambda value: stream_names(value)[0],
        "",
        "any",
        "The stream that must take the messages (`Nats-Expected-Stream`): a subject of another one is then an error.",
    )
    payload_format: str = option(
        "payloadFormat",
        choice("raw", "json", "avro", "protobuf"),
        "raw",
        "raw",
        "`raw` publishes column `data` (binary or string); `json` publishes all other columns as a JSON object, in "
        "which a VARIANT is the JSON that it stands for; `avro` publishes them as a record of `avroSchema`, `protobuf` "
        "as a message of `protobufSchema`.",
    )
    avro_schema: str = option(
        "avroSchema",
        text,
        "",
        "none",
        "The schema to write with, as JSON text, for `payloadFormat=avro`; or `bucket:orders.>`, the schema of that "
        "subject in the bucket of schemas.",
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
    validate: bool = option(
        "validate",
        boolean,
        False,
        "false",
        "Check each payload against the schema of its subject in the bucket of schemas, as it is when the write or "
        "query starts; a row that does not fit, or whose subject has no schema, fails the write before it is sent.",
    )
    schemas: SchemaSet | None = None
    """What `validate` checks with; read by `with_stored_schema`."""
    message_id: str = option(
        "messageId",
        choice("auto", "column", "source", "row", "none"),
        "auto",
        "auto",
        "Where `Nats-Msg-Id` comes from: `column` (`msg_id`), `source` (columns `stream`, `sequence` and `timestamp`), "
        "`row` (query, batch, partition, row and content), `none`; `auto` is `column` if there is one, else `row`.",
    )
    run_id: str = option(
        "runId",
        text,
        "",
        "random",
        "Name of a batch write inside its row ids: a repeated job with the same name writes only what is missing; each "
        "write needs a name of its own. In a streaming query a new name means a new run: when its checkpoint was "
        "rolled back, batches are written again.",
    )
    changed_batch: str = option(
        "changedBatch",
        choice("fail", "skip", "write"),
        "fail",
        "fail",
        "What to do with a batch that is repeated with other rows than before, or cut into other tasks, when it is not "
        "certain which of its rows are written: `fail`; `skip` leaves out rows whose content the batch has stored (of "
        "equal rows one may be missing then); `write` publishes them (rows may be there twice).",
    )
    window: int = option(
        "publishWindow", positive, 4096, "4096", "Most messages of a task that may wait for their acknowledgement."
    )
    ack_timeout_s: float = option(
        "ackTimeout",
        timeout_s,
        10.0,
        "10s",
        "How long to wait for an acknowledgement before publishing again under the same id.",
    )
    ledger: str = option(
        "ledger",
        bucket_name,
        "jetlake_spark",
        "jetlake_spark",
        "Key-value bucket that notes the finished batches of streaming queries, so that one that is replayed after the "
        "stream's duplicate window is not written again; made when missing. `none` does without.",
    )

    def __post_init__(self) -> None:
        if self.payload_format == "avro" and not self.avro_schema:
            raise ConfigError(NO_AVRO_SCHEMA)
        if self.payload_format == "protobuf" and not self.protobuf_schema:
            raise ConfigError(NO_PROTOBUF_SCHEMA)
        if self.subject.startswith("$") and not self.allow_system_subjects:
            raise ConfigError(
                f"option subject={self.subject} begins with $: such messages go to the server or a bucket. If that "
                "is intended, set option allowSystemSubjects=true"
            )

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the options of a write.

        Raises:
            ConfigError: the first option that is unknown or unusable, with the reason.
        """
        return build_with_connection(cls, options, path="subject", doing="writing")

    def with_stored_schema(self) -> SinkOptions:
        """Return the options with what they need of the bucket of schemas.

        Raises:
            ConfigError: the bucket has no schema of the subject, or one of another format.
        """
        found = replace(self, schemas=read_schemas(self.connection)) if self.validate else self
        if self.payload_format == "avro" and is_stored(self.avro_schema):
            schema = stored_schema(self.connection, self.avro_schema, "avro", self.stream)
            found = replace(found, avro_schema=schema.schema)
        if self.payload_format == "protobuf" and is_stored(self.protobuf_schema):
            schema = stored_schema(self.connection, self.protobuf_schema, "protobuf", self.stream)
            message = self.protobuf_message or schema.message
            found = replace(found, protobuf_schema=schema.schema, protobuf_message=message)
        return found
