"""Compares an archive with its stream, sequence by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from jetlake.client.tables.archived import NOTES, REJECTS
from jetlake.client.tables.option_values import names_text
from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError, SparkError
from jetlake.lake.iceberg import IcebergTable, is_part_of
from jetlake.spark.pipelines.archive import (
    ARCHIVE_COLUMNS,
    Record,
    archive_facts,
    described_address,
    finished_end,
    planned_end,
    read_archive,
    read_record,
    rejects_of,
)
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import BATCHES
from jetlake.spark.pipelines.lake_lock import locked
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings, check_source
from jetlake.spark.pipelines.table_sink import TABLE

_SHOWN = 10

# The first that holds, for a sequence that is in the archive (`times`), in the stream (`theirs`) or in both.
_VERDICTS = {
    "never archived": "is_foreign",
    "twice": "times > 1",
    "gone from the stream": "theirs is null",
    "different": "ours <> theirs",
    "the same": "times = 1",
    "not archived yet": "sequence >= end",
    "before the archive begins": "sequence < first and not from_earliest",
    "missing": "true",
}
_FAULTS = ("missing", "twice", "different", "never archived")
# What is in the archive and belongs there.
_OWN = ("twice", "gone from the stream", "different", "the same")
_CONTENT = (
    "sha2(concat_ws('|', subject, cast(unix_micros(timestamp) as string), "
    "to_json(array_sort(map_entries(headers))), base64(data)), 256)"
)


@dataclass(frozen=True)
class Verify:
    """Reports which messages of a stream an archive has, lacks, has twice or has otherwise.

    Attributes:
        repair: delete the files in an Iceberg table's folder that a broken attempt has left behind.
    """

    stream: str
    target: str
    repair: bool = False

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
            raise ConfigError(f"{self.target} is not an archive: it has no metadata of jetlake")
        if described["stream"] != self.stream:
            raise ConfigError(f"{self.target} is an archive of stream {described['stream']}, not of {self.stream}")
        self._orphans(run, described)
        if self.repair and described.get("upsert"):
            return  # Its rows are no messages, with which the stream could be compared.
        created = ask(run.settings.connection_options, lambda api: api.stream_info(self.stream)).created
        if described.get("created", created) != created:
            raise SparkError(
                f"stream {self.stream} was recreated after the archive {self.target} began: their sequences refer "
                "to different messages"
            )
        found, before, after = self._verdicts(run, described)
        counted = found.groupBy("verdict").agg(
            sql.count("*").alias("messages"),
            sql.expr(f"slice(sort_array(collect_set(sequence)), 1, {_SHOWN})").alias("sequences"),
        )  # fmt: skip
        verdicts = {row["verdict"]: row for row in counted.collect()}
        for verdict in _VERDICTS:
            if verdict in verdicts:
                run.facts[verdict] = verdicts[verdict]["messages"]
        run.batch_done("", 0, sum(row["messages"] for row in verdicts.values()), 0.0, 0)
        faults = [_told(verdicts[verdict]) for verdict in _FAULTS if verdict in verdicts]
        faults += _count_faults({verdict: row["messages"] for verdict, row in verdicts.items()}, before, after)
        if faults:
            raise SparkError(f"archive {self.target} differs from stream {self.stream}: {'; '.join(faults)}")

    def _orphans(self, run: Run, described: Mapping[str, Any]) -> None:
        """Report files that no snapshot of an Iceberg table names, and delete them when that is asked for."""
        if described["format"] != "iceberg":
            if self.repair:
                raise ConfigError(f"--repair is for Iceberg archives; {self.target} is {described['format']}")
            return
        files = FileSystem(run.spark, self.target)
        if self.repair:
            # No writer may be about to commit them.
            run.closing.enter_context(locked(files, self.name))
        orphans = self._orphans_of(files, self.target, described)
        if described.get("payload"):
            folder, table = rejects_of(self.target), f"{described['table']}{REJECTS}"
            orphans += self._orphans_of(files.beside(folder), folder, {**described, "table": table})
        if orphans:
            run.facts["orphan files"] = f"{len(orphans)} (--repair deletes them)"
        if self.repair:
            for io, path in orphans:
                io.delete(path)
            run.facts["orphan files"] = f"{len(orphans)} deleted"

    def _orphans_of(self, files: FileSystem, folder: str, described: Mapping[str, Any]) -> list[tuple[Any, str]]:
        """Return the orphans of the table whose notes are in a folder, each with what can delete it."""
        table = IcebergTable(described_address(folder, described), str(described["id"]))
        found = table.load()
        if found is None:
            return []
        noted = files.read_json(TABLE)
        if self.repair and noted is not None and not _holds(found, noted):
            raise SparkError(
                f"table {table.address.name} lacks batches that it had: it was rolled back or replaced, or its catalog "
                "was restored from an older copy. --repair would delete the files of these batches: restore it first"
            )
        location = found.location().rstrip("/")
        notes = [files.read_json(path) for path in files.files(BATCHES) if path.endswith(".json")]
        pending = [f"{location}/{path}" for note in notes for path in note["files"]]
        return [(found.io, path) for path in table.orphans(pending)]

    def _verdicts(self, run: Run, described: Mapping[str, Any]) -> tuple[DataFrame, Record | None, Record | None]:
        """Return a verdict for each sequence, and the archive's record before and after its files were listed."""
        # First: a later listing of files and messages holds at least the finished batches.
        files = FileSystem(run.spark, self.target)
        log = FileSystem(run.spark, described.get("checkpoint") or f"{self.target.rstrip('/')}/{NOTES}/checkpoint")
        before = read_record(files)
        finished = max(finished_end(log, self.stream) or 0, before.end if before is not None else 0)
        has_data = not described.get("payload") or described["keep_raw"]
        content = _CONTENT if has_data else _CONTENT.replace("base64(data)", "''")
        archived = read_archive(run.spark, self.target, needs_data=False)
        after = read_record(files)
        # An archive may be written meanwhile: behind the last batch that is planned there is nothing in any case.
        planned = max(planned_end(log, self.stream) or 0, after.end if after is not None else 0)
        # An earlier release has left no record of its first message.
        first = after.first if after is not None else archived.agg(sql.min("sequence")).collect()[0][0]
        foreign = sql.expr("stream is null or sequence is null") | (sql.col("stream") != self.stream)
        foreign |= sql.col("sequence") < (first or 1)
        if planned:
            foreign |= sql.col("sequence") >= planned
        ours = archived.groupBy("sequence").agg(
            sql.count("*").alias("times"),
            sql.first(sql.expr(content)).alias("ours"),
            sql.max(foreign).alias("is_foreign"),
        )
        options = {**run.settings.connection, "stream": self.stream}
        if described["subjects"]:
            options["subjects"] = names_text(described["subjects"])
        stored = run.spark.read.format("jetstream").schema(ARCHIVE_COLUMNS).options(**options).load()
        theirs = stored.select("sequence", sql.expr(content).alias("theirs"))
        cases = " ".join(f"when {condition} then '{verdict}'" for verdict, condition in _VERDICTS.items())
        verdicts = (
            ours.join(theirs, "sequence", "full_outer")
            .withColumn("first", sql.lit(first or 0))
            .withColumn("end", sql.lit(finished))
            .withColumn("from_earliest", sql.lit(described.get("start", "earliest") == "earliest"))
            .selectExpr("sequence", f"case {cases} end as verdict")
        )
        return verdicts, before, after


def _holds(table: Any, noted: Mapping[str, Any]) -> bool:
    """Return whether a table is the noted one, and has what it had."""
    return noted["uuid"] == str(table.metadata.table_uuid) and is_part_of(table, noted["snapshot"], noted["number"])


def _count_faults(counts: Mapping[str, int], before: Record | None, after: Record | None) -> list[str]:
    """Return what is wrong by the archive's own count of its messages, for messages that the stream no longer has.

    Args:
        counts: how many messages have each verdict.
        before: the record before the files were listed: at least that many are there.
        after: the record after that: more are not there.
    """
    if before is None or after is None:
        return []
    held = sum(counts.get(verdict, 0) for verdict in _OWN)
    lost = before.messages - held - counts.get("missing", 0)
    invented = held - after.messages - after.under_way
    faults = []
    if lost > 0:
        faults.append(f"{lost} archived messages are gone from the archive, and from the stream as well")
    if invented > 0:
        faults.append(f"{invented} more than the {after.messages} that were archived")
    return faults


def _told(row: Any) -> str:
    shown = ", ".join(str(sequence) for sequence in row["sequences"])
    more = ", …" if row["messages"] > len(row["sequences"]) else ""
    return f"{row['messages']} {row['verdict']} (sequence {shown}{more})"
