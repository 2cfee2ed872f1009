"""What a pull consumer has right now, in one request."""

from __future__ import annotations

from jetlake.client.tables.columns.frame_split import split_frames
from jetlake.client.tables.columns.message_columns import MessageColumns, columns_of_deliveries, statuses_of
from jetlake.client.tables.columns.read_buffer import ReadBuffer
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import PullStatusError
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.requests import PullRequest

__all__ = ["pull_now"]


def pull_now(api: StreamApi, stream: str, consumer: str, wanted: int, expires_s: float = 0.0) -> list[MessageColumns]:
    """Up to so many messages, which the consumer counts as delivered from now on, in the order of their delivery.

    Args:
        expires_s: how long the server may hold the request; a consumer that waits for acknowledgements would hold it
            for ever, and say nothing. 0 for a consumer that waits for none.

    Raises:
        PullStatusError: the consumer is gone, or does not allow such a request.
    """
    connection = api.connection
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    request = PullRequest(batch=wanted, no_wait=True, expires=nanoseconds(expires_s))
    connection.publish(api.subject("CONSUMER.MSG.NEXT", stream, consumer), encode(request), reply=inbox)
    buffer = ReadBuffer()
    found: list[MessageColumns] = []
    count = 0
    ended = False
    while count < wanted and not ended:
        buffer.receive(connection, api.timeout_s)
        split = split_frames(buffer.data, buffer.fill)
        for line in split.lines:
            connection.handle_line(line)
        if len(split):
            messages, statuses = columns_of_deliveries(buffer.data, split, stream, consumer)
            if len(messages):
                found.append(messages)
                count += len(messages)
            for status in statuses_of(buffer.data, statuses):
                if status.status not in (404, 408):
                    raise PullStatusError(status.status or 0, status.description)
                ended = True
        buffer.discard(split.consumed)
    connection.unsubscribe(sid)
    buffer.settle(connection)
    return found
