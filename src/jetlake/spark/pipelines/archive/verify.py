"""Compares an archive with its stream, sequence by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from jetlake.client.tables.options.option_values import names_text
from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines.archive.archive import ARCHIVE_COLUMNS, archive_facts
from jetlake.spark.pipelines.archive.archive_log import finished_end
from jetlake.spark.pipelines.archive.replay_source import read_archive
from jetlake.spark.pipelines.archive.replay_target import find_target
from jetlake.spark.pipelines.checks import check_source
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import NOTES
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings

__all__ = ["Verify"]

_SHOWN = 10

# The first that holds, for a sequence that is in the archive (`times`), in the stream (`theirs`) or in both.
_VERDICTS = {
    "twice": "times > 1",
    "gone from the stream": "theirs is null",
    "different": "ours <> theirs",
    "the same": "times = 1",
    "not archived yet": "sequence > last",
    "before the archive begins": "sequence < first and not from_earliest",
    "missing": "true",
}
_FAULTS = ("missing", "twice", "different")

_CONTENT = (
    "sha2(concat_ws('|', subject, cast(unix_micros(timestamp) as string), "
    "to_json(array_sort(map_entries(headers))), base64(data)), 256)"
)


@dataclass(frozen=True)
class Verify:
    """Reports which messages of a stream an archive has, lacks, has twice or has otherwise; changes nothing."""

    stream: str
    target: str

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"verify {self.stream}"

    @property
    def prints(self) -> bool:
        """Rows go nowhere."""
        return False

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """Return what is compared."""
        return {"stream": self.stream, "archive": self.target}

    def check(self, settings: PipelineSettings) -> None:
        """Find a missing stream."""
        check_source(settings.source_options(stream=self.stream))

    def run(self, run: Run) -> None:
        """Compare, and fail when something is missing, there twice, or different."""
        described = archive_facts(FileSystem(run.spark, self.target))
        if described is None:
            raise ConfigError(f"{self.target} is no archive: it has no notes of ours")
        if described["stream"] != self.stream:
            raise ConfigError(f"{self.target} is an archive of stream {described['stream']}, not of {self.stream}")
        created = find_target(run.settings.connection_options, self.stream).created
        if described.get("created", created) != created:
            raise SparkError(
                f"stream {self.stream} was made again after the archive {self.target} began: their sequences are of "
                "different messages"
            )
        found = self._verdicts(run, described).groupBy("verdict").agg(
            sql.count("*").alias("messages"),
            sql.expr(f"slice(sort_array(collect_set(sequence)), 1, {_SHOWN})").alias("sequences"),
        )  # fmt: skip
        verdicts = {row["verdict"]: row for row in found.collect()}
        for verdict in _VERDICTS:
            if verdict in verdicts:
                run.facts[verdict] = verdicts[verdict]["messages"]
        run.batch_done("", 0, sum(row["messages"] for row in verdicts.values()), 0.0, 0)
        faults = [_told(verdicts[verdict]) for verdict in _FAULTS if verdict in verdicts]
        if faults:
            raise SparkError(f"archive {self.target} is not as stream {self.stream}: {'; '.join(faults)}")

    def _verdicts(self, run: Run, described: Mapping[str, Any]) -> DataFrame:
        # First: files and messages that are looked at later are at least those of the finished batches.
        log = FileSystem(run.spark, described.get("checkpoint") or f"{self.target.rstrip('/')}/{NOTES}/checkpoint")
        end = finished_end(log, self.stream)
        archived = read_archive(run.spark, self.target)
        ours = archived.groupBy("sequence").agg(
            sql.count("*").alias("times"), sql.first(sql.expr(_CONTENT)).alias("ours")
        )
        options = {**run.settings.connection, "stream": self.stream}
        if described["subjects"]:
            options["subjects"] = names_text(described["subjects"])
        stored = run.spark.read.format("jetstream").schema(ARCHIVE_COLUMNS).options(**options).load()
        theirs = stored.select("sequence", sql.expr(_CONTENT).alias("theirs"))
        extent = archived.select(sql.min("sequence").alias("first"), sql.max("sequence").alias("last")).collect()[0]
        cases = " ".join(f"when {condition} then '{verdict}'" for verdict, condition in _VERDICTS.items())
        return (
            ours.join(theirs, "sequence", "full_outer")
            .withColumn("first", sql.lit(extent["first"] or 0))
            .withColumn("last", sql.lit(max(extent["last"] or 0, (end or 1) - 1)))
            .withColumn("from_earliest", sql.lit(described.get("start", "earliest") == "earliest"))
            .selectExpr("sequence", f"case {cases} end as verdict")
        )


def _told(row: Any) -> str:
    shown = ", ".join(str(sequence) for sequence in row["sequences"])
    more = ", …" if row["messages"] > len(row["sequences"]) else ""
    return f"{row['messages']} {row['verdict']} (sequence {shown}{more})"
