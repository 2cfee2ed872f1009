"""Tables for asyncio: read by a thread beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from jetlake.client.tables.link import ClientLink
from jetlake.client.tables.table_read import TableRead
from jetlake.completion import hides

__all__ = ["Table"]

T = TypeVar("T")


@hides("read")
class Table:
    """A stream or bucket as a table; every call reads it as it is then, over a connection of its own.

    Whatever knows Arrow's C stream takes it as it is, in a thread beside the event loop:
    `await asyncio.to_thread(polars.DataFrame, orders)`.

    Args:
        read: reads the table in the thread that asks.
    """

    __slots__ = ("_read",)

    def __init__(self, read: TableRead) -> None:
        self._read = read

    def __repr__(self) -> str:
        return repr(self._read)

    @property
    def read(self) -> TableRead:
        """The table that is read by the thread that asks."""
        return self._read

    async def schema(self) -> pa.Schema:
        """Return the schema of the rows; of JSON payloads without a given schema it is found in the first of them."""
        return await _in_thread(self._read.make_link(), self._read.schema_of)

    async def arrow_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows as record batches, as they come; only a few of them are in memory at a time.

        Raises:
            DataLossError: messages went away before they were read.
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
        """Return the whole as a `pyarrow.Table`; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_arrow)

    async def to_pandas(self) -> Any:
        """Return the whole as a pandas DataFrame; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_pandas)

    async def to_polars(self) -> Any:
        """Return the whole as a polars DataFrame; errors as in `arrow_batches`."""
        return await _in_thread(self._read.make_link(), self._read.to_polars)

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a DuckDB relation over the table, read anew each time that the relation is executed.

        Executing it waits: do that in a thread, as in `await asyncio.to_thread(relation.fetchall)`.

        Args:
            connection: a DuckDB connection. Default: DuckDB's own.
        """
        return self._read.to_duckdb(connection)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._read.__arrow_c_stream__(requested_schema)


async def _in_thread(link: ClientLink, work: Callable[[ClientLink], T]) -> T:
    """Let a thread do the work over the link; when the caller is cancelled, the read is stopped and its end awaited."""
    work_done = asyncio.get_running_loop().run_in_executor(None, partial(work, link))
    try:
        return await asyncio.shield(work_done)
    except asyncio.CancelledError:
        link.stop()
        await asyncio.wait([work_done])
        if not work_done.cancelled():
            work_done.exception()
        raise
