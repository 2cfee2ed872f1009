"""The files that a replay reads: an archive of ours, or files of others that have its columns."""

from __future__ import annotations

from pathlib import PurePosixPath

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive.archive import archive_facts
from jetlake.spark.pipelines.lake.delta_sink import read_delta
from jetlake.spark.pipelines.lake.file_system import FileSystem

__all__ = ["adapted", "archive_schema", "read_archive"]

# Types that hold the same values, each with the type that an archive has.
_WIDENED = {
    "data": ("string",),
    "sequence": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp_ntz",),
    "headers": (),
    "stream": (),
    "subject": (),
}


def archive_schema(raw_headers: bool = False) -> StructType:
    """Return the columns of an archive, `ARCHIVE_COLUMNS` as Spark's own value."""
    schema = StructType().add("stream", "string").add("sequence", "long").add("subject", "string")
    schema = schema.add("timestamp", "timestamp").add("headers", MapType(StringType(), ArrayType(StringType())))
    schema = schema.add("data", "binary")
    return schema.add("headers_raw", "binary") if raw_headers else schema


def read_archive(spark: SparkSession, source: str, format_name: str = "", *, has_times: bool = False) -> DataFrame:
    """Return the messages in a folder.

    Args:
        format_name: of the files, for a folder that no archive has written.
        has_times: whether the messages' times are needed.

    Raises:
        ConfigError: there is no such folder, its files' format is not known, or a column is missing.
    """
    files = FileSystem(spark, source)
    if not files.exists():
        raise ConfigError(f"there is no folder {source}")
    described = archive_facts(files) or {}
    chosen = format_name or described.get("format", "")
    if not chosen:
        raise ConfigError(f"folder {source} holds no archive of ours: name the format of its files by --format")
    schema = archive_schema(bool(described.get("raw_headers")))
    if chosen == "delta":
        return read_delta(spark, source, schema)
    if described.get("format") == chosen:
        return spark.read.format(chosen).schema(schema).load(files.pattern()).select(*schema.fieldNames())
    found = spark.read.format(chosen).load(files.pattern())
    if chosen == "json":
        # Texts in JSON are times and Base64, which only a schema tells.
        fields = [field for field in archive_schema(raw_headers=True).fields if field.name in found.columns]
        found = spark.read.schema(StructType(fields)).json(files.pattern())
    return adapted(found, source, has_times=has_times)


def adapted(found: DataFrame, source: str, *, has_times: bool = False) -> DataFrame:
    """Files that no archive of ours has written, with an archive's columns.

    Missing headers are none, a missing stream is called like the folder, and a missing time is left out.

    Raises:
        ConfigError: a column is missing that can't be made up, or has another type.
    """
    schema = archive_schema("headers_raw" in found.columns)
    defaults = {"headers": "map()", "stream": "'" + _stream_name(source) + "'", "timestamp": "null"}
    columns = []
    for field in schema.fields:
        wanted = field.dataType.simpleString()
        if field.name in found.columns:
            given = found.schema[field.name].dataType.simpleString()
            if given != wanted and given not in _WIDENED.get(field.name, ()):
                raise ConfigError(f"column {field.name} of the files in {source} is {given}, not {wanted}: convert it")
            columns.append(sql.col(field.name).cast(field.dataType).alias(field.name))
        elif field.name in defaults and not (field.name == "timestamp" and has_times):
            columns.append(sql.expr(defaults[field.name]).cast(field.dataType).alias(field.name))
        else:
            raise ConfigError(
                f"the files in {source} have no column {field.name} ({wanted}), but {', '.join(found.columns)}: a "
                f"replay needs {_needs(field.name)}"
            )
    return found.select(*columns)


def _needs(column: str) -> str:
    return {
        "sequence": "the sequences, by which messages are ordered and known again",
        "timestamp": "the times when they are to choose or pace messages; leave out --from, --to, --original, --speed",
    }.get(column, f"column {column} of every message")


def _stream_name(source: str) -> str:
    name = PurePosixPath(source.rstrip("/")).name or "files"
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)
