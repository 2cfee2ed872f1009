"""The archive: a stream as files in folders, every message once, with everything that a replay needs.

An archive's checkpoint says where each batch ends, and its own record says how many messages it should hold. A batch is
checked to continue the stream of the batch before, added to the folder or table, and then added to the record; each of
the three may be repeated after a crash. `read_archive` reads these files, and files of others that have the columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from jetlake.client.tables.archived import NOTES, REJECTS
from jetlake.client.tables.option_values import names_text
from jetlake.client.tables.planning import StreamOffset
from jetlake.client.tables.spark_offsets import logged_offset
from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError, SparkError
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.iceberg import Policy
from jetlake.spark.pipelines.delta_sink import DeltaSink, check_delta_path, compact_delta, read_delta
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import FORMATS, Compacted, FolderSink, compact, finish_compaction, noted_rows
from jetlake.spark.pipelines.iceberg_sink import IcebergSink, read_iceberg
from jetlake.spark.pipelines.lake_lock import LakeLock, claim_checkpoint, claim_folder, locked
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings, check_source
from jetlake.spark.pipelines.sinks import ensure_stream, refused_messages
from jetlake.spark.pipelines.table_sink import TableSink
from jetlake.spark.pipelines.typed_payload import TypedPayload, check_growth, inferred_ddl, payload_facts
from jetlake.spark.pipelines.utc import utc_date, utc_hour

ARCHIVE_COLUMNS = (
    "stream string, sequence bigint, subject string, timestamp timestamp, headers map<string,array<string>>, "
    "data binary"
)
"""The columns of every archive, without the columns of its folders."""
RAW_HEADERS = "headers_raw binary"
"""The column that an archive has when the headers' own bytes were asked for."""
ARCHIVE_FORMATS = (*FORMATS, "delta", "iceberg")
_REPLACEMENT = "\ufffd"
_DESCRIPTION = f"{NOTES}/archive.json"
_REFUSED = "count_if(bad_reason is not null)"


@dataclass(frozen=True)
class Partitioning:
    """The columns that become folders, in their order.

    Attributes:
        subject_tokens: how many tokens of the subject make column `subject_root`; never all of them by default, for
            every value becomes a folder.
    """

    columns: tuple[str, ...] = ("date", "subject_root")
    subject_tokens: int = 1

    def __str__(self) -> str:
        words = [f"subject:{self.subject_tokens}" if name == "subject_root" else name for name in self.columns]
        return ",".join(words) or "none"

    def added_to(self, frame: DataFrame) -> DataFrame:
        """Return the messages with these columns."""
        for name in self.columns:
            frame = frame.withColumn(name, sql.expr(self.expression(name)))
        return frame

    def expression(self, column: str) -> str:
        """Return the column in SQL."""
        return {
            "date": utc_date("timestamp"),
            "hour": utc_hour("timestamp"),
            "subject_root": folder_text(f"substring_index(subject, '.', {self.subject_tokens})"),
        }[column]


