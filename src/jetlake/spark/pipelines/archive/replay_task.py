"""The executors' half of a replay: publishes rows in order, each when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import StringType, StructType

from jetlake.errors import RowPublishError
from jetlake.model.transforms import Transform, compile_transform
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.pipelines.archive.pacing import Pace, Schedule, slots
from jetlake.spark.sink.outgoing import OutgoingBatch
from jetlake.spark.sink.publisher import Publisher
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

__all__ = ["REPLAY_RESULT", "ReplayTask", "renamed"]

REPLAY_RESULT = "rows bigint, duplicates bigint, began_s double"
"""What a task says at its end."""

_SUBJECTS_KNOWN_MAX = 10_000


@dataclass(frozen=True)
class ReplayTask:
    """Publishes the rows of a partition, sorted by sequence.

    Attributes:
        schema: the rows: an archive's columns and the message id.
        options: the sink's options as texts.
        subject_map: pairs of a pattern and what it becomes; the first that matches counts.
        began_s: wall time that the pace counts from; None for the first rows, which begin when they are published.
        first_time_s: when its first message was stored.
        rows_before: rows that were replayed before these.
    """

    schema: StructType
    options: tuple[tuple[str, str], ...]
    subject_map: tuple[tuple[str, str], ...]
    pace: Pace
    began_s: float | None
    first_time_s: float
    rows_before: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish, and give one row with the figures."""
        options = SinkOptions.of(dict(self.options))
        encoder = RowEncoder(self.schema, options)
        publisher = Publisher(options, repeatable=encoder.is_repeatable)
        schedule = Schedule(self.began_s)
        if self.pace.is_instant:
            publisher.publish_all(self._messages(batches, encoder))
        else:
            self._publish_paced(batches, encoder, publisher, schedule)
        figures = {"rows": [publisher.count], "duplicates": [publisher.duplicates]}
        yield pa.RecordBatch.from_pydict({**figures, "began_s": pa.array([schedule.began_s], pa.float64())})

    def _messages(self, batches: Iterator[pa.RecordBatch], encoder: RowEncoder) -> Iterator[OutgoingBatch]:
        first_row = 0
        rename = _renaming(self.subject_map)
        for batch in batches:
            for messages in encoder.encode(batch, RowIds("", 0), first_row):
                yield messages.with_subjects([rename(subject) for subject in messages.subject.to_pylist()])
            first_row += batch.num_rows

    def _publish_paced(
        self, batches: Iterator[pa.RecordBatch], encoder: RowEncoder, publisher: Publisher, schedule: Schedule
    ) -> None:
        row = self.rows_before
        for batch in batches:
            times_s = iter([(value or 0) / 1e6 for value in batch.column("timestamp").cast(pa.int64()).to_pylist()])
            for messages in self._messages(iter([batch]), encoder):
                due = [self.pace.due_s(row + index, next(times_s), self.first_time_s) for index in range(len(messages))]
                for slot in slots(due):
                    _sleep_until(schedule.send_at_s(slot.due_s, time.time()))
                    publisher.publish_all([messages.slice(slot.rows[0], len(slot.rows))])
                row += len(messages)


def renamed(*subject_map: tuple[str, str]) -> UserDefinedFunctionLike:
    """Return a function that renames a column of subjects, for a replay that is written by Spark's own sink."""

    def rename_all(subjects: pa.Array) -> pa.Array:
        rename = _renaming(subject_map)
        return pa.array([rename(subject.encode()).decode() for subject in subjects.to_pylist()], pa.string())

    function: UserDefinedFunctionLike = arrow_udf(rename_all, StringType())
    return function


def _sleep_until(wall_s: float) -> None:
    while (left_s := wall_s - time.time()) > 0:
        time.sleep(min(left_s, 1.0))


def _renaming(subject_map: tuple[tuple[str, str], ...]) -> Callable[[bytes], bytes]:
    transforms: list[Transform] = [compile_transform(source, target) for source, target in subject_map]
    known: dict[bytes, bytes] = {}

    def rename(subject: bytes) -> bytes:
        renamed = known.get(subject)
        if renamed is not None:
            return renamed
        for transform in transforms:
            found = transform.apply(subject)
            if found is not None:
                renamed = found
                break
        else:
            if transforms:
                raise RowPublishError(0, subject.decode("utf-8", "replace"), "no subject map of the replay matches it")
            renamed = subject
        if len(known) >= _SUBJECTS_KNOWN_MAX:
            known.clear()
        known[subject] = renamed
        return renamed

    return rename
