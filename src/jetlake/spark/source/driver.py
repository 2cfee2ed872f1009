"""The driver's half of a streaming read: which messages each micro-batch takes, and which a finished batch releases.

    Spark                             Driver                                        server
    latestOffset(start)  ----------> release messages before `start` -----------> purge or consumer reset
                                     plan the end of the next batch  -----------> stream info, counts
    writes the end into its log
    partitions(start, end) --------> claim the durable consumer, cut into tasks
    runs tasks, writes the commit log, and calls latestOffset(end)

What is always true:

* Spark calls `latest_offset` with the end of a batch only after that batch is in its commit log. So this call is the
  only one that releases, and it releases no message behind `start`.
* Before a release the driver checks that the stream is still the one that `start` was planned with: the sequences of a
  recreated or restored stream mean other messages. The order is check, release, plan.
* A batch is determined by its offsets. `partitions` gives the same tasks for the same offsets in every attempt, on
  every cluster; a range whose first messages are gone keeps its length, because rows are numbered by their position.
* The owner of a durable consumer is written into the consumer only in `partitions`, when the owner is in Spark's offset
  log. A crash before that leaves a consumer without an owner, which the restarted query may take.
* A crash between release and the log of the next offset repeats the release, which changes nothing.

One thread, Spark's, calls the driver; it has no lock. All state here is a cache or derived from offsets: a restarted
driver continues from the checkpoint alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from jetlake.client.tables.data_loss import seen_of
from jetlake.client.tables.message_gets import first_matching
from jetlake.client.tables.planning import (
    Backlog,
    BatchRange,
    SequenceRange,
    StreamOffset,
    admit,
    choose_reader,
    waits_for_more,
)
from jetlake.client.tables.positions import EARLIEST
from jetlake.client.tables.ranges import expiring_soon
from jetlake.client.tables.spark_offsets import Offset
from jetlake.client.tables.survey import Measured, count_matching, measure
from jetlake.errors import (
    ApiError,
    ConsumerNotFoundError,
    DataLossError,
    PermissionsError,
    StreamNotFoundError,
    StreamRecreatedError,
    UnsupportedStreamError,
)
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.options.source_options import SourceOptions, pinned_partitions
from jetlake.spark.source.durable_consumer import (
    LagConsumer,
    check_still_held,
    choose_release,
    claim,
    consumer_name,
    deleted_consumer_error,
    ensure_durable,
    release,
)
from jetlake.spark.source.executor import LossNotes, note_key
from jetlake.spark.source.start_offsets import StartOffset, StartOffsets
from jetlake.spark.source.stream_watch import Clock, StreamNames, StreamWatch
from jetlake.spark.source.tasks import TaskPartition, cut_stream

__all__ = ["Driver"]

T = TypeVar("T")

_log = logging.getLogger("jetlake.spark")

_REAL_CLOCK = Clock()

# How often a batch is planned again because the stream's head moved meanwhile.
_PLANS_MAX = 4


class Driver:
    """Plans the micro-batches of one query over all its streams."""

    def __init__(self, options: SourceOptions, clock: Clock = _REAL_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._watch = StreamWatch(options, clock)
        self._names = StreamNames(options, self._watch, clock)
        self._start_offsets = StartOffsets(options, self._watch, clock)
        self._notes = LossNotes(options)
        self._lag_consumer = LagConsumer(options, self._watch)
        self._targets: dict[str, int] | None = None
        # How each stream, by its creation time, is released, and up to which sequence it is.
        self._release_by: dict[tuple[str, str], str] = {}
        self._released: dict[tuple[str, str], int] = {}
        self._owners: dict[str, str] = {}
        self._reported: set[str] = set()
        self._claimed: set[tuple[str, str]] = set()
        self._noted: dict[str, tuple[str, int]] = {}
        self._last_batch_s = clock.monotonic_s()

    def stop_at_present_end(self) -> None:
        """Take nothing that is stored after this call."""
        self._targets = self._of_present(
            lambda: {
                stream: self._watch.info(stream, fresh=True).state.last_seq + 1 for stream in self._names.current()
            }
        )
        self._names.freeze()

    def latest_offset(self, start: Offset, *, limited: bool = True) -> Offset:
        """Release the messages of the batches up to `start`, and return where the next batch ends.

        Returns `start` when there is nothing to read.

        Raises:
            DataLossError: messages are gone that were not read, and the options say that this is an error.
            UnsupportedStreamError: a stream cannot be read with these options.
        """
        end = self._of_present(lambda: self._next_end(start, limited))
        if end is not start:
            self._last_batch_s = self._clock.monotonic_s()
        return end

    def present_end(self) -> Offset:
        """Return where the streams end now; the query's lag is the difference to its offset."""
        infos = self._of_present(lambda: [self._watch.info(stream) for stream in self._names.current()])
        return Offset(tuple((info.config.name, StreamOffset(info.created, info.state.last_seq + 1)) for info in infos))

    def figures(self) -> dict[str, Any]:
        """Return the figures of a progress report beside the offsets."""
        return self._of_present(lambda: self._watch.figures(self._names.current()))

    def partitions(self, start: Offset, end: Offset) -> list[TaskPartition]:
        """Plan the tasks of the batch between two offsets: the same for the same offsets, every time."""
        partitions: list[TaskPartition] = []
        for stream, offset in end.streams:
            whole = SequenceRange(*offset.range_after(start.of(stream)))
            if self._is_deleted(stream):
                self._report_unread(stream, offset, whole)
            elif self._names.has(stream):
                self._check_same_reading(stream, offset)
                self._claim(stream, offset)
                partitions += self._tasks(stream, offset, whole)
            elif len(whole) > 0:
                raise UnsupportedStreamError(
                    f"the batch to repeat reads stream {stream}, which option stream no longer names: name it until "
                    "the batch is done"
                )
        return partitions

    def _of_present(self, action: Callable[[], T]) -> T:
        """Run an action over all streams; run it again without streams of a pattern that were deleted meanwhile."""
        while True:
            try:
                return action()
            except (StreamNotFoundError, UnsupportedStreamError):
                if not self._names.drop_deleted():
                    raise

    def _next_end(self, start: Offset, limited: bool) -> Offset:
        """Release the messages of the batches up to `start`, then return where the next batch ends."""
        self._report_deleted(start)
        for stream in self._names.current():
            self._prepare(stream, start)
        end = self._plan(start, limited)
        polls = self._watch.polls_held if self._targets is None else 0
        while end is start and polls:
            # Spark would plan again within milliseconds; polling here for a while spares it empty plans.
            self._watch.wait_for_poll(self._names.current())
            end = self._plan(start, limited)
            polls -= 1
        return end

    # Each batch, stream by stream

    def _begin(self, stream: str, start: Offset) -> StartOffset:
        """Return where the stream's next batch starts; a stream newer than the query is read from its beginning."""
        came_later = bool(start.streams) and self._names.matches(stream)
        return self._start_offsets.of(stream, start.of(stream), EARLIEST if came_later else None)

    def _report_deleted(self, start: Offset) -> None:
        """Report streams of a pattern that were deleted with messages that were not read.

        Raises:
            DataLossError: there is one, and the options say that this is an error.
        """
        for stream, offset in start.streams:
            if not self._is_deleted(stream) or stream in self._reported:
                continue
            unread = offset.known_unread
            message = f"stream {stream} was deleted, and up to {unread} of its messages were not read"
            if unread and self._options.fail_on_data_loss:
                raise DataLossError(f"{message}. To continue without them, set option failOnDataLoss=false")
            _log.warning("%s; continuing", message)
            self._reported.add(stream)

    def _is_deleted(self, stream: str) -> bool:
        """Return whether that stream matched a pattern and is gone."""
        return self._names.matches(stream) and stream not in self._names.current()

    def _report_unread(self, stream: str, offset: StreamOffset, whole: SequenceRange) -> None:
        """Report the range of a batch whose stream was deleted before it was read, and count it as lost.

        Raises:
            DataLossError: the range is not empty, and the options say that this is an error.
        """
        if len(whole) <= 0:
            return
        message = f"stream {stream} was deleted before its messages {whole.first} to {whole.end - 1} were read"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}. To continue without them, set option failOnDataLoss=false")
        _log.warning("%s; continuing", message)
        if offset.owner:
            self._notes.add(note_key(offset.owner, stream, whole.first, str(whole.first)), len(whole))

    def _prepare(self, stream: str, start: Offset) -> None:
        """Ensure the durable consumer, once, and release the messages of the batches so far.

        `_begin` comes first: it checks that the offset belongs to this stream before anything is released.
        """
        before = start.of(stream)
        begin = self._begin(stream, start)
        key = (stream, begin.info.created)
        how = self._release_by.get(key)
        if how is None:
            how = self._release_by[key] = self._prepare_retention(begin)
        if before is None or not begin.continues:
            return
        if how == "none":
            self._lag_consumer.show(stream, begin.info.created, before.next)
        elif self._released.get(key, 0) < before.next:
            self._release(key, how, before)

    def _release(self, key: tuple[str, str], how: str, before: StreamOffset) -> None:
        stream = key[0]
        try:
            self._watch.ask(lambda api: release(api, how, stream, self._options, before))
            self._released[key] = before.next
        except StreamRecreatedError:
            if self._options.fail_on_data_loss:
                raise
            self._watch.info(stream, fresh=True)

    def _prepare_retention(self, begin: StartOffset) -> str:
        """Check that the stream can be read, create the durable consumer that it needs, and return how to release."""
        options = self._options
        config = begin.info.config
        stream = config.name
        how = choose_release(config, self._watch.version, options)
        choose_reader(config, self._watch.version, options, sequences=1)
        before = begin.before
        if before is not None and begin.continues:
            self._check_same_reading(stream, before)
        owner = before.owner if before is not None else ""
        if how == "none":
            # Tasks note losses under this name.
            self._owners[stream] = owner or ("" if options.fail_on_data_loss else next_nuid())
            return how
        owner = self._owners[stream] = owner or next_nuid()
        existed = self._watch.ask(lambda api: ensure_durable(api, stream, options, owner))
        if not existed:
            # Messages that others took until now left before there was a plan.
            self._watch.info(stream, fresh=True)
        if before is None:
            if how == "purge" and options.starting.of(stream).kind != "earliest":
                raise UnsupportedStreamError(
                    f"work queue {stream} can only be read from its beginning, because finished batches are removed up "
                    "to their end: leave option startingPosition at earliest"
                )
        elif not existed and how == "reset" and begin.continues:
            error = deleted_consumer_error(stream, consumer_name(options, stream))
            if options.fail_on_data_loss:
                raise error
            _log.warning("%s (continuing, as the option says)", error)
        return how

    def _check_same_reading(self, stream: str, offset: StreamOffset) -> None:
        """Check that a work queue or interest stream is read in the same way, and by the same filters, as before.

        Every message before the offset that matches the filters is released. Other filters would release messages that
        were never read, and a shared consumer delivered some of them to others.

        Raises:
            UnsupportedStreamError: the options say otherwise.
        """
        if offset.batch is not None and offset.batch.taken is not None:
            raise UnsupportedStreamError(
                f"the checkpoint has read stream {stream} with guarantee=atLeastOnce: messages that other "
                "readers hold would be released unread. Keep that guarantee, or start with a new checkpoint"
            )
        if offset.subjects is not None and set(offset.subjects) != set(self._options.subjects):
            before, now = (", ".join(subjects) or "all" for subjects in (offset.subjects, self._options.subjects))
            raise UnsupportedStreamError(
                f"the checkpoint has read stream {stream} with subjects {before}, and option subjects is now {now}: "
                "messages of other subjects would be released unread. Keep the subjects as they were; or delete "
                "the query's durable consumer, and start with a new checkpoint"
            )

    def _claim(self, stream: str, offset: StreamOffset) -> None:
        """Write the owner into the durable consumer: it is in Spark's log now, so a restart will know it.

        Raises:
            ConsumerHeldError: another query holds the consumer, or has taken it over since.
        """
        key = (stream, offset.created)
        if not offset.owner:
            return
        info = self._watch.info(stream)
        if info.config.retention is not RetentionPolicy.LIMITS and info.created == offset.created:
            name = consumer_name(self._options, stream)
            try:
                if key in self._claimed:
                    held = self._watch.ask(lambda api: api.consumer_info(stream, name))
                    check_still_held(stream, held, offset.owner)
                else:
                    self._watch.ask(lambda api: claim(api, stream, self._options, offset.owner))
            except ConsumerNotFoundError:
                # It was deleted; the next batch recreates it, and reports what that means.
                return
        self._claimed.add(key)

    def _plan(self, start: Offset, limited: bool) -> Offset:
        """Return the end of the next batch; `start` itself when no stream has anything for it.

        Under a filter the driver asks for the first matching message and counts the matching ones. Only if the stream's
        head has not passed the batch's start by then, no matching message went away in between.
        """
        for _ in range(_PLANS_MAX):
            begins = {stream: self._begin(stream, start) for stream in self._names.current()}
            end = self._try_plan(start, begins, limited)
            if not self._options.subjects or not any(self._has_passed(begin) for begin in begins.values()):
                return end
        begins = {stream: self._start_offsets.behind_head(begin) for stream, begin in begins.items()}
        return self._try_plan(start, begins, limited)

    def _has_passed(self, begin: StartOffset) -> bool:
        """Return whether the stream's head has passed the batch's start by now."""
        info = self._watch.info(begin.info.config.name, fresh=True)
        return info.created == begin.info.created and info.state.first_seq > begin.sequence

    def _try_plan(self, start: Offset, begins: dict[str, StartOffset], limited: bool) -> Offset:
        backlogs = {stream: self._backlog(begin) for stream, begin in begins.items()}
        ends, measured = self._admit(begins, backlogs, limited)
        streams = {stream: offset.position for stream, offset in start.streams}
        changed = self._keep_unread(start, streams, begins)
        for stream, begin in begins.items():
            offset = self._end(begin, backlogs[stream], ends[stream], measured.get(stream))
            changed = changed or offset != streams.get(stream)
            streams[stream] = offset
        return Offset(tuple(streams.items())) if changed else start

    def _admit(
        self, begins: dict[str, StartOffset], backlogs: dict[str, Backlog], limited: bool
    ) -> tuple[dict[str, int], dict[str, Measured]]:
        """Return where the batch ends in each stream, and the measurements behind it."""
        options = self._options
        if limited and self._waits(begins, backlogs):
            return {stream: begin.sequence for stream, begin in begins.items()}, {}
        if limited and any(self._needs_measure(begin, backlogs) for begin in begins.values()):
            measured = self._measure(begins, backlogs)
            return {stream: found.end for stream, found in measured.items()}, measured
        return admit(backlogs, options.max_messages if limited else 0), {}

    def _needs_measure(self, begin: StartOffset, backlogs: dict[str, Backlog]) -> bool:
        """Return whether limits must count real messages: for bytes, under a filter, and among many gaps.

        Fewer gaps than messages in a batch cost one more batch at most, so they need no measuring.
        """
        options, limit = self._options, self._options.max_messages
        if options.max_bytes or (limit and options.subjects):
            return True
        if not limit or begin.info.state.num_deleted < limit:
            return False
        return sum(backlog.sequences for backlog in backlogs.values()) > limit

    def _waits(self, begins: dict[str, StartOffset], backlogs: dict[str, Backlog]) -> bool:
        """Return whether the batch waits until there is more to read."""
        options = self._options
        if self._targets is not None or not options.min_messages:
            return False
        waited_s = self._clock.monotonic_s() - self._last_batch_s
        if waited_s >= options.max_trigger_delay_s:
            return False
        if waits_for_more(backlogs, options.min_messages, waited_s, options.max_trigger_delay_s):
            return True
        # There are never more messages than sequences; where there may be fewer, they are counted.
        present = sum(self._present(begins[stream].info, backlog) for stream, backlog in backlogs.items())
        return present < options.min_messages

    def _present(self, info: StreamInfo, backlog: Backlog) -> int:
        """Return how many messages there are to read, counted up to the number that a batch waits for."""
        options = self._options
        if not options.subjects and not info.state.num_deleted:
            return backlog.sequences
        whole = SequenceRange(backlog.first, backlog.end)
        try:
            found = self._watch.ask(lambda api: measure(api, info, options.subjects, whole, options.min_messages, 0))
        except (ApiError, PermissionsError, UnsupportedStreamError):
            return backlog.sequences
        return found.messages

    def _keep_unread(self, start: Offset, streams: dict[str, StreamOffset], begins: dict[str, StartOffset]) -> bool:
        """Keep the positions of streams that are no longer read, with the losses that their last tasks noted.

        Returns whether unread messages of one of them were given up.
        """
        changed = False
        for stream in streams.keys() - begins.keys():
            offset = streams[stream]
            noted = self._noted_losses(stream, dict(start.streams)[stream])
            streams[stream] = replace(offset, lost=offset.lost + noted)
            if stream in self._reported and (noted or offset.known_unread):
                # The position behind the last known message: a query that resumes here counts no loss again.
                streams[stream] = streams[stream].given_up
                changed = True
        return changed

    def _backlog(self, begin: StartOffset) -> Backlog:
        """Return the stream's backlog, from the first message on that a filter lets through.

        So limits count messages that will be read, and messages that no filter wants may go away unnoticed.
        """
        state = begin.info.state
        stream = begin.info.config.name
        first, end = begin.sequence, state.last_seq + 1
        if self._targets is not None:
            end = min(end, self._targets.get(stream, end))
        end = max(end, first)
        if self._options.subjects and first < end:
            first = self._next_wanted(stream, first, end)
        span = state.last_seq + 1 - state.first_seq
        return Backlog(first, end, state.bytes / span if span > 0 else 0.0)

    def _next_wanted(self, stream: str, sequence: int, end: int) -> int:
        """Return the first sequence from that one on that matches the filters; `end` when there is none before it."""
        found = self._watch.ask(lambda api: first_matching(api, stream, self._options.subjects, sequence))
        return min(found, end) if found is not None else end

    def _measure(self, begins: dict[str, StartOffset], backlogs: dict[str, Backlog]) -> dict[str, Measured]:
        """Return how far each stream may be read by its real messages; limits are shared in proportion to the backlogs.

        Where the login may not survey a stream, by sequences and the average size.
        """
        options = self._options
        by_average = admit(backlogs, options.max_messages, options.max_bytes)
        sequences = sum(backlog.sequences for backlog in backlogs.values())
        found = {}
        for stream, backlog in backlogs.items():
            whole = SequenceRange(backlog.first, backlog.end)
            share = backlog.sequences / sequences if sequences else 1.0
            limits = [max(int(limit * share), 1) if limit else 0 for limit in (options.max_messages, options.max_bytes)]
            info = begins[stream].info
            if not self._needs_measure(begins[stream], backlogs):
                found[stream] = self._measured_by_average(backlog, by_average[stream])
                continue
            try:
                found[stream] = self._watch.ask(lambda api: measure(api, info, options.subjects, whole, *limits))  # noqa: B023
            except (ApiError, PermissionsError, UnsupportedStreamError):
                found[stream] = self._measured_by_average(backlog, by_average[stream])
        return found

    @staticmethod
    def _measured_by_average(backlog: Backlog, end: int) -> Measured:
        """Return the range up to that end with its size by the average, and without a count."""
        return Measured(end, -1, round((end - backlog.first) * backlog.bytes_per_sequence))

    def _end(self, begin: StartOffset, backlog: Backlog, end: int, measured: Measured | None) -> StreamOffset:
        """Return the offset of a batch's end; the position before when the batch has nothing of the stream."""
        info, before = begin.info, begin.before
        stream = info.config.name
        lost = begin.lost + (self._noted_losses(stream, before) if before is not None else 0)
        held = False
        if end <= backlog.first and backlog.first < backlog.end:
            # The batch waits for more.
            end = begin.sequence
        elif self._options.subjects and end < backlog.end:
            end = self._next_wanted(stream, end, backlog.end)
            held = end < backlog.end
        if begin.continues and before is not None and (end, lost) == (before.next, before.lost):
            return before.position
        batch = None
        if end > backlog.first:
            size = measured.bytes if measured else round((end - backlog.first) * backlog.bytes_per_sequence)
            count = self._count(begin, backlog.first, end, measured)
            version = self._watch.version
            expiring = self._watch.ask(lambda api: expiring_soon(api, version, info)) if begin.soft else ()
            batch = BatchRange(
                backlog.first, size, count, begin.soft, partitions=pinned_partitions(self._options), expiring=expiring
            )
        subjects = self._options.subjects if info.config.retention is not RetentionPolicy.LIMITS else None
        owner = self._owners.get(stream, "")
        seen = seen_of(info, before.seen if before is not None else None)
        return StreamOffset(info.created, end, held, seen, lost, owner, batch, subjects)

    def _count(self, begin: StartOffset, first: int, end: int, measured: Measured | None) -> int | None:
        """Return how many messages the filters let through in the range; None where that is not known or needed."""
        config, subjects = begin.info.config, self._options.subjects
        if not subjects or config.retention is not RetentionPolicy.LIMITS:
            return None
        if measured is not None and measured.messages >= 0:
            return measured.messages
        counts = self._watch.ask(lambda api: count_matching(api, config.name, subjects, [first, end]))
        return counts[0] if counts is not None else None

    def _noted_losses(self, stream: str, before: StreamOffset) -> int:
        """Return how many messages the tasks of the last batch noted as lost."""
        if self._options.fail_on_data_loss or before.batch is None or before.batch.first is None or not before.owner:
            return 0
        key = note_key(before.owner, stream, before.batch.first, ">")
        known = self._noted.get(stream)
        if known is None or known[0] != key:
            if known is not None and known[1]:
                self._notes.remove(known[0])
            known = self._noted[stream] = (key, self._notes.total(key))
        return known[1]

    # Each batch's tasks

    def _tasks(self, stream: str, offset: StreamOffset, whole: SequenceRange) -> list[TaskPartition]:
        """Return one stream's tasks.

        Messages that are lost from the range's start do not change the range: its parts, and with them the rows'
        numbers, must not depend on when the batch is planned.
        """
        batch = offset.batch
        if len(whole) <= 0 or batch is None:
            return []
        options = self._options
        info = self._watch.info(stream)
        note = ""
        if not options.fail_on_data_loss and offset.owner:
            note = note_key(offset.owner, stream, whole.first, "")
        try:
            self._start_offsets.check(info, offset)
        except StreamRecreatedError as error:
            if options.fail_on_data_loss:
                raise
            _log.warning("%s (continuing, as the option says)", error)
            if note:
                self._notes.add(f"{note}{whole.first}", len(whole))
            return []
        reader = choose_reader(info.config, self._watch.version, options, len(whole))
        return self._watch.ask(
            lambda api: cut_stream(api, info, whole, options, reader, size_bytes=batch.bytes, planned=offset, note=note)
        )