@dataclass(frozen=True)
class Archive:
    """Copies a stream into a folder.

    Attributes:
        target: the folder, on any file system that Spark knows.
        subjects: only messages of these, when given.
        start: where a new archive begins, as the source's `startingPosition`.
        compact_bytes: put files together afterwards that are smaller than this; 0 leaves them.
        raw_headers: keep the headers' own bytes too, in column `headers_raw`.
        catalog, table: of an Iceberg archive, as `TableAddress` has them.
        policy: how an Iceberg table is kept small while the archive runs.
        payload: decode payloads into column `value`; None keeps them as bytes. Messages that do not fit go to a folder
            or table of their own, with the reason.
        rejects_to: publish these messages to this stream as well, under its name and that of the archived stream.
    """

    stream: str
    target: str
    format: str = "parquet"
    partitioning: Partitioning = field(default_factory=Partitioning)
    subjects: tuple[str, ...] = ()
    start: str = "earliest"
    compact_bytes: int = 0
    raw_headers: bool = False
    catalog: str = ""
    table: str = ""
    policy: Policy = Policy()  # noqa: RUF009 - a frozen value
    payload: TypedPayload | None = None
    rejects_to: str = ""

    def __post_init__(self) -> None:
        if self.rejects_to and self.payload is None:
            raise ConfigError("--rejects-to is for payloads that are decoded: add --payload json, avro or protobuf")
        if self.rejects_to and self.rejects_to == self.stream:
            raise ConfigError(f"--rejects-to {self.rejects_to} would archive its own rejects: name another stream")
        if self.format not in ARCHIVE_FORMATS:
            raise ConfigError(
                f"{self.format!r} is not a format of archives; the formats are {', '.join(ARCHIVE_FORMATS)}"
            )
        if self.format == "iceberg":
            _ = self.address
        elif self.catalog or self.table:
            raise ConfigError("--catalog and --table are for an archive with --format iceberg")

    @property
    def upsert(self) -> bool:
        """Whether the table has the newest value of each key of a bucket, instead of all messages."""
        return False

    @property
    def address(self) -> TableAddress:
        """The Iceberg table."""
        return TableAddress(self.target, self.catalog, self.table)

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"archive {self.stream}"

    @property
    def prints(self) -> bool:
        """Rows go elsewhere."""
        return False

    def checkpoint(self, settings: PipelineSettings) -> str:
        """Return where the checkpoint is kept: inside the archive, so that the two are moved and deleted together."""
        return settings.checkpoint or f"{self.target.rstrip('/')}/{NOTES}/checkpoint"

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """From where to where."""
        table = {}
        if self.format == "iceberg":
            table["table"] = f"{self.address.name} in {self.catalog or self.address.catalog_file}"
        return {
            "stream": self.stream,
            "target": self.target,
            "format": self.format,
            **table,
            **({"payload": self.payload.format} if self.payload is not None else {}),
            "by": str(self.partitioning),
            "checkpoint": self.checkpoint(settings),
        }

    @property
    def columns(self) -> str:
        """The columns of its messages, without the columns of its folders."""
        return self._columns(self.payload)

    def _columns(self, payload: TypedPayload | None) -> str:
        columns = f"{ARCHIVE_COLUMNS}, {RAW_HEADERS}" if self.raw_headers else ARCHIVE_COLUMNS
        return columns if payload is None else columns.replace("data binary", payload.columns())

    @property
    def rejects(self) -> str:
        """The folder of the messages whose payloads do not fit."""
        return rejects_of(self.target)

    def check(self, settings: PipelineSettings) -> None:
        """Find a wrong option or a missing stream."""
        if self.format == "delta":
            check_delta_path(self.target)
        if self.format == "iceberg":
            self.address.open_catalog().close()
        if self.payload is not None and self.payload.is_stored:
            _ = self.payload.from_bucket(settings.connection_options, self.stream).ddl
        elif self.payload is not None and self.payload.schema:
            _ = self.payload.ddl
        check_source(self._source_options(settings))

    def _source_options(self, settings: PipelineSettings) -> dict[str, str]:
        return settings.source_options(
            stream=self.stream,
            subjects=names_text(self.subjects),
            startingPosition=self.start,
            **(self.payload.source_options() if self.payload is not None else {}),
        )

    def run(self, run: Run) -> None:
        """Archive until the end of the stream, or until stopped."""
        settings = run.settings
        run.folders += [self.target, self.checkpoint(settings)]
        lock = self._lock(run)
        identity = self._claim(run)
        files = FileSystem(run.spark, self.target)
        log = FileSystem(run.spark, self.checkpoint(settings))
        payload = self._resolved(run, files)
        sink = self._sink(run, identity, self.target, self.address_of(self.target))
        refused = self._refused_sink(run, identity) if payload is not None else None
        if self.rejects_to:
            self._ensure_rejects_stream(run)
        options = replace(self, payload=payload)._source_options(settings)
        messages = run.spark.readStream.format("jetstream").schema(self._columns(payload)).options(**options).load()
        if isinstance(sink, IcebergSink):
            sink.prepare(self._arranged(messages).schema)
        elif isinstance(sink, DeltaSink) and payload is not None:
            sink.widen(payload.arrow_type)
        self._note_schema(files, payload)
        observed = [sql.expr(self._oddity()).alias("messages"), sql.expr(_REFUSED).alias("refused")]

        def add(frame: DataFrame, batch: int) -> None:
            lock.require()
            require_same_stream(log, batch, self.stream)
            odd = Observation()
            arranged = self._arranged(frame.observe(odd, *observed[: 1 if refused is None else 2]))
            is_new = sink.add(arranged, batch)
            if is_new:
                self._count_odd(run, odd.get["messages"])
            # Whether some of the rows set aside were refused is not recorded.
            if refused is not None and (not is_new or odd.get["refused"]):
                refused.add(self._refused(frame), batch)
                run.facts["rejected"] = f"messages whose payloads do not fit are in {self.rejects}"
                if self.rejects_to and noted_rows(refused.files).get(batch):
                    self._publish_refused(run, identity, log, batch)
            added = add_to_record(files, log, batch, self.stream, refused.files if refused is not None else None)
            if added is not None:
                # Spark counts the messages of a batch with rejects twice, for it reads them twice.
                run.counted[batch] = added

        writer = settings.triggered(messages, self.name, self.checkpoint(settings))
        run.watch([writer.foreachBatch(add).start()])
        if self.compact_bytes:
            compacted = self._compact(run, sink, payload)
            run.facts["compacted"] = f"{compacted.files_before} files to {compacted.files_after}"

    def address_of(self, target: str) -> TableAddress | None:
        """Return the Iceberg table in a folder of this archive; None for another format."""
        if self.format != "iceberg":
            return None
        table = self.address.name + ("" if target == self.target else target[len(self.target.rstrip("/")) :])
        return TableAddress(target, self.catalog, table)

    def _resolved(self, run: Run, files: FileSystem) -> TypedPayload | None:
        """Return the decoding with its schema: as given, as the archive has it, or as found in the messages.

        Raises:
            ConfigError: the given schema breaks with the one that the archive has.
        """
        if self.payload is None:
            return None
        known = files.read_json(_DESCRIPTION)
        known_ddl = known.get("fields", "") if known is not None else ""
        payload = self.payload
        if payload.is_stored:
            payload = payload.from_bucket(run.settings.connection_options, self.stream)
        elif not payload.schema:
            payload = replace(
                payload, schema=known_ddl or inferred_ddl(run.settings.connection_options, self.stream, self.subjects)
            )
            run.facts["fields of value"] = payload.schema
        if payload.ddl != known_ddl:
            payload.check_fields(self.stream)
        if known_ddl:
            check_growth(known_ddl, payload.ddl, f"archive {self.target}")
        return payload

    def _note_schema(self, files: FileSystem, payload: TypedPayload | None) -> None:
        found = files.read_json(_DESCRIPTION)
        if payload is not None and found.get("fields") != payload.ddl:
            files.write_json(_DESCRIPTION, {**found, "fields": payload.ddl})

    def _refused_sink(self, run: Run, identity: str) -> FolderSink | TableSink:
        claim_folder(FileSystem(run.spark, self.rejects), f"{self.name}, rejected")
        return self._sink(run, identity, self.rejects, self.address_of(self.rejects), ())

    def _ensure_rejects_stream(self, run: Run) -> None:
        subject = f"{self.rejects_to}.{self.stream}"
        made = ensure_stream(run.settings.connection_options, self.rejects_to, subject)
        if made:
            run.facts["made for rejected messages"] = made

    def _publish_refused(self, run: Run, identity: str, log: FileSystem, batch: int) -> None:
        """Publish the messages of a batch that do not fit, each once.

        They are read from where they were written: when a batch is repeated, the stream may have lost them.
        """
        end = _end(log, batch, self.stream)
        if end is None:
            return
        first, _ = end.range_after(_end(log, batch - 1, self.stream))
        described = archive_facts(FileSystem(run.spark, self.target)) or {}
        columns = archive_schema().add("reason", "string")
        refused = _read_own(run.spark, self.rejects, described, self.format, columns)
        rows = refused.where(sql.col("sequence").between(first, end.next - 1) & (sql.col("stream") == self.stream))
        # One task in order: a repeated write recognizes its rows by their numbers.
        messages = refused_messages(rows.coalesce(1).sortWithinPartitions("sequence"))
        options = {**run.settings.connection, "stream": self.rejects_to, "runId": f"{identity}/{batch}"}
        writer = messages.withColumn("subject", sql.lit(f"{self.rejects_to}.{self.stream}")).write
        writer.format("jetstream").options(**options).mode("append").save()

    @staticmethod
    def _refused(frame: DataFrame) -> DataFrame:
        """Return the messages whose payloads do not fit, as they were and with the reason."""
        own = ("stream", "sequence", "subject", "timestamp", "headers")
        refused = frame.where("bad_reason is not null").selectExpr(*own, "bad_data as data", "bad_reason as reason")
        return refused.sortWithinPartitions("sequence")

    def _sink(
        self,
        run: Run,
        identity: str,
        target: str,
        address: TableAddress | None,
        partition_by: tuple[str, ...] | None = None,
    ) -> FolderSink | TableSink:
        by = self.partitioning.columns if partition_by is None else partition_by
        sink: TableSink
        if self.format == "delta":
            sink = DeltaSink(run.spark, target, identity, by, grows=self.payload is not None)
        elif address is not None:
            sink = IcebergSink(run.spark, target, address, identity, by, stream=self.stream, policy=self.policy)
        else:
            return FolderSink(run.spark, target, self.format, by)
        sink.check()
        return sink

    def _oddity(self) -> str:
        """Count messages whose texts differ from the published bytes, because these are not UTF-8."""
        odd = f"contains(subject, '{_REPLACEMENT}')"
        if not self.raw_headers:
            odd = f"{odd} or (size(headers) > 0 and contains(to_json(map_entries(headers)), '{_REPLACEMENT}'))"
        return f"count_if({odd})"

    def _count_odd(self, run: Run, messages: int) -> None:
        told = "messages with bytes that are not UTF-8"
        if messages:
            known = run.facts.get(told, 0) + messages
            run.facts[told] = known
            run.facts["their bytes"] = (
                "U+FFFD stands for them in subjects"
                if self.raw_headers
                else "U+FFFD stands for them in headers and subjects; --raw-headers keeps those of headers"
            )

    def _lock(self, run: Run) -> LakeLock:
        files = FileSystem(run.spark, self.target)
        if files.is_file():
            raise ConfigError(f"{self.target} is a file: an archive needs a folder")
        return run.closing.enter_context(locked(files, self.name))

    def _arranged(self, frame: DataFrame) -> DataFrame:
        """Return the batch with its folders' columns; a task writes one file per folder, not every task one."""
        if self.payload is not None:
            frame = frame.where("bad_reason is null").drop("bad_data", "bad_reason")
        arranged = self.partitioning.added_to(frame)
        if frame.isStreaming:
            return arranged
        return arranged.sortWithinPartitions(*self.partitioning.columns, "sequence")

    def _compact(self, run: Run, sink: FolderSink | TableSink, payload: TypedPayload | None) -> Compacted:
        if self.format == "delta":
            return compact_delta(self.target, self.compact_bytes)
        if isinstance(sink, IcebergSink):
            merged = sink.compact(self.compact_bytes)
            return Compacted(merged.files_before, merged.files_after)
        columns = self._columns(payload).removesuffix(", bad_data binary, bad_reason string")
        schema = StructType.fromDDL(columns)
        assert isinstance(schema, StructType)
        return compact(run.spark, self.target, self.format, self.compact_bytes, schema)

    def _claim(self, run: Run) -> str:
        """Return the archive's own id, after checking that the folder belongs to this archive.

        Raises:
            ConfigError: the folder holds the archive of another stream, or was written otherwise or elsewhere.
        """
        files = FileSystem(run.spark, self.target)
        finish_compaction(files)
        wanted = {
            "stream": self.stream,
            "format": self.format,
            "by": str(self.partitioning),
            "subjects": list(self.subjects),
            "checkpoint": run.settings.checkpoint,
            "raw_headers": self.raw_headers,
            "upsert": self.upsert,
            **({"catalog": self.catalog, "table": self.address.name} if self.format == "iceberg" else {}),
            **payload_facts(self.payload),
        }
        noted = files.read_json(_DESCRIPTION)
        found = noted
        if found is None:
            created = ask(run.settings.connection_options, lambda api: api.stream_info(self.stream)).created
            identity = claim_folder(files, self.name)
            found = {"version": 1, "id": identity, "created": created, "start": self.start, **wanted}
        for key, value in wanted.items():
            if found.get(key, False) != value:
                raise ConfigError(
                    f"folder {self.target} holds an archive with {key} {found.get(key) or 'not given'}, not "
                    f"{value or 'left out'}: use that one, or choose another folder"
                )
        checkpoint = FileSystem(run.spark, self.checkpoint(run.settings))
        if not checkpoint.exists("metadata") and _holds_data(files):
            raise ConfigError(
                f"folder {self.target} holds an archive, but its checkpoint {self.checkpoint(run.settings)} is gone, "
                "and without it messages would be written twice: restore it, or choose another folder"
            )
        claim_checkpoint(checkpoint, f"{self.name} {found['id']}")
        if noted is None:
            begin_record(files)
            files.write_json(_DESCRIPTION, found)
        return str(found["id"])


