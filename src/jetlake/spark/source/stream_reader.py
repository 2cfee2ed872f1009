"""Streaming reads as Spark sees them: offsets as JSON, limits, and the two halves behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.driver import Driver
from jetlake.spark.source.executor import read_partition
from jetlake.spark.source.shared_driver import SharedDriver
from jetlake.spark.source.tasks import TaskPartition

__all__ = ["StreamReader"]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream's messages as they come, in batches that Spark can repeat exactly."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        # Made when first used: Spark pickles the reader for its executors, and they need no driver.
        self._driver: Driver | SharedDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def driver(self) -> Driver | SharedDriver:
        """The driver's half."""
        if self._driver is None:
            shared = self._options.guarantee == "atLeastOnce"
            self._driver = SharedDriver(self._options) if shared else Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts, in words: the first batch resolves them."""
        return Offset(start=str(self._options.starting)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that Spark shows; the options apply together, in `latestOffset`."""
        if self._options.max_messages:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.min_messages:
            return ReadMinRows(self._options.min_messages)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; batches before `start` are in Spark's commit log and are released here."""
        before = read_offset(start)
        end = self.driver.latest_offset(before, limited=not isinstance(limit, ReadAllAvailable))
        return start if end == before else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the streams end, for the query's progress.

        Spark has no metrics of sources in Python, so other figures of a report are here, too.
        """
        return {**self.driver.present_end().to_json(), "metrics": self.driver.figures()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and stop."""
        self.driver.stop_at_present_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        return list(self.driver.partitions(read_offset(start), read_offset(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return one task's messages."""
        assert isinstance(partition, TaskPartition)
        return read_partition(partition, self._schema, self._options)
