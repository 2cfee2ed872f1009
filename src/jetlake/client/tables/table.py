"""Streams and buckets as tables: `TableRead` is read by the calling thread, `Table` beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from jetlake.client.tables.bounds import Bounds
from jetlake.client.tables.link import ClientLink, LinkedRows
from jetlake.completion import hides
from jetlake.errors import ConfigError


class OpenRead(NamedTuple):
    """A read that has begun.

    Attributes:
        schema: the schema of the rows.
        batches: the rows, which close the connection when they end or are left.
    """

    schema: pa.Schema
    batches: LinkedRows[pa.RecordBatch]


@hides("begin", "make_link", "schema_of")
class TableRead:
    """A stream or bucket as a table; every call reads its current state, over a connection of its own.

    Whatever knows Arrow's C stream takes it as it is: `duckdb.sql("select count(*) from orders")`,
    `polars.DataFrame(orders)`, `pyarrow.table(orders)`.

    Args:
        name: what is read.
        make_link: opens the connections for one read.
        begin: begins a read over a link, and closes the link when that fails.
        begin_part: the same for some columns of a schema, of the messages within bounds; None for what is always
            read whole.
    """

    def __init__(
        self,
        name: str,
        make_link: Callable[[], ClientLink],
        begin: Callable[[ClientLink], OpenRead],
        begin_part: Callable[[ClientLink, pa.Schema, Sequence[str] | None, Bounds], OpenRead] | None = None,
    ) -> None:
        self._name = name
        self.make_link = make_link
        self.begin = begin
        self._begin_part = begin_part

    def __repr__(self) -> str:
        return f"<Table of {self._name!r}>"

    def schema(self) -> pa.Schema:
        """Return the schema of the rows; JSON payloads without a given schema have it inferred from the first ones."""
        return self.schema_of(self.make_link())

    def schema_of(self, link: ClientLink) -> pa.Schema:
        """Return the schema, found over a link."""
        read = self.begin(link)
        read.batches.close()
        return read.schema

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows as record batches, as they arrive; only a few of them are in memory at a time.

        Raises:
            DataLossError: messages were removed before they were read.
            BadPayloadError: a payload could not be decoded.
        """
        return self.begin(self.make_link()).batches

    def arrow_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader, for tables that are larger than memory."""
        read = self.begin(self.make_link())
        return pa.RecordBatchReader.from_batches(read.schema, read.batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self, link: ClientLink | None = None) -> pa.Table:
        """Return all rows as a `pyarrow.Table`; errors as in `arrow_batches`."""
        read = self.begin(link or self.make_link())
        return pa.Table.from_batches(read.batches, read.schema)

    def to_pandas(self, link: ClientLink | None = None) -> Any:
        """Return all rows as a pandas DataFrame; errors as in `arrow_batches`."""
        _imported("pandas")
        return self.to_arrow(link).to_pandas()

    def to_polars(self, link: ClientLink | None = None) -> Any:
        """Return all rows as a polars DataFrame; errors as in `arrow_batches`."""
        polars = _imported("polars")
        return polars.from_arrow(self.to_arrow(link))

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a DuckDB relation over the table, which is read again at each execution.

        Args:
            connection: a DuckDB connection. Default: DuckDB's own.
        """
        duckdb = _imported("duckdb")
        return (connection or duckdb).from_arrow(self)

    def scan(self) -> Any:
        """Return the table as a polars LazyFrame, which reads when it is collected.

        Only the columns that the query needs are built, and only messages that pass its conditions on `sequence`,
        `timestamp` and `subject` are transferred.
        """
        from jetlake.client.tables.scan import polars_scan

        return polars_scan(self.schema(), self._read_part, _imported("polars"))

    def dataset(self) -> Any:
        """Return the table as a pyarrow dataset, by which DuckDB reads what a query needs, as `scan` does.

        ::

            orders = stream.table().dataset()
            duckdb.sql("select count(*) from orders where sequence > 1000")
        """
        from jetlake.client.tables.scan import ScanDataset

        return ScanDataset(self.schema(), self._read_part)

    def _read_part(self, schema: pa.Schema, columns: Sequence[str] | None, bounds: Bounds) -> pa.RecordBatchReader:
        if self._begin_part is None:
            table = self.to_arrow()
            return (table if columns is None else table.select(columns)).to_reader()
        read = self._begin_part(self.make_link(), schema, columns, bounds)
        return pa.RecordBatchReader.from_batches(read.schema, read.batches)


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise ConfigError(f"this needs the package {package}: pip install {package}") from None


T = TypeVar("T")


@hides("read")
class Table:
    """A stream or bucket as a table; every call reads its current state, over a connection of its own.

    Whatever knows Arrow's C stream takes it as it is, in a thread beside the event loop:
    `await asyncio.to_thread(polars.DataFrame, orders)`.

    Args:
        read: the table that the calling thread reads.
    """

    __slots__ = ("_read",)

    def __init__(self, read: TableRead) -> None:
        self._read = read

    def __repr__(self) -> str:
        return repr(self._read)

    @property
    def read(self) -> TableRead:
        """The same table, read by the calling thread."""
        return self._read

    async def schema(self) -> pa.Schema:
        """Return the schema of the rows; JSON payloads without a given schema have it inferred from the first ones."""
        return await _in_thread(self._read.make_link(), self._read.schema_of)

    async def arrow_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows as record batches, as they arrive; only a few of them are in memory at a time.

        Raises:
            DataLossError: messages were removed before they were read.
            BadPayloadError: a payload could not be decoded.
        """
        link = self._read.make_link()
        rows = (await _in_thread(link, self._read.begin)).batches
        try:
            while (batch := await _in_thread(link, lambda _: next(rows, None))) is not None:
                yield batch
        finally:
            rows.close()

    async def to_arrow(self) -> pa.Table:
        """Return all rows as a `pyarrow.Table`; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_arrow)

    async def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_pandas)

    async def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_polars)

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a DuckDB relation over the table, which is read again at each execution.

        Executing it waits: do that in a thread, as in `await asyncio.to_thread(relation.fetchall)`.

        Args:
            connection: a DuckDB connection. Default: DuckDB's own.
        """
        return self._read.to_duckdb(connection)

    async def scan(self) -> Any:
        """Return the table as a polars LazyFrame, as `TableRead.scan`; collect it in a thread.

        ::

            orders = await stream.table().scan()
            frame = await asyncio.to_thread(orders.filter(polars.col("sequence") > 1000).collect)
        """
        return await asyncio.to_thread(self._read.scan)

    async def dataset(self) -> Any:
        """Return the table as a pyarrow dataset, as `TableRead.dataset`; query it in a thread."""
        return await asyncio.to_thread(self._read.dataset)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._read.__arrow_c_stream__(requested_schema)


async def _in_thread(link: ClientLink, work: Callable[[ClientLink], T]) -> T:
    """Run the work in a thread; when the caller is cancelled, stop the read and wait for its end."""
    work_done = asyncio.get_running_loop().run_in_executor(None, partial(work, link))
    try:
        return await asyncio.shield(work_done)
    except asyncio.CancelledError:
        link.stop()
        await asyncio.wait([work_done])
        if not work_done.cancelled():
            work_done.exception()
        raise
