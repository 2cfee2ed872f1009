"""The executors' half of a replay: publishes rows in order, each when it is due by the pace."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import StringType, StructType

from jetlake.errors import ConfigError, JetlakeError, RowPublishError
from jetlake.model.transforms import Transform, compile_transform
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.outgoing import OutgoingBatch
from jetlake.spark.sink.publisher import Publisher
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds, refuse_system_subject
from jetlake.spark.sink.stored_rows import ids_after

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

REPLAY_RESULT = "rows bigint, duplicates bigint, began_s double"
"""What a task says at its end."""
_SUBJECTS_KNOWN_MAX = 10_000
_log = logging.getLogger("jetlake.spark")


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
        after: the target's last sequence before these rows; what it holds behind that may be of an attempt that broke
            off, longer ago than the target remembers ids.
        alone: whether no other task publishes rows at the same time, which would be found there as well.
    """

    schema: StructType
    options: tuple[tuple[str, str], ...]
    subject_map: tuple[tuple[str, str], ...]
    pace: Pace
    began_s: float | None
    first_time_s: float
    rows_before: int
    after: int = 0
    alone: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish, and give one row with the figures."""
        options = SinkOptions.of(dict(self.options))
        # What counts is the subject that a message is renamed to.
        encoder = RowEncoder(self.schema, replace(options, allow_system_subjects=True))
        publisher = Publisher(options, repeatable=encoder.is_repeatable)
        schedule = Schedule(self.began_s)
        stored = self._stored(options)
        rows = _Rest(batches, stored)
        if self.pace.is_instant:
            publisher.publish_all(self._messages(iter(rows), encoder))
        else:
            self._publish_paced(rows, encoder, publisher, schedule)
        figures = {"rows": [publisher.count + rows.left_out], "duplicates": [publisher.duplicates]}
        yield pa.RecordBatch.from_pydict({**figures, "began_s": pa.array([schedule.began_s], pa.float64())})

    def _stored(self, options: SinkOptions) -> frozenset[bytes]:
        """Return the ids that an earlier attempt has stored.

        A stage that is repeated with a lost executor counts its attempts from zero again, so a task that publishes
        alone always looks; at its first attempt there is nothing to be found.
        """
        context = TaskContext.get()
        if not self.alone and (context is None or not context.attemptNumber()):
            return frozenset()
        try:
            return ids_after(options, self.after)
        except JetlakeError as error:
            # A login that may publish need not be allowed to read; then only the stream's duplicate window helps.
            _log.warning("cannot look up which rows of a repeated task are in stream %s: %s", options.stream, error)
            return frozenset()

    def _messages(self, batches: Iterator[pa.RecordBatch], encoder: RowEncoder) -> Iterator[OutgoingBatch]:
        first_row = 0
        rename = _renaming(self.subject_map, system=SinkOptions.of(dict(self.options)).allow_system_subjects)
        for batch in batches:
            for messages in encoder.encode(batch, RowIds("", 0), first_row):
                yield messages.with_subjects([rename(subject) for subject in messages.subject.to_pylist()])
            first_row += batch.num_rows

    def _publish_paced(self, batches: _Rest, encoder: RowEncoder, publisher: Publisher, schedule: Schedule) -> None:
        published = 0
        for batch in batches:
            row = self.rows_before + batches.left_out + published
            times_s = iter([(value or 0) / 1e6 for value in batch.column("timestamp").cast(pa.int64()).to_pylist()])
            for messages in self._messages(iter([batch]), encoder):
                due = [self.pace.due_s(row + index, next(times_s), self.first_time_s) for index in range(len(messages))]
                for slot in slots(due):
                    _sleep_until(schedule.send_at_s(slot.due_s, time.time()))
                    publisher.publish_all([messages.slice(slot.rows[0], len(slot.rows))])
                row += len(messages)
            published += batch.num_rows


class _Rest:
    """The rows of a partition that an earlier attempt has not stored.

    Attributes:
        left_out: how many rows were left out so far.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], stored: frozenset[bytes]) -> None:
        self.left_out = 0
        self._batches = batches
        self._stored = stored

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if not self._stored:
                yield batch
                continue
            kept = [value is None or value.encode() not in self._stored for value in batch.column("msg_id").to_pylist()]
            self.left_out += kept.count(False)
            yield batch.filter(pa.array(kept, pa.bool_()))