def _holds_data(files: FileSystem) -> bool:
    return any(not path.startswith(f"{NOTES}/") for path in files.files())


def rejects_of(target: str) -> str:
    """Return the folder beside an archive for the messages whose payloads do not fit."""
    return f"{target.rstrip('/')}{REJECTS}"


def archive_facts(files: FileSystem) -> Mapping[str, Any] | None:
    """Return what a folder says of itself, or None when it is no archive of ours."""
    found = files.read_json(_DESCRIPTION)
    return found if isinstance(found, dict) else None


def described_address(folder: str, described: Mapping[str, Any]) -> TableAddress:
    """Return the table of an Iceberg archive by what its folder says."""
    return TableAddress(folder, described["catalog"], described["table"])


_RECORD = f"{NOTES}/record.json"


class Record(NamedTuple):
    """What an archive should hold.

    Attributes:
        first: the first sequence of its first batch; None before that batch.
        end: the sequence behind its last batch; 0 before the first one.
        messages: how many messages its batches had.
        under_way: how many more the batch under way has.
    """

    first: int | None
    end: int
    messages: int
    under_way: int


def begin_record(files: FileSystem) -> None:
    """Begin the record of a new archive."""
    files.write_json(_RECORD, {"first": None, "end": 0, "batch": -1, "messages": 0})


