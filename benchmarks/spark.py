"""How fast do messages go from JetStream into Spark and back, beside nats-py and beside the bytes alone?

One nats-server holds messages of 128 bytes. Read through Spark into its `noop` sink, so that nothing but reading is
measured: by our source in a batch and as an AvailableNow query, by a source made of nats-py's `fetch`, and outside
Spark by a socket that takes the bytes and does not look at them (the ceiling). A query starts once, and then runs for
as long as one likes: the rate of its micro-batch alone is by Spark's own report, and what jobs of a few rows take says
what starting costs. The session is the one that `jetlake.spark.session()` gives to everybody. Written: our sink, nats-
py's `publish_async` with the same message ids and window, and outside Spark frames that were made before (the ceiling).
All but the naive source and the frames also run on the embedded server.

Every row says what a message cost the processes: the server, Python (Spark's workers, or this process where Spark has
no part) and the JVM. They share the machine's cores. The spread is that of three rounds.

Reading has two ceilings. In `bytes only` the server has nearly all cores, beside the source only what Spark leaves: on
two cores that compares the machine with and without Spark. In the rows with a core of its own the server has one core
in both, and Spark or the socket has the others, so that the ratios `…_own_core` say what share of all that a server can
send the source takes: the question when the server is not on Spark's machine. GOMAXPROCS is left alone there: 1 or 2
cost the server the same CPU time a message.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _harness import Report, measure, parse_arguments
from _spark_processes import Case, Processes

QUESTION = "How fast do messages go from JetStream into Spark and back?"
PAYLOAD = 128
FEW = 2000
BIN = Path(sys.executable).parent
APART = ", server on a core of its own"

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: E402

import jetlake.spark  # noqa: E402
from jetlake.client.connection.socket_connection import connect_socket  # noqa: E402
from jetlake.client.tables.stream_api import StreamApi  # noqa: E402
from jetlake.model.consumer import ConsumerConfig  # noqa: E402
from jetlake.model.encoding.codec import encode  # noqa: E402
from jetlake.model.encoding.durations import nanoseconds  # noqa: E402
from jetlake.model.enums import StorageType  # noqa: E402
from jetlake.model.requests import PullRequest  # noqa: E402
from jetlake.model.stream import StreamConfig  # noqa: E402
from jetlake.protocol.nuid import new_inbox, next_nuid  # noqa: E402
from jetlake.spark.options.sink_options import SinkOptions  # noqa: E402
from jetlake.spark.sink.outgoing import OutgoingBatch, OutgoingMessage  # noqa: E402
from jetlake.spark.sink.publisher import Publisher  # noqa: E402


class NaiveSource(DataSource):
    """What one writes first: nats-py, one fetch after the other, a tuple a message."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return "sequence bigint, subject string, timestamp timestamp, data binary"

    def reader(self, schema: object) -> DataSourceReader:
        return NaiveReader(self.options["servers"], self.options["stream"], int(self.options["count"]))


class NaiveReader(DataSourceReader):
    def __init__(self, url: str, stream: str, count: int) -> None:
        self.url, self.stream, self.count = url, stream, count

    def partitions(self) -> list[InputPartition]:
        half = self.count // 2
        return [InputPartition((1, half)), InputPartition((half + 1, self.count))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        first, last = partition.value
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(nats.connect(self.url))
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first, ack_policy=AckPolicy.NONE
        )
        subscription = loop.run_until_complete(
            client.jetstream().pull_subscribe("", stream=self.stream, config=config, durable=None)
        )
        left = last - first + 1
        while left > 0:
            messages = loop.run_until_complete(subscription.fetch(min(left, 1000), timeout=10))
            for message in messages:
                metadata = message.metadata
                yield metadata.sequence.stream, message.subject, metadata.timestamp, message.data
            left -= len(messages)
        loop.run_until_complete(client.close())