def renamed(*subject_map: tuple[str, str]) -> UserDefinedFunctionLike:
    """Return a function that renames a column of subjects, for a replay that is written by Spark's own sink."""

    def rename_all(subjects: pa.Array) -> pa.Array:
        # The sink looks at the subjects that come out.
        rename = _renaming(subject_map, system=True)
        return pa.array([rename(subject.encode()).decode() for subject in subjects.to_pylist()], pa.string())

    function: UserDefinedFunctionLike = arrow_udf(rename_all, StringType())
    return function


def _sleep_until(wall_s: float) -> None:
    while (left_s := wall_s - time.time()) > 0:
        time.sleep(min(left_s, 1.0))


def _renaming(subject_map: tuple[tuple[str, str], ...], *, system: bool) -> Callable[[bytes], bytes]:
    """Return a function that renames subjects; subjects with `$` in front are refused unless `system` allows them."""
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
        if not system:
            refuse_system_subject(renamed, lambda: 0)
        if len(known) >= _SUBJECTS_KNOWN_MAX:
            known.clear()
        known[subject] = renamed
        return renamed

    return rename


T = TypeVar("T")
_SLOT_S = 0.02
_SLOT_ROWS_MAX = 4096


@dataclass(frozen=True)
class Pace:
    """How fast to replay; neither field set means as fast as the server takes it.

    Attributes:
        rate: messages a second.
        speed: how many times faster than it was; 1 is the original timing.
    """

    rate: float = 0.0
    speed: float = 0.0

    def __post_init__(self) -> None:
        if self.rate < 0 or self.speed < 0:
            raise ConfigError("a rate and a speed must be above zero")
        if self.rate and self.speed:
            raise ConfigError("a rate and the original timing are mutually exclusive")

    @property
    def is_instant(self) -> bool:
        """Whether nothing waits."""
        return not (self.rate or self.speed)

    def due_s(self, row: int, time_s: float, first_time_s: float) -> float:
        """Seconds after the beginning at which a message is due.

        Args:
            row: its number, from 0.
            time_s: when it was stored.
            first_time_s: when the first message was stored.
        """
        if self.rate:
            return row / self.rate
        if self.speed:
            return max(time_s - first_time_s, 0.0) / self.speed
        return 0.0


class Schedule:
    """When messages go out: the first at once, every other one no earlier behind it than the pace says.

    A message that was held up moves what is behind it back by as much. Sending it after the others as planned would
    be a burst, which is what a pace is there to prevent.

    Attributes:
        began_s: wall time that the messages' own times count from; None before the first message.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s

    def send_at_s(self, due_s: float, now_s: float) -> float:
        """Return the wall time at which to send a message that is due `due_s` after the beginning."""
        if self.began_s is None:
            self.began_s = now_s - due_s
        self.began_s = max(self.began_s, now_s - due_s)
        return self.began_s + due_s


@dataclass(frozen=True)
class Slot:
    """Some messages that go out together, and when."""

    due_s: float
    rows: tuple[int, ...]


def slots(due_s: Iterable[float]) -> Iterator[Slot]:
    """Cut messages, given by the times at which they are due, into slots of a fiftieth of a second.

    A message never goes out before it is due, and no more than a slot later.
    """
    rows: list[int] = []
    ends_s = 0.0
    latest_s = 0.0
    for row, due in enumerate(due_s):
        if rows and (due > ends_s or len(rows) >= _SLOT_ROWS_MAX):
            yield Slot(latest_s, tuple(rows))
            rows = []
        if not rows:
            ends_s = due + _SLOT_S
            latest_s = due
        latest_s = max(latest_s, due)
        rows.append(row)
    if rows:
        yield Slot(latest_s, tuple(rows))
