"""Messages as rows: a record batch of a given Arrow schema, column by column, with header blocks as maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from jetlake.client.tables.arrow_values import arrow_of, binary_of, repeated
from jetlake.client.tables.decoding import Decoder
from jetlake.client.tables.message_columns import MessageColumns
from jetlake.errors import BadHeaderError, BadPayloadError, ConfigError
from jetlake.protocol.headers import Headers, find_value


class RowBuilder:
    """Turns messages of one stream into record batches.

    Args:
        schema: columns that messages have, with types that they can take.
        stream: the stream's name.
        decoder: decodes the payloads, where the schema has a column `value`.
        advice: what to do about a payload that cannot be decoded; None to put such rows into columns of their own.
    """

    def __init__(
        self, schema: pa.Schema, stream: str, decoder: Decoder | None = None, advice: str | None = None
    ) -> None:
        self.arrow_schema = schema
        self._stream = stream
        self._decoder = decoder
        self._advice = advice
        self._columns = [_MAKERS[field.name](field.type, stream) for field in schema]

    def build(self, messages: MessageColumns) -> pa.RecordBatch:
        """Return the messages as one record batch.

        Raises:
            BadPayloadError: a payload could not be decoded, and that is an error.
        """
        decoded = None
        if self._decoder is not None and messages.value is not None:
            decoded = _Decoded(self._fitted(messages.value), {})
        elif self._decoder is not None:
            decoded = _Decoded(*self._decoder.decode(messages.payload))
            if self._advice is not None and decoded.reasons:
                row = min(decoded.reasons)
                raise BadPayloadError(
                    f"message {messages.sequence[row]} of stream {self._stream} cannot be decoded: "
                    f"{decoded.reasons[row]}; {self._advice}"
                )
        arrays = [make(messages, decoded) for make in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _fitted(self, value: pa.Array) -> pa.Array:
        """Return archived values with the type of the column: fields that they lack are null.

        Raises:
            ConfigError: a value does not fit the type.
        """
        # Imported where it is used: few reads have an archive.
        from jetlake.lake.columns import fitted

        index = self.arrow_schema.get_field_index("value")
        if index < 0:
            return value
        kind = self.arrow_schema.field(index).type
        try:
            return fitted(pa.chunked_array([value]), kind).combine_chunks()
        except pa.ArrowException as error:
            raise ConfigError(
                f"the archived values of stream {self._stream} are {value.type} and can't become {kind}: {error}"
            ) from None


class _Decoded(NamedTuple):
    """The decoded payloads of some messages.

    Attributes:
        reasons: why payloads could not be decoded, by their rows.
    """

    value: pa.Array
    reasons: dict[int, str]


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
    name = stream.encode()
    return lambda messages, _: repeated(name, len(messages), kind)


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
    "timestamp": lambda kind, _: (
        lambda messages, _: arrow_of(messages.time_ns if kind.unit == "ns" else messages.time_ns // 1000, kind)
    ),
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


def header_maps(blocks: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the blocks as `map<string, list<string>>`: empty, never null, for messages without headers.

    Null would do as well for reading, but Spark's Arrow writer slows down with the square of the rows when a map
    column holds nulls, and what is read here is often written again.
    """
    count = len(blocks)
    _, edges, _ = blocks.buffers()
    offsets = np.frombuffer(edges, np.int32)[blocks.offset : blocks.offset + count + 1]
    key_offsets = np.zeros(count + 1, np.int32)
    keys: list[str] = []
    value_offsets = [0]
    values: list[str] = []
    for row in np.flatnonzero(np.diff(offsets)).tolist():
        grouped: dict[str, list[str]] = {}
        for key, value in _pairs(blocks[row].as_py()):
            grouped.setdefault(key, []).append(value)
        key_offsets[row + 1] = len(grouped)
        for key, several in grouped.items():
            keys.append(key)
            values += several
            value_offsets.append(len(values))
    np.cumsum(key_offsets, out=key_offsets)
    element = kind.item_type.value_type
    items = pa.Array.from_buffers(
        kind.item_type,
        len(keys),
        [None, pa.py_buffer(np.array(value_offsets, np.int32))],
        children=[_texts(values, element)],
    )
    entries = pa.StructArray.from_arrays([_texts(keys, kind.key_type), items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(key_offsets)], children=[entries])


def _texts(values: list[str], kind: pa.DataType) -> pa.Array:
    return binary_of([value.encode() for value in values], kind)


def _pairs(block: bytes) -> list[tuple[str, str]]:
    """Return the block's pairs as valid text; a block that is none gives nothing, for publishers may send any bytes."""
    try:
        pairs = Headers(block).items()
    except BadHeaderError:
        return []
    return [(_clean(key), _clean(value)) for key, value in pairs]


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
