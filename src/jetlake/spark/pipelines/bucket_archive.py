"""A key-value bucket as a table that is kept up to date: a row for each key that has a value.

A batch of the bucket's stream is reduced to the newest message of each key, and replaces the rows of these keys in one
commit, which records the batch. Newest is what has the highest sequence, and batches come in order, so a batch that is
repeated after a crash is known by the table or writes the same rows again.

The stream need not have a marker for a key that is gone: values expire, and markers are purged. So the keys of the
table are compared with the bucket's at the beginning and the end of every run, and during it after every
`every` batches: a key of the table that the bucket has not any more was deleted since, for the table was read first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import Archive, require_same_stream
from jetlake.spark.pipelines.delta_sink import DeltaUpsertSink
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.iceberg_sink import IcebergUpsertSink
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.table_sink import DELETED
from jetlake.spark.pipelines.typed_payload import TypedPayload

PREFIX = "KV_"
_READ = "sequence bigint, subject string, timestamp timestamp, headers map<string,array<string>>, data binary"
# The key begins behind the second dot of `$KV.BUCKET.key`.
_KEY = "substring(subject, locate('.', subject, 5) + 1)"
_DELETED = (
    "coalesce(headers['KV-Operation'][0] in ('DEL', 'PURGE'), false) or headers['Nats-Marker-Reason'] is not null"
)


@dataclass(frozen=True)
class BucketArchive(Archive):
    """Keeps a Delta or Iceberg table with the columns `key`, `value`, `revision` and `created`.

    With a `payload`, `value` is decoded; of a value that does not fit it is null, and `bad_data` and `bad_reason` say
    what it is and why.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in ("delta", "iceberg"):
            raise ConfigError(
                f"--upsert needs a table whose rows can be replaced: --format iceberg or delta, not {self.format}"
            )
        if self.compact_bytes or self.raw_headers or self.partitioning.columns or self.start != "earliest":
            raise ConfigError(
                "--upsert keeps one row for each key: leave out --by, --start, --compact and --raw-headers"
            )
        if self.rejects_to:
            raise ConfigError("--upsert keeps values that do not fit in the table: leave out --rejects-to")
        if self.payload is not None and self.payload.keep_raw:
            raise ConfigError("--upsert keeps no raw bytes of values that fit: leave out --keep-raw")

    @property
    def upsert(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return f"keep {self.stream}"

    def check(self, settings: PipelineSettings) -> None:
        if not self.stream.startswith(PREFIX):
            raise ConfigError(f"--upsert is for key-value buckets: {self.stream} is not one")
        super().check(settings)

    def _columns(self, payload: TypedPayload | None) -> str:
        return _READ if payload is None else _READ.replace("data binary", payload.columns())

    def _source_options(self, settings: PipelineSettings) -> dict[str, str]:
        # A message that is gone was replaced by a newer one of its key, or the comparison of keys finds it.
        return {**super()._source_options(settings), "failOnDataLoss": "false"}

    def run(self, run: Run) -> None:
        """Bring the table up to date, and keep it so until stopped when following."""
        settings = run.settings
        run.folders += [self.target, self.checkpoint(settings)]
        lock = self._lock(run)
        identity = self._claim(run)
        files = FileSystem(run.spark, self.target)
        log = FileSystem(run.spark, self.checkpoint(settings))
        payload = self._resolved(run, files)
        sink = self._upsert_sink(run, identity)
        messages = run.spark.readStream.format("jetstream").schema(self._columns(payload))
        frame = messages.options(**replace(self, payload=payload)._source_options(settings)).load()
        if isinstance(sink, IcebergUpsertSink):
            sink.prepare(self._rows(frame).drop(DELETED).schema)
        elif payload is not None:
            sink.widen(payload.arrow_type)
        self._note_schema(files, payload)
        self._remove_lost(run, sink)

        def add(batch_frame: DataFrame, batch: int) -> None:
            lock.require()
            require_same_stream(log, batch, self.stream)
            sink.add(_newest(self._rows(batch_frame)), batch)
            if self.policy.every and (batch + 1) % self.policy.every == 0:
                self._remove_lost(run, sink)

        writer = settings.triggered(frame, self.name, self.checkpoint(settings))
        run.watch([writer.foreachBatch(add).start()])
        self._remove_lost(run, sink)
        run.facts["keys"] = len(sink.keys())

    def _rows(self, frame: DataFrame) -> DataFrame:
        value = ["data as value"] if self.payload is None else ["value", "bad_data", "bad_reason"]
        deleted = f"{_DELETED} as {DELETED}"
        return frame.selectExpr(f"{_KEY} as key", *value, "sequence as revision", "timestamp as created", deleted)

    def _upsert_sink(self, run: Run, identity: str) -> DeltaUpsertSink | IcebergUpsertSink:
        sink: DeltaUpsertSink | IcebergUpsertSink
        if self.format == "delta":
            sink = DeltaUpsertSink(run.spark, self.target, identity, grows=self.payload is not None)
        else:
            sink = IcebergUpsertSink(
                run.spark, self.target, self.address, identity, stream=self.stream, policy=self.policy
            )
        sink.check()
        return sink

    def _remove_lost(self, run: Run, sink: DeltaUpsertSink | IcebergUpsertSink) -> None:
        """Remove the rows of keys that the bucket does not have any more, and left no marker for."""
        known = sink.keys()
        if not known:
            return
        subjects = ask(run.settings.connection_options, lambda api: api.subjects_of(self.stream, ">"))
        lost = known.difference(subject.split(".", 2)[2] for subject in subjects if subject.count(".") > 1)
        if lost:
            sink.remove(sorted(lost))
            run.facts["keys gone without a marker"] = run.facts.get("keys gone without a marker", 0) + len(lost)


def _newest(rows: DataFrame) -> DataFrame:
    """Return the last row of each key."""
    every = sql.struct(*(sql.col(name) for name in rows.columns))
    return rows.groupBy("key").agg(sql.max_by(every, "revision").alias("newest")).select("newest.*")


def bucket_stream(name: str) -> str:
    """Return the stream of a bucket, which may be named by either."""
    return name if name.startswith(PREFIX) else f"{PREFIX}{name}"
