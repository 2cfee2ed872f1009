"""How many tasks a stream's range is cut into at most: as many as the cluster has cores, where that is known.

Sources run in Python processes that know nothing of the cluster. The session that `jetlake.spark.session()` gives tells
them through their environment; in any other session the number stays what it always was.
"""

from __future__ import annotations

import os

from jetlake.spark.options.source_options import SourceOptions

__all__ = ["CORES_VARIABLE", "PARTITIONS_UNKNOWN", "partitions_max", "pinned_partitions"]

CORES_VARIABLE = "JETLAKE_SPARK_CORES"
"""What the environment of Spark's Python processes calls the cluster's cores."""

PARTITIONS_UNKNOWN = 8
"""Where nobody says how many cores there are."""


def pinned_partitions(options: SourceOptions) -> int | None:
    """Return the cluster's cores, for a batch's offset; None where the options decide, or this process was not told."""
    told = os.environ.get(CORES_VARIABLE, "")
    return int(told) if not options.max_partitions and told.isdigit() and int(told) > 0 else None


def partitions_max(options: SourceOptions, pinned: int | None = None) -> int:
    """Return the most tasks of a range.

    Args:
        pinned: what the batch's offset says. A batch is cut the same way when it is repeated, on whatever cluster.
    """
    return max(pinned or options.max_partitions or PARTITIONS_UNKNOWN, options.min_partitions)
