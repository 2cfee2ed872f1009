"""Rows as messages: subject, headers, payload and message id of every row of a record batch.

Payloads are column `data`, or the other columns as a JSON object, Avro record or Protobuf message. The id of a row
without one of its own names run, partition and row number, and ends with a hash of the content: a repeated task whose
rows come in another order writes a row twice at worst, and never takes it for another row that had its number before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.sql.variant_utils import VariantUtils
from xxhash import xxh3_64_digest

from jetlake.client.payloads.avro import parse_avro
from jetlake.client.payloads.protobuf import fill_message, message_class
from jetlake.client.tables.arrow_values import arrow_of, binary_of, repeated
from jetlake.errors import BadHeaderError, ConfigError, RowPublishError, SchemaError
from jetlake.protocol.headers import encode_headers
from jetlake.protocol.subjects import is_valid_publish
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.schema import types_in
from jetlake.spark.sink.outgoing import OutgoingBatch, join, texts

# Rows are made messages in portions, for what is on its way is held in memory.
_PORTION_ROWS = 4096
_PORTION_BYTES = 4 << 20
_HASH_DIGITS = 16

# By these the server tells publishers apart or checks them. Read with a message and written again they would be about
# the wrong publish; what the sink means by them it says itself.
_NOT_COPIED = ("Nats-Msg-Id", "Nats-Stream-Source")
_NOT_COPIED_PREFIX = "Nats-Expected-"
SINK_COLUMNS: dict[str, tuple[str, str]] = {
    "subject": ("string", "where to publish, unless option `subject` is set"),
    "data": ("binary or string", "the payload, with `payloadFormat=raw`; null is an empty one"),
    "headers": (
        "map<string,array<string>> or map<string,string>",
        "the message's headers. `Nats-Msg-Id`, `Nats-Stream-Source` and `Nats-Expected-…` among them are left out: "
        "they are about the publish that they came with",
    ),
    "headers_raw": ("binary", "a header block as on the wire, in place of `headers` if it is not null"),
    "msg_id": ("string", "`Nats-Msg-Id`, by which the stream knows a message that it has already"),
    "expected_last_sequence": ("bigint", "`Nats-Expected-Last-Sequence`; null for none"),
    "expected_last_subject_sequence": ("bigint", "`Nats-Expected-Last-Subject-Sequence`; null for none"),
    "stream, sequence, timestamp": (
        "string, bigint, timestamp",
        "the message's id with `messageId=source`; not written with `payloadFormat=raw`",
    ),
    "any other": (
        "any",
        "part of the JSON object, Avro record or Protobuf message with `payloadFormat` json, avro or protobuf; else an "
        "error, except `timestamp`",
    ),
}
"""What the sink makes of columns, by their names."""
_EXPECTATIONS = {
    "expected_last_sequence": b"Nats-Expected-Last-Sequence",
    "expected_last_subject_sequence": b"Nats-Expected-Last-Subject-Sequence",
}
_SPECIAL = {"subject", "headers", "headers_raw", "msg_id", *_EXPECTATIONS}


class RowIds(NamedTuple):
    """What names a row beyond its content: the run (a query's batch, or a batch write) and the partition."""

    run: str
    partition: int


class RowEncoder:
    """Makes messages of rows of one schema.

    Attributes:
        id_from: what message ids are made of: `row`, `column`, `source` or `none`.

    Raises:
        ConfigError: the columns do not say what to publish.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._names = schema.fieldNames()
        self.id_from = _check_schema(schema, options)
        self._columns = [name for name in self._names if name not in _SPECIAL]
        self._by_unusual_keys = [name for name in self._columns if has_unusual_keys(schema[name].dataType)]
        self._schema = schema
        self._encode_row: RowPayload | None = make_row_encoder(schema, options)
        self._expected = [(name, key) for name, key in _EXPECTATIONS.items() if name in self._names]
        self._fixed = b"Nats-Expected-Stream: %b\r\n" % options.stream.encode() if options.stream else b""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles writers for its executors; the payload encoder is created again there.
        return {**self.__dict__, "_encode_row": None}

    @property
    def is_repeatable(self) -> bool:
        """Whether a message may be published again: the stream knows its id, and it expects nothing of the stream."""
        return self.id_from != "none" and not self._expected

    def encode(self, batch: pa.RecordBatch, ids: RowIds, first_row: int) -> Iterator[OutgoingBatch]:
        """Yield the messages of a record batch whose first row is number `first_row` of its partition.

        Raises:
            RowPublishError: a row cannot be a message.
        """
        count = batch.num_rows
        rows_max = max(1, min(_PORTION_ROWS, count * _PORTION_BYTES // max(batch.nbytes, 1)))
        for first in range(0, count, rows_max):
            yield self._encode(batch.slice(first, rows_max), ids, first_row + first)

    def _encode(self, batch: pa.RecordBatch, ids: RowIds, first_row: int) -> OutgoingBatch:
        subject = self._subject_column(batch, first_row)
        payload = self._payload_column(batch, subject, first_row)
        own = self._own_header_column(batch, subject, first_row)
        self._check_schemas(subject, payload, first_row)
        message_id = self._id_column(batch, ids, subject, own, payload, first_row)
        self._check_expectations(batch, subject, first_row)
        header = self._header_column(batch, message_id, own)
        return OutgoingBatch(subject, header, payload, message_id)

    def _subject_column(self, batch: pa.RecordBatch, first_row: int) -> pa.Array:
        if self._options.subject:
            return repeated(self._options.subject.encode(), batch.num_rows)
        subject = batch.column("subject").cast(pa.binary())
        for single in subject.unique().to_pylist():
            if single is None or not is_valid_publish(single):
                text = "" if single is None else single.decode("utf-8", "replace")
                reason = "it is null" if single is None else "it is not a subject to publish to"
                row = subject.to_pylist().index(single)
                raise RowPublishError(first_row + row, text, f"column subject: {reason}")
            if not self._options.allow_system_subjects:
                refuse_system_subject(single, lambda: first_row + subject.to_pylist().index(single))  # noqa: B023
        return subject

    def _payload_column(self, batch: pa.RecordBatch, subject: pa.Array, first_row: int) -> pa.Array:
        if self._options.payload_format == "raw":
            return _without_nulls(batch.column("data").cast(pa.binary()))
        rows = self._values(batch.select(self._columns), subject, first_row)
        if self._encode_row is None:
            self._encode_row = make_row_encoder(self._schema, self._options)
        payloads = []
        for index, row in enumerate(rows):
            try:
                payloads.append(self._encode_row(row))
            except ValueError as error:
                raise RowPublishError(first_row + index, subject[index].as_py().decode(), str(error)) from None
        return binary_of(payloads)

    def _check_schemas(self, subject: pa.Array, payload: pa.Array, first_row: int) -> None:
        """Check payloads against the schemas of their subjects, where option validate asks for it."""
        known = self._options.schemas
        if known is None:
            return
        for row, (name, content) in enumerate(zip(subject.to_pylist(), payload.to_pylist(), strict=True)):
            text = name.decode()
            try:
                known.check(text, content)
            except SchemaError as error:
                raise RowPublishError(first_row + row, text, str(error)) from None

    def _values(self, batch: pa.RecordBatch, subject: pa.Array, first_row: int) -> list[dict[str, Any]]:
        """Return the rows as values of Python."""
        for name in self._by_unusual_keys:
            index = batch.schema.get_field_index(name)
            column = batch.column(index)
            batch = batch.set_column(index, name, column.cast(with_text_keys(column.type)))
        try:
            rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
        except OverflowError:
            row, name = _first_overflow(batch)
            reason = f"column {name}: a date or time outside of the years 1 to 9999 can't be written"
            raise RowPublishError(first_row + row, subject[row].as_py().decode(), reason) from None
        return rows

    def _header_column(self, batch: pa.RecordBatch, message_id: pa.Array, own: pa.Array | None) -> pa.Array:
        """Return the header blocks: the id, what is expected, and the rows' own headers."""
        sometimes = [own] if own is not None else []
        for name, key in self._expected:
            sometimes.append(_without_nulls(join(key + b": ", texts(batch.column(name)), b"\r\n")))
        start = b"NATS/1.0\r\n" + self._fixed
        if self.id_from != "none":
            return join(start + b"Nats-Msg-Id: ", message_id, b"\r\n", *sometimes, b"\r\n")
        if self._fixed:
            return join(repeated(start, batch.num_rows), *sometimes, b"\r\n")
        if not sometimes:
            return repeated(b"", batch.num_rows)
        import pyarrow.compute as pc  # here, as in message_columns

        lines = join(*sometimes)
        return pc.if_else(pc.equal(lines, b""), b"", join(start, lines, b"\r\n"))

    def _check_expectations(self, batch: pa.RecordBatch, subject: pa.Array, first_row: int) -> None:
        import pyarrow.compute as pc  # here, as in message_columns

        for name, _ in self._expected:
            row = pc.index(pc.less(batch.column(name), 0), True).as_py()
            if row >= 0:
                value = batch.column(name)[row].as_py()
                reason = f"column {name} is {value}: a sequence is 0 (no message yet) or more; null expects nothing"
                raise RowPublishError(first_row + row, subject[row].as_py().decode(), reason)

    def _own_header_column(self, batch: pa.RecordBatch, subject: pa.Array, first_row: int) -> pa.Array | None:
        """Return the lines of the rows' own headers, if they can have some."""
        if not {"headers", "headers_raw"} & set(self._names):
            return None
        none = [None] * batch.num_rows
        maps, blocks = (
            batch.column(name).to_pylist() if name in self._names else none for name in ("headers", "headers_raw")
        )
        lines = [
            self._own_block(block, first_row + index, subject[index])
            if block is not None
            else (self._own_headers(value, first_row + index, subject[index]) if value else b"")
            for index, (value, block) in enumerate(zip(maps, blocks, strict=True))
        ]
        return binary_of(lines)

    @staticmethod
    def _own_block(block: bytes, row: int, subject: pa.Scalar) -> bytes:
        """Return the lines of a row's own header block."""
        if block and not block.startswith(b"NATS/1.0"):
            reason = "column headers_raw: a header block begins with NATS/1.0, as column headers_raw of a read does"
            raise RowPublishError(row, subject.as_py().decode(), reason)
        return _own_lines(block)

    @staticmethod
    def _own_headers(value: Any, row: int, subject: pa.Scalar) -> bytes:
        """Return the lines of the row's own headers."""
        pairs: list[tuple[str, str]] = []
        for key, values in value:
            if key in _NOT_COPIED or key.startswith(_NOT_COPIED_PREFIX) or values is None:
                continue
            pairs += (
                [(key, values)]
                if isinstance(values, str)
                else [(key, single) for single in values if single is not None]
            )
        try:
            return encode_headers(pairs)[len("NATS/1.0\r\n") : -len("\r\n")]
        except BadHeaderError as error:
            raise RowPublishError(row, subject.as_py().decode(), f"column headers: {error}") from None

    def _id_column(
        self,
        batch: pa.RecordBatch,
        ids: RowIds,
        subject: pa.Array,
        own: pa.Array | None,
        payload: pa.Array,
        first_row: int,
    ) -> pa.Array:
        if self.id_from == "none":
            return repeated(b"", batch.num_rows)
        if self.id_from == "column":
            return _checked_ids(_as_server_reads(batch.column("msg_id")), subject, first_row, "msg_id")
        if self.id_from == "source":
            # A stream that was recreated or restored, and one of the same name elsewhere, have the same sequences; they
            # stored their messages at other times.
            time_us = batch.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64())
            number = (texts(batch.column("sequence")), b":", texts(time_us))
            given = join(batch.column("stream").cast(pa.binary()), b":", *number)
            return _checked_ids(given, subject, first_row, "stream, sequence or timestamp")
        # The content is part of the id: should a repeated task bring its rows in another order, then a row is at
        # worst written twice, and never taken for another row that had its number before.
        content = join(payload, b"\0", subject, *([b"\0", own] if own is not None else []))
        rows = texts(arrow_of(np.arange(first_row, first_row + batch.num_rows)))
        return join(f"{ids.run}/{ids.partition}/".encode(), rows, b"-", _hashes(content))


