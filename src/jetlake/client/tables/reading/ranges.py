"""The range of sequences that a start and an end mean in a stream as it is now."""

from __future__ import annotations

import logging

from jetlake.client.tables.options.positions import Position
from jetlake.client.tables.plan.data_loss import data_loss_error, lost_at_head
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.plan.reader_choice import Version
from jetlake.client.tables.reading.start_points import end_sequence, is_open, start_sequence
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.model.stream import StreamInfo

__all__ = ["check_head", "position_range"]

_log = logging.getLogger("jetlake.tables")


def position_range(
    api: StreamApi,
    version: Version,
    info: StreamInfo,
    start: Position,
    end: Position,
    now_ns: int,
    subjects: tuple[str, ...],
) -> tuple[SequenceRange, bool]:
    """Give the sequences from one position to another, and whether they begin with whatever the stream begins with."""
    first = start_sequence(api, version, info, start, now_ns, subjects)
    last = end_sequence(api, version, info, end, now_ns, subjects)
    return SequenceRange(first, last), is_open(info, start, first)


def check_head(info: StreamInfo, first: int, subjects: tuple[str, ...], *, fail: bool) -> None:
    """Look whether messages from that sequence on went away before they were read.

    Raises:
        DataLossError: they did, and that is an error.
    """
    lost = lost_at_head(info, StreamOffset(info.created, first), bool(subjects))
    if lost:
        error = data_loss_error(info.config.name, first, first + lost)
        if fail:
            raise error
        _log.warning("%s (going on, as the option says)", error)
