"""The driver's half of a streaming read: what each micro-batch takes, and what a finished one releases.

Spark calls `latest_offset` with the end of the last batch only after that batch is in its commit log; so this call is
where the messages of finished batches are released, and where the next batch is planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from jetlake.client.tables.options.positions import EARLIEST
from jetlake.client.tables.plan.data_loss import seen_of
from jetlake.client.tables.plan.offsets import BatchRange, Offset, StreamOffset
from jetlake.client.tables.plan.planning import Backlog, SequenceRange, admit, waits_for_more
from jetlake.client.tables.plan.reader_choice import choose_reader
from jetlake.client.tables.requests.survey import Measured, count_matching, first_matching, measure
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
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.plan.cluster_size import pinned_partitions
from jetlake.spark.plan.partition import TaskPartition
from jetlake.spark.requests.loss_notes import LossNotes, note_key
from jetlake.spark.source.beginnings import Begin, Beginnings
from jetlake.spark.source.clock import Clock
from jetlake.spark.source.durable import claim, consumer_name, deleted_consumer_error, ensure_durable
from jetlake.spark.source.lag_consumer import LagConsumer
from jetlake.spark.source.release import release
from jetlake.spark.source.retention import choose_release
from jetlake.spark.source.stream_names import StreamNames
from jetlake.spark.source.stream_watch import StreamWatch
from jetlake.spark.source.tasks import cut_stream

__all__ = ["Driver"]

T = TypeVar("T")

_log = logging.getLogger("jetlake.spark")

_REAL_CLOCK = Clock()

# How often a batch is planned anew because the stream's head moved meanwhile.
_PLANS_MAX = 4


class Driver:
    """Plans the micro-batches of one query over all its streams."""

    def __init__(self, options: SourceOptions, clock: Clock = _REAL_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._watch = StreamWatch(options, clock)
        self._names = StreamNames(options, self._watch, clock)
        self._beginnings = Beginnings(options, self._watch, clock)
        self._notes = LossNotes(options)
        self._lag_consumer = LagConsumer(options, self._watch)
        self._targets: dict[str, int] | None = None
        # How each stream, as it was created, is released, and up to where it is.
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
        """Release what the batches up to `start` held, and say where the next batch ends.

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
        """Return where the streams end now; what lies between the query's offset and this is its lag."""
        infos = self._of_present(lambda: [self._watch.info(stream) for stream in self._names.current()])
        return Offset(tuple((info.config.name, StreamOffset(info.created, info.state.last_seq + 1)) for info in infos))

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
        """Run an action over all streams; again without those of a pattern that were deleted meanwhile."""
        while True:
            try:
                return action()
            except (StreamNotFoundError, UnsupportedStreamError):
                if not self._names.drop_deleted():
                    raise

    def _next_end(self, start: Offset, limited: bool) -> Offset:
        """Return where the next batch ends, once what the batches up to `start` held is released."""
        self._report_deleted(start)
        for stream in self._names.current():
            self._prepare(stream, start)
        end = self._plan(start, limited)
        if end is start and self._targets is None:
            # Spark would ask again within milliseconds; to wait here until the server may have news spares both.
            self._watch.wait_for_poll(self._names.current())
            end = self._plan(start, limited)
        return end

    # Each batch, stream by stream

    def _begin(self, stream: str, start: Offset) -> Begin:
        """Return where the stream's next batch begins; a stream newer than the query is read from its beginning."""
        came_later = bool(start.streams) and self._names.matches(stream)
        return self._beginnings.of(stream, start.of(stream), EARLIEST if came_later else None)

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
                raise DataLossError(f"{message}. To go on without them set option failOnDataLoss=false")
            _log.warning("%s; going on", message)
            self._reported.add(stream)

    def _is_deleted(self, stream: str) -> bool:
        """Return whether a pattern meant that stream, and it is gone."""
        return self._names.matches(stream) and stream not in self._names.current()

    def _report_unread(self, stream: str, offset: StreamOffset, whole: SequenceRange) -> None:
        """Report the range of a batch whose stream was deleted before it was read, and count it as lost.

        Raises:
            DataLossError: that is something, and the options say that this is an error.
        """
        if len(whole) <= 0:
            return
        message = f"stream {stream} was deleted before its messages {whole.first} to {whole.end - 1} were read"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}. To go on without them set option failOnDataLoss=false")
        _log.warning("%s; going on", message)
        if offset.owner:
            self._notes.add(note_key(offset.owner, stream, whole.first, str(whole.first)), len(whole))

    def _prepare(self, stream: str, start: Offset) -> None:
        """Make sure of the durable consumer, once, and release what the batches so far held.

        Whether the offset speaks of this stream is found out before anything is released.
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

    def _prepare_retention(self, begin: Begin) -> str:
        """Check that the stream can be read, create its durable consumer where it needs one, return how to release."""
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
            # Only for notes of what is lost.
            self._owners[stream] = owner or ("" if options.fail_on_data_loss else next_nuid())
            return how
        owner = self._owners[stream] = owner or next_nuid()
        existed = self._watch.ask(lambda api: ensure_durable(api, stream, options, owner))
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
            _log.warning("%s (going on, as the option says)", error)
        return how

    def _check_same_reading(self, stream: str, offset: StreamOffset) -> None:
        """Make sure that a work queue or interest stream is read in the same way, and by the same filters, as before.

        Whatever the filters let through before the offset is released. By other filters it was never read, and a
        consumer that is shared handed some of it out to others.

        Raises:
            UnsupportedStreamError: the options say otherwise.
        """
        if offset.batch is not None and offset.batch.taken is not None:
            raise UnsupportedStreamError(
                f"the checkpoint has read stream {stream} with guarantee=atLeastOnce: what other readers were handed "
                "out would be released unread. Go on with that guarantee, or start with a new checkpoint"
            )
        if offset.subjects is not None and set(offset.subjects) != set(self._options.subjects):
            before, now = (", ".join(subjects) or "all" for subjects in (offset.subjects, self._options.subjects))
            raise UnsupportedStreamError(
                f"the checkpoint has read stream {stream} with subjects {before}, and option subjects is now {now}: "
                "messages of other subjects would be released unread. Go on with the subjects as they were; or delete "
                "the query's durable consumer, and start with a new checkpoint"
            )

    def _claim(self, stream: str, offset: StreamOffset) -> None:
        """Write the owner into the durable consumer: now that it is in Spark's log, a restart will know it."""
        key = (stream, offset.created)
        if key in self._claimed or not offset.owner:
            return
        info = self._watch.info(stream)
        if info.config.retention is not RetentionPolicy.LIMITS and info.created == offset.created:
            try:
                self._watch.ask(lambda api: claim(api, stream, self._options, offset.owner))
            except ConsumerNotFoundError:
                # It was deleted; the next batch makes it again, and says what that means.
                return
        self._claimed.add(key)

    def _plan(self, start: Offset, limited: bool) -> Offset:
        """Return the end of the next batch; `start` itself when no stream has anything for it.

        Under a filter the first wanted message is asked for, and the wanted ones are counted. Only if the stream's head
        has not passed the beginning by then, nothing wanted went away in between.
        """
        for _ in range(_PLANS_MAX):
            begins = {stream: self._begin(stream, start) for stream in self._names.current()}
            end = self._try_plan(start, begins, limited)
            if not self._options.subjects or not any(self._has_passed(begin) for begin in begins.values()):
                return end
        begins = {stream: self._beginnings.behind_head(begin) for stream, begin in begins.items()}
        return self._try_plan(start, begins, limited)

    def _has_passed(self, begin: Begin) -> bool:
        """Return whether the stream's head has passed the beginning by now."""
        info = self._watch.info(begin.info.config.name, fresh=True)
        return not begin.soft and info.created == begin.info.created and info.state.first_seq > begin.sequence

    def _try_plan(self, start: Offset, begins: dict[str, Begin], limited: bool) -> Offset:
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
        self, begins: dict[str, Begin], backlogs: dict[str, Backlog], limited: bool
    ) -> tuple[dict[str, int], dict[str, Measured]]:
        """Return where the batch ends in each stream, and what was measured to find that out."""
        options = self._options
        if limited and self._waits(backlogs):
            return {stream: begin.sequence for stream, begin in begins.items()}, {}
        if limited and (options.max_bytes or (options.max_messages and options.subjects)):
            measured = self._measure(begins, backlogs)
            return {stream: found.end for stream, found in measured.items()}, measured
        return admit(backlogs, options.max_messages if limited else 0), {}

    def _waits(self, backlogs: dict[str, Backlog]) -> bool:
        """Return whether the batch waits until there is more to read."""
        options = self._options
        if self._targets is not None or not options.min_messages:
            return False
        waited_s = self._clock.monotonic_s() - self._last_batch_s
        return waits_for_more(backlogs, options.min_messages, waited_s, options.max_trigger_delay_s)

    def _keep_unread(self, start: Offset, streams: dict[str, StreamOffset], begins: dict[str, Begin]) -> bool:
        """Keep the positions of streams that are no longer read, with what their last tasks noted as lost.

        Returns whether one of them gave up what was unread.
        """
        changed = False
        for stream in streams.keys() - begins.keys():
            offset = streams[stream]
            noted = self._noted_losses(stream, dict(start.streams)[stream])
            streams[stream] = replace(offset, lost=offset.lost + noted)
            if stream in self._reported and (noted or offset.known_unread):
                # Behind the last known message nothing is unread: whoever goes on from here counts no loss again.
                streams[stream] = streams[stream].given_up
                changed = True
        return changed

    def _backlog(self, begin: Begin) -> Backlog:
        """Return what a stream has to offer, from the first message on that a filter lets through.

        So limits count what will be read, and what a filter does not want may go away without notice.
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
        """Return the first sequence from that one on that the filters want; `end` when there is none before it."""
        found = self._watch.ask(lambda api: first_matching(api, stream, self._options.subjects, sequence))
        return min(found, end) if found is not None else end

    def _measure(self, begins: dict[str, Begin], backlogs: dict[str, Backlog]) -> dict[str, Measured]:
        """Return how far each stream may be read by what is really there; limits are shared by what each stream has.

        Where the login may not look, by sequences and the average size.
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
            try:
                found[stream] = self._watch.ask(lambda api: measure(api, info, options.subjects, whole, *limits))  # noqa: B023
            except (ApiError, PermissionsError, UnsupportedStreamError):
                end = by_average[stream]
                found[stream] = Measured(end, -1, round((end - backlog.first) * backlog.bytes_per_sequence))
        return found

    def _end(self, begin: Begin, backlog: Backlog, end: int, measured: Measured | None) -> StreamOffset:
        """Return the offset of a batch's end; the position before, unchanged, when there is nothing to say."""
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
            count = None if begin.soft else self._count(begin, backlog.first, end, measured)
            batch = BatchRange(backlog.first, size, count, begin.soft, partitions=pinned_partitions(self._options))
        subjects = self._options.subjects if info.config.retention is not RetentionPolicy.LIMITS else None
        owner = self._owners.get(stream, "")
        return StreamOffset(info.created, end, held, seen_of(info), lost, owner, batch, subjects)

    def _count(self, begin: Begin, first: int, end: int, measured: Measured | None) -> int | None:
        """Return how many messages the filters let through in the range; None where that is not known or needed."""
        config, subjects = begin.info.config, self._options.subjects
        if not subjects or config.retention is not RetentionPolicy.LIMITS:
            return None
        if measured is not None and measured.messages >= 0:
            return measured.messages
        counts = self._watch.ask(lambda api: count_matching(api, config.name, subjects, [first, end]))
        return counts[0] if counts is not None else None

    def _noted_losses(self, stream: str, before: StreamOffset) -> int:
        """Return what the tasks of the last batch noted as lost."""
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

        What is lost of the range's beginning does not change the range: its pieces, and with them the rows' places,
        must not depend on when the batch is planned.
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
            self._beginnings.check(info, offset)
        except StreamRecreatedError as error:
            if options.fail_on_data_loss:
                raise
            _log.warning("%s (going on, as the option says)", error)
            if note:
                self._notes.add(f"{note}{whole.first}", len(whole))
            return []
        reader = choose_reader(info.config, self._watch.version, options, len(whole))
        return self._watch.ask(
            lambda api: cut_stream(api, info, whole, options, reader, size_bytes=batch.bytes, planned=offset, note=note)
        )
