"""The archive: a stream as files in folders, every message once, with everything that a replay needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from jetlake.errors import ConfigError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.checks import check_source
from jetlake.spark.pipelines.compaction import Compacted, compact, finish_compaction
from jetlake.spark.pipelines.delta_sink import DeltaSink, compact_delta
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import FORMATS, NOTES, FolderSink
from jetlake.spark.pipelines.partitioning import Partitioning
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings

__all__ = ["ARCHIVE_COLUMNS", "ARCHIVE_FORMATS", "RAW_HEADERS", "Archive", "archive_facts"]

ARCHIVE_COLUMNS = (
    "stream string, sequence bigint, subject string, timestamp timestamp, headers map<string,array<string>>, "
    "data binary"
)
"""The columns of every archive, before those of its folders."""
RAW_HEADERS = "headers_raw binary"
"""The column that an archive has when the headers' own bytes were asked for."""
ARCHIVE_FORMATS = (*FORMATS, "delta")

_DESCRIPTION = f"{NOTES}/archive.json"
# The driver writes Delta tables and holds a batch in memory meanwhile.
_DELTA_BATCH_MAX = 100_000


@dataclass(frozen=True)
class Archive:
    """Copies a stream into a folder.

    Attributes:
        target: the folder, on any file system that Spark knows.
        subjects: only messages of these, when given.
        start: where a new archive begins, as the source's `startingPosition`.
        compact_bytes: put files together afterwards that are smaller than this; 0 leaves them.
    """

    stream: str
    target: str
    format: str = "parquet"
    partitioning: Partitioning = field(default_factory=Partitioning)
    subjects: tuple[str, ...] = ()
    start: str = "earliest"
    compact_bytes: int = 0

    def __post_init__(self) -> None:
        if self.format not in ARCHIVE_FORMATS:
            raise ConfigError(f"{self.format!r} is no format of an archive; there are {', '.join(ARCHIVE_FORMATS)}")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"archive {self.stream}"

    @property
    def prints(self) -> bool:
        """Rows go elsewhere."""
        return False

    def checkpoint(self, settings: PipelineSettings) -> str:
        """Where its place is kept: inside the archive, so that the two are moved and deleted together."""
        return settings.checkpoint or f"{self.target.rstrip('/')}/{NOTES}/checkpoint"

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """From where to where."""
        return {
            "stream": self.stream,
            "target": self.target,
            "format": self.format,
            "by": str(self.partitioning),
            "checkpoint": self.checkpoint(settings),
        }

    def check(self, settings: PipelineSettings) -> None:
        """Find a wrong option or a missing stream."""
        check_source(self._source_options(settings))

    def _source_options(self, settings: PipelineSettings) -> dict[str, str]:
        limit = min(settings.batch_messages, _DELTA_BATCH_MAX) if self.format == "delta" else settings.batch_messages
        return settings.source_options(
            stream=self.stream,
            subjects=",".join(self.subjects),
            startingPosition=self.start,
            maxMessagesPerTrigger=limit,
        )

    def run(self, run: Run) -> None:
        """Archive until the end of the stream, or until stopped."""
        settings = run.settings
        identity = self._claim(run)
        partition_by = self.partitioning.columns
        sink: FolderSink | DeltaSink
        if self.format == "delta":
            sink = DeltaSink(self.target, identity, partition_by)
        else:
            sink = FolderSink(run.spark, self.target, self.format, partition_by)
        options = self._source_options(settings)
        messages = run.spark.readStream.format("jetstream").schema(ARCHIVE_COLUMNS).options(**options).load()

        def add(frame: DataFrame, batch: int) -> None:
            sink.add(self._arranged(frame), batch)

        writer = settings.triggered(messages, self.name, self.checkpoint(settings))
        run.watch([writer.foreachBatch(add).start()])
        if self.compact_bytes:
            compacted = self._compact(run)
            run.facts["compacted"] = f"{compacted.files_before} files to {compacted.files_after}"

    def _arranged(self, frame: DataFrame) -> DataFrame:
        """The batch with its folders' columns; a task writes one file per folder, not every task one."""
        arranged = self.partitioning.added_to(frame)
        return arranged.sortWithinPartitions(*self.partitioning.columns, "sequence")

    def _compact(self, run: Run) -> Compacted:
        if self.format == "delta":
            return compact_delta(self.target, self.compact_bytes)
        return compact(run.spark, self.target, self.format, self.compact_bytes)

    def _claim(self, run: Run) -> str:
        """The archive's own id, after making sure that the folder is ours to go on with.

        Raises:
            ConfigError: the folder holds the archive of another stream, or was written otherwise or elsewhere.
        """
        files = FileSystem(run.spark, self.target)
        if files.is_file():
            raise ConfigError(f"{self.target} is a file: an archive needs a folder")
        finish_compaction(files)
        wanted = {
            "stream": self.stream,
            "format": self.format,
            "by": str(self.partitioning),
            "subjects": list(self.subjects),
            "checkpoint": run.settings.checkpoint,
        }
        found = files.read_json(_DESCRIPTION)
        if found is None:
            if _holds_data(files):
                raise ConfigError(f"folder {self.target} holds other files: an archive begins in an empty folder")
            found = {"version": 1, "id": next_nuid(), **wanted}
            files.write_json(_DESCRIPTION, found)
        for key, value in wanted.items():
            if found[key] != value:
                raise ConfigError(
                    f"folder {self.target} holds an archive with {key} {found[key] or 'not given'}, not "
                    f"{value or 'left out'}: go on with that, or choose another folder"
                )
        checkpoint = self.checkpoint(run.settings)
        if not FileSystem(run.spark, checkpoint).exists("metadata") and _holds_data(files):
            raise ConfigError(
                f"folder {self.target} holds an archive, but its checkpoint {checkpoint} is gone, and without it "
                "messages would be written twice: bring it back, or choose another folder"
            )
        return str(found["id"])


def _holds_data(files: FileSystem) -> bool:
    return any(not path.startswith(f"{NOTES}/") for path in files.files())


def archive_facts(files: FileSystem) -> Mapping[str, Any] | None:
    """What a folder says of itself, or None when it is no archive of ours."""
    found = files.read_json(_DESCRIPTION)
    return found if isinstance(found, dict) else None
