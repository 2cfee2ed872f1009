"""Gives the messages of finished batches back to a work queue or interest stream."""

from __future__ import annotations

from jetlake.errors import ApiError, PermissionsError, UnsupportedStreamError
from jetlake.spark.durable import consumer_name
from jetlake.spark.options import SourceOptions
from jetlake.spark.stream_api import StreamApi

__all__ = ["release"]


def release(api: StreamApi, how: str, stream: str, options: SourceOptions, below: int) -> None:
    """Let go of what lies below that sequence: `purge` removes it, `reset` says that this consumer is done with it.

    Raises:
        UnsupportedStreamError: the server or the login does not allow it.
    """
    try:
        if how == "purge":
            for subject in options.subjects or ("",):
                api.purge(stream, below, subject)
        elif how == "reset":
            # A reset of a consumer that is not there is never answered; asking first tells it from a slow server.
            api.consumer_info(stream, consumer_name(options, stream))
            api.reset_consumer(stream, consumer_name(options, stream), below)
    except (ApiError, PermissionsError) as error:
        raise UnsupportedStreamError(
            f"stream {stream} did not release the messages of a finished batch ({how}: {error}). They are still there "
            "and will be released when the query runs again with the permission to do so; or use option "
            "guarantee=atLeastOnce"
        ) from error
