"""Streams as tables: a row for each message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.decoding.avro_decoder import AvroDecoder, avro_type
from jetlake.client.tables.decoding.decoder import Decoder
from jetlake.client.tables.decoding.json_decoder import JsonDecoder, infer_json_type
from jetlake.client.tables.link import ClientLink, LinkedRows
from jetlake.client.tables.options.table_options import TableOptions
from jetlake.client.tables.reading.rows import RowBuilder
from jetlake.client.tables.stream_read import read_stream
from jetlake.client.tables.table_read import OpenRead

__all__ = ["ADVICE", "begin_stream_read", "value_decoder"]

ADVICE = "bad_rows='column' would put such messages into columns of their own"

_NO_FIELDS = pa.struct([])


def begin_stream_read(link: ClientLink, stream: str, options: TableOptions) -> OpenRead:
    """Begin to read the messages of a stream.

    Raises:
        StreamNotFoundError: there is no such stream.
        ConfigError: the payloads have no type in common, and no schema is given.
    """
    try:
        found = read_stream(link, stream, options)
        value_type, decoder, found = value_decoder(options, found)
        builder = RowBuilder(
            options.row_schema(value_type), stream, decoder, ADVICE if options.bad_rows == "fail" else None
        )
    except BaseException:
        link.close()
        raise
    return OpenRead(builder.arrow_schema, LinkedRows(link, _rows(found, builder, options.batch_rows)))


def value_decoder(
    options: TableOptions, found: Iterator[MessageColumns]
) -> tuple[pa.StructType | None, Decoder | None, Iterator[MessageColumns]]:
    """Return the type of the decoded payloads, their decoder, and the messages, some of them looked at."""
    if options.payload == "raw":
        return None, None, found
    if options.payload == "avro":
        value_type = avro_type(options.avro_schema)
        return value_type, AvroDecoder(options.avro_schema, value_type), found
    value_type = options.value_type
    if value_type is None:
        first = next(found, None)
        if first is None:
            return _NO_FIELDS, None, found
        value_type = infer_json_type(first.payload)
        found = chain([first], found)
    return value_type, JsonDecoder(value_type), found


def _rows(found: Iterator[MessageColumns], builder: RowBuilder, rows_max: int) -> Iterator[pa.RecordBatch]:
    for messages in found:
        for first in range(0, len(messages), rows_max):
            yield builder.build(messages.slice(first, min(first + rows_max, len(messages))))
