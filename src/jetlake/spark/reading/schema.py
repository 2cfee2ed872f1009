"""The columns a message can become, and how a batch of messages becomes an Arrow record batch of a given schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jetlake.errors import BadPayloadError, ConfigError
from jetlake.protocol.headers import find_value
from jetlake.spark.columns.message_columns import MessageColumns, arrow_of
from jetlake.spark.options.options import SourceOptions
from jetlake.spark.reading.headers import header_maps
from jetlake.spark.reading.payload import Decoder, avro_struct_ddl, make_decoder

__all__ = ["COLUMNS", "RowBuilder", "schema_ddl"]

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
_RAW_ONLY = ("data",)
_DECODED_ONLY = ("value", "bad_data", "bad_reason")


def schema_ddl(options: SourceOptions) -> str:
    """The schema of a read for which the user gave none.

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


class RowBuilder:
    """Turns messages of one stream into record batches of the schema that Spark asked for.

    Raises:
        ConfigError: the schema names a column that messages do not have, or gives one another type.
    """

    def __init__(self, schema: StructType, options: SourceOptions, stream: str) -> None:
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._stream = stream
        self._fail_on_bad = options.bad_rows == "fail"
        self._decoder: Decoder | None = None
        self._columns: list[Callable[[MessageColumns, _Decoded | None], pa.Array]] = []
        names = schema.fieldNames()
        decoded = [name for name in names if name in _DECODED_ONLY]
        if options.payload_format == "raw" and decoded:
            raise ConfigError(f"column {decoded[0]} needs option payloadFormat=json, avro or variant")
        if decoded:
            value_type = schema["value"].dataType if "value" in names else None
            if value_type is None:
                raise ConfigError(f"column {decoded[0]} needs a column value beside it")
            self._decoder = make_decoder(options, value_type)
        for field, arrow_field in zip(schema.fields, self.arrow_schema, strict=True):
            make = _MAKERS.get(field.name)
            if make is None:
                raise ConfigError(f"column {field.name} does not exist: messages have {', '.join(COLUMNS)}")
            if field.name != "value" and not _accepts(field.name, field.dataType.simpleString()):
                raise ConfigError(
                    f"column {field.name} is {COLUMNS[field.name][0]}, not {field.dataType.simpleString()}: "
                    "cast it after reading"
                )
            self._columns.append(make(arrow_field.type, stream))

    def build(self, messages: MessageColumns) -> pa.RecordBatch:
        """The messages as one record batch.

        Raises:
            BadPayloadError: a payload could not be decoded and the options say that this is an error.
        """
        decoded = None
        if self._decoder is not None:
            decoded = _Decoded(self._decoder, messages)
            if self._fail_on_bad and decoded.reasons:
                row, reason = next(iter(decoded.reasons.items()))
                raise BadPayloadError(
                    f"message {messages.sequence[row]} of stream {self._stream} cannot be decoded: {reason}; "
                    "option badRows=column would put such messages into a column"
                )
        arrays = [make(messages, decoded) for make in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


class _Decoded:
    """The payloads of some messages, decoded: values, and the reasons of those that are none."""

    def __init__(self, decoder: Decoder, messages: MessageColumns) -> None:
        self.value, self.reasons = decoder.decode(messages.payload)


def _accepts(name: str, given: str) -> bool:
    return given == COLUMNS[name][0] or (name == "data" and given == "string")


def _text(values: pa.Array) -> pa.Array:
    """Subjects as text; bytes that are none become replacement characters, for a subject may be any bytes."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())


def _text_payload(values: pa.Array, stream: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise BadPayloadError(f"a payload of stream {stream} is not valid UTF-8: read data as binary") from None


def _per_message(kind: pa.DataType, value: Callable[[bytes], Any]) -> Callable[[MessageColumns, Any], pa.Array]:
    return lambda messages, _: pa.array([value(raw) for raw in messages.header.to_pylist()], kind)


def _message_id(raw: bytes) -> str | None:
    value = find_value(raw, b"Nats-Msg-Id") if raw else None
    return value.decode("utf-8", "replace") if value is not None else None


_Maker = Callable[[pa.DataType, str], Callable[[MessageColumns, "_Decoded | None"], pa.Array]]


def _make_stream(kind: pa.DataType, stream: str) -> Callable[[MessageColumns, Any], pa.Array]:
    return lambda messages, _: pa.repeat(pa.scalar(stream, kind), len(messages))


def _make_data(kind: pa.DataType, stream: str) -> Callable[[MessageColumns, Any], pa.Array]:
    if kind == pa.string():
        return lambda messages, _: _text_payload(messages.payload, stream)
    return lambda messages, _: messages.payload


def _bad_data(messages: MessageColumns, decoded: _Decoded | None) -> pa.Array:
    assert decoded is not None
    bad = decoded.reasons
    return pa.array(
        [messages.payload[row].as_py() if row in bad else None for row in range(len(messages))], pa.binary()
    )


def _bad_reason(messages: MessageColumns, decoded: _Decoded | None) -> pa.Array:
    assert decoded is not None
    return pa.array([decoded.reasons.get(row) for row in range(len(messages))], pa.string())


_MAKERS: dict[str, _Maker] = {
    "stream": _make_stream,
    "sequence": lambda kind, _: lambda messages, _: arrow_of(messages.sequence, kind),
    "subject": lambda _kind, _: lambda messages, _: _text(messages.subject),
    "timestamp": lambda kind, _: lambda messages, _: arrow_of(messages.time_ns // 1000, kind),
    "headers": lambda kind, _: lambda messages, _: header_maps(messages.header, kind),
    "data": _make_data,
    "msg_id": lambda kind, _: _per_message(kind, _message_id),
    "size": lambda kind, _: lambda messages, _: _sizes(messages.payload, kind),
    "headers_raw": lambda _kind, _: lambda messages, _: messages.header,
    "value": lambda _kind, _: lambda _messages, decoded: decoded.value if decoded is not None else None,
    "bad_data": lambda _kind, _: _bad_data,
    "bad_reason": lambda _kind, _: _bad_reason,
}


def _sizes(payload: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow.compute as pc  # here, as in message_columns

    return pc.binary_length(payload).cast(kind)
