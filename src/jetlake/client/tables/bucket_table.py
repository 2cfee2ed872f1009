"""Key-value buckets as tables: a row for each key, or for each revision that is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from jetlake.client.tables.arrow_values import arrow_of
from jetlake.client.tables.decoding import Decoder
from jetlake.client.tables.link import ClientLink, LinkedRows
from jetlake.client.tables.message_columns import MessageColumns, joined
from jetlake.client.tables.stream_table import read_bucket, value_decoder
from jetlake.client.tables.table import OpenRead
from jetlake.client.tables.table_options import TableOptions
from jetlake.errors import BadPayloadError

__all__ = ["BucketView", "begin_bucket_read"]


@dataclass(frozen=True)
class BucketView:
    """What a bucket makes of its messages.

    Attributes:
        name: the bucket's name.
        stream: the stream that holds it.
        prefix: what the subjects of its keys begin with.
        operation: what a header block says that happened: `put`, `delete` or `purge`.
        key: the key as programs use it, of the one that is stored; None where they are the same.
        value: the same for values.
        has_history: a row for each revision that is kept, markers included, instead of one for each key.
    """

    name: str
    stream: str
    prefix: str
    operation: Callable[[bytes], str]
    key: Callable[[str], str] | None = None
    value: Callable[[bytes], bytes] | None = None
    has_history: bool = False


def begin_bucket_read(link: ClientLink, view: BucketView, options: TableOptions) -> OpenRead:
    """Begin to read the entries of a bucket.

    Raises:
        ConfigError: the values have no type in common, and no schema is given.
    """
    try:
        found = read_bucket(link, view.stream, options)
        if not view.has_history:
            found = _newest(found, view)
        if view.value is not None:
            found = (_with_values(part, view) for part in found)
        value_type, decoder, found = value_decoder(options, found)
        builder = _EntryRows(view, decoder, value_type)
    except BaseException:
        link.close()
        raise
    return OpenRead(builder.schema, LinkedRows(link, map(builder.build, found)))


def _operations(messages: MessageColumns, view: BucketView) -> list[str]:
    return [view.operation(header) for header in messages.header.to_pylist()]


def _newest(found: Iterator[MessageColumns], view: BucketView) -> Iterator[MessageColumns]:
    """Yield the newest value of each key, in the order of puts; only at the end it is known which they are."""
    parts = list(found)
    if not parts:
        return
    newest: dict[bytes, tuple[int, bool]] = {}
    row = 0
    for part in parts:
        for subject, operation in zip(part.subject.to_pylist(), _operations(part, view), strict=True):
            newest[subject] = (row, operation == "put")
            row += 1
    rows = np.array(sorted(row for row, is_put in newest.values() if is_put), np.int64)
    if len(rows):
        yield joined(parts).take(rows)


def _with_values(messages: MessageColumns, view: BucketView) -> MessageColumns:
    """Return the entries with their values as programs use them."""
    assert view.value is not None
    values = [
        view.value(payload) if operation == "put" else payload
        for payload, operation in zip(messages.payload.to_pylist(), _operations(messages, view), strict=True)
    ]
    return replace(messages, payload=pa.array(values, pa.binary()))


class _EntryRows:
    """Turns entries into record batches."""

    def __init__(self, view: BucketView, decoder: Decoder | None, value_type: pa.StructType | None) -> None:
        self._view = view
        self._decoder = decoder
        columns = [("key", pa.string()), ("value", value_type or pa.binary()), ("revision", pa.int64())]
        columns.append(("created", pa.timestamp("ns", tz="UTC")))
        if view.has_history:
            columns.append(("operation", pa.string()))
        self.schema = pa.schema(columns)

    def build(self, messages: MessageColumns) -> pa.RecordBatch:
        """Return the entries as one record batch.

        Raises:
            BadPayloadError: a value could not be decoded.
        """
        view = self._view
        subjects = messages.subject.to_pylist()
        keys = [subject.decode("utf-8", "replace").removeprefix(view.prefix) for subject in subjects]
        if view.key is not None:
            keys = [view.key(key) for key in keys]
        operations = _operations(messages, view) if view.has_history else ["put"] * len(keys)
        columns = [
            pa.array(keys, pa.string()),
            self._values(messages, keys, operations),
            arrow_of(messages.sequence, pa.int64()),
            arrow_of(messages.time_ns, pa.timestamp("ns", tz="UTC")),
        ]
        if view.has_history:
            columns.append(pa.array(operations, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, messages: MessageColumns, keys: list[str], operations: list[str]) -> pa.Array:
        if self._decoder is None:
            return messages.payload
        values, reasons = self._decoder.decode(messages.payload)
        for row, reason in reasons.items():
            if operations[row] == "put":
                raise BadPayloadError(
                    f"the value of key {keys[row]!r} of bucket {self._view.name} cannot be decoded: {reason}"
                )
        return values
