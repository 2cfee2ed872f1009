"""How fast does a stream become a table, and how much of a stream does a lazy table read?

A stream on nats-server holds JSON messages of about 110 bytes, under a thousand subjects that take turns. It is
archived as the command does it, from an empty folder to the end of the stream: as Parquet, Delta and Iceberg, with raw
payloads and with payloads decoded into typed columns. The ceiling is Spark alone, which writes the same DataFrame, with
the same partitions and order, as Parquet by one batch job that has no checkpoint, no commits and nothing to promise.
All cases take turns; `CPU us` is what a message costs each of the processes.

Then `scan()` is collected without a condition, with a condition that one subject passes (every thousandth message), and
with one that a thousandth of the sequences passes; the rows that come are counted. The ratios `scan_…` say how many
times quicker the query is than reading all.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _harness import Medians, Report, measure, parse_arguments
from _servers import KINDS, PEER, Running, server
from _spark_processes import Case, Processes

QUESTION = "How fast does a stream become a table, and how much of a stream does a lazy table read?"
STREAM = "ORDERS"
SUBJECTS = 1000
FIELDS = "id bigint, country string, amount double, customer struct<name: string, vip: boolean>"
FORMATS = ("parquet", "delta", "iceberg")
REPEATS = 3

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

import polars  # noqa: E402
import pyarrow as pa  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import jetlake.blocking  # noqa: E402
import jetlake.spark  # noqa: E402
from jetlake.lake.catalogs import TableAddress  # noqa: E402
from jetlake.lake.iceberg import IcebergTable  # noqa: E402
from jetlake.spark.pipelines.archive import Archive  # noqa: E402
from jetlake.spark.pipelines.runner import run_pipeline  # noqa: E402
from jetlake.spark.pipelines.settings import PipelineSettings  # noqa: E402
from jetlake.spark.pipelines.typed_payload import TypedPayload  # noqa: E402


def fill(url: str, count: int) -> None:
    """Publish the messages."""
    names = [f"customer {number}" for number in range(100)]

    def rows(first: int, size: int) -> pa.Table:
        numbers = range(first, first + size)
        customers = [{"name": names[number % 100], "vip": number % 7 == 0} for number in numbers]
        columns = {
            "id": list(numbers),
            "country": [("de", "fr", "it", "es")[number % 4] for number in numbers],
            "amount": [number % 10_000 / 4 for number in numbers],
            "customer": customers,
        }
        return pa.table(columns)

    with jetlake.blocking.connect(url) as client:
        js = client.jetstream()
        js.create_stream(STREAM, subjects=["orders.>"], allow_direct=True)
        for first in range(0, count, 100_000):
            js.publish_table(
                rows(first, min(100_000, count - first)), subject=lambda row: f"orders.{row['id'] % SUBJECTS}"
            )


class Lake:
    """One Spark session, and what it writes into folders."""

    def __init__(self, running: Running, folder: Path, count: int) -> None:
        settings = {
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "2g",
        }
        self.session: SparkSession = jetlake.spark.session("local[2]", conf=settings)
        self.session.sparkContext.setLogLevel("OFF")
        self.processes = Processes(self.session._jvm.java.lang.ProcessHandle.current().pid())
        self._url = running.url
        self._folder = folder
        self._count = count

    def archive(self, format_name: str, payload: TypedPayload | None) -> Callable[[], None]:
        """What archives the stream into a new folder."""

        def run() -> None:
            self._empty()
            target = str(self._folder / "orders")
            archive = Archive(STREAM, target, format_name, payload=payload)
            run_pipeline(archive, self.session, PipelineSettings(connection={"servers": self._url}))

        return run

    def write(self, payload: TypedPayload | None) -> Callable[[], None]:
        """What lets Spark write the archive's DataFrame as Parquet, and no more."""

        def run() -> None:
            self._empty()
            archive = Archive(STREAM, str(self._folder / "orders"), payload=payload)
            options = {"servers": self._url, **(payload.source_options() if payload is not None else {})}
            frame = self.session.read.format("jetstream").schema(archive.columns).options(**options).load(STREAM)
            if payload is not None:
                frame = frame.where("bad_reason is null").drop("bad_data", "bad_reason")
            by = archive.partitioning.columns
            arranged = archive.partitioning.added_to(frame).sortWithinPartitions(*by, "sequence")
            arranged.write.partitionBy(*by).parquet(archive.target)

        return run

    def verify(self, format_name: str) -> None:
        """Check that the table in the folder has every message once."""
        target = self._folder / "orders"
        if format_name == "iceberg":
            found = IcebergTable(TableAddress(str(target)), "").require().scan(selected_fields=("sequence",)).to_arrow()
        elif format_name == "delta":
            import deltalake

            found = deltalake.DeltaTable(str(target)).to_pyarrow_table(columns=["sequence"])
        else:
            found = polars.read_parquet(target / "**" / "*.parquet", columns=["sequence"]).to_arrow()
        sequences = polars.Series(found["sequence"])
        assert (len(sequences), sequences.n_unique()) == (self._count, self._count), (format_name, len(sequences))

    def _empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()


