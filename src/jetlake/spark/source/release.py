"""Gives the messages of finished batches back to a work queue or interest stream, and to no other stream.

The reasons are in decision 17 (docs/decisions).
"""

from __future__ import annotations

from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.requests.identity import check_not_restored
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ApiError, PermissionsError, StreamNotFoundError, StreamRecreatedError, UnsupportedStreamError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.durable import consumer_name

__all__ = ["release"]


def release(api: StreamApi, how: str, stream: str, options: SourceOptions, offset: StreamOffset) -> None:
    """Let go of what the offset has read: `purge` removes it, `reset` says that this consumer is done with it.

    The stream's identity is asked for in the moment before, and the query's durable consumer with it, which a stream
    that was created anew does not have. The server takes no condition with a purge; so identity is asked for once
    more in the moment after, and a stream that was replaced between the two is not passed over in silence.

    Raises:
        StreamRecreatedError: it is another stream; nothing was released.
        UnsupportedStreamError: the server or the login does not allow it.
    """
    name = consumer_name(options, stream)
    try:
        # A reset of a consumer that is not there is never answered; asking first tells it from a slow server.
        api.consumer_info(stream, name)
        if how == "reset":
            check_not_restored(api, stream, offset)
            api.reset_consumer(stream, name, offset.next)
            return
        removed = 0
        for subject in options.subjects or ("",):
            check_not_restored(api, stream, offset)
            removed += api.purge(stream, offset.next, subject)
        if api.stream_info(stream).created != offset.created:
            raise StreamRecreatedError(
                f"stream {stream} was deleted and created again in the very moment in which a finished batch was "
                f"released: up to {removed} messages of the new stream may have been removed unread"
            )
    except (StreamNotFoundError, PermissionsError, ApiError) as error:
        raise UnsupportedStreamError(
            f"stream {stream} did not release the messages of a finished batch ({how}: {error}). They are still there "
            "and will be released when the query runs again with the permission to do so; or use option "
            "guarantee=atLeastOnce"
        ) from error
