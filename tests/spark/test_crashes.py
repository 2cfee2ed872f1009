"""Tasks and drivers that die at the worst moment; afterwards everything is counted."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.spark

RETENTIONS = ["limits", "workqueue", "interest"]


def numbers(admin, stream):
    return sorted(int(base64.b64decode(message["data"])) for message in admin.messages(stream))


def copy(spark, server, source, target, checkpoint, transform=None, **options):
    """One AvailableNow run of a query that copies a stream."""
    frame = spark.readStream.format("jetstream").options(servers=server.url, **options).load(source)
    frame = frame.selectExpr(f"concat('{target}.', sequence % 5) as subject", "data", "stream", "sequence")
    if transform is not None:
        frame = frame.mapInArrow(transform, frame.schema)
    query = (
        frame.writeStream.format("jetstream")
        .options(servers=server.url)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return query


def killer(folder):
    """Lets the first attempt of every batch die behind its 300th row."""

    def pass_or_die(batches):
        from pyspark import TaskContext

        seen = 0
        batch_id = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        for batch in batches:
            yield batch
            seen += batch.num_rows
            marker = Path(folder) / f"died-in-{batch_id}"
            if seen >= 300 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_or_die


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_task_that_dies_in_every_batch(spark, server, admin, stream, tmp_path, retention):
    admin.create_stream(stream, retention=retention)
    admin.create_stream(stream + "OUT", duplicate_window=3600 * 10**9)
    if retention == "interest":
        copy(spark, server, stream, stream + "OUT", tmp_path / "check")
    admin.fill(stream, 1500)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        copy(
            spark,
            server,
            stream,
            stream + "OUT",
            tmp_path / "check",
            killer(str(tmp_path)),
            maxMessagesPerTrigger=500,
            arrowBatchRows=50,
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(tmp_path.glob("died-in-*"))) == 3
    assert numbers(admin, stream + "OUT") == list(range(1500))
    assert admin.state(stream)["messages"] == (1500 if retention == "limits" else 0)


DRIVER = """
    import os, signal, sys, json, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    from jetlake.spark import JetStream
    from jetlake.spark.sink.writer import StreamWriter

    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])

    class DyingWriter(StreamWriter):
        def commit(self, messages, batchId):
            if batchId == 1:
                # All rows of the batch are published; the ledger and Spark's commit log know nothing of it.
                (folder / f"reached-{self._options.subject}").touch()
                deadline = time.monotonic() + 200
                while len(list(folder.glob("reached-*"))) < len(settings["pairs"]) and time.monotonic() < deadline:
                    time.sleep(0.05)
                os.kill(settings["jvm"], signal.SIGKILL)
                time.sleep(60)
            super().commit(messages, batchId)

    class Dying(JetStream):
        @classmethod
        def name(cls):
            return "dying"

        def streamWriter(self, schema, overwrite):
            from jetlake.spark.options.sink_options import SinkOptions
            return DyingWriter(schema, SinkOptions.of(self.options))

    builder = SparkSession.builder.master("local[2]")
    for key, value in settings["config"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    settings["jvm"] = spark._jvm.java.lang.ProcessHandle.current().pid()
    spark.dataSource.register(Dying)
    queries = []
    for url, source, target in settings["pairs"]:
        frame = spark.readStream.format("jetstream").options(servers=url, maxMessagesPerTrigger=400)
        frame = frame.load(source).select("data")
        queries.append(
            frame.writeStream.format("dying").options(servers=url, subject=f"{target}.x")
            .option("checkpointLocation", str(folder / source)).start()
        )
        # One after the other: a machine with much to do starts one query's processes in time, and not six.
        while not (folder / f"reached-{target}.x").exists() and queries[-1].isActive:
            time.sleep(0.1)
    for query in queries:
        query.awaitTermination(120)
"""


def test_a_driver_that_dies_between_sink_and_commit(spark, session_config, both_servers, stream, tmp_path):
    """All retention policies on both servers: one driver, killed while each of its queries is in the sink's commit."""
    copies = [
        Copy(server, admin, f"{stream}-{server.kind}-{retention}", retention)
        for server, admin in [(server, server.admin()) for server in both_servers]
        for retention in RETENTIONS
    ]
    for copy in copies:
        copy.prepare()
    pairs = [(copy.server.url, copy.source, copy.target) for copy in copies]
    settings = {"folder": str(tmp_path), "pairs": pairs, "config": session_config}
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    died = subprocess.run(
        [sys.executable, str(script), json.dumps(settings)], capture_output=True, timeout=400, check=False
    )
    assert died.returncode != 0
    assert len(list(tmp_path.glob("reached-*"))) == len(copies), died.stderr.decode()[-2000:]
    for copy in copies:
        assert not (tmp_path / copy.source / "commits" / "1").exists()
        assert numbers(copy.admin, copy.target) == list(range(800))
        assert copy.admin.state(copy.source)["last_seq"] == 1000
        assert {message["seq"] for message in copy.admin.messages(copy.source)} >= set(range(401, 1001))
    for copy in copies:
        copy.go_on(spark, tmp_path / copy.source)
        assert numbers(copy.admin, copy.target) == list(range(1000)), copy.source
        if copy.retention == "interest":
            assert copy.admin.api(f"CONSUMER.INFO.{copy.source}.other")["num_pending"] == 1000
        else:
            left = copy.admin.state(copy.source)["messages"]
            assert left == (1000 if copy.retention == "limits" else 0), copy.source


class Copy(NamedTuple):
    """A query that copies a stream of some retention policy."""

    server: Any
    admin: Any
    source: str
    retention: str

    @property
    def target(self):
        return f"{self.source}-OUT"

    def prepare(self):
        self.admin.create_stream(self.source, retention=self.retention)
        # The stream forgets ids at once: what keeps the batch from being written twice is the ledger.
        self.admin.create_stream(self.target, duplicate_window=100_000_000)
        if self.retention == "interest":
            # Somebody else's interest keeps the messages until the query's own consumer is there.
            config = {"name": "other", "durable_name": "other", "ack_policy": "explicit"}
            self.admin.api(f"CONSUMER.CREATE.{self.source}.other", {"stream_name": self.source, "config": config})
        self.admin.fill(self.source, 1000)

    def go_on(self, spark, checkpoint):
        query = (
            spark.readStream.format("jetstream")
            .options(servers=self.server.url, maxMessagesPerTrigger=400)
            .load(self.source)
            .select("data")
            .writeStream.format("jetstream")
            .options(servers=self.server.url, subject=f"{self.target}.x")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