class Server:
    """A server in a process of its own."""

    def __init__(self, kind: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"
        self._folder = tempfile.mkdtemp(prefix="jetlake-bench-")
        command = [str(BIN / "nats-server")] if kind == "nats-server" else [str(BIN / "jetlake"), "serve"]
        self._process = subprocess.Popen(
            [*command, "-js", "-sd", self._folder, "-a", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        deadline = time.monotonic() + 30
        while True:
            try:
                self.connection = connect_socket(self.url)
                return
            except ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def create_stream(self, name: str, storage: StorageType = StorageType.FILE) -> None:
        StreamApi(self.connection).create_stream(
            StreamConfig.of(name, subjects=[f"{name}.>"], allow_direct=True, storage=storage)
        )

    def fill(self, name: str, count: int) -> None:
        payload = b"x" * PAYLOAD
        subjects = [b"%b.%d" % (name.encode(), number) for number in range(100)]
        batch = OutgoingBatch.of([OutgoingMessage(subject, b"", payload, b"") for subject in subjects] * 20)
        assert count % len(batch) == 0
        publisher = Publisher(SinkOptions.of({"servers": self.url, "publishWindow": "10000"}))
        publisher.publish_all(batch for _ in range(count // len(batch)))

    def purge(self, name: str) -> None:
        StreamApi(self.connection).purge(name, 0)

    def stop(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def take_bytes(url: str, stream: str, count: int) -> None:
    """The ceiling: pull everything and look at nothing but the end of each read."""
    with connect_socket(url) as connection:
        api = StreamApi(connection)
        # A short name, as the source's, for every message carries it.
        consumer = api.create_consumer(stream, ConsumerConfig(name=next_nuid()[-12:], mem_storage=True))
        inbox = new_inbox().encode()
        connection.subscribe(inbox)
        request = encode(PullRequest(batch=count, expires=nanoseconds(60.0)))
        connection.publish(api.subject("CONSUMER.MSG.NEXT", stream, consumer.name), request, reply=inbox)
        buffer = memoryview(bytearray(1 << 20))
        tail = b""
        while b".0 %d\r\n" % PAYLOAD not in tail:
            fill = connection.recv_into(buffer, 30.0)
            tail = (tail + bytes(buffer[max(fill - 400, 0) : fill]))[-400:]
        api.forget_consumer(stream, consumer.name)
        connection.flush()


def make_frames(stream: str, count: int) -> list[memoryview]:
    """Make the frames that the sink would send, a piece of its window each, under ids of their own."""
    run, inbox, payload = new_inbox()[7:].encode(), b"_INBOX." + stream.encode(), b"x" * PAYLOAD
    pieces = []
    for first in range(0, count, 1024):
        ids = [b"%b/0/%d-0123456789abcdef" % (run, row) for row in range(first, min(first + 1024, count))]
        header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"
        rows = [
            OutgoingMessage(b"%b.%d" % (stream.encode(), n % 100), header % i, payload, i) for n, i in enumerate(ids)
        ]
        pieces.append(OutgoingBatch.of(rows).frames(b"%b.%d" % (inbox, first)).data)
    return pieces


def publish_frames(url: str, stream: str, pieces: list[memoryview], count: int, window: int = 4096) -> None:
    """The sink's ceiling: send what was made before, and look at nothing but how many acknowledgements come."""
    key = b'"seq":'
    with connect_socket(url) as connection:
        connection.subscribe(b"_INBOX.%b.*" % stream.encode())
        buffer = memoryview(bytearray(1 << 20))
        sent = acknowledged = 0
        tail = b""
        for piece in pieces:
            connection.send(piece)
            sent = min(sent + 1024, count)
            while sent - acknowledged > (0 if sent == count else window - 1024):
                text = tail + bytes(buffer[: connection.recv_into(buffer, 30.0)])
                acknowledged += text.count(key)
                tail = text[-len(key) + 1 :]


async def publish_with_nats_py(url: str, subject: str, count: int) -> None:
    import nats

    client = await nats.connect(url)
    js = client.jetstream(publish_async_max_pending=4096)
    payload = b"x" * PAYLOAD
    for number in range(count):
        # Without wait_stall, which costs a task each: nats-py's quickest way.
        await js.publish_async(subject, payload, headers={"Nats-Msg-Id": f"{time.time_ns()}-{number}"})
    await js.publish_async_completed()
    await client.close()


class Spark:
    """One session, and what is read and written in it."""

    def __init__(self, server: Server, folder: str) -> None:
        self.server = server
        self.folder = folder
        settings = {
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "2g",
        }
        self.session = jetlake.spark.session("local[2]", conf=settings)  # both sources are in it
        self.session.sparkContext.setLogLevel("OFF")
        self.session.dataSource.register(NaiveSource)
        self.processes = Processes(self.session._jvm.java.lang.ProcessHandle.current().pid())
        self._runs = 0
        self.micro_batches_s: list[float] = []

    def read(self, url: str, stream: str, partitions: int = 2) -> None:
        options = {"servers": url, "minPartitions": partitions, "maxPartitions": partitions}
        frame = self.session.read.format("jetstream").options(**options).load(stream)
        frame.write.format("noop").mode("overwrite").save()

    def read_naively(self, stream: str, count: int) -> None:
        frame = self.session.read.format("naive").options(servers=self.server.url, stream=stream, count=count).load()
        frame.write.format("noop").mode("overwrite").save()

    def read_available_now(self, url: str, stream: str, *, note: bool = True) -> None:
        self._runs += 1
        options = {"servers": url, "minPartitions": 2, "maxPartitions": 2}
        query = (
            self.session.readStream.format("jetstream")
            .options(**options)
            .load(stream)
            .writeStream.format("noop")
            .option("checkpointLocation", f"{self.folder}/{self._runs}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if not note:
            return
        reports = [report for report in query.recentProgress if report["numInputRows"]]
        self.micro_batches_s.append(sum(report["durationMs"]["triggerExecution"] for report in reports) / 1000)

    def write(self, stream: str, count: int, server: Server | None = None) -> None:
        frame = self.session.range(0, count, 1, 2).selectExpr(
            f"concat('{stream}.', id % 100) as subject", f"repeat('x', {PAYLOAD}) as data"
        )
        frame.write.format("jetstream").mode("append").option("servers", (server or self.server).url).save()

    def verify(self, stream: str, count: int) -> None:
        frame = self.session.read.format("jetstream").option("servers", self.server.url).load(stream)
        row = frame.selectExpr("count(*)", "count(distinct sequence)", "sum(length(data))").first()
        assert tuple(row) == (count, count, count * PAYLOAD), row


def main() -> None:
    arguments = parse_arguments(QUESTION)
    # A job costs Spark a fifth of a second, a query more: with fewer rows that would be most of what is measured.
    count = 1_000_000 if arguments.quick else 4_000_000
    written = 400_000 if arguments.quick else 1_000_000
    # These would take minutes.
    naive = 80_000 if arguments.quick else 200_000
    published = 20_000 if arguments.quick else 100_000
    repeats = 3
    report = Report(QUESTION, arguments)
    folder = tempfile.mkdtemp(prefix="jetlake-bench-check-")
    server = Server("nats-server")
    server.create_stream("IN")
    server.create_stream("OUT")
    server.create_stream("FEW")
    server.fill("IN", count)
    server.fill("FEW", FEW)
    spark = Spark(server, folder)
    spark.verify("IN", count)
    for _ in range(2):
        # The JVM compiles what it runs often; a first read costs it ten times as much as a later one.
        spark.read(server.url, "IN")
    reads: dict[str, Case] = {
        "source batch": (lambda: spark.read(server.url, "IN"), count),
        "source available now": (lambda: spark.read_available_now(server.url, "IN"), count),
        "bytes only": (lambda: take_bytes(server.url, "IN", count), count),
    }
    others: dict[str, Case] = {
        "nats-py source": (lambda: spark.read_naively("IN", naive), naive),
        "sink": (lambda: spark.write("OUT", written), written),
        "nats-py publish": (lambda: asyncio.run(publish_with_nats_py(server.url, "OUT.x", published)), published),
        "frames only": (lambda: publish_frames(server.url, "OUT", made.pop(), published), published),
    }
    # One for each round, one to warm up, one more should a round's CPU time be unknown: ids are good for once.
    made = [make_frames("OUT", published) for _ in range(repeats + 2)]
    starts = {
        "source batch": lambda: spark.read(server.url, "FEW"),
        "source available now": lambda: spark.read_available_now(server.url, "FEW", note=False),
        "sink": lambda: spark.write("OUT", FEW),
    }
    few_s = measure(starts, repeats)
    rates: dict[str, float] = {}

    def run(cases: dict[str, Case], server: Server) -> None:
        seconds, costs = spark.processes.measure(cases, repeats, server.pid)
        for name, (_, rows) in cases.items():
            rates[name] = rows / seconds[name]
            report.add(name, {"rows/s": round(rates[name]), **costs[name], "spread %": seconds.spreads[name]})

    def micro_batch_rate() -> float:
        # As `measure` does it: the first round is not counted.
        return count / statistics.median(spark.micro_batches_s[1:])

    run({**reads, **others}, server)
    micro_batch = micro_batch_rate()
    spark.micro_batches_s.clear()
    with spark.processes.apart_from(server.pid):
        run({f"{name}{APART}": case for name, case in reads.items()}, server)
    micro_batch_apart = micro_batch_rate()
    embedded = Server("embedded")
    embedded.create_stream("IN")
    embedded.fill("IN", count)
    embedded.create_stream("OUT")
    on_embedded: dict[str, Case] = {
        "source batch, embedded server": (lambda: spark.read(embedded.url, "IN"), count),
        "source available now, embedded server": (lambda: spark.read_available_now(embedded.url, "IN"), count),
        "bytes only, embedded server": (lambda: take_bytes(embedded.url, "IN", count), count),
        "sink, embedded server": (lambda: spark.write("OUT", written, embedded), written),
        "nats-py publish, embedded server": (
            lambda: asyncio.run(publish_with_nats_py(embedded.url, "OUT.x", published)),
            published,
        ),
    }
    spark.micro_batches_s.clear()
    run(on_embedded, embedded)
    micro_batch_embedded = micro_batch_rate()
    embedded.stop()
    report.add("source available now, its micro-batches alone", {"rows/s": round(micro_batch)})
    report.add(f"source available now, its micro-batches alone{APART}", {"rows/s": round(micro_batch_apart)})
    report.add(
        "source available now, its micro-batches alone, embedded server", {"rows/s": round(micro_batch_embedded)}
    )
    for name, taken_s in few_s.items():
        report.add(f"{name}, {FEW:,} rows", {"seconds": taken_s, "spread %": few_s.spreads[name]})
    report.compare("source_batch_vs_nats_py", rates["source batch"], rates["nats-py source"])
    report.compare("source_available_now_vs_nats_py", rates["source available now"], rates["nats-py source"])
    report.compare("sink_vs_nats_py", rates["sink"], rates["nats-py publish"])
    report.compare(
        "sink_vs_nats_py_embedded", rates["sink, embedded server"], rates["nats-py publish, embedded server"]
    )
    report.compare("ceiling_source_batch", rates["source batch"], rates["bytes only"])
    report.compare("ceiling_source_available_now", rates["source available now"], rates["bytes only"])
    report.compare("ceiling_source_micro_batch", micro_batch, rates["bytes only"])
    ceiling = rates["bytes only, embedded server"]
    report.compare("ceiling_source_batch_embedded", rates["source batch, embedded server"], ceiling)
    report.compare("ceiling_source_available_now_embedded", rates["source available now, embedded server"], ceiling)
    report.compare("ceiling_source_micro_batch_embedded", micro_batch_embedded, ceiling)
    ceiling = rates[f"bytes only{APART}"]
    report.compare("ceiling_source_batch_own_core", rates[f"source batch{APART}"], ceiling)
    report.compare("ceiling_source_available_now_own_core", rates[f"source available now{APART}"], ceiling)
    report.compare("ceiling_source_micro_batch_own_core", micro_batch_apart, ceiling)
    report.compare("ceiling_sink", rates["sink"], rates["frames only"])
    report.finish()
    spark.session.stop()
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
