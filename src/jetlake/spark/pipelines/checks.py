"""What can be said of a pipeline's streams and options before Spark starts, which takes its time."""

from __future__ import annotations

from collections.abc import Mapping

from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import ConfigError, NotFoundError
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.options.source_options import SourceOptions

__all__ = ["check_source", "require_stream"]


def require_stream(options: ConnectionOptions, name: str, advice: str = "see what there is: jetlake stream ls") -> None:
    """Make sure that there is such a stream.

    Raises:
        ConfigError: there is none; the text ends with the advice.
    """
    try:
        retrying(options, lambda link: StreamApi.through(link, options).stream_info(name))
    except NotFoundError:
        raise ConfigError(f"there is no stream {name} at {', '.join(options.servers)}: {advice}") from None


def check_source(options: Mapping[str, str]) -> None:
    """Make sure that a read has usable options and streams that exist.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    source = SourceOptions.of(options)
    for stream in source.streams:
        require_stream(source.connection, stream)
