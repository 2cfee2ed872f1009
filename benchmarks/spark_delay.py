"""How long after it was stored does a message reach a streaming query, beside Spark's own rate source?

    python benchmarks/spark_delay.py [--quick] [--json FILE]

One message a second is published, and a query without a trigger collects its micro-batches in `foreachBatch`: the
delay is from the message's timestamp to the moment when its row is in the program. The floor is the same query over
Spark's `rate` source, whose row of a second is available when that second is over. A source in Python that does
nothing else, with the same row, shows what Spark takes to run a task in Python. Queries run one after the other in one
session, the rate source first and last. Their first rows are left out: the JVM still compiles what runs.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import jetlake.spark
from _harness import Report, parse_arguments
from _servers import OURS, PEER, server
from jetlake import blocking

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUESTION = "How long after it was stored does a message reach a streaming query? (milliseconds)"
RATE = "rate source of Spark"
PYTHON = "smallest source in Python"
POLL_S = 0.02
"""As the jetstream source polls."""
WARM_UP = 8
"""Rows of each query that are not counted."""
WAIT_S = 120


class Ticks(DataSource):
    """A row at the end of each second."""

    @classmethod
    def name(cls) -> str:
        return "ticks"

    def schema(self) -> str:
        return "timestamp timestamp"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
        return TickReader()


class TickReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"second": int(time.time())}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        time.sleep(POLL_S)
        return {"second": int(time.time())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["second"], end["second"]))]

    def read(self, partition: InputPartition):
        start, end = partition.value
        for second in range(start + 1, end + 1):
            yield (datetime.fromtimestamp(second, UTC),)


def main() -> None:
    arguments = parse_arguments(QUESTION)
    count = 20 if arguments.quick else 300
    report = Report(QUESTION, arguments)
    delays: dict[str, list[float]] = {RATE: []}
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="jetlake-bench-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        spark = jetlake.spark.session("local[2]", conf={"spark.ui.showConsoleProgress": "false"})
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        delays[RATE] += watch_rate(spark, f"{folder}/rate-before", count)
        spark.dataSource.register(Ticks)
        delays[PYTHON] = collect(spark.readStream.format("ticks").load(), f"{folder}/python", count)
        for kind in (PEER, OURS):
            with server(kind, "always") as running, publishing(running.url):
                frame = spark.readStream.format("jetstream").option("servers", running.url).load("ORDERS")
                delays[kind] = collect(frame, f"{folder}/{kind}", count)
        delays[RATE] += watch_rate(spark, f"{folder}/rate-after", count)
    floor = statistics.median(delays[RATE])
    for name, found in delays.items():
        median, late = statistics.median(found), statistics.quantiles(found, n=100, method="inclusive")[98]
        case = name if name in {RATE, PYTHON} else f"jetstream source, {name}"
        report.add(case, {"p50": median, "p99": late, "p50 above the rate source": median - floor})
    report.compare("spark-delay", statistics.median(delays[OURS]), floor, lower_is_better=True)
    report.finish()


def watch_rate(spark: SparkSession, checkpoint: str, count: int) -> list[float]:
    """The delays of the rate source: a row is available one second after its timestamp."""
    frame = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    return collect(frame, checkpoint, count, available_after_s=1.0)


def collect(frame: DataFrame, checkpoint: str, count: int, available_after_s: float = 0.0) -> list[float]:
    """Run a query over that source until so many rows have come, and return their delays in milliseconds."""
    delays: list[float] = []
    enough = threading.Event()

    def take(batch: DataFrame, _number: int) -> None:
        rows = batch.select("timestamp").collect()
        now_s = time.time()
        delays.extend((now_s - row.timestamp.timestamp() - available_after_s) * 1000 for row in rows)
        if len(delays) >= WARM_UP + count:
            enough.set()

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
    try:
        assert enough.wait(WAIT_S + 2 * count), query.exception() or "no rows came"
    finally:
        query.stop()
    return delays[WARM_UP : WARM_UP + count]


@contextmanager
def publishing(url: str) -> Iterator[None]:
    """Publish a message a second, at no fixed part of it, until the block ends."""
    stopping = threading.Event()

    with blocking.connect(url) as client:
        js = client.jetstream()
        js.create_stream("ORDERS", subjects=["orders.>"])

        def publish() -> None:
            while not stopping.wait(random.uniform(0.9, 1.1)):
                js.publish("orders.new", b"x" * 128)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()


if __name__ == "__main__":
    main()
