"""The settings of all pipelines: server, checkpoint, when to stop; and what can be checked before Spark starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetlake import platform
from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError, NotFoundError
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.options.source_options import SourceOptions


@dataclass(frozen=True)
class PipelineSettings:
    """How a pipeline runs, apart from what it does.

    Attributes:
        connection: the options of `format("jetstream")` that say how to reach the server.
        checkpoint: the folder of the pipeline's checkpoint; empty for the pipeline's own choice.
        follow: continue with new messages, instead of ending when all present ones are processed.
        every_s: time from one batch to the next while following.
        batch_messages: most messages of one batch.
        source: further options of the source, such as `failOnDataLoss`.
    """

    connection: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str = ""
    follow: bool = False
    every_s: float = 1.0
    batch_messages: int = 500_000
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every_s < 0:
            raise ConfigError(f"the time between batches can't be negative: {self.every_s} s")
        if self.batch_messages < 1:
            raise ConfigError(f"a batch must have at least one message, not {self.batch_messages}")

    @property
    def connection_options(self) -> ConnectionOptions:
        """The connection, checked."""
        return ConnectionOptions.of(self.connection)

    def source_options(self, **more: Any) -> dict[str, str]:
        """Return the options of a streaming read; None and empty ones are left out."""
        own = {key: str(value) for key, value in more.items() if value not in (None, "", ())}
        return {**self.connection, "maxMessagesPerTrigger": str(self.batch_messages), **self.source, **own}

    def triggered(self, frame: DataFrame, name: str, checkpoint: str) -> DataStreamWriter:
        """Return the beginning of a streaming write with name, checkpoint and trigger."""
        writer = frame.writeStream.queryName(name).option("checkpointLocation", checkpoint)
        if self.follow:
            return writer.trigger(processingTime=f"{round(self.every_s * 1000)} milliseconds")
        return writer.trigger(availableNow=True)


def default_checkpoint(kind: str, *parts: str) -> str:
    """Return a folder of the user's own for a pipeline that writes to no folder; the same one for the same parts."""
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
    words = "-".join([kind, *(part for part in parts[:1] if part.isidentifier()), digest])
    return str(platform.user_folder("XDG_STATE_HOME", ".local", "state") / "jetlake" / "checkpoints" / words)


def require_stream(options: ConnectionOptions, name: str, advice: str = "see what there is: jetlake stream ls") -> None:
    """Make sure that there is such a stream.

    Raises:
        ConfigError: there is none; the text ends with the advice.
    """
    try:
        ask(options, lambda api: api.stream_info(name))
    except NotFoundError:
        raise ConfigError(f"stream {name} does not exist at {', '.join(options.servers)}: {advice}") from None


def check_source(options: Mapping[str, str]) -> None:
    """Make sure that a read has usable options and streams that exist.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    source = SourceOptions.of(options)
    for stream in source.streams:
        require_stream(source.connection, stream)
