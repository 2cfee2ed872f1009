"""The archive of a stream in a read of Spark: tasks that read its files beside the tasks that read the stream."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from jetlake.client.tables.archived import Archived, ArchivedFiles, ArchivedRange
from jetlake.spark.options.source_options import SourceOptions, partitions_max, pinned_partitions


@dataclass
class LakePartition(InputPartition):
    """Some files of an archive."""

    found: ArchivedFiles


def plan_lake(archive: Archived, wanted: ArchivedRange, options: SourceOptions) -> list[LakePartition]:
    """Return the tasks over an archive: files grouped up to the options' size of a task."""
    if wanted.first >= wanted.end or not archive.files:
        return []
    total = sum(size for _, size in archive.files)
    tasks_max = partitions_max(options, pinned_partitions(options))
    share = max(options.bytes_per_partition, total // tasks_max, 1)
    groups: dict[int, list[str]] = {}
    seen = 0
    for number, (path, size) in enumerate(archive.files):
        # Tables that do not tell sizes are cut by the number of their files.
        group = seen // share if total else number * tasks_max // len(archive.files)
        groups.setdefault(group, []).append(path)
        seen += size
    return [
        LakePartition(ArchivedFiles(options.streams[0], options.archive, tuple(paths), wanted, options.subjects))
        for paths in groups.values()
    ]
