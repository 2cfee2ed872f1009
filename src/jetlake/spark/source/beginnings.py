"""Where the next batch of a stream begins: behind the last one, unless the stream changed or messages are gone."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from jetlake.client.tables.options.positions import Position
from jetlake.client.tables.plan.data_loss import check_same_stream, data_loss_error, lost_at_head
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.reading.start_points import is_open, start_sequence
from jetlake.client.tables.requests.identity import check_not_restored, first_newer
from jetlake.errors import DataLossError, StreamRecreatedError
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.clock import Clock
from jetlake.spark.source.stream_watch import StreamWatch

__all__ = ["Begin", "Beginnings"]

_log = logging.getLogger("jetlake.spark")


@dataclass(frozen=True)
class Begin:
    """Where the next batch of a stream begins.

    Attributes:
        info: the stream.
        sequence: the first sequence of the batch.
        lost: messages that are lost so far.
        before: the offset before; None in a query's first batch of the stream.
        soft: whether the batch begins at the stream's beginning as it is when it is read.
        continues: whether the offset before speaks of this stream, so that what it has read may be released.
    """

    info: StreamInfo
    sequence: int
    lost: int = 0
    before: StreamOffset | None = None
    soft: bool = False
    continues: bool = False


class Beginnings:
    """Finds out where batches begin; asks the server through the watch."""

    def __init__(self, options: SourceOptions, watch: StreamWatch, clock: Clock) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        # With which offset each stream was compared, and where it ended then.
        self._compared: dict[str, tuple[StreamOffset, int]] = {}

    def of(self, stream: str, before: StreamOffset | None, position: Position | None = None) -> Begin:
        """Return where the batch behind that offset begins; without an offset, at the position, or the options' one.

        Raises:
            DataLossError: messages are gone or the stream is another one, and the options say that this is an error.
        """
        info = self._watch.info(stream)
        if before is None:
            return self._first(info, position or self._options.starting.of(stream))
        try:
            self.check(info, before)
        except StreamRecreatedError as error:
            self._raise_or_log(error)
            if info.created != before.created:
                return Begin(info, max(info.state.first_seq, 1), before.lost, before, soft=True)
            return Begin(info, self._behind_restore(info, before), before.lost, before)
        return self._without_lost(Begin(info, before.next, before.lost, before, continues=True), before)

    def behind_head(self, begin: Begin) -> Begin:
        """Return the beginning once more, in a stream whose head moves faster than one can ask."""
        info, before = self._watch.info(begin.info.config.name), begin.before
        if begin.soft or info.created != begin.info.created:
            return begin
        held = before is not None and before.held and before.next == begin.sequence
        seen = before.seen if before is not None else None
        wanted = StreamOffset(info.created, begin.sequence, held=held, seen=seen)
        return self._without_lost(replace(begin, info=info), wanted)

    def check(self, info: StreamInfo, offset: StreamOffset) -> None:
        """Make sure that the offset speaks of this very stream; when there is something new, by its messages.

        Raises:
            StreamRecreatedError: it was created anew, or restored from an older state.
        """
        check_same_stream(info, offset)
        stream = info.config.name
        looked = (offset, info.state.last_seq)
        if self._compared.get(stream) != looked:
            self._watch.ask(lambda api: check_not_restored(api, stream, offset))
            self._compared[stream] = looked

    def _behind_restore(self, info: StreamInfo, before: StreamOffset) -> int:
        """Return where to go on in a stream that was restored: with what was not stored before, and read."""
        newer = self._watch.ask(lambda api: first_newer(api, info.config.name, before.seen))
        return min(before.next, info.state.last_seq + 1, newer if newer is not None else before.next)

    def _first(self, info: StreamInfo, position: Position) -> Begin:
        sequence = self._watch.ask(
            lambda api: start_sequence(
                api, self._watch.version, info, position, self._clock.wall_ns(), self._options.subjects
            )
        )
        begin = Begin(info, sequence, soft=is_open(info, position, sequence))
        return begin if begin.soft else self._without_lost(begin, StreamOffset(info.created, sequence))

    def _without_lost(self, begin: Begin, wanted: StreamOffset) -> Begin:
        """Return the beginning behind what is lost, if that is no error, and behind what is gone without a loss."""
        info = begin.info
        lost = lost_at_head(info, wanted, bool(self._options.subjects))
        if lost:
            self._raise_or_log(data_loss_error(info.config.name, wanted.next, wanted.next + lost))
        return replace(begin, sequence=max(wanted.next, info.state.first_seq), lost=begin.lost + lost)

    def _raise_or_log(self, error: DataLossError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s (going on, as the option says)", error)
