"""Clients of the world that block: the blocking client in threads of its user, and a Spark query (driver and tasks)."""

import contextlib
import json
from typing import ClassVar

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

import jetlake.blocking
from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.client.tables.stream_api import ask
from jetlake.errors import BatchWrittenError, DataLossError, InvalidOptionError, JetlakeError
from jetlake.model.replies import StreamUpdateReply
from jetlake.model.requests import StreamCreateRequest
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.sink import writer
from jetlake.spark.source.driver import Driver
from jetlake.spark.source.executor import read_task
from tests.world import interposed
from tests.world.book import BrokenPromiseError
from tests.world.changes import SINK_WINDOW_S

__all__ = ["BlockingWorker", "SparkQuery"]

_ROWS = StructType([StructField("data", BinaryType())])


class BlockingWorker:
    """A program with a blocking client and some threads that use it."""

    def __init__(self, history, name):
        self.history = history
        self.setup = history.setup
        self.name = name
        self.random = history.chance(name)
        self.error = None

    def run(self):
        """Run it, in a thread of its process."""
        random, scheduler = self.random, self.history.world.scheduler
        client = None
        while client is None:
            try:
                client = jetlake.blocking.connect(
                    self.history.hub.url, request_timeout=random.choice((1, 5)), reconnect_wait=0.05,
                    reconnect_wait_max=1, on_error=lambda error: None,
                )  # fmt: skip
            except JetlakeError:
                scheduler.sleep(0.1)
        self.js = client.jetstream(publish_window=random.choice((5, 50, 4000)))
        process = scheduler.current.process
        threads = [
            process.start(lambda number=number: self._act(f"{self.name}.{number}"), f"user{number}")
            for number in range(random.randrange(1, 4))
        ]
        for thread in threads:
            while thread.done is not None:
                thread.done.append(scheduler.current)
                scheduler.wait()
        if self.error is not None:
            raise self.error
        (client.drain if random.random() < 0.5 else client.close)()
        if left := [end for end in process.ends if not end.is_gone]:
            raise BrokenPromiseError(f"{self.name} left sockets open: {left}")

    def _act(self, name):
        number = 0
        while not self.history.is_calm and self.error is None:
            step = f"{name}.{number}"
            number += 1
            random = self.history.chance(step)
            operation = random.choices((self._publish, self._publish_async, self._fetch, self._next), (4, 3, 2, 1))[0]
            self.history.steps.append(step)
            if step not in self.history.skip:
                self.history.world.count(f"blocking {operation.__name__}")
                try:
                    operation(random)
                except InvalidOptionError as error:
                    self.error = error
                except JetlakeError as error:
                    self.history.world.count(f"error {type(error).__name__}")
                except BaseException as error:
                    self.error = error
            self.history.world.scheduler.sleep(random.choice((0.001, 0.01, 0.05)))

    def _publish(self, random):
        book = self.setup.plain
        number = next(self.setup.numbers)
        book.begin(number)
        with book.may_refuse(number):
            ack = self.js.publish(f"plain.{number % 5}", b"%d" % number, timeout=random.choice((0.05, 2)))
            book.acked(number, ack.seq)

    def _publish_async(self, random):
        book = self.setup.plain
        pending = []
        for _ in range(random.randrange(1, 60)):
            number = next(self.setup.numbers)
            book.begin(number)
            pending.append((number, self.js.publish_async(f"plain.{number % 5}", b"%d" % number)))
        for number, ack in pending:
            with contextlib.suppress(JetlakeError), book.may_refuse(number):
                book.acked(number, ack.result().seq)

    def _fetch(self, random):
        asked_ns = self.history.world.scheduler.now_ns
        for message in self.js.consumer("PLAIN", "workers").fetch(random.randrange(1, 30), expires=1):
            self._handle(message, random, asked_ns)

    def _next(self, random):
        asked_ns = self.history.world.scheduler.now_ns
        with self.js.consumer("PLAIN", "workers").consume(max_messages=random.choice((1, 50)), expires=5) as messages:
            for _ in range(random.randrange(1, 30)):
                self._handle(messages.next(1), random, asked_ns)

    def _handle(self, message, random, asked_ns):
        reads = self.setup.workers
        sequence = message.metadata.stream_seq
        reads.saw(sequence, bytes(message.payload), asked_ns)
        if random.random() < 0.3:
            message.ack_sync()
            reads.confirm(sequence, self.history.world.scheduler.now_ns)
        else:
            message.ack()


