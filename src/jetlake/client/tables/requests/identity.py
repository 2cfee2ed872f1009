"""Whether a stream is still the one that was planned with, by its own messages."""

from __future__ import annotations

from jetlake.client.tables.plan.data_loss import check_same_stream, restored_error
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ApiError
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamInfo

__all__ = ["check_not_restored", "first_newer"]

# Leaders of a cluster have clocks of their own: a message may be that much older than the one before.
_CLOCKS_APART_NS = 2_000_000_000


def first_newer(api: StreamApi, stream: str, seen: tuple[int, str] | None) -> int | None:
    """Return the first message that was stored after the stream was seen; None when there is none, or none to ask.

    Servers before 2.11 cannot be asked by time.
    """
    if seen is None:
        return None
    try:
        message = api.message_at(stream, parse_time(seen[1]) + _CLOCKS_APART_NS)
    except ApiError:
        return None
    return message.seq if message is not None else None


def check_not_restored(api: StreamApi, stream: str, offset: StreamOffset) -> StreamInfo:
    """Make sure that the offset speaks of this very stream; returns it as it is in this moment.

    Raises:
        StreamRecreatedError: it was created anew, or restored from an older state.
    """
    newer = first_newer(api, stream, offset.seen)
    info = api.stream_info(stream)
    check_same_stream(info, offset)
    if newer is not None and offset.seen is not None and newer <= offset.seen[0]:
        raise restored_error(stream, f"message {newer} is newer than the look that saw message {offset.seen[0]}")
    return info
