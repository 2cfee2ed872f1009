"""The driver's half of a streaming read: what each micro-batch takes, and what a finished one releases.

Spark calls `latest_offset` with the end of the last batch only after that batch is in its commit log; so this call is
where the messages of finished batches are released, and where the next batch is planned.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jetlake.errors import DataLossError, StreamRecreatedError, UnsupportedStreamError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.clock import Clock
from jetlake.spark.data_loss import check_same_stream, data_loss_error, lost_below
from jetlake.spark.durable import claim, consumer_name, ensure_durable
from jetlake.spark.offsets import Offset, StreamOffset
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.planning import Backlog, SequenceRange, admit, cut, waits_for_more
from jetlake.spark.release import release
from jetlake.spark.retention import choose_reader, choose_release
from jetlake.spark.start_points import start_sequence
from jetlake.spark.stream_watch import StreamWatch

__all__ = ["Driver"]

_log = logging.getLogger("jetlake.spark")

_REAL_CLOCK = Clock()


@dataclass(frozen=True)
class _Begin:
    """Where the next batch of a stream begins."""

    info: StreamInfo
    sequence: int
    lost: int
    owner: str
    before: StreamOffset | None

    @property
    def has_moved(self) -> bool:
        """Whether the batch does not simply follow the one before."""
        return self.before is None or self.before.created != self.info.created or self.before.next != self.sequence


class Driver:
    """Plans the micro-batches of one query over all its streams."""

    def __init__(self, options: SourceOptions, clock: Clock = _REAL_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._watch = StreamWatch(options, clock)
        self._targets: dict[str, int] | None = None
        self._release_by: dict[str, str] = {}
        self._released: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._claimed: set[str] = set()
        self._last_batch_s = clock.monotonic_s()

    def stop_at_present_end(self) -> None:
        """Take nothing that is stored after this call."""
        self._targets = {
            stream: self._watch.info(stream, fresh=True).state.last_seq + 1 for stream in self._options.streams
        }

    def latest_offset(self, start: Offset, *, limited: bool = True) -> Offset:
        """Release what the batches up to `start` held, and say where the next batch ends.

        Returns `start` when there is nothing to read.

        Raises:
            DataLossError: messages are gone that were not read, and the options say that this is an error.
            UnsupportedStreamError: a stream cannot be read with these options.
        """
        for stream in self._options.streams:
            self._prepare(stream, start.of(stream))
        end = self._plan(start, limited)
        if end == start and self._targets is None:
            # Spark would ask again within milliseconds; to wait here until the server may have news spares both.
            self._watch.wait_for_poll()
            end = self._plan(start, limited)
        if end != start:
            self._last_batch_s = self._clock.monotonic_s()
        return end

    def present_end(self) -> Offset:
        """Where the streams end now; what lies between the query's offset and this is its lag."""
        infos = [self._watch.info(stream) for stream in self._options.streams]
        return Offset(tuple((info.config.name, StreamOffset(info.created, info.state.last_seq + 1)) for info in infos))

    def partitions(self, start: Offset, end: Offset) -> list[ReadPartition]:
        """The tasks of the batch between two offsets: the same for the same offsets, however often it is planned."""
        partitions: list[ReadPartition] = []
        for stream, offset in end.streams:
            if stream not in self._options.streams:
                raise UnsupportedStreamError(
                    f"the batch to repeat reads stream {stream}, which option stream no longer names: name it until "
                    "the batch is done"
                )
            if offset.owner:
                self._claim(stream, offset.owner)
            whole = SequenceRange(offset.start_of(start.of(stream)), offset.next)
            if len(whole) > 0:
                info = self._watch.info(stream)
                if self._check_present(info, offset, whole):
                    reader = choose_reader(info.config, self._watch.version, self._options, len(whole))
                    partitions += cut_stream(info, whole, offset.bytes, self._options, reader)
        return partitions

    # Each batch, stream by stream

    def _prepare(self, stream: str, before: StreamOffset | None) -> None:
        """Make sure of the durable consumer, once, and release what the batches so far held."""
        how = self._release_by.get(stream)
        if how is None:
            how = self._release_by[stream] = self._hold(stream, before)
        if how != "none" and before is not None and self._released.get(stream, 0) < before.next:
            self._watch.ask(lambda api: release(api, how, stream, self._options, before.next))
            self._released[stream] = before.next

    def _hold(self, stream: str, before: StreamOffset | None) -> str:
        """Check that the stream can be read, take its durable consumer where it needs one, say how to release."""
        options = self._options
        info = self._watch.info(stream)
        how = choose_release(info.config, self._watch.version, options)
        choose_reader(info.config, self._watch.version, options, sequences=1)
        if how == "none":
            return how
        owner = self._owners[stream] = (before.owner if before is not None else "") or next_nuid()
        existed = self._watch.ask(lambda api: ensure_durable(api, stream, options, owner))
        if before is None:
            if how == "purge" and options.starting.of(stream).kind != "earliest":
                raise UnsupportedStreamError(
                    f"work queue {stream} can only be read from its beginning, because finished batches are removed up "
                    "to their end: leave option startingPosition at earliest"
                )
        elif not existed and how == "reset":
            message = (
                f"consumer {consumer_name(options, stream)} of interest stream {stream} was deleted while the query "
                "did not run, so messages published since then may not have been kept"
            )
            if options.fail_on_data_loss:
                raise DataLossError(f"{message}. To go on without them set option failOnDataLoss=false")
            _log.warning("%s; going on", message)
        return how

    def _claim(self, stream: str, owner: str) -> None:
        """Write the owner into the durable consumer: now that it is in Spark's log, a restart will know it."""
        if stream not in self._claimed:
            self._watch.ask(lambda api: claim(api, stream, self._options, owner))
            self._claimed.add(stream)

    def _plan(self, start: Offset, limited: bool) -> Offset:
        options = self._options
        begins = {stream: self._begin(stream, start.of(stream)) for stream in options.streams}
        backlogs = {stream: self._backlog(begin) for stream, begin in begins.items()}
        waits = False
        if limited and self._targets is None and options.min_messages:
            waited_s = self._clock.monotonic_s() - self._last_batch_s
            waits = waits_for_more(backlogs, options.min_messages, waited_s, options.max_trigger_delay_s)
        if waits:
            ends = {stream: begin.sequence for stream, begin in begins.items()}
        elif limited and (options.max_messages or options.max_bytes):
            backlogs = {stream: self._behind_gap(stream, backlog) for stream, backlog in backlogs.items()}
            ends = admit(backlogs, options.max_messages, options.max_bytes)
        else:
            ends = admit(backlogs)
        return Offset(
            tuple((stream, _end_offset(begin, ends[stream], backlogs[stream])) for stream, begin in begins.items())
        )

    def _begin(self, stream: str, before: StreamOffset | None) -> _Begin:
        info = self._watch.info(stream)
        owner = self._owners.get(stream, "")
        if before is None:
            position = self._options.starting.of(stream)
            sequence = self._watch.ask(
                lambda api: start_sequence(api, self._watch.version, info, position, self._clock.wall_ns())
            )
            lost = lost_below(info.config, info.state.first_seq, sequence, bool(self._options.subjects))
            return self._without_lost(info, sequence, lost, 0, owner, None)
        try:
            check_same_stream(info, before)
        except StreamRecreatedError as error:
            if self._options.fail_on_data_loss:
                raise
            _log.warning("%s (going on, as the option says)", error)
            is_new = info.created != before.created
            sequence = max(info.state.first_seq, 1) if is_new else info.state.last_seq + 1
            return _Begin(info, sequence, before.lost, owner, before)
        lost = lost_below(info.config, info.state.first_seq, before.next, bool(self._options.subjects))
        return self._without_lost(info, before.next, lost, before.lost, owner, before)

    def _without_lost(
        self, info: StreamInfo, sequence: int, lost: int, lost_before: int, owner: str, before: StreamOffset | None
    ) -> _Begin:
        """The beginning behind what is lost, if that is no error."""
        if lost:
            error = data_loss_error(info.config.name, sequence, sequence + lost)
            if self._options.fail_on_data_loss:
                raise error
            _log.warning("%s (going on, as the option says)", error)
        return _Begin(info, sequence + lost, lost_before + lost, owner, before)

    def _backlog(self, begin: _Begin) -> Backlog:
        state = begin.info.state
        end = state.last_seq + 1
        if self._targets is not None:
            end = min(end, self._targets[begin.info.config.name])
        span = state.last_seq + 1 - state.first_seq
        return Backlog(begin.sequence, max(end, begin.sequence), state.bytes / span if span > 0 else 0.0)

    def _behind_gap(self, stream: str, backlog: Backlog) -> Backlog:
        """The backlog from its first message on that a filter lets through, so that limits count what will be read.

        Without this a query that reads one subject in a thousand would need a thousand batches for one message.
        """
        subjects = self._options.subjects
        if not subjects or backlog.sequences <= (self._options.max_messages or 1):
            return backlog
        found = [
            self._watch.ask(lambda api, subject=subject: api.next_message(stream, backlog.first, subject))  # type: ignore[misc]
            for subject in subjects
        ]
        first = min((message.seq for message in found if message is not None), default=backlog.end)
        return Backlog(min(first, backlog.end), backlog.end, backlog.bytes_per_sequence)

    # Each batch's tasks

    def _check_present(self, info: StreamInfo, offset: StreamOffset, whole: SequenceRange) -> bool:
        """Whether the range can still be read: a batch may be repeated long after it was planned.

        What is lost of its beginning does not change the range: its pieces, and with them the rows' places, must not
        depend on when the batch is planned.
        """
        lost = lost_below(info.config, info.state.first_seq, whole.first, bool(self._options.subjects))
        try:
            check_same_stream(info, offset)
            if lost:
                raise data_loss_error(info.config.name, whole.first, min(whole.first + lost, whole.end))
        except DataLossError as error:
            if self._options.fail_on_data_loss:
                raise
            _log.warning("%s (going on, as the option says)", error)
            return not isinstance(error, StreamRecreatedError)
        return True


