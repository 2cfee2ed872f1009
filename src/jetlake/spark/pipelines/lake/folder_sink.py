"""Writes micro-batches into a folder so that every reader, not only Spark, finds every row exactly once.

A batch is written aside, its file names are noted, and then the files are moved to their places. A batch that is
repeated after a crash is finished by its note, and not computed again: by then the stream may have lost its messages.
So the folder holds plain files without a log that readers would have to know, and small ones can be put together later.

The reasons are in decision 19 (docs/decisions).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from jetlake.errors import ConfigError
from jetlake.spark.lake.lake import NOTES
from jetlake.spark.pipelines.lake.file_system import FileSystem

__all__ = [
    "BATCHES",
    "FORMATS",
    "NOTES",
    "OWNER",
    "STAGING",
    "FolderSink",
    "batch_files",
    "file_name",
    "is_data_file",
    "own_files",
    "writer_options",
]

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
    """Return what Spark's writer of that format must be told so that nothing is lost."""
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
            raise ConfigError(f"{format_name!r} is no format of files; there are {', '.join(FORMATS)}")
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
        return self.files.exists(_note(batch))

    def replace_all(self, frame: DataFrame, batch: int) -> None:
        """Let the folder hold the rows of this batch only; files of others stay."""
        self.add(frame, batch)
        placed = self._noted(batch)
        for path in own_files(self.files):
            if path not in placed:
                self.files.delete(path)

    def _noted(self, batch: int) -> Mapping[str, _Staged]:
        """Return the files of a batch by their places; none when it was not written aside to its end."""
        note = self.files.read_json(_note(batch)) or {"files": {}}
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
        writer = frame.write.format(self._format).mode("overwrite").options(**writer_options(self._format))
        writer.partitionBy(*self._partition_by).save(self.files.path(staging))
        prefix = len(staging) + 1
        staged = {path: size for path, size in self.files.files(staging).items() if is_data_file(path[prefix:])}
        places = {
            file_name(path[prefix:], batch, number): {"aside": path, "bytes": size}
            for number, (path, size) in enumerate(staged.items())
        }
        self.files.write_json(_note(batch), {"files": places})

    def _undo(self, batch: int) -> None:
        """Remove what is left of a batch whose files are not whole."""
        for path in self._noted(batch):
            self.files.delete(path)
        self.files.delete(_note(batch))

    def _place(self, batch: int) -> None:
        """Move the files that are still aside to their places."""
        for path, file in self._noted(batch).items():
            if self.files.exists(file.aside):
                self.files.move(file.aside, path)
        self.files.delete(f"{STAGING}/{batch}")
        # Batches before are in Spark's commit log when this one runs: they will not be repeated. The last one that was
        # added need not be the one before, for batches without rows may be left out.
        for path in self.files.files(BATCHES):
            if path != _note(batch):
                self.files.delete(path)


def _note(batch: int) -> str:
    return f"{BATCHES}/{batch}.json"
