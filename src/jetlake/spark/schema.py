"""The columns of a message in Spark, their types, and the builder and decoder for the schema that Spark asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.decoding import AvroDecoder, Decoder, JsonDecoder, avro_type, fields_of
from jetlake.client.tables.protobuf import ProtobufDecoder, protobuf_type
from jetlake.client.tables.rows import RowBuilder
from jetlake.client.tables.stored_schemas import is_stored, json_schema_type, stored_schema
from jetlake.errors import ConfigError
from jetlake.spark.options.source_options import SourceOptions

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
    "value": ("struct<…> or variant", "the decoded payload, with `payloadFormat` json, avro, protobuf or variant"),
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
    if options.payload_format == "protobuf":
        return ddl_of(protobuf_type(options.protobuf_schema, options.protobuf_message))
    raise ConfigError(
        "option payloadSchema is missing: payloadFormat=json needs the payload's fields, such as "
        "'id bigint, amount double' (or a .schema(...) with a column value)"
    )


def with_stored_schema(options: SourceOptions) -> SourceOptions:
    """Return the options with the schemas that they name by a subject, `bucket:orders.>`, in their place.

    Raises:
        ConfigError: the bucket has none, or one of another format.
    """
    link, stream = options.connection, "" if options.has_patterns or len(options.streams) > 1 else options.streams[0]
    if is_stored(options.payload_schema) and options.payload_format == "json":
        found = stored_schema(link, options.payload_schema, "json", stream)
        fields = ddl_of(json_schema_type(found.schema)).removeprefix("struct<").removesuffix(">")
        return replace(options, payload_schema=fields)
    if is_stored(options.avro_schema) and options.payload_format == "avro":
        return replace(options, avro_schema=stored_schema(link, options.avro_schema, "avro", stream).schema)
    if is_stored(options.protobuf_schema) and options.payload_format == "protobuf":
        found = stored_schema(link, options.protobuf_schema, "protobuf", stream)
        message = options.protobuf_message or found.message
        return replace(options, protobuf_schema=found.schema, protobuf_message=message)
    return options


def check_columns(schema: StructType, options: SourceOptions) -> None:
    """Check that messages have the columns of a schema, before Spark would fail in its tasks.

    Raises:
        ConfigError: the schema names a column that messages do not have, or gives one another type.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"column {field.name} does not exist: messages have {', '.join(COLUMNS)}")
        given = field.dataType.simpleString()
        if field.name != "value" and not _accepts(field.name, given):
            raise ConfigError(f"column {field.name} is {COLUMNS[field.name][0]}, not {given}: cast it after reading")
    decoded = [name for name in names if name in _DECODED_ONLY]
    if options.payload_format == "raw" and decoded:
        raise ConfigError(f"column {decoded[0]} needs option payloadFormat=json, avro, protobuf or variant")
    if decoded and "value" not in names:
        raise ConfigError(f"column {decoded[0]} needs a column value beside it")


def make_row_builder(schema: StructType, options: SourceOptions, stream: str) -> RowBuilder:
    """Return the builder of record batches of the requested schema from messages of one stream.

    Raises:
        ConfigError: the schema names a column that messages do not have, or gives one another type.
    """
    check_columns(schema, options)
    has_decoded = any(name in _DECODED_ONLY for name in schema.fieldNames())
    decoder = make_decoder(options, schema["value"].dataType) if has_decoded else None
    advice = "option badRows=column would put such messages into a column" if options.bad_rows == "fail" else None
    return RowBuilder(to_arrow_schema(schema, timezone="UTC"), stream, decoder, advice)


def _accepts(name: str, given: str) -> bool:
    return given == COLUMNS[name][0] or (name == "data" and given == "string")


def make_decoder(options: SourceOptions, value_type: types.DataType) -> Decoder:
    """Return the decoder that the options ask for.

    Raises:
        ConfigError: the schema cannot be read that way, or the extra that reads it is not installed.
    """
    wanted = types.VariantType if options.payload_format == "variant" else types.StructType
    if not isinstance(value_type, wanted):
        raise ConfigError(
            f"column value is {value_type.simpleString()}: payloadFormat={options.payload_format} makes it a "
            f"{'variant' if options.payload_format == 'variant' else 'struct'}"
        )
    if isinstance(value_type, types.StructType):
        if any(isinstance(kind, types.VariantType) for kind in types_in(value_type)):
            raise ConfigError(
                f"column value is {value_type.simpleString()}: a VARIANT inside of it can't be read, use "
                "payloadFormat=variant for the whole payload"
            )
        arrow_type = to_arrow_type(value_type, timezone="UTC")
        if options.payload_format == "avro":
            return AvroDecoder(options.avro_schema, arrow_type, options.avro_reader_schema)
        if options.payload_format == "protobuf":
            return ProtobufDecoder(options.protobuf_schema, arrow_type, options.protobuf_message)
        return JsonDecoder(arrow_type)
    return VariantDecoder()


class VariantDecoder:
    """JSON of any shape, as Spark's VARIANT."""

    def __init__(self) -> None:
        self._type = to_arrow_type(types.VariantType())

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""
        reasons: dict[int, str] = {}
        values, metadata = [], []
        for index, payload in enumerate(payloads.to_pylist()):
            value, names = b"", b""
            try:
                value, names = VariantUtils.parse_json(payload.decode())
            # Whatever the parser stumbles over, the payload is none that it can read.
            except Exception as error:
                reasons[index] = str(error) or type(error).__name__
            values.append(value)
            metadata.append(names)
        mask = pa.array([index in reasons for index in range(len(values))], pa.bool_()) if reasons else None
        arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask), reasons


_DDL = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def avro_struct_ddl(schema_json: str) -> str:
    """Return the struct type, as DDL, of the records that are written with an Avro schema.

    Raises:
        ConfigError: it is no Avro schema of a record, or holds something that Spark has no type for.
    """
    return ddl_of(avro_type(schema_json))


def ddl_of(kind: pa.DataType) -> str:
    """Return a type of Arrow in Spark's DDL."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {ddl_of(field.type)}' for field in fields_of(kind))}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {ddl_of(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DDL[kind]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def types_in(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types inside of it."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from types_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from types_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from types_in(kind.keyType)
        yield from types_in(kind.valueType)