def read_record(files: FileSystem) -> Record | None:
    """Return what the archive should hold; None for one of an earlier release, which has no record."""
    found = files.read_json(_RECORD)
    if found is None:
        return None
    places = [files, files.beside(rejects_of(files.root))]
    under_way = sum(rows for place in places for batch, rows in noted_rows(place).items() if batch > found["batch"])
    return Record(found["first"], found["end"], found["messages"], under_way)


def add_to_record(
    files: FileSystem, checkpoint: FileSystem, batch: int, stream: str, rejects: FileSystem | None = None
) -> int | None:
    """Add a batch that the archive holds to its record, once.

    Args:
        rejects: where the messages are whose payloads do not fit.

    Returns:
        How many messages it has; None when the record has the batch already, or there is no record.
    """
    found = files.read_json(_RECORD)
    if found is None or found["batch"] >= batch:
        return None
    end = _end(checkpoint, batch, stream)
    if end is not None:
        if found["first"] is None:
            found["first"] = end.range_after(_end(checkpoint, batch - 1, stream))[0]
        found["end"] = end.next
    added = sum(noted_rows(place).get(batch, 0) for place in (files, rejects) if place is not None)
    files.write_json(_RECORD, {**found, "batch": batch, "messages": found["messages"] + added})
    return added


