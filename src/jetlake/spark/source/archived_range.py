"""Which part of a batch read lies in the stream's archive."""

from __future__ import annotations

from jetlake.client.tables.requests.identity import check_not_restored
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ConfigError, StreamRecreatedError, UnsupportedStreamError
from jetlake.model.stream import StreamInfo
from jetlake.spark.lake.lake import Lake
from jetlake.spark.lake.lake_reader import LakeRange
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.filters import Bounds

__all__ = ["archived_range", "check_archive"]


def check_archive(api: StreamApi, stream: str, lake: Lake, options: SourceOptions) -> None:
    """Make sure that the archive's sequences are those of the stream as it is now.

    Raises:
        UnsupportedStreamError: the stream was made again, or restored from an older state.
    """
    try:
        check_not_restored(api, stream, lake.offset)
    except StreamRecreatedError:
        raise UnsupportedStreamError(
            f"stream {stream} was made again or restored from an older state since archive {options.archive} was "
            "written: their sequences mean different messages, so each must be read by itself"
        ) from None


def archived_range(info: StreamInfo, lake: Lake, options: SourceOptions, bounds: Bounds, now_ns: int) -> LakeRange:
    """Return the archived messages that the positions name and the filters let through.

    Raises:
        ConfigError: a position cannot be found in an archive.
    """
    stream, seam = info.config.name, lake.offset.next
    starting, ending = options.starting.of(stream), options.ending.of(stream)
    if (starting.kind == "last" and options.subjects) or ending.kind not in ("latest", "sequence", "time", "ago"):
        raise ConfigError("with option archive, write positions as seq:N or as times; last:N only without subjects")
    first = {
        "sequence": starting.value,
        "last": info.state.last_seq + 1 - starting.value,
        "latest": seam,
    }.get(starting.kind, 0)
    end = min(seam, ending.value + 1) if ending.kind == "sequence" else seam
    since_ns, until_ns = starting.time_ns(now_ns), ending.time_ns(now_ns)
    since = [_down_us(since_ns)] if since_ns is not None else []
    until = [_down_us(until_ns)] if until_ns is not None else []
    since += [bounds.first_us] if bounds.first_us is not None else []
    until += [bounds.end_us] if bounds.end_us is not None else []
    return LakeRange(
        max(first, bounds.first),
        min(end, bounds.end) if bounds.end is not None else end,
        max(since, default=None),
        min(until, default=None),
    )


def _down_us(time_ns: int) -> int:
    """Return the microsecond of that time, as an archive has it of a message that was stored then."""
    return time_ns // 1000
