"""Puts the many small files of a folder together into few large ones, partition by partition."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import NamedTuple

from pyspark.sql import SparkSession

from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import NOTES, batch_files, is_data_file, own_files, writer_options

__all__ = ["Compacted", "compact", "finish_compaction", "plan_compaction"]

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


def compact(spark: SparkSession, root: str, format_name: str, target_bytes: int) -> Compacted:
    """Put small files together. Not while a query writes into the folder.

    Each group is written aside, what is about to happen is noted, the new file is moved in and the old ones are
    removed. A compaction that broke off is finished by the next one, and by the next run of the archive.
    """
    files = FileSystem(spark, root)
    finish_compaction(files)
    # The last batch may be repeated, and must then find its own files.
    kept = batch_files(files)
    data = {path: size for path, size in own_files(files).items() if path not in kept}
    groups = plan_compaction(data, target_bytes)
    for group in groups:
        _compact_group(spark, files, format_name, group)
    return Compacted(sum(len(group) for group in groups), len(groups))


def _compact_group(spark: SparkSession, files: FileSystem, format_name: str, group: list[str]) -> None:
    # Lines of JSON need no reading: what is text stays the same text.
    read_as = "text" if format_name == "json" else format_name
    rows = spark.read.format(read_as).load([files.pattern(path) for path in group])
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
    """Do what is left of a compaction that was noted."""
    journal = files.read_json(_JOURNAL)
    if journal is not None:
        if files.exists(journal["staged"]):
            files.move(journal["staged"], journal["target"])
        for path in journal["remove"]:
            files.delete(path)
        files.delete(_JOURNAL)
    files.delete(_STAGING)