def planned_end(checkpoint: FileSystem, stream: str) -> int | None:
    """Return the sequence behind the last batch that was planned; None when there is none."""
    names = [path.rpartition("/")[2] for path in checkpoint.files("offsets")]
    batches = [int(name) for name in names if name.isdigit()]
    end = _end(checkpoint, max(batches), stream) if batches else None
    return end.next if end is not None else None


def finished_end(checkpoint: FileSystem, stream: str) -> int | None:
    """Return the sequence behind the last finished batch; None when no batch is finished."""
    names = [path.rpartition("/")[2] for path in checkpoint.files("commits")]
    batches = [int(name) for name in names if name.isdigit()]
    end = _end(checkpoint, max(batches), stream) if batches else None
    return end.next if end is not None else None


def require_same_stream(checkpoint: FileSystem, batch: int, stream: str) -> None:
    """Check that a batch continues the one before, in the same stream.

    Raises:
        SparkError: the stream was recreated or restored from an older state, so that sequences would be there twice.
    """
    before, end = _end(checkpoint, batch - 1, stream), _end(checkpoint, batch, stream)
    if before is None or end is None:
        return
    first, _ = end.range_after(before)
    if end.created != before.created or first < before.next:
        raise SparkError(
            f"stream {stream} was recreated or restored from an older state since it was archived, and its sequences "
            "refer to other messages: an archive can only continue with its own stream; choose another folder"
        )


