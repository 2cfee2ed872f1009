"""Writes micro-batches into a folder so that every reader, not only Spark, finds every row exactly once.

A batch is written to a staging folder, its file names are noted, and then the files are moved to their final names. A
crash before the note leaves staged files that the repeated batch overwrites; a crash after it is finished from the
note, and the batch is not computed again: by then the stream may have lost its messages. So the folder holds plain
files without a log that readers would have to know. Compaction replaces small files by large ones in the same way: the
new file is staged, the replacement is noted, the file is moved in, and the old ones are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from jetlake.client.tables.archived import NOTES
from jetlake.errors import ConfigError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.file_system import FileSystem

FORMATS = ("parquet", "orc", "json")
"""What a folder may hold."""
STAGING = f"{NOTES}/staging"
"""Where tasks write a batch aside."""
BATCHES = f"{NOTES}/batches"
"""Where a folder notes the files of its last batch."""
OWNER = f"{NOTES}/owner.json"
"""Where a folder says whose it is."""

# The names of all files that this sink, or a compaction, puts into a folder.
_OWN_NAME = re.compile(r"batch-[0-9]{8,}-([0-9]{5,}|compact-[0-9A-Za-z]+)\.[0-9A-Za-z.-]+")

# The zone that is written is the one that is meant, whatever the session's is.
_WRITER_OPTIONS = {
    "json": {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC", "compression": "gzip"}
}


def writer_options(format_name: str) -> dict[str, str]:
    """Return the options of Spark's writer of that format by which no value changes."""
    return dict(_WRITER_OPTIONS.get(format_name, {}))


def is_data_file(path: str) -> bool:
    """Return whether a path inside the folder is a file of rows."""
    return not any(part.startswith(("_", ".")) for part in PurePosixPath(path).parts)


def own_files(files: FileSystem) -> dict[str, int]:
    """Return the files of rows that this sink, or a compaction, has put into the folder, with their sizes.

    Folders of other pipelines that lie inside, or that a link leads to, are left out.
    """
    found = files.files()
    others = tuple(path[: -len(OWNER)] for path in found if path.endswith(f"/{OWNER}"))
    return {path: size for path, size in found.items() if _is_own_name(path) and not path.startswith(others)}


def _is_own_name(path: str) -> bool:
    return is_data_file(path) and _OWN_NAME.fullmatch(PurePosixPath(path).name) is not None


def file_name(path: str, batch: int, number: int) -> str:
    """Return the place of a staged file: in its partition, under a name that says the batch."""
    place = PurePosixPath(path)
    suffix = place.name.partition(".")[2]
    return str(place.with_name(f"batch-{batch:08d}-{number:05d}.{suffix}"))


def noted_rows(files: FileSystem) -> dict[int, int]:
    """Return how many rows each batch has that a folder has a note of: the last one, and one that is under way."""
    notes = {path: files.read_json(path) for path in files.files(BATCHES) if path.endswith(".json")}
    return {
        int(PurePosixPath(path).stem): int(note["rows"])
        for path, note in notes.items()
        if note is not None and "rows" in note
    }


def batch_files(files: FileSystem) -> set[str]:
    """Return the files of the last batch, which is repeated when Spark has not noted it as done."""
    notes = [path for path in files.files(BATCHES) if path.endswith(".json")]
    return {path for note in notes for path in files.read_json(note)["files"]}


class _Staged(NamedTuple):
    """A file of a batch: where it was written aside, and how large it is."""

    aside: str
    bytes: int


