"""Where the next batch of a stream begins: behind the last one, unless the stream changed or messages are gone."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from jetlake.errors import DataLossError, StreamRecreatedError
from jetlake.model.stream import StreamInfo
from jetlake.model.times import parse_time
from jetlake.spark.clock import Clock
from jetlake.spark.data_loss import check_same_stream, data_loss_error, lost_at_head, restored_error
from jetlake.spark.offsets import StreamOffset
from jetlake.spark.options import SourceOptions
from jetlake.spark.retention import BATCH_DIRECT_GET
from jetlake.spark.start_points import is_open, start_sequence
from jetlake.spark.stream_watch import StreamWatch

__all__ = ["Begin", "Beginnings"]

_log = logging.getLogger("jetlake.spark")

# Leaders of a cluster have clocks of their own: a message may be that much older than the one before.
_CLOCKS_APART_NS = 2_000_000_000


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
        # Offsets of the checkpoint that were compared with the stream itself, by stream and time of creation.
        self._compared: set[tuple[str, str]] = set()

    def of(self, stream: str, before: StreamOffset | None) -> Begin:
        """Where the batch behind that offset begins.

        Raises:
            DataLossError: messages are gone or the stream is another one, and the options say that this is an error.
        """
        info = self._watch.info(stream)
        if before is None:
            return self._first(info)
        try:
            self.check(info, before)
        except StreamRecreatedError as error:
            self._pass(error)
            if info.created != before.created:
                return Begin(info, max(info.state.first_seq, 1), before.lost, before, soft=True)
            return Begin(info, self._behind_restore(info, before), before.lost, before)
        return self._without_lost(Begin(info, before.next, before.lost, before, continues=True), before)

    def check(self, info: StreamInfo, offset: StreamOffset) -> None:
        """Make sure that the offset speaks of this very stream; the first time with the stream's messages themselves.

        Raises:
            StreamRecreatedError: it was created anew, or restored from an older state.
        """
        check_same_stream(info, offset)
        key = (info.config.name, info.created)
        if key in self._compared:
            return
        newer = self._first_newer(info, offset)
        if newer is not None and offset.seen is not None and newer <= offset.seen[0]:
            raise restored_error(
                info.config.name,
                f"message {newer} is newer than message {offset.seen[0]}, which the checkpoint has seen",
            )
        self._compared.add(key)

    def _first_newer(self, info: StreamInfo, offset: StreamOffset) -> int | None:
        """The first message that was stored after the offset was written; None when there is none, or none to ask."""
        if offset.seen is None or self._watch.version < BATCH_DIRECT_GET:
            return None
        time_ns = parse_time(offset.seen[1]) + _CLOCKS_APART_NS
        message = self._watch.ask(lambda api: api.message_at(info.config.name, time_ns))
        return message.seq if message is not None else None

    def _behind_restore(self, info: StreamInfo, before: StreamOffset) -> int:
        """Where to go on in a stream that was restored: with what was not stored before, and read."""
        newer = self._first_newer(info, before)
        return min(before.next, info.state.last_seq + 1, newer if newer is not None else before.next)

    def _first(self, info: StreamInfo) -> Begin:
        position = self._options.starting.of(info.config.name)
        sequence = self._watch.ask(
            lambda api: start_sequence(api, self._watch.version, info, position, self._clock.wall_ns())
        )
        begin = Begin(info, sequence, soft=is_open(info, position, sequence))
        return begin if begin.soft else self._without_lost(begin, StreamOffset(info.created, sequence))

    def _without_lost(self, begin: Begin, wanted: StreamOffset) -> Begin:
        """The beginning behind what is lost, if that is no error, and behind what is gone without a loss."""
        info = begin.info
        lost = lost_at_head(info, wanted, bool(self._options.subjects))
        if lost:
            self._pass(data_loss_error(info.config.name, wanted.next, wanted.next + lost))
        return replace(begin, sequence=max(wanted.next, info.state.first_seq), lost=begin.lost + lost)

    def _pass(self, error: DataLossError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s (going on, as the option says)", error)
