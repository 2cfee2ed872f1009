"""`format("jetstream")`: the data source that Spark finds by its name."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError
from jetlake.spark.garbage import spare_imports
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.options.table_options import annotate, declared_options, for_side, with_table_options
from jetlake.spark.schema import check_columns, schema_ddl, with_stored_schema

__all__ = ["JetStream"]


class JetStream(DataSource):
    """JetStream streams as a source and a sink, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns of a read without a schema of the user's."""
        spare_imports()
        declared = declared_options(self.options)
        if declared is None:
            return schema_ddl(with_stored_schema(SourceOptions.of(self.options)))
        options = with_stored_schema(SourceOptions.of(for_side(SourceOptions, declared)))
        return annotate(schema_ddl(options), declared)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch read."""
        # Imported where it is used, here and below: a process that Spark starts has one of these four to do.
        from jetlake.spark.source.batch_reader import make_batch_reader

        spare_imports()
        options = with_stored_schema(SourceOptions.of(with_table_options(self.options, schema, SourceOptions)))
        check_columns(schema, options)
        return make_batch_reader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a streaming read."""
        options = with_stored_schema(SourceOptions.of(with_table_options(self.options, schema, SourceOptions)))
        check_columns(schema, options)
        if options.archive:
            raise ConfigError(
                "option archive is for batch reads: read the archive with endingPosition=seq:N, and let a query begin "
                "at startingPosition=seq:N+1"
            )
        from jetlake.spark.source.stream_reader import StreamReader

        spare_imports()
        return StreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch write."""
        from jetlake.spark.options.sink_options import SinkOptions
        from jetlake.spark.sink.writer import BatchWriter

        spare_imports()
        _refuse_overwrite(overwrite)
        options = SinkOptions.of(with_table_options(self.options, schema, SinkOptions))
        return BatchWriter(schema, options.with_stored_schema())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a streaming write."""
        from jetlake.spark.options.sink_options import SinkOptions
        from jetlake.spark.sink.writer import StreamWriter

        spare_imports()
        _refuse_overwrite(overwrite)
        options = SinkOptions.of(with_table_options(self.options, schema, SinkOptions))
        return StreamWriter(schema, options.with_stored_schema())


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            'a stream can only be appended to: write with mode("append") or outputMode("append"), and purge the stream '
            "yourself when it should start empty"
        )
