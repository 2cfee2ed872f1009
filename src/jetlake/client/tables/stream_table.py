"""Streams as tables: a row for each message. A read is planned when it begins, and ends where the stream ended then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from jetlake.client.tables.bounds import Bounds, narrow_subjects
from jetlake.client.tables.data_loss import seen_of
from jetlake.client.tables.decoding import AvroDecoder, Decoder, JsonDecoder, avro_type, infer_json_type
from jetlake.client.tables.link import ClientLink, LinkedRows
from jetlake.client.tables.message_columns import MessageColumns
from jetlake.client.tables.planning import (
    BatchRange,
    ReadPartition,
    SequenceRange,
    StreamOffset,
    check_server,
    choose_reader,
    parse_version,
)
from jetlake.client.tables.positions import Position
from jetlake.client.tables.protobuf import ProtobufDecoder, protobuf_type
from jetlake.client.tables.range_reader import read_range
from jetlake.client.tables.ranges import (
    behind_seam,
    bounded_range,
    check_head,
    expiring_soon,
    plan_tasks,
    position_range,
)
from jetlake.client.tables.readers import last_by_leader
from jetlake.client.tables.rows import RowBuilder
from jetlake.client.tables.stored_schemas import json_schema_type, stored_schema
from jetlake.client.tables.stream_api import Link, StreamApi, ask
from jetlake.client.tables.table import OpenRead
from jetlake.client.tables.table_options import TableOptions

_ALL = Bounds()
ADVICE = "bad_rows='column' would put such messages into columns of their own"
_NO_FIELDS = pa.struct([])


def begin_stream_read(
    link: ClientLink, stream: str, options: TableOptions, columns: Sequence[str] | None = None, bounds: Bounds = _ALL
) -> OpenRead:
    """Begin to read the messages of a stream.

    Args:
        columns: fewer than the options have.
        bounds: leave out messages outside of them.

    Raises:
        StreamNotFoundError: there is no such stream.
        ConfigError: the payloads have no type in common, and no schema is given.
    """
    try:
        options = with_stored_schema(link, stream, options)
        if options.archive:
            names = columns if columns is not None else options.names
            found = _read_with_archive(link, stream, options, names, bounds)
        else:
            found = read_stream(link, stream, options, bounds)
        value_type, decoder, found = value_decoder(options, found)
        schema = options.row_schema(value_type)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
            decoder = decoder if {"value", "bad_data", "bad_reason"} & set(columns) else None
        builder = RowBuilder(schema, stream, decoder, ADVICE if options.bad_rows == "fail" else None)
    except BaseException:
        link.close()
        raise
    return OpenRead(builder.arrow_schema, LinkedRows(link, _rows(found, builder, options.batch_rows)))


def with_stored_schema(link: Link, stream: str, options: TableOptions) -> TableOptions:
    """Return the options with the schema that they name by a subject.

    Raises:
        ConfigError: the bucket has none, or one of another format.
    """
    if not options.stored_schema:
        return options
    found = stored_schema(link, options.stored_schema, options.payload, stream)
    if options.payload == "json":
        return replace(options, value_type=options.value_type or json_schema_type(found.schema))
    if options.payload == "avro":
        return replace(options, avro_schema=found.schema)
    return replace(options, protobuf_schema=found.schema, protobuf_message=found.message)


def value_decoder(
    options: TableOptions, found: Iterator[MessageColumns]
) -> tuple[pa.StructType | None, Decoder | None, Iterator[MessageColumns]]:
    """Return the type of the decoded payloads, their decoder, and the messages; the first ones may give the type."""
    if options.payload == "raw":
        return None, None, found
    if options.payload == "avro":
        value_type = avro_type(options.avro_schema)
        return value_type, AvroDecoder(options.avro_schema, value_type), found
    if options.payload == "protobuf":
        value_type = protobuf_type(options.protobuf_schema, options.protobuf_message)
        return value_type, ProtobufDecoder(options.protobuf_schema, value_type, options.protobuf_message), found
    value_type = options.value_type
    if value_type is None:
        first = next(found, None)
        if first is None:
            return _NO_FIELDS, None, found
        value_type = infer_json_type(first.payload) if first.value is None else first.value.type
        found = chain([first], found)
    return value_type, JsonDecoder(value_type), found


def _rows(found: Iterator[MessageColumns], builder: RowBuilder, rows_max: int) -> Iterator[pa.RecordBatch]:
    for messages in found:
        for first in range(0, len(messages), rows_max):
            yield builder.build(messages.slice(first, min(first + rows_max, len(messages))))


# How often the read of a bucket follows its writers, before it asks for the keys that it misses.
_ROUNDS_MAX = 8


@dataclass(frozen=True)
class _LinkedOptions:
    """The options of a table over a link, as `ReadOptions`."""

    connection: Link
    subjects: tuple[str, ...]
    fail_on_data_loss: bool
    reader: str
    direct_below: int


def read_stream(link: Link, stream: str, options: TableOptions, bounds: Bounds = _ALL) -> Iterator[MessageColumns]:
    """Return the messages between the options' start and end, as the stream is now; planned before this returns.

    Raises:
        StreamNotFoundError: there is no such stream.
        DataLossError: the options name a first sequence that is gone, and that is an error.
        UnsupportedStreamError: the stream cannot be read with these options.
    """
    narrowed = _narrowed(stream, options, bounds)
    if narrowed is None:
        return iter(())
    linked = _linked(link, narrowed)
    return _messages(_plan(linked, stream, narrowed, bounds), linked)


def _narrowed(stream: str, options: TableOptions, bounds: Bounds) -> TableOptions | None:
    """Return the options with the filters that bounds leave; None when nothing can pass."""
    if bounds.streams is not None and stream not in bounds.streams:
        return None
    subjects = narrow_subjects(options.subjects, bounds.subjects) if bounds.subjects is not None else None
    if subjects == ():
        return None
    return options if subjects is None else replace(options, subjects=subjects)


def _read_with_archive(
    link: Link, stream: str, options: TableOptions, columns: Sequence[str], bounds: Bounds
) -> Iterator[MessageColumns]:
    """Return the archived messages, then the messages that only the stream has; planned before this returns.

    Raises:
        ConfigError: the archive cannot stand for the beginning of the stream.
        DataLossError: messages are neither in the archive nor in the stream any more, and that is an error.
    """
    # Imported where it is used: few reads have an archive.
    from jetlake.client.tables.archived import ArchivedFiles, archived_range, check_archive, open_archive, read_archived

    # The archive first: a stream that is asked later has all messages behind its seam.
    archive = open_archive(options.archive, stream, options.subjects, options.payload, columns)
    ask(link, lambda api: check_archive(api, stream, archive))
    info = ask(link, lambda api: api.stream_info(stream))
    narrowed = _narrowed(stream, options, bounds)
    if narrowed is None:
        return iter(())
    filtered = bool(options.subjects)
    wanted = archived_range(info, archive, options.start, options.end, bounds, time.time_ns(), filtered)
    files = tuple(path for path, _ in archive.files)
    found = ArchivedFiles(stream, options.archive, files, wanted, narrowed.subjects)
    linked = _linked(link, narrowed)
    partitions = _plan(linked, stream, narrowed, bounds, archive.offset.next)
    return chain(read_archived(found, columns, options.batch_rows), _messages(partitions, linked))


def read_bucket(link: Link, stream: str, options: TableOptions) -> Iterator[MessageColumns]:
    """Return all messages of a bucket's stream, then the messages that arrived meanwhile, until every key has a value.

    A value that is replaced before it is read is missed, and its successor lies behind the planned end; so only a read
    that has caught up has a value of every key. A read that cannot catch up with the writers asks for the newest values
    of the keys that it may have missed.

    Raises:
        UnsupportedStreamError: the read cannot catch up, and the keys cannot be listed.
    """
    linked = _linked(link, options)
    partitions = _plan(linked, stream, options)

    def rounds() -> Iterator[MessageColumns]:
        planned = partitions
        end = 0
        found: list[pa.Array] = []
        for _ in range(_ROUNDS_MAX):
            if not planned:
                return
            for part in _messages(planned, linked):
                found.append(part.subject)
                yield part
            end = planned[-1].end
            planned = _plan(linked, stream, replace(options, start=Position("sequence", end)))
        if planned:
            missed = ask(link, lambda api: _missed(api, stream, options.subjects or (">",), found, end))
            if len(missed):
                yield missed

    return rounds()


def _missed(api: StreamApi, stream: str, patterns: tuple[str, ...], found: list[pa.Array], end: int) -> MessageColumns:
    """Return the newest messages of a bucket's keys that a read up to sequence `end` may have missed.

    A message that was replaced before it was read has a successor behind the end. With one message a key, a key that
    was read has its value from after the start of the read; with more, an older message may have been read instead.
    """
    subjects = {subject for pattern in patterns for subject in api.subjects_of(stream, pattern)}
    if api.stream_info(stream).config.max_msgs_per_subject == 1:
        for part in found:
            subjects.difference_update(subject.decode("utf-8", "replace") for subject in part.to_pylist())
    return last_by_leader(api, stream, sorted(subjects), end)


def _linked(link: Link, options: TableOptions) -> _LinkedOptions:
    return _LinkedOptions(link, options.subjects, options.fail_on_data_loss, options.reader, options.direct_below)


def _messages(partitions: list[ReadPartition], options: _LinkedOptions) -> Iterator[MessageColumns]:
    for partition in partitions:
        yield from read_range(partition, options)


def _plan(
    linked: _LinkedOptions, stream: str, options: TableOptions, bounds: Bounds = _ALL, seam: int = 0
) -> list[ReadPartition]:
    return ask(linked.connection, lambda api: _plan_range(api, stream, linked, options, bounds, seam))


def _plan_range(
    api: StreamApi, stream: str, linked: _LinkedOptions, options: TableOptions, bounds: Bounds, seam: int
) -> list[ReadPartition]:
    """Return the tasks; messages before sequence `seam` are in the stream's archive."""
    version = parse_version(api.connection.server_version)
    check_server(version)
    info = api.stream_info(stream)
    whole, soft = position_range(api, version, info, options.start, options.end, time.time_ns(), options.subjects)
    if seam:
        whole, soft = behind_seam(whole, soft, seam)
    if not soft and len(whole):
        check_head(info, whole.first, options.subjects, fail=options.fail_on_data_loss)
    first, end = max(whole.first, info.state.first_seq, 1), whole.end
    whole = bounded_range(api, version, info, SequenceRange(first, end), bounds)
    if not len(whole):
        return []
    reader = choose_reader(info.config, version, linked, len(whole))
    expiring = expiring_soon(api, version, info) if soft else ()
    batch = BatchRange(whole.first, soft=soft, expiring=expiring)
    planned = StreamOffset(info.created, whole.end, seen=seen_of(info), batch=batch)
    return plan_tasks(api, info, [whole], linked, reader, planned=planned)
