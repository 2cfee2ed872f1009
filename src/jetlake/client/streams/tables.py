"""How handles of streams and buckets become tables; Arrow is loaded only where a table is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict

from jetlake.client.api.api_caller import ApiCaller
from jetlake.errors import ConfigError
from jetlake.model.encoding.build import suggestion

if TYPE_CHECKING:
    import datetime
    import os

    from pyarrow import Schema

    from jetlake.client.tables.bounds import Bounds
    from jetlake.client.tables.link import ClientLink
    from jetlake.client.tables.table import OpenRead, Table, TableRead

P = ParamSpec("P")


class TableArguments(TypedDict, total=False):
    """What `Stream.table` takes."""

    subjects: str | Iterable[str]
    start: int | str | datetime.datetime | datetime.timedelta
    end: int | str | datetime.datetime | datetime.timedelta
    columns: Iterable[str]
    payload: Literal["raw", "json", "avro", "protobuf"]
    schema: Any
    avro_schema: str | Mapping[str, Any]
    protobuf_schema: bytes
    protobuf_message: str
    bad_rows: Literal["fail", "column"]
    archive: str | os.PathLike[str]
    fail_on_data_loss: bool
    reader: Literal["auto", "consumer", "direct", "leader"]
    batch_rows: int


class BucketCodec(TypedDict):
    """What a bucket makes of its messages; fields of `BucketView`."""

    name: str
    prefix: str
    operation: Callable[[bytes], str]
    key: Callable[[str], str] | None
    value: Callable[[bytes], bytes] | None


def stream_table(api: ApiCaller, stream: str, options: TableArguments) -> TableRead:
    """Return a stream as a table, read by the thread that asks.

    Raises:
        InvalidOptionError: an option that cannot work.
        ConfigError: pyarrow or numpy is not installed.
        TypeError: an option that does not exist.
    """
    if unknown := options.keys() - TableArguments.__annotations__.keys():
        first = min(unknown)
        raise TypeError(f"a table has no option {first!r}; {suggestion(first, TableArguments.__annotations__)}")
    _check_installed()
    from jetlake.client.tables.stream_table import begin_stream_read
    from jetlake.client.tables.table import TableRead
    from jetlake.client.tables.table_options import table_options

    given = table_options(**options)

    def begin_part(link: ClientLink, schema: Schema, columns: Sequence[str] | None, bounds: Bounds) -> OpenRead:
        # The type that was found in the first messages is the table's, whatever the first ones within the bounds are.
        known = given
        if given.payload == "json" and "value" in schema.names:
            known = replace(given, value_type=schema.field("value").type)
        return begin_stream_read(link, stream, known, columns, bounds)

    begin = partial(begin_stream_read, stream=stream, options=given)
    return TableRead(stream, partial(_link, api), begin, begin_part)


def bucket_table(
    api: ApiCaller, stream: str, codec: BucketCodec, *, has_history: bool, options: TableArguments
) -> TableRead:
    """Return a bucket as a table, read by the thread that asks.

    Raises:
        InvalidOptionError: an option that cannot work.
        ConfigError: pyarrow or numpy is not installed.
    """
    _check_installed()
    from jetlake.client.tables.bucket_table import BucketView, begin_bucket_read
    from jetlake.client.tables.table import TableRead
    from jetlake.client.tables.table_options import table_options

    view = BucketView(stream=stream, has_history=has_history, **codec)
    begin = partial(begin_bucket_read, view=view, options=table_options(**options))
    return TableRead(codec["name"], partial(_link, api), begin)


def table_messages(
    table: Any,
    subject: str | Callable[[Mapping[str, Any]], str],
    key: str,
    progress: Callable[[int], object] | None,
) -> Iterator[tuple[str, bytes, Any]]:
    """Return the rows of a table as messages for `publish_many`.

    Raises:
        ConfigError: pyarrow or numpy is not installed.
    """
    _check_installed()
    from jetlake.client.tables.row_messages import row_messages

    return row_messages(table, subject, key, progress)


def async_table(read: TableRead) -> Table:
    """Return the table for asyncio."""
    from jetlake.client.tables.table import Table

    return Table(read)


async def loaded(make: Callable[P, Table], *args: P.args, **options: P.kwargs) -> Table:
    """Make a table in a thread: the first one loads Arrow, which takes longer than an event loop may stand still."""
    return await asyncio.to_thread(make, *args, **options)


def _link(api: ApiCaller) -> ClientLink:
    from jetlake.client.tables.link import ClientLink

    connection = api.connection
    return ClientLink(connection, api.prefix, api.timeout_s or connection.options.request_timeout_s)


def _check_installed() -> None:
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"tables need {error.name}: pip install 'jetlake[arrow]'") from None
