"""Where the next batch of a stream starts: behind the last one, unless the stream changed or messages are gone.

The checks come in this order: another creation time is another stream; a lower last sequence, or a message that is
newer than the last look without a higher sequence, is a restored stream; only a stream that passed both may have lost
messages at its head. With `failOnDataLoss` each of them stops the query before anything is planned or released.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from jetlake.client.tables.data_loss import (
    check_not_restored,
    check_same_stream,
    data_loss_error,
    first_newer,
    lost_at_head,
)
from jetlake.client.tables.planning import StreamOffset
from jetlake.client.tables.positions import Position
from jetlake.client.tables.ranges import is_open, start_sequence
from jetlake.errors import DataLossError, StreamRecreatedError
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.stream_watch import Clock, StreamWatch

_log = logging.getLogger("jetlake.spark")


@dataclass(frozen=True)
class StartOffset:
    """The start of a stream's next batch.

    Attributes:
        info: the stream.
        sequence: the first sequence of the batch.
        lost: messages that are lost so far.
        before: the offset before; None in a query's first batch of the stream.
        soft: whether the batch starts at the stream's beginning as it is when it is read.
        continues: whether the offset before belongs to this stream, so that its messages may be released.
    """

    info: StreamInfo
    sequence: int
    lost: int = 0
    before: StreamOffset | None = None
    soft: bool = False
    continues: bool = False


class StartOffsets:
    """The start of every batch, found with the server's help through the watch."""

    def __init__(self, options: SourceOptions, watch: StreamWatch, clock: Clock) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        # The offset that each stream was compared with, and the stream's last sequence then.
        self._compared: dict[str, tuple[StreamOffset, int]] = {}

    def of(self, stream: str, before: StreamOffset | None, position: Position | None = None) -> StartOffset:
        """Return where the batch behind that offset starts; without an offset, at the position or the options' one.

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
                return StartOffset(info, max(info.state.first_seq, 1), before.lost, before, soft=True)
            return StartOffset(info, self._behind_restore(info, before), before.lost, before)
        return self._without_lost(StartOffset(info, before.next, before.lost, before, continues=True), before)

    def behind_head(self, begin: StartOffset) -> StartOffset:
        """Return the start behind the stream's head, of a stream whose head moves faster than it can be planned."""
        info, before = self._watch.info(begin.info.config.name), begin.before
        if begin.soft or info.created != begin.info.created:
            return begin
        held = before is not None and before.held and before.next == begin.sequence
        seen = before.seen if before is not None else None
        wanted = StreamOffset(info.created, begin.sequence, held=held, seen=seen)
        return self._without_lost(replace(begin, info=info), wanted)

    def check(self, info: StreamInfo, offset: StreamOffset) -> None:
        """Check that the offset belongs to this very stream; ask for its messages only when it has new ones.

        Raises:
            StreamRecreatedError: the stream was recreated, or restored from an older state.
        """
        check_same_stream(info, offset)
        stream = info.config.name
        looked = (offset, info.state.last_seq)
        if self._compared.get(stream) != looked:
            self._watch.ask(lambda api: check_not_restored(api, stream, offset))
            self._compared[stream] = looked

    def _behind_restore(self, info: StreamInfo, before: StreamOffset) -> int:
        """Return where a restored stream is read on: at the first message that was stored after the restore."""
        newer = self._watch.ask(lambda api: first_newer(api, info.config.name, before.seen))
        return min(before.next, info.state.last_seq + 1, newer if newer is not None else before.next)

    def _first(self, info: StreamInfo, position: Position) -> StartOffset:
        sequence = self._watch.ask(
            lambda api: start_sequence(
                api, self._watch.version, info, position, self._clock.wall_ns(), self._options.subjects
            )
        )
        begin = StartOffset(info, sequence, soft=is_open(info, position, sequence))
        return begin if begin.soft else self._without_lost(begin, StreamOffset(info.created, sequence))

    def _without_lost(self, begin: StartOffset, wanted: StreamOffset) -> StartOffset:
        """Return the start behind the messages that are gone, with the lost ones counted.

        Raises:
            DataLossError: messages are lost, and the options say that this is an error.
        """
        info = begin.info
        lost = lost_at_head(info, wanted, bool(self._options.subjects))
        if lost:
            self._raise_or_log(data_loss_error(info.config.name, wanted.next, wanted.next + lost))
        return replace(begin, sequence=max(wanted.next, info.state.first_seq), lost=begin.lost + lost)

    def _raise_or_log(self, error: DataLossError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s (continuing, as the option says)", error)
