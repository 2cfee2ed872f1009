"""The archive: a stream as files in folders, every message once, with everything that a replay needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from jetlake.client.tables.options.option_values import names_text
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive.archive_log import require_same_stream
from jetlake.spark.pipelines.archive.replay_target import find_target
from jetlake.spark.pipelines.checks import check_source
from jetlake.spark.pipelines.lake.claims import claim_checkpoint, claim_folder
from jetlake.spark.pipelines.lake.compaction import Compacted, compact, finish_compaction
from jetlake.spark.pipelines.lake.delta_sink import DeltaSink, check_delta_path, compact_delta
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import FORMATS, NOTES, FolderSink
from jetlake.spark.pipelines.lake.lake_lock import LakeLock, locked
from jetlake.spark.pipelines.lake.partitioning import Partitioning
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

_REPLACEMENT = "\ufffd"
_DESCRIPTION = f"{NOTES}/archive.json"


@dataclass(frozen=True)
class Archive:
    """Copies a stream into a folder.

    Attributes:
        target: the folder, on any file system that Spark knows.
        subjects: only messages of these, when given.
        start: where a new archive begins, as the source's `startingPosition`.
        compact_bytes: put files together afterwards that are smaller than this; 0 leaves them.
        raw_headers: keep the headers' own bytes too, in column `headers_raw`.
    """

    stream: str
    target: str
    format: str = "parquet"
    partitioning: Partitioning = field(default_factory=Partitioning)
    subjects: tuple[str, ...] = ()
    start: str = "earliest"
    compact_bytes: int = 0
    raw_headers: bool = False

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
        """Return where the checkpoint is kept: inside the archive, so that the two are moved and deleted together."""
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

    @property
    def columns(self) -> str:
        """The columns of its messages, before those of its folders."""
        return f"{ARCHIVE_COLUMNS}, {RAW_HEADERS}" if self.raw_headers else ARCHIVE_COLUMNS

    def check(self, settings: PipelineSettings) -> None:
        """Find a wrong option or a missing stream."""
        if self.format == "delta":
            check_delta_path(self.target)
        check_source(self._source_options(settings))

    def _source_options(self, settings: PipelineSettings) -> dict[str, str]:
        return settings.source_options(
            stream=self.stream,
            subjects=names_text(self.subjects),
            startingPosition=self.start,
        )

    def run(self, run: Run) -> None:
        """Archive until the end of the stream, or until stopped."""
        settings = run.settings
        lock = self._lock(run)
        identity = self._claim(run)
        partition_by = self.partitioning.columns
        sink: FolderSink | DeltaSink
        if self.format == "delta":
            sink = DeltaSink(run.spark, self.target, identity, partition_by)
        else:
            sink = FolderSink(run.spark, self.target, self.format, partition_by)
        options = self._source_options(settings)
        log = FileSystem(run.spark, self.checkpoint(settings))
        messages = run.spark.readStream.format("jetstream").schema(self.columns).options(**options).load()

        def add(frame: DataFrame, batch: int) -> None:
            lock.require()
            require_same_stream(log, batch, self.stream)
            odd = Observation()
            if sink.add(self._arranged(frame).observe(odd, sql.expr(self._oddity()).alias("messages")), batch):
                self._count_odd(run, odd.get["messages"])

        writer = settings.triggered(messages, self.name, self.checkpoint(settings))
        run.watch([writer.foreachBatch(add).start()])
        if self.compact_bytes:
            compacted = self._compact(run)
            run.facts["compacted"] = f"{compacted.files_before} files to {compacted.files_after}"

    def _oddity(self) -> str:
        """Count messages whose texts are not what was published, because their bytes are not UTF-8."""
        odd = f"contains(subject, '{_REPLACEMENT}')"
        if not self.raw_headers:
            odd = f"{odd} or (size(headers) > 0 and contains(to_json(map_entries(headers)), '{_REPLACEMENT}'))"
        return f"count_if({odd})"

    def _count_odd(self, run: Run, messages: int) -> None:
        told = "messages with bytes that are not UTF-8"
        if messages:
            known = run.facts.get(told, 0) + messages
            run.facts[told] = known
            run.facts["their bytes"] = (
                "U+FFFD stands for them in subjects"
                if self.raw_headers
                else "U+FFFD stands for them in headers and subjects; --raw-headers keeps those of headers"
            )

    def _lock(self, run: Run) -> LakeLock:
        files = FileSystem(run.spark, self.target)
        if files.is_file():
            raise ConfigError(f"{self.target} is a file: an archive needs a folder")
        return run.closing.enter_context(locked(files, self.name))

    def _arranged(self, frame: DataFrame) -> DataFrame:
        """Return the batch with its folders' columns; a task writes one file per folder, not every task one."""
        arranged = self.partitioning.added_to(frame)
        return arranged.sortWithinPartitions(*self.partitioning.columns, "sequence")

    def _compact(self, run: Run) -> Compacted:
        if self.format == "delta":
            return compact_delta(self.target, self.compact_bytes)
        return compact(run.spark, self.target, self.format, self.compact_bytes)

    def _claim(self, run: Run) -> str:
        """Return the archive's own id, after making sure that the folder is ours to go on with.

        Raises:
            ConfigError: the folder holds the archive of another stream, or was written otherwise or elsewhere.
        """
        files = FileSystem(run.spark, self.target)
        finish_compaction(files)
        wanted = {
            "stream": self.stream,
            "format": self.format,
            "by": str(self.partitioning),
            "subjects": list(self.subjects),
            "checkpoint": run.settings.checkpoint,
            "raw_headers": self.raw_headers,
        }
        described = files.read_json(_DESCRIPTION)
        found = described
        if found is None:
            created = find_target(run.settings.connection_options, self.stream).created
            identity = claim_folder(files, self.name)
            found = {"version": 1, "id": identity, "created": created, "start": self.start, **wanted}
        for key, value in wanted.items():
            if found.get(key, False) != value:
                raise ConfigError(
                    f"folder {self.target} holds an archive with {key} {found.get(key) or 'not given'}, not "
                    f"{value or 'left out'}: go on with that, or choose another folder"
                )
        checkpoint = FileSystem(run.spark, self.checkpoint(run.settings))
        if not checkpoint.exists("metadata") and _holds_data(files):
            raise ConfigError(
                f"folder {self.target} holds an archive, but its checkpoint {self.checkpoint(run.settings)} is gone, "
                "and without it messages would be written twice: bring it back, or choose another folder"
            )
        claim_checkpoint(checkpoint, f"{self.name} {found['id']}")
        if described is None:
            files.write_json(_DESCRIPTION, found)
        return str(found["id"])


def _holds_data(files: FileSystem) -> bool:
    return any(not path.startswith(f"{NOTES}/") for path in files.files())


def archive_facts(files: FileSystem) -> Mapping[str, Any] | None:
    """Return what a folder says of itself, or None when it is no archive of ours."""
    found = files.read_json(_DESCRIPTION)
    return found if isinstance(found, dict) else None
