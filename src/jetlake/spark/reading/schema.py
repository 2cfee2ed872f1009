"""The columns that a message can become in Spark, and what builds rows of the schema that Spark asks for."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jetlake.client.tables.reading.rows import RowBuilder
from jetlake.errors import ConfigError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.reading.payload import avro_struct_ddl, make_decoder

__all__ = ["COLUMNS", "make_row_builder", "schema_ddl"]

COLUMNS: dict[str, tuple[str, str]] = {
    "stream": ("string", "name of the stream"),
    "sequence": ("bigint", "the message's sequence in its stream"),
    "subject": ("string", "subject under which it was published"),
    "timestamp": ("timestamp", "when the server stored it"),
    "headers": ("map<string,array<string>>", "its headers; empty, never null, when it has none"),
    "data": ("binary", "its payload (as `string` too, when it is UTF-8)"),
    "msg_id": ("string", "header `Nats-Msg-Id`; only when the schema names it"),
    "size": ("bigint", "bytes of the payload; only when the schema names it"),
    "headers_raw": ("binary", "the header block as on the wire; only when the schema names it"),
    "value": ("struct<…> or variant", "the decoded payload, with `payloadFormat` json, avro or variant"),
    "bad_data": ("binary", "the payload that could not be decoded, with `badRows=column`"),
    "bad_reason": ("string", "why it could not, with `badRows=column`"),
}
"""Every column that a schema may name: its type and what it holds."""

_DEFAULT = ("stream", "sequence", "subject", "timestamp", "headers")
_DECODED_ONLY = ("value", "bad_data", "bad_reason")


def schema_ddl(options: SourceOptions) -> str:
    """Return the schema of a read for which the user gave none.

    Raises:
        ConfigError: the options do not say what the payload's fields are.
    """
    columns = [f"{name} {COLUMNS[name][0]}" for name in _DEFAULT]
    if options.payload_format == "raw":
        columns.append("data binary")
    else:
        columns.append(f"value {_value_ddl(options)}")
        if options.bad_rows == "column":
            columns += ["bad_data binary", "bad_reason string"]
    return ", ".join(columns)


def _value_ddl(options: SourceOptions) -> str:
    if options.payload_format == "variant":
        return "variant"
    if options.payload_schema:
        return f"struct<{options.payload_schema}>"
    if options.payload_format == "avro":
        return avro_struct_ddl(options.avro_reader_schema or options.avro_schema)
    raise ConfigError(
        "option payloadSchema is missing: payloadFormat=json needs the payload's fields, such as "
        "'id bigint, amount double' (or a .schema(...) with a column value)"
    )


def make_row_builder(schema: StructType, options: SourceOptions, stream: str) -> RowBuilder:
    """Return what turns messages of one stream into record batches of the schema that Spark asked for.

    Raises:
        ConfigError: the schema names a column that messages do not have, or gives one another type.
    """
    names = schema.fieldNames()
    decoded = [name for name in names if name in _DECODED_ONLY]
    if options.payload_format == "raw" and decoded:
        raise ConfigError(f"column {decoded[0]} needs option payloadFormat=json, avro or variant")
    if decoded and "value" not in names:
        raise ConfigError(f"column {decoded[0]} needs a column value beside it")
    decoder = make_decoder(options, schema["value"].dataType) if decoded else None
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"column {field.name} does not exist: messages have {', '.join(COLUMNS)}")
        given = field.dataType.simpleString()
        if field.name != "value" and not _accepts(field.name, given):
            raise ConfigError(f"column {field.name} is {COLUMNS[field.name][0]}, not {given}: cast it after reading")
    advice = "option badRows=column would put such messages into a column" if options.bad_rows == "fail" else None
    return RowBuilder(to_arrow_schema(schema, timezone="UTC"), stream, decoder, advice)


def _accepts(name: str, given: str) -> bool:
    return given == COLUMNS[name][0] or (name == "data" and given == "string")