def refuse_system_subject(subject: bytes, row: Callable[[], int]) -> None:
    """Refuse a subject that a server, not a stream, may answer to: data must not run requests.

    Args:
        row: gives the row that has the subject.

    Raises:
        RowPublishError: it begins with `$`.
    """
    if subject.startswith(b"$"):
        reason = (
            "subjects that begin with $ are requests to the server, or belong to buckets: if the rows may be published "
            "to them, set option allowSystemSubjects=true (--allow-system-subjects in a replay)"
        )
        raise RowPublishError(row(), subject.decode("utf-8", "replace"), reason)


def _first_overflow(batch: pa.RecordBatch) -> tuple[int, str]:
    """Return the row and the column of the first date or time that Python does not know."""
    for row in range(batch.num_rows):
        for name in batch.schema.names:
            try:
                batch.column(name)[row].as_py()
            except OverflowError:
                return row, name
    raise AssertionError("no value is out of range")


def _own_lines(block: bytes) -> bytes:
    """Return the lines of a header block, byte for byte, without lines about another publish."""
    left_out = tuple(key.encode() + b":" for key in _NOT_COPIED)
    lines = block.split(b"\r\n")[1:]
    kept = [line for line in lines if line and not line.startswith((*left_out, _NOT_COPIED_PREFIX.encode()))]
    return b"".join(line + b"\r\n" for line in kept)