class TaskContext:
    """What Spark tells a task: the world's threads are tasks, and each has a context of its own."""

    contexts: ClassVar = {}

    def __init__(self, partition, batch):
        self.partition = partition
        self.batch = batch

    @classmethod
    def get(cls):
        return cls.contexts.get(interposed.world.scheduler.current)

    def partitionId(self):
        return self.partition

    def getLocalProperty(self, name):
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(self.batch)}[name]


class SparkQuery:
    """Spark's part in a streaming query: offsets through JSON, batches in order, retries and restarts.

    Attributes:
        stream: what it reads: a stream that stays as it is, or a work queue, of which it releases what is committed.
        writes: whether it writes what it reads to a stream.
        read: the sequences of all committed batches.
    """

    def __init__(self, history, name):
        self.history = history
        self.name = name
        self.random = history.chance(name)
        self.stream = self.random.choice(("PLAIN", "RELEASE")) if "release" in history.parts else "PLAIN"
        self.writes = self.random.random() < 0.6
        # A query that falls behind, and tasks that work on what they read: longer ranges, and breaks within them.
        self.is_patient = self.writes and self.random.random() < 0.4
        self.lag_s = self.random.choice((0, 0, 0.5, 2))
        self.work_s = self.random.choice((0, 0, 0.02, 0.3))
        self.read = []
        writer.TaskContext = TaskContext

    def run(self):
        """Read batches until the world is calm, and then to the end of the stream."""
        random, world = self.random, self.history.world
        self.history.queries.append(self)
        servers = {"servers": self.history.hub.url, "retryFor": random.choice(("5s", "60s")), "connectTimeout": "1s"}
        given = {
            **servers, "stream": self.stream, "messagesPerPartition": random.choice(("5", "1000")),
            "maxMessagesPerTrigger": str(random.choice((25, 100, 10_000))),
        }  # fmt: skip
        self.options = SourceOptions.of(given)
        self.sink = SinkOptions.of({**servers, "subject": "sink.x", "publishWindow": random.choice(("8", "4096"))})
        self.refuses = self.writes and random.random() < 0.3
        self.offset = Offset(start=str(self.options.starting)).to_json()
        self.end, self.batch, failures = None, 0, 0
        self._restart()
        while True:
            was_calm = self.history.is_calm and not self.history.working()
            try:
                if not self._run_batch():
                    if was_calm:
                        return
                    world.scheduler.sleep(0.01)
            except JetlakeError as error:
                world.trace(f"{self.name} {error!r}")
                world.count(f"spark error {type(error).__name__}")
                failures += 1
                if failures > 100 or isinstance(error, (BatchWrittenError, DataLossError)):
                    raise
                self._restart()
                world.scheduler.sleep(1)
            if random.random() < 0.1:
                self._restart()
            if self.lag_s and not self.history.is_calm:
                world.scheduler.sleep(random.uniform(0, self.lag_s))

    def _restart(self):
        """Begin anew from the checkpoint, as after the death of the driver."""
        self.driver = Driver(self.options)

    def _run_batch(self):
        """Run a batch; False when there is nothing to read."""
        random, world = self.random, self.history.world
        start = read_offset(self.offset)
        if self.end is None:
            end = self.driver.latest_offset(start)
            if end == start:
                return False
            self.end = json.loads(json.dumps(end.to_json()))
        sequences = self._attempt()
        while random.random() < 0.2:
            # The driver died before it noted the batch as committed, or a stage was repeated.
            world.count("spark retries")
            if random.random() < 0.5:
                self._restart()
            if self.is_patient and not self.history.is_calm:
                # Once, for longer than the stream remembers ids: the ledger and the stored rows tell what is there.
                self.is_patient = False
                world.count("spark retries after the duplicate window")
                world.scheduler.sleep(SINK_WINDOW_S + 5)
            again = self._attempt()
            if again != sequences:
                raise BrokenPromiseError(f"{self.name} read {sequences} and, again, {again}")
        self.read += sequences
        self.offset, self.end = self.end, None
        self.batch += 1
        world.count("spark batches")
        return True

    def _attempt(self):
        """Run the tasks of the batch, at the same time, and commit what they wrote."""
        partitions = self.driver.partitions(read_offset(self.offset), read_offset(self.end))
        attempt = writer.StreamWriter(_ROWS, self.sink)
        scheduler = self.history.world.scheduler
        outcomes = [None] * len(partitions)

        def run(number, partition):
            TaskContext.contexts[scheduler.current] = TaskContext(number, self.batch)
            try:
                sequences = self._read(partition)
                written = self._write(attempt, sequences) if self.writes else None
                outcomes[number] = (sequences, written)
            except Exception as error:
                outcomes[number] = error
            finally:
                del TaskContext.contexts[scheduler.current]

        if is_refusing := self.refuses and not self.history.is_calm and self.random.random() < 0.3:
            self._limit_sink(1)
        tasks = [
            scheduler.current.process.start(lambda number=number, each=each: run(number, each), f"task{number}")
            for number, each in enumerate(partitions)
        ]
        if is_refusing:
            scheduler.sleep(self.random.choice((0.02, 0.3)))
            self._limit_sink(-1)
        for task in tasks:
            while task.done is not None:
                task.done.append(scheduler.current)
                scheduler.wait()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        if self.writes:
            attempt.commit([written for _, written in outcomes], self.batch)
            self.history.world.count("spark batches written")
        return [sequence for sequences, _ in outcomes for sequence in sequences]

    def _limit_sink(self, max_msg_size):
        """Let the stream that is written to refuse all rows for a while."""

        def update(api):
            config = msgspec.structs.replace(api.stream_info("SINK").config, max_msg_size=max_msg_size)
            api._request(StreamUpdateReply, "STREAM.UPDATE", "SINK", body=StreamCreateRequest.from_config(config))

        while True:
            try:
                return ask(self.options.connection, update)
            except JetlakeError:
                self.history.world.scheduler.sleep(0.1)

    def _read(self, partition):
        sequences = []
        for found in read_task(partition, self.options):
            sequences += found.sequence.tolist()
            if self.work_s and not self.history.is_calm:
                self.history.world.scheduler.sleep(self.work_s)
        return sequences

    def _write(self, attempt, sequences):
        rows = pa.table({"data": pa.array([b"%d" % sequence for sequence in sequences], pa.binary())})
        return attempt.write(iter(rows.to_batches(max_chunksize=7)))

    def check(self, stored, sunk):
        """Compare with what the stream holds at the end, and with what the sink's stream does."""
        if len(set(self.read)) != len(self.read):
            raise BrokenPromiseError(f"{self.name} read messages twice")
        lost = set(stored) - set(self.read)
        if lost or (self.stream == "PLAIN" and sorted(self.read) != stored):
            raise BrokenPromiseError(f"{self.name} read {len(self.read)}, {len(stored)} are stored: not read {lost}")
        if self.stream == "RELEASE" and stored:
            raise BrokenPromiseError(f"{self.name} read all of a work queue, and {len(stored)} messages are left")
        if self.writes and sorted(sunk) != sorted(self.read):
            lost, twice = set(self.read) - set(sunk), len(sunk) - len(set(sunk))
            raise BrokenPromiseError(f"{self.name} wrote {len(sunk)} of {len(self.read)}: lost {lost}, {twice} twice")
