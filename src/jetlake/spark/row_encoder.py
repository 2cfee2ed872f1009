"""Rows as messages: subject, headers, payload and message id of every row of a record batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from jetlake.errors import BadHeaderError, ConfigError, RowPublishError
from jetlake.protocol.headers import encode_headers
from jetlake.protocol.subjects import is_valid_publish
from jetlake.spark.options import SinkOptions

__all__ = ["SINK_COLUMNS", "OutgoingMessage", "RowEncoder", "RowIds"]

_SUBJECTS_KNOWN_MAX = 10_000

_encode_json = msgspec.json.Encoder(decimal_format="number").encode

# By these the server tells publishers apart or checks them. Read with a message and written again they would be about
# the wrong publish; what the sink means by them it says itself.
_NOT_COPIED = ("Nats-Msg-Id", "Nats-Stream-Source")
_NOT_COPIED_PREFIX = "Nats-Expected-"

SINK_COLUMNS: dict[str, tuple[str, str]] = {
    "subject": ("string", "where to publish, unless option `subject` says it"),
    "data": ("binary or string", "the payload, with `payloadFormat=raw`; null is an empty one"),
    "headers": (
        "map<string,array<string>> or map<string,string>",
        "the message's headers. `Nats-Msg-Id`, `Nats-Stream-Source` and `Nats-Expected-…` among them are left out: "
        "they are about the publish that they came with",
    ),
    "msg_id": ("string", "`Nats-Msg-Id`, by which the stream knows a message that it has already"),
    "expected_last_sequence": ("bigint", "`Nats-Expected-Last-Sequence`; null for none"),
    "expected_last_subject_sequence": ("bigint", "`Nats-Expected-Last-Subject-Sequence`; null for none"),
    "stream, sequence": ("string, bigint", "the message's id with `messageId=source`; else not written"),
    "any other": ("any", "part of the JSON object with `payloadFormat=json`; else an error, except `timestamp`"),
}
"""What the sink makes of columns, by their names."""

_EXPECTATIONS = {
    "expected_last_sequence": b"Nats-Expected-Last-Sequence",
    "expected_last_subject_sequence": b"Nats-Expected-Last-Subject-Sequence",
}
_SPECIAL = {"subject", "headers", "msg_id", *_EXPECTATIONS}


class OutgoingMessage(NamedTuple):
    """One row, ready to be published; an empty header block means none."""

    subject: bytes
    header: bytes
    payload: bytes
    message_id: bytes

    @property
    def content(self) -> bytes:
        """What makes two messages the same."""
        return b"%b\0%b\0%b" % (self.subject, self.header, self.payload)


class RowIds(NamedTuple):
    """What names a row beyond its content: the run (a query's batch, or a batch write) and the partition."""

    run: str
    partition: int


class RowEncoder:
    """Makes messages of rows of one schema.

    Raises:
        ConfigError: the columns do not say what to publish.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._names = schema.fieldNames()
        self._id_from = _check_schema(schema, options)
        self._json_columns = [name for name in self._names if name not in _SPECIAL]
        self._expected = [(name, key) for name, key in _EXPECTATIONS.items() if name in self._names]
        self._fixed = b"Nats-Expected-Stream: %b\r\n" % options.stream.encode() if options.stream else b""
        self._subjects: set[bytes] = set()

    def encode(self, batch: pa.RecordBatch, ids: RowIds, first_row: int) -> Iterator[OutgoingMessage]:
        """The messages of a record batch whose first row is number `first_row` of its partition.

        Raises:
            RowPublishError: a row cannot be a message.
        """
        count = batch.num_rows
        subjects = self._subject_column(batch, first_row)
        payloads = self._payload_column(batch)
        maps = batch.column("headers").to_pylist() if "headers" in self._names else None
        id_of = self._id_function(batch, ids, first_row)
        expected = [(key, batch.column(name).to_pylist()) for name, key in self._expected]
        fixed = self._fixed
        for index in range(count):
            subject, payload = subjects[index], payloads[index]
            own = self._own_headers(maps[index], first_row + index, subject) if maps is not None else b""
            message_id = id_of(index, subject, own, payload)
            lines = b"%bNats-Msg-Id: %b\r\n" % (fixed, message_id) if message_id else fixed
            for key, values in expected:
                if values[index] is not None:
                    lines += b"%b: %d\r\n" % (key, values[index])
            header = b"NATS/1.0\r\n%b%b\r\n" % (lines, own) if lines or own else b""
            yield OutgoingMessage(subject, header, payload, message_id)

    def _subject_column(self, batch: pa.RecordBatch, first_row: int) -> list[bytes]:
        if self._options.subject:
            return [self._options.subject.encode()] * batch.num_rows
        subjects: list[bytes] = batch.column("subject").cast(pa.binary()).to_pylist()
        known = self._subjects
        for index, subject in enumerate(subjects):
            if subject in known:
                continue
            if subject is None or not is_valid_publish(subject):
                text = "" if subject is None else subject.decode("utf-8", "replace")
                reason = "it is null" if subject is None else "it is no subject to publish to"
                raise RowPublishError(first_row + index, text, f"column subject: {reason}")
            if len(known) >= _SUBJECTS_KNOWN_MAX:
                known.clear()
            known.add(subject)
        return subjects

    def _payload_column(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._options.payload_format == "raw":
            values = batch.column("data").cast(pa.binary()).to_pylist()
            return [value if value is not None else b"" for value in values]
        encode = _encode_json
        rows = batch.select(self._json_columns).to_pylist(maps_as_pydicts="strict")
        return [encode({name: value for name, value in row.items() if value is not None}) for row in rows]

    def _own_headers(self, value: Any, row: int, subject: bytes) -> bytes:
        """The lines of the row's own headers."""
        if not value:
            return b""
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
            raise RowPublishError(row, subject.decode(), f"column headers: {error}") from None

    def _id_function(
        self, batch: pa.RecordBatch, ids: RowIds, first_row: int
    ) -> Callable[[int, bytes, bytes, bytes], bytes]:
        if self._id_from == "none":
            return lambda index, subject, own, payload: b""
        if self._id_from == "column":
            return _given_ids(batch.column("msg_id").to_pylist(), first_row, "msg_id")
        if self._id_from == "source":
            pairs = zip(batch.column("stream").to_pylist(), batch.column("sequence").to_pylist(), strict=True)
            texts = [None if stream is None or number is None else f"{stream}:{number}" for stream, number in pairs]
            return _given_ids(texts, first_row, "stream and sequence")
        prefix = f"{ids.run}/{ids.partition}".encode()

        def from_row(index: int, subject: bytes, own: bytes, payload: bytes) -> bytes:
            # The content is part of the id: should a repeated task bring its rows in another order, then a row is at
            # worst written twice, and never taken for another row that had its number before.
            digest = hashlib.blake2b(payload, digest_size=8)
            digest.update(b"\0%b\0%b" % (subject, own))
            return b"%b/%d-%b" % (prefix, first_row + index, digest.hexdigest().encode())

        return from_row


def _given_ids(values: list[str | None], first_row: int, column: str) -> Callable[[int, bytes, bytes, bytes], bytes]:
    def id_of(index: int, subject: bytes, own: bytes, payload: bytes) -> bytes:
        value = values[index]
        if not value:
            raise RowPublishError(first_row + index, subject.decode(), f"column {column} is null or empty")
        encoded = value.encode()
        if b"\r" in encoded or b"\n" in encoded:
            raise RowPublishError(first_row + index, subject.decode(), f"column {column} holds a line break")
        return encoded

    return id_of


def _check_schema(schema: StructType, options: SinkOptions) -> str:
    """Where message ids come from, after making sure that the columns are there and of the right types."""
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
        raise ConfigError("there is no column to publish: payloadFormat=json writes all columns but those with a role")
    if not options.subject:
        _expect(kinds, "subject", (StringType,), "or give option subject")
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
