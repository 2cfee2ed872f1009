"""Spark on a standalone cluster over replicated streams, while servers, workers and drivers die: exact counts.

`make test-cluster` runs it.
"""

import asyncio
import json
import os
import sys
import textwrap
from collections import Counter

import pytest

import jetlake
from tests.support.spark_standalone import CONFIG, Standalone

RETENTIONS = ("limits", "workqueue", "interest")
BATCH = 1500

COPY = """
    import json, sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession

    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    builder = SparkSession.builder.master(settings["master"])
    for key, value in settings["config"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"servers": settings["servers"], "retryFor": "60s"}
    queries = []
    for source in settings["streams"]:
        reader = spark.readStream.format("jetstream").options(**options, maxMessagesPerTrigger=500, minPartitions=2)
        frame = reader.load(source)
        frame = frame.selectExpr(f"'{source}-OUT.x' as subject", "data", "stream", "sequence", "timestamp")
        writer = frame.writeStream.format("jetstream").options(**options, messageId="source")
        queries.append(writer.option("checkpointLocation", str(folder / source)).start())
    while not (folder / "stop").exists():
        for query in queries:
            if not query.isActive:
                sys.exit(f"{query.exception()}")
        time.sleep(0.2)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()
"""


@pytest.fixture
async def standalone(tmp_path):
    standalone = Standalone(tmp_path)
    try:
        await standalone.start()
        yield standalone
    finally:
        await standalone.discard()


class Supervisor:
    """Runs a driver, and runs it again whenever it dies, as a job's owner does."""

    def __init__(self, standalone, *command):
        self._standalone = standalone
        self._command = command
        self.driver = None
        self.starts = 0

    async def run(self):
        """Return when the driver has ended well."""
        while True:
            self.starts += 1
            self.driver = self._standalone.run(*self._command)
            while self.driver.poll() is None:
                await asyncio.sleep(0.1)
            if self.driver.returncode == 0:
                return
            assert self.starts < 12, self._standalone.driver_log()[-4000:]


async def fill(js, stream, first, count):
    for number in range(first, first + count):
        await js.publish_async(f"{stream}.{number % 3}", b"%d" % number, msg_id=f"{stream}-{number}")
    await js.publish_async_complete(timeout=120)


async def numbers(js, stream):
    """The numbers in a stream, each with how often it is there."""
    handle = await js.stream(stream)
    found = Counter()
    async with handle.ordered().consume(stop_after=handle.cached_info.state.messages) as messages:
        async for message in messages:
            found[int(message.payload)] += 1
    return found


async def until_stored(js, stream, count):
    """Wait until a stream holds so many messages."""
    async with asyncio.timeout(240):
        while True:
            try:
                if (await js.stream(stream)).cached_info.state.messages >= count:
                    return
            except jetlake.JetlakeError:
                pass
            await asyncio.sleep(0.2)


async def test_copies_are_exact_through_kills_of_servers_workers_and_drivers(cluster, standalone, tmp_path):
    async with jetlake.connect(cluster.urls) as client:
        js = client.jetstream(timeout=30)
        for retention in RETENTIONS:
            stream = await js.create_stream(
                retention, subjects=[f"{retention}.>"], retention=retention, num_replicas=3, allow_direct=True
            )
            await js.create_stream(
                f"{retention}-OUT", subjects=[f"{retention}-OUT.>"], num_replicas=3, duplicate_window=3600
            )
            if retention == "interest":
                await stream.create_consumer("other")  # Until the query's own consumer is there.
            await fill(js, retention, 0, BATCH)
        program = tmp_path / "job.py"
        program.write_text(textwrap.dedent(COPY))
        settings = {
            "folder": str(tmp_path),
            "master": standalone.url,
            "servers": ",".join(cluster.urls),
            "streams": RETENTIONS,
            "config": CONFIG,
        }
        supervisor = Supervisor(standalone, sys.executable, str(program), json.dumps(settings))
        running = asyncio.create_task(supervisor.run())
        total = BATCH

        async def more():
            """Publish more, so that there is work while something dies."""
            nonlocal total
            await until_stored(js, "limits-OUT", total - BATCH // 2)
            for retention in RETENTIONS:
                await fill(js, retention, total, BATCH)
            total += BATCH

        await more()
        await cluster.kill_leader(js, "limits")
        await more()
        await standalone.kill_worker(0)
        await standalone.start_worker(0)
        await more()
        await standalone.kill_driver(supervisor.driver)
        await more()
        await cluster.kill_leader(js, "workqueue-OUT")
        await standalone.kill_worker(1)
        await standalone.start_worker(1)
        for retention in RETENTIONS:
            await until_stored(js, f"{retention}-OUT", total)
        (tmp_path / "stop").touch()
        await asyncio.wait_for(running, 240)
        assert supervisor.starts >= 2
        for retention in RETENTIONS:
            assert await numbers(js, f"{retention}-OUT") == Counter(range(total)), retention
        await (await js.stream("interest")).delete_consumer("other")
        left = {name: (await js.stream(name)).cached_info.state.messages for name in RETENTIONS}
        assert left["limits"] == total
        # What the last batch held is released when the query plans another.
        assert left["workqueue"] <= 500


def count_files(folder):
    """How many Parquet files there are; folders come and go meanwhile, which os.walk takes as it comes."""
    return sum(name.endswith(".parquet") for _, _, names in os.walk(folder) for name in names)


async def test_an_archive_is_exact_through_kills(cluster, standalone, tmp_path):
    async with jetlake.connect(cluster.urls) as client:
        js = client.jetstream(timeout=30)
        await js.create_stream("S", subjects=["S.>"], num_replicas=3, allow_direct=True)
        await fill(js, "S", 0, 20_000)
        lake = tmp_path / "lake"
        command = [sys.executable, "-m", "jetlake", "pipeline"]
        options = ["-s", ",".join(cluster.urls), "--master", standalone.url]
        for key, value in CONFIG.items():
            options += ["--conf", f"{key}={value}"]
        archive = [*command, "archive", "S", str(lake), *options, "--batch-messages", "2000"]
        supervisor = Supervisor(standalone, *archive)
        running = asyncio.create_task(supervisor.run())

        async def until_archived(files):
            async with asyncio.timeout(240):
                while count_files(lake) < files and not running.done():
                    await asyncio.sleep(0.1)

        await until_archived(1)
        await cluster.kill_leader(js, "S")
        await until_archived(4)
        await standalone.kill_worker(0)
        await standalone.start_worker(0)
        await until_archived(6)
        await standalone.kill_driver(supervisor.driver)
        await asyncio.wait_for(running, 300)
        verify = standalone.run(*command, "verify", "S", str(lake), *options)
        assert await asyncio.to_thread(verify.wait, 240) == 0, standalone.driver_log()[-4000:]
        from pyarrow import dataset

        rows = dataset.dataset([str(path) for path in lake.glob("**/*.parquet")]).to_table(columns=["sequence"])
        assert sorted(rows["sequence"].to_pylist()) == list(range(1, 20_001))