def _end(checkpoint: FileSystem, batch: int, stream: str) -> StreamOffset | None:
    content = checkpoint.read(f"offsets/{batch}")
    return logged_offset(content.decode()).of(stream) if content is not None else None


_PART = re.compile(r"date|hour|subject(?::([1-9][0-9]?))?")
_FOLDER_MAX = 64
_FOLDER_KEPT = 46
_PARTITIONINGS = "date, hour, subject:K (the first K tokens of the subject), separated by commas, or none"


def folder_text(text: str) -> str:
    """Return a text in SQL as a folder's name that every file system takes in every locale.

    ASCII letters, digits and `.`, `_`, `-`, `$` stay. A text with anything else is written as in a URL, with `~` for
    `%`; one that is longer than 64 characters then ends with `~~` and a hash of all of it.
    """
    plain = f"if({text} rlike '^[A-Za-z0-9._$-]*$', {text}, replace(url_encode({text}), '%', '~'))"
    short = f"concat(substring({plain}, 1, {_FOLDER_KEPT}), '~~', substring(md5({text}), 1, 16))"
    return f"if(length({plain}) > {_FOLDER_MAX}, {short}, {plain})"


def parse_partitioning(text: str) -> Partitioning:
    """Read `date,subject:2`.

    Raises:
        ConfigError: it is written another way.
    """
    if text.strip() == "none":
        return Partitioning(())
    columns: list[str] = []
    tokens = 1
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{text!r} is not a partitioning: {part.strip()!r} is unknown; write {_PARTITIONINGS}")
        name = "subject_root" if part.strip().startswith("subject") else part.strip()
        if name in columns:
            raise ConfigError(f"{text!r} is not a partitioning: it names {part.strip().partition(':')[0]} twice")
        columns.append(name)
        tokens = int(match[1]) if match[1] else tokens
    return Partitioning(tuple(columns), tokens)


# Types that hold the same values, each with the type that an archive has.
_WIDENED = {
    "data": ("string",),
    "sequence": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp_ntz",),
    "headers": (),
    "stream": (),
    "subject": (),
}


def archive_schema(raw_headers: bool = False) -> StructType:
    """Return the columns of an archive, `ARCHIVE_COLUMNS` as Spark's own value."""
    schema = StructType().add("stream", "string").add("sequence", "long").add("subject", "string")
    schema = schema.add("timestamp", "timestamp").add("headers", MapType(StringType(), ArrayType(StringType())))
    schema = schema.add("data", "binary")
    return schema.add("headers_raw", "binary") if raw_headers else schema