def _without_nulls(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _hashes(content: pa.Array) -> pa.Array:
    """Return a hash of each element, in hexadecimal digits."""
    digits = b"".join(map(xxh3_64_digest, content.to_pylist())).hex().encode()
    edges = np.arange(0, len(digits) + 1, _HASH_DIGITS, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(content), [None, pa.py_buffer(edges), pa.py_buffer(digits)])


def _as_server_reads(ids: pa.Array) -> pa.Array:
    """Return ids as a server reads them out of a header: without the blanks before them."""
    import pyarrow.compute as pc  # here, as in message_columns

    has_blank = pc.any(pc.starts_with(ids, " ")).as_py()
    return (pc.ascii_ltrim(ids, " ") if has_blank else ids).cast(pa.binary())


def _checked_ids(given: pa.Array, subject: pa.Array, first_row: int, column: str) -> pa.Array:
    import pyarrow.compute as pc  # here, as in message_columns

    faults = {
        "is null or empty": pc.equal(given.fill_null(b""), b""),
        "holds a line break": pc.match_substring_regex(given.fill_null(b""), "[\r\n]"),
    }
    for fault, rows in faults.items():
        row = pc.index(rows, True).as_py()
        if row >= 0:
            raise RowPublishError(first_row + row, subject[row].as_py().decode(), f"column {column} {fault}")
    return given


def _check_schema(schema: StructType, options: SinkOptions) -> str:
    """Check that the columns are there and of the right types, and return where message ids come from."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if options.payload_format == "raw":
        _expect(kinds, "data", (BinaryType, StringType), "or use option payloadFormat=json")
        unused = [name for name in kinds if name not in (*_SPECIAL, "data", "stream", "sequence", "timestamp")]
        if unused:
            raise ConfigError(
                f"column {unused[0]} would be lost: with payloadFormat=raw the payload is column data alone. Drop the "
                "column, or use option payloadFormat=json to publish all columns"
            )
    elif not [name for name in kinds if name not in _SPECIAL]:
        raise ConfigError(
            f"there is no column to publish: payloadFormat={options.payload_format} writes all "
            "columns but those with a role"
        )
    if not options.subject:
        _expect(kinds, "subject", (StringType,), "or give option subject")
    if "headers_raw" in kinds:
        _expect(kinds, "headers_raw", (BinaryType,), "")
    if "headers" in kinds and not _is_header_map(kinds["headers"]):
        raise ConfigError(
            f"column headers is {kinds['headers'].simpleString()}, not map<string,array<string>> or map<string,string>"
        )
    for name in _EXPECTATIONS:
        if name in kinds:
            _expect(kinds, name, (LongType, IntegerType), "")
    id_from = options.message_id
    if id_from == "auto":
        id_from = "column" if "msg_id" in kinds else "row"
    if id_from == "column":
        _expect(kinds, "msg_id", (StringType,), "or choose another way with option messageId")
    if id_from == "source":
        _expect(kinds, "stream", (StringType,), "which messageId=source needs")
        _expect(kinds, "sequence", (LongType, IntegerType), "which messageId=source needs")
        _expect(
            *(kinds, "timestamp", (TimestampType,)),
            "which messageId=source needs: a recreated stream, and one of the same name elsewhere, count from 1 too",
        )
    return id_from


def _expect(kinds: dict[str, DataType], name: str, wanted: tuple[type[DataType], ...], hint: str) -> None:
    words = " or ".join(kind().simpleString() for kind in wanted)
    tail = f", {hint}" if hint else ""
    if name not in kinds:
        raise ConfigError(f"column {name} ({words}) is missing{tail}")
    if not isinstance(kinds[name], wanted):
        raise ConfigError(f"column {name} is {kinds[name].simpleString()}, not {words}: cast it{tail}")


def _is_header_map(kind: DataType) -> bool:
    if not isinstance(kind, MapType) or not isinstance(kind.keyType, StringType):
        return False
    value = kind.valueType
    return isinstance(value, StringType) or (isinstance(value, ArrayType) and isinstance(value.elementType, StringType))


RowPayload = Callable[[dict[str, Any]], bytes]
"""Makes the payload of a row's columns.

Raises:
    ValueError: the row cannot be written so; the text says why.
"""

# Columns with a role of their own, and the columns of a message that was read.
_NOT_PAYLOAD = {
    *("subject", "headers", "headers_raw", "msg_id", "expected_last_sequence", "expected_last_subject_sequence"),
    *("stream", "sequence", "timestamp"),
}
_encode_json = msgspec.json.Encoder(decimal_format="number").encode


def make_row_encoder(schema: StructType, options: SinkOptions) -> RowPayload:
    """Return the way to write the rows of that schema.

    Raises:
        ConfigError: the options or the columns do not allow it.
    """
    variants = frozenset(field.name for field in schema.fields if isinstance(field.dataType, VariantType))
    for field in schema.fields:
        inner = list(types_in(field.dataType))
        if field.name not in variants and any(isinstance(kind, VariantType) for kind in inner):
            raise ConfigError(f"column {field.name} holds a VARIANT inside: write it as a column of its own")
        if any(isinstance(kind, YearMonthIntervalType) for kind in inner):
            raise ConfigError(f"column {field.name} holds an interval of months, which has no text form: cast it")
        for kind in inner:
            if isinstance(kind, MapType) and isinstance(kind.keyType, StructType | ArrayType):
                raise ConfigError(
                    f"column {field.name} holds a map with {kind.keyType.simpleString()} keys; keys of a payload are "
                    "strings: write map_entries(…), or cast the keys"
                )
    if options.payload_format == "avro":
        if variants:
            raise ConfigError(f"column {min(variants)} is a VARIANT, for which Avro has no type: write it as JSON")
        return _avro(parse_avro(options.avro_schema), schema.fieldNames())
    if options.payload_format == "protobuf":
        if variants:
            raise ConfigError(f"column {min(variants)} is a VARIANT, for which Protobuf has no type: write it as JSON")
        return _protobuf(options, schema.fieldNames())
    if variants:
        return lambda row: _json_with_variants(row, variants)
    return lambda row: _encode_json({name: value for name, value in row.items() if value is not None})


def has_unusual_keys(kind: DataType) -> bool:
    """Return whether a type holds maps by decimals or booleans, which become no texts by themselves."""
    maps = (inner for inner in types_in(kind) if isinstance(inner, MapType))
    return any(isinstance(single.keyType, DecimalType | BooleanType) for single in maps)


def with_text_keys(kind: pa.DataType) -> pa.DataType:
    """Return the type with texts in place of decimals and booleans as keys of maps; columns can be cast to it."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_text_keys(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_text_keys(kind.value_type)))
    if pa.types.is_map(kind):
        is_unusual = pa.types.is_decimal(kind.key_type) or pa.types.is_boolean(kind.key_type)
        item = kind.item_field.with_type(with_text_keys(kind.item_type))
        return pa.map_(pa.string() if is_unusual else kind.key_type, item)
    return kind


def _json_with_variants(row: dict[str, Any], variants: frozenset[str]) -> bytes:
    return _encode_json(
        {
            name: msgspec.Raw(VariantUtils.to_json(value["value"], value["metadata"], "UTC").encode())
            if name in variants
            else value
            for name, value in row.items()
            if value is not None
        }
    )


def _avro(schema: Any, columns: list[str]) -> RowPayload:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("option avroSchema must describe a record")
    fields = {field["name"] for field in schema["fields"]}
    for name in columns:
        if name not in fields and name not in _NOT_PAYLOAD:
            raise ConfigError(f"column {name} would be lost: option avroSchema has no such field. Drop the column")
    from fastavro import schemaless_writer

    def encode(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        try:
            schemaless_writer(stream, schema, row)
        # A value that does not fit shows itself in whatever the writer stumbles over.
        except Exception as error:
            raise ValueError(f"the row does not fit option avroSchema: {error!r}") from None
        return stream.getvalue()

    return encode


def _protobuf(options: SinkOptions, columns: list[str]) -> RowPayload:
    kind = message_class(options.protobuf_schema, options.protobuf_message)
    fields = set(kind.DESCRIPTOR.fields_by_name)
    for name in columns:
        if name not in fields and name not in _NOT_PAYLOAD:
            what = kind.DESCRIPTOR.full_name
            raise ConfigError(f"column {name} would be lost: {what} has no such field. Drop the column")

    def encode(row: dict[str, Any]) -> bytes:
        message = kind()
        try:
            fill_message(message, {name: value for name, value in row.items() if name in fields})
            content: bytes = message.SerializeToString()
        # A value that does not fit shows itself in whatever the library stumbles over.
        except Exception as error:
            raise ValueError(f"the row does not fit {kind.DESCRIPTOR.full_name}: {error}") from None
        return content

    return encode
