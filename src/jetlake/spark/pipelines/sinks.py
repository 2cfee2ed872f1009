"""Where a pipeline's rows go (console, folder or stream), and the streaming query that brings them there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from jetlake.client.tables.stream_api import StreamApi, ask
from jetlake.errors import ConfigError, NotFoundError
from jetlake.model.stream import StreamConfig
from jetlake.protocol.subjects import is_subset
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import FolderSink
from jetlake.spark.pipelines.lake_lock import claim_checkpoint, claim_folder, locked
from jetlake.spark.pipelines.runner import Run

DUPLICATE_WINDOW_S = 3600.0
"""How long a stream that a pipeline makes for itself knows message ids again."""
BAD_ROW = "Bad-Row-"
"""What the headers begin with that a bad row gets besides its own."""


def is_own_header(key: str, prefix: str) -> str:
    """Return in SQL whether a message keeps a header when it is published again with headers of that prefix.

    Headers that instruct a server are about the publish that they came with: a time to live would
    be refused, or delete the message once more, and a roll-up would purge the messages before it.
    """
    return f"not (startswith({key}, '{prefix}') or startswith({key}, 'Nats-'))"


def refused_messages(frame: DataFrame) -> DataFrame:
    """Return messages whose payloads do not fit as rows for a stream, with headers that say which they are and why.

    Args:
        frame: has the columns `stream`, `sequence`, `subject`, `headers`, `data` and `reason`.
    """
    values = {"Stream": "stream", "Sequence": "cast(sequence as string)", "Subject": "subject", "Reason": "reason"}
    # A line break would end the header.
    pairs = ", ".join(
        f"struct('{BAD_ROW}{name}' as key, array(translate({value}, '\\r\\n', '  ')) as value)"
        for name, value in values.items()
    )
    own = f"filter(map_entries(headers), pair -> {is_own_header('pair.key', BAD_ROW)})"
    return frame.selectExpr("stream", f"map_from_entries(concat({own}, array({pairs}))) as headers", "data")


def folder_owner(owner: str, folder_id: str) -> str:
    """Return whose the checkpoint of a query is that writes to a folder."""
    return f"{owner} {folder_id}"


def stream_owner(owner: str, target: Target) -> str:
    """Return whose the checkpoint of a query is that writes to a stream."""
    return f"{owner} to {target}"


def start_folder(
    run: Run,
    frame: DataFrame,
    target: Target,
    *,
    name: str,
    owner: str,
    checkpoint: str,
    mode: str = "append",
    partition_by: Sequence[str] = (),
) -> StreamingQuery:
    """Add every batch to the folder once; in mode `complete` the folder always holds the latest result.

    Args:
        owner: whose folder and checkpoint these are, for as long as they exist.

    Raises:
        ConfigError: the folder or the checkpoint has another owner.
    """
    run.folders += [target.value, checkpoint]
    sink = FolderSink(run.spark, target.value, target.kind, partition_by)
    lock = run.closing.enter_context(locked(sink.files, name))
    folder_id = claim_folder(sink.files, owner)
    claim_checkpoint(FileSystem(run.spark, checkpoint), folder_owner(owner, folder_id))

    def add(batch_frame: DataFrame, batch: int) -> None:
        lock.require()
        kept = batch_frame.persist()
        try:
            # All of it is computed in any case, for windows and sums are kept with the batch; a folder that has the
            # batch already does not ask for it. Results are small, and a batch that only closes windows brings none:
            # no file for nothing.
            rows = kept.count()
            if mode == "complete":
                sink.replace_all(kept.coalesce(1), batch)
            elif rows or sink.has_begun(batch):
                sink.add(kept.coalesce(1), batch)
        finally:
            kept.unpersist()

    return run.settings.triggered(frame, name, checkpoint).outputMode(mode).foreachBatch(add).start()


def start_stream(
    run: Run,
    frame: DataFrame,
    target: Target,
    *,
    name: str,
    owner: str,
    checkpoint: str,
    mode: str = "append",
    **options: str,
) -> StreamingQuery:
    """Publish every row of every batch once.

    Raises:
        ConfigError: the checkpoint is not this owner's.
    """
    run.folders.append(checkpoint)
    claim_checkpoint(FileSystem(run.spark, checkpoint), stream_owner(owner, target))
    writer = run.settings.triggered(frame, name, checkpoint).outputMode(mode)
    sink = {**run.settings.connection, "stream": target.value, **options}
    if mode != "update":
        return writer.format("jetstream").options(**sink).start()
    # Spark lets Python sinks append only. Publishing what changed is appending too, in a batch write of its own with
    # the ids and the ledger that a streaming write would have.

    def publish(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or checkpoint
        rows.write.format("jetstream").options(**sink, runId=f"{query}/{batch}").mode("append").save()

    return writer.foreachBatch(publish).start()


def ensure_stream(options: ConnectionOptions, name: str, subject: str) -> str:
    """Make sure that the stream exists and takes that subject; one that is missing is made for `<name>.>`.

    Returns:
        The created stream, for people to read; empty when none was created.

    Raises:
        ConfigError: the stream exists and takes other subjects.
    """

    def ensure(api: StreamApi) -> str:
        try:
            config = api.stream_info(name).config
        except NotFoundError:
            own = StreamConfig.of(name, subjects=[f"{name}.>"], allow_direct=True, duplicate_window=DUPLICATE_WINDOW_S)
            if is_subset(subject.encode(), f"{name}.>".encode()):
                api.create_stream(own)
                return f"stream {name} was created for {name}.>"
            raise ConfigError(
                f"stream {name} does not exist: create it for {subject}, or publish to {name}.… and it is created "
                "for you"
            ) from None
        if not any(is_subset(subject.encode(), pattern.encode()) for pattern in config.subjects):
            raise ConfigError(
                f"stream {name} does not capture {subject}; it captures {', '.join(config.subjects)}: choose one of "
                "these with --subject"
            )
        return ""

    return ask(options, ensure)


_KINDS = ("console", "stream", "parquet", "orc", "json")
_FORMS = "console, stream:NAME, parquet:DIR, orc:DIR or json:DIR"
_STREAM = re.compile(r"[^\s.*>/\\]+")


@dataclass(frozen=True)
class Target:
    """One place: a stream's name, or a folder's path; neither for the console."""

    kind: Literal["console", "stream", "parquet", "orc", "json"]
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind

    @property
    def is_folder(self) -> bool:
        """Whether rows become files."""
        return self.kind not in ("console", "stream")


def parse_target(text: str, *, plain: Literal["stream", "parquet"] | None = None) -> Target:
    """Read `console`, `stream:NAME` or `parquet:DIR`.

    Args:
        plain: what a name without a kind is; a path with a slash is always a folder of Parquet.

    Raises:
        ConfigError: it is none of them.
    """
    kind, found, value = text.strip().partition(":")
    if not found and kind == "console":
        return Target("console")
    if found and kind in _KINDS[1:] and value and not value.startswith("//"):
        if kind == "stream" and not _STREAM.fullmatch(value):
            raise ConfigError(f"{value!r} is not a valid stream name: it contains a blank, dot, wildcard or slash")
        return Target(kind, value)  # type: ignore[arg-type]
    if "/" in text:
        return Target("parquet", text.strip())
    if plain == "stream" and not found and _STREAM.fullmatch(kind):
        return Target("stream", kind)
    raise ConfigError(f"{text!r} is not a target: write {_FORMS}")
