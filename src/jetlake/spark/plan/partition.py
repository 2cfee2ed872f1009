"""What one task of Spark reads."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from jetlake.client.tables.plan.partition import ReadPartition

__all__ = ["TaskPartition", "as_tasks"]


@dataclass
class TaskPartition(ReadPartition, InputPartition):
    """A range of one stream's sequences, as Spark hands it to a task."""


def as_tasks(partitions: list[ReadPartition]) -> list[TaskPartition]:
    """Return the ranges as tasks."""
    return [TaskPartition(**vars(partition)) for partition in partitions]