def read_archive(
    spark: SparkSession, source: str, format_name: str = "", *, has_times: bool = False, needs_data: bool = True
) -> DataFrame:
    """Return the messages in a folder.

    Args:
        needs_data: whether the bytes of the payloads are needed; a typed archive may have none.
        format_name: of the files, for a folder that no archive has written.
        has_times: whether the messages' times are needed.

    Raises:
        ConfigError: there is no such folder, its files' format is not known, or a column is missing.
    """
    files = FileSystem(spark, source)
    if not files.exists():
        raise ConfigError(f"there is no folder {source}")
    described: Mapping[str, Any] = archive_facts(files) or {}
    chosen = format_name or described.get("format", "")
    if described.get("upsert"):
        raise ConfigError(f"{source} holds the newest values of a bucket's keys, and not its messages")
    if not chosen:
        raise ConfigError(f"folder {source} holds no archive of jetlake: name the format of its files with --format")
    schema = archive_schema(bool(described.get("raw_headers")))
    if described.get("payload") and not described["keep_raw"]:
        if needs_data:
            raise ConfigError(
                f"archive {source} holds decoded payloads and not their bytes, which a replay needs: archive the "
                "stream with --keep-raw"
            )
        schema = StructType([column for column in schema.fields if column.name != "data"])
    if described.get("format") == chosen or chosen == "delta":
        found = _read_own(spark, source, described, chosen, schema)
        rejects = rejects_of(source)
        if described.get("payload") and noted_rows(files.beside(rejects)):
            found = found.unionByName(_read_own(spark, rejects, described, chosen, schema))
        return found
    if chosen == "iceberg":
        raise ConfigError(f"folder {source} holds no Iceberg archive of jetlake: name a folder that does")
    found = spark.read.format(chosen).load(files.pattern())
    if chosen == "json":
        # Texts in JSON are times and Base64, which only a schema tells.
        fields = [field for field in archive_schema(raw_headers=True).fields if field.name in found.columns]
        found = spark.read.schema(StructType(fields)).json(files.pattern())
    return adapted(found, source, has_times=has_times)


def _read_own(
    spark: SparkSession, folder: str, described: Mapping[str, Any], format_name: str, schema: StructType
) -> DataFrame:
    """Return the messages in a folder of an archive, or in the one of its rejects."""
    if format_name == "delta":
        return read_delta(spark, folder, schema)
    if format_name == "iceberg":
        suffix = REJECTS if folder.endswith(REJECTS) and not described["table"].endswith(REJECTS) else ""
        address = TableAddress(folder, described["catalog"], described["table"] + suffix)
        return read_iceberg(spark, address, schema, described["stream"])
    files = FileSystem(spark, folder)
    return spark.read.format(format_name).schema(schema).load(files.pattern()).select(*schema.fieldNames())


def adapted(found: DataFrame, source: str, *, has_times: bool = False) -> DataFrame:
    """Files that no archive of ours has written, with an archive's columns.

    Missing headers are none, a missing stream is called like the folder, and a missing time is left out.

    Raises:
        ConfigError: a column is missing that can't be made up, or has another type.
    """
    schema = archive_schema("headers_raw" in found.columns)
    defaults = {"headers": "map()", "stream": "'" + _stream_name(source) + "'", "timestamp": "null"}
    columns = []
    for column in schema.fields:
        wanted = column.dataType.simpleString()
        if column.name in found.columns:
            given = found.schema[column.name].dataType.simpleString()
            if given != wanted and given not in _WIDENED.get(column.name, ()):
                raise ConfigError(f"column {column.name} of the files in {source} is {given}, not {wanted}: convert it")
            columns.append(sql.col(column.name).cast(column.dataType).alias(column.name))
        elif column.name in defaults and not (column.name == "timestamp" and has_times):
            columns.append(sql.expr(defaults[column.name]).cast(column.dataType).alias(column.name))
        else:
            raise ConfigError(
                f"the files in {source} have no column {column.name} ({wanted}), but {', '.join(found.columns)}: a "
                f"replay needs {_needs(column.name)}"
            )
    return found.select(*columns)


def _needs(column: str) -> str:
    return {
        "sequence": "the sequences, by which messages are ordered and known again",
        "timestamp": "the times when they are to choose or pace messages; leave out --from, --to, --original, --speed",
    }.get(column, f"column {column} of every message")


def _stream_name(source: str) -> str:
    name = PurePosixPath(source.rstrip("/")).name or "files"
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)