def measure_tables(report: Report, lake: Lake, running: Running, count: int) -> None:
    """Archive and write in turns."""
    cases: dict[str, Case] = {}
    for kind, payload in (("raw", None), ("typed", TypedPayload("json", FIELDS))):
        cases[f"Spark writes Parquet, {kind}"] = (lake.write(payload), count)
        for format_name in FORMATS:
            run = lake.archive(format_name, payload)
            run()
            lake.verify(format_name)
            cases[f"{format_name}, {kind}"] = (run, count)
    seconds, costs = lake.processes.measure(cases, REPEATS, running.pid)
    for name in cases:
        spread = seconds.spreads[name]
        report.add(name, {"rows/s": round(count / seconds[name]), **costs[name], "spread %": spread})
    for kind in ("raw", "typed"):
        ceiling = seconds[f"Spark writes Parquet, {kind}"]
        for format_name in FORMATS:
            taken = seconds[f"{format_name}, {kind}"]
            report.compare(f"ceiling_{format_name}_{kind}", taken, ceiling, lower_is_better=True)
        for format_name in FORMATS[1:]:
            taken, parquet = seconds[f"{format_name}, {kind}"], seconds[f"parquet, {kind}"]
            report.compare(f"{format_name}_vs_parquet_{kind}", taken, parquet, lower_is_better=True)


def measure_scans(report: Report, kind: str, url: str, count: int) -> Medians:
    """Collect `scan()` with conditions and without."""
    with jetlake.blocking.connect(url) as client:
        stream = client.jetstream().stream(STREAM)
        sequence, subject = polars.col("sequence"), polars.col("subject")
        first = count // 2

        def collect(condition: polars.Expr | None, expected: int) -> Callable[[], None]:
            def run() -> None:
                lazy = stream.scan()
                found = (lazy if condition is None else lazy.filter(condition)).collect()
                assert found.height == expected, (kind, condition, found.height)

            return run

        part = count // SUBJECTS
        seconds = measure(
            {
                "all": collect(None, count),
                "one subject": collect(subject == "orders.7", part),
                "a run of sequences": collect(sequence.is_between(first, first + part - 1), part),
            },
            REPEATS,
        )
    for name in seconds:
        rows = count if name == "all" else part
        report.add(
            f"scan, {name}, {kind}", {"rows": rows, "ms": seconds[name] * 1000, "spread %": seconds.spreads[name]}
        )
    for name in ("one subject", "a run of sequences"):
        ratio = f"scan_{name.rpartition(' ')[2]}_{kind.replace('-', '_')}"
        report.compare(ratio, seconds[name], seconds["all"], lower_is_better=True)
    return seconds


def main() -> None:
    arguments = parse_arguments(QUESTION)
    count = 1_000_000 if arguments.quick else 4_000_000
    report = Report(QUESTION, arguments)
    folder = Path(tempfile.mkdtemp(prefix="jetlake-bench-"))
    try:
        for kind in KINDS:
            with server(kind) as running:
                fill(running.url, count)
                if kind == PEER:
                    lake = Lake(running, folder / "lake", count)
                    measure_tables(report, lake, running, count)
                    lake.session.stop()
                measure_scans(report, kind, running.url, count)
        report.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
