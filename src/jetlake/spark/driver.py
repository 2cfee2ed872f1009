"""The driver's half of reading: what the server says about the streams, and what of it a batch takes."""

from __future__ import annotations

from jetlake.model.stream import StreamInfo
from jetlake.spark.connection import retrying
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.planning import SequenceRange, cut
from jetlake.spark.stream_api import StreamApi

__all__ = ["Driver"]


class Driver:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def info(self, stream: str) -> StreamInfo:
        return retrying(self._options.connection, lambda c: StreamApi(c).stream_info(stream))

    def batch_partitions(self) -> list[ReadPartition]:
        out = []
        o = self._options
        for stream in o.streams:
            state = self.info(stream).state
            whole = SequenceRange(max(state.first_seq, 1), state.last_seq + 1)
            avg = state.bytes / max(state.messages, 1)
            for piece in cut(
                whole,
                state.bytes,
                messages_per_partition=o.messages_per_partition,
                bytes_per_partition=o.bytes_per_partition,
                min_partitions=o.min_partitions,
                max_partitions=o.max_partitions,
            ):
                out.append(ReadPartition(stream, piece.first, piece.end, o.subjects, "consumer", avg))
        return out