def _end_offset(begin: _Begin, end: int, backlog: Backlog) -> StreamOffset:
    """The offset of a batch's end; the one before, unchanged, when the batch would be empty."""
    if not begin.has_moved and end <= begin.sequence and begin.before is not None:
        return begin.before
    return StreamOffset(
        created=begin.info.created,
        next=end,
        first=begin.sequence if begin.has_moved else None,
        bytes=round((end - begin.sequence) * backlog.bytes_per_sequence),
        lost=begin.lost,
        owner=begin.owner,
    )


def cut_stream(
    info: StreamInfo, whole: SequenceRange, size_bytes: float, options: SourceOptions, reader: str
) -> list[ReadPartition]:
    """One stream's range as tasks."""
    pieces = cut(
        whole,
        size_bytes,
        messages_per_partition=options.messages_per_partition,
        bytes_per_partition=options.bytes_per_partition,
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
    )
    state = info.state
    return [
        ReadPartition(
            stream=info.config.name,
            first=piece.first,
            end=piece.end,
            subjects=options.subjects,
            reader=reader,
            bytes_per_message=state.bytes / state.messages if state.messages else 0.0,
            guards_beginning=info.config.retention is RetentionPolicy.LIMITS or not options.subjects,
        )
        for piece in pieces
    ]