class FolderSink:
    """A folder of files, to which the batches of one query are added.

    Raises:
        ConfigError: the format is not known.
    """

    def __init__(self, spark: SparkSession, root: str, format_name: str, partition_by: Sequence[str] = ()) -> None:
        if format_name not in FORMATS:
            raise ConfigError(f"{format_name!r} is not a file format; the formats are {', '.join(FORMATS)}")
        self.files = FileSystem(spark, root)
        self._format = format_name
        self._partition_by = list(partition_by)

    def add(self, frame: DataFrame, batch: int) -> bool:
        """Add the rows of a batch, unless they are there or aside already; says whether they were computed."""
        is_new = not self._is_whole(batch)
        if is_new:
            self._stage(frame, batch)
        self._place(batch)
        return is_new

    def has_begun(self, batch: int) -> bool:
        """Return whether the batch was written aside before, so that only its note knows whether it is in its place."""
        return self.files.exists(batch_note(batch))

    def replace_all(self, frame: DataFrame, batch: int) -> None:
        """Let the folder hold the rows of this batch only; files of others stay."""
        self.add(frame, batch)
        placed = self._noted(batch)
        for path in own_files(self.files):
            if path not in placed:
                self.files.delete(path)

    def _noted(self, batch: int) -> Mapping[str, _Staged]:
        """Return the files of a batch by their places; none when it was not written aside to its end."""
        note = self.files.read_json(batch_note(batch)) or {"files": {}}
        return {path: _Staged(**staged) for path, staged in note["files"].items()}

    def _is_whole(self, batch: int) -> bool:
        """Return whether every file of a batch is in its place, or aside, as it was written."""
        if not self.has_begun(batch):
            return False
        sizes = self.files.files()
        return all(file.bytes in (sizes.get(path), sizes.get(file.aside)) for path, file in self._noted(batch).items())

    def _stage(self, frame: DataFrame, batch: int) -> None:
        """Write a batch aside, and note where its files belong."""
        self._undo(batch)
        staging = f"{STAGING}/{batch}"
        counted = Observation()
        observed = frame.observe(counted, sql.count("*").alias("rows"))
        writer = observed.write.format(self._format).mode("overwrite").options(**writer_options(self._format))
        writer.partitionBy(*self._partition_by).save(self.files.path(staging))
        prefix = len(staging) + 1
        staged = {path: size for path, size in self.files.files(staging).items() if is_data_file(path[prefix:])}
        places = {
            file_name(path[prefix:], batch, number): {"aside": path, "bytes": size}
            for number, (path, size) in enumerate(staged.items())
        }
        self.files.write_json(batch_note(batch), {"files": places, "rows": counted.get["rows"]})

    def _undo(self, batch: int) -> None:
        """Remove the files of an incomplete batch."""
        for path in self._noted(batch):
            self.files.delete(path)
        self.files.delete(batch_note(batch))

    def _place(self, batch: int) -> None:
        """Move the files that are still aside to their places."""
        for path, file in self._noted(batch).items():
            if self.files.exists(file.aside):
                self.files.move(file.aside, path)
        self.files.delete(f"{STAGING}/{batch}")
        # Batches before are in Spark's commit log when this one runs: they will not be repeated. The last one that was
        # added need not be the one before, for batches without rows may be left out.
        for path in self.files.files(BATCHES):
            if path != batch_note(batch):
                self.files.delete(path)


def batch_note(batch: int) -> str:
    """Return where a folder notes the files of that batch."""
    return f"{BATCHES}/{batch}.json"


_JOURNAL = f"{NOTES}/compaction.json"
_STAGING = f"{NOTES}/compaction"


class Compacted(NamedTuple):
    """How many small files became how many."""

    files_before: int
    files_after: int


def plan_compaction(files: dict[str, int], target_bytes: int) -> list[list[str]]:
    """Choose the files that become one each: neighbours of one partition, together not much larger than the target.

    Args:
        files: data files with their sizes, in order of their paths.
    """
    by_folder: dict[str, list[str]] = {}
    for path in files:
        by_folder.setdefault(str(PurePosixPath(path).parent), []).append(path)
    groups = []
    for paths in by_folder.values():
        group: list[str] = []
        size = 0
        for path in paths:
            if files[path] >= target_bytes:
                continue
            if group and size + files[path] > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(path)
            size += files[path]
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def compact(spark: SparkSession, root: str, format_name: str, target_bytes: int, schema: StructType) -> Compacted:
    """Put small files together. Not while a query writes into the folder.

    Each group is written aside, what is about to happen is noted, the new file is moved in and the old ones are
    removed. A compaction that broke off is finished by the next one, and by the next run of the archive.

    Args:
        schema: the columns of today: files that were written with fewer columns, or narrower ones, get them.
    """
    files = FileSystem(spark, root)
    finish_compaction(files)
    # The last batch may be repeated, and must then find its own files.
    kept = batch_files(files)
    data = {path: size for path, size in own_files(files).items() if path not in kept}
    groups = plan_compaction(data, target_bytes)
    for group in groups:
        _compact_group(spark, files, format_name, group, schema)
    return Compacted(sum(len(group) for group in groups), len(groups))


def _compact_group(
    spark: SparkSession, files: FileSystem, format_name: str, group: list[str], schema: StructType
) -> None:
    # Lines of JSON need no reading: what is text stays the same text.
    is_text = format_name == "json"
    read_as = "text" if is_text else format_name
    reader = spark.read.format(read_as)
    if not is_text:
        reader = reader.schema(schema)
    rows = reader.load([files.pattern(path) for path in group])
    if "sequence" in rows.columns:
        rows = rows.sort("sequence")
    writer = rows.coalesce(1).write.format(read_as).mode("overwrite").options(**writer_options(format_name))
    writer.save(files.path(_STAGING))
    staged = next(path for path in files.files(_STAGING) if is_data_file(path[len(_STAGING) + 1 :]))
    suffix = "json.gz" if format_name == "json" else PurePosixPath(staged).name.partition(".")[2]
    first = PurePosixPath(group[0])
    target = str(first.with_name(f"{first.name.partition('.')[0][:14]}-compact-{next_nuid()}.{suffix}"))
    files.write_json(_JOURNAL, {"staged": staged, "target": target, "remove": group})
    finish_compaction(files)


def finish_compaction(files: FileSystem) -> None:
    """Finish a compaction that was noted."""
    journal = files.read_json(_JOURNAL)
    if journal is not None:
        if files.exists(journal["staged"]):
            files.move(journal["staged"], journal["target"])
        for path in journal["remove"]:
            files.delete(path)
        files.delete(_JOURNAL)
    files.delete(_STAGING)
