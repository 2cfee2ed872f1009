"""Clients of the world that block: the blocking client in threads of its user, and a Spark query (driver and tasks)."""

import json

import jetlake.blocking
from jetlake.errors import InvalidOptionError, JetlakeError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.driver import Driver
from jetlake.spark.source.executor import read_task
from jetlake.spark.source.offsets import Offset, read_offset
from tests.world.book import BrokenPromiseError

__all__ = ["BlockingWorker", "SparkQuery"]


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
        self.js = client.jetstream()
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
            self.history.world.scheduler.sleep(random.choice((0.0001, 0.001, 0.05)))

    def _publish(self, random):
        book = self.setup.plain
        number = next(self.setup.numbers)
        book.begin(number)
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
            try:
                book.acked(number, ack.result().seq)
            except JetlakeError:
                pass

    def _fetch(self, random):
        for message in self.js.consumer("PLAIN", "workers").fetch(random.randrange(1, 30), expires=1):
            self._handle(message, random)

    def _next(self, random):
        with self.js.consumer("PLAIN", "workers").consume(max_messages=random.choice((1, 50)), expires=5) as messages:
            for _ in range(random.randrange(1, 30)):
                self._handle(messages.next(1), random)

    def _handle(self, message, random):
        reads = self.setup.workers
        sequence = message.metadata.stream_seq
        reads.saw(sequence, bytes(message.payload))
        if random.random() < 0.3:
            message.ack_sync()
            reads.confirmed.add(sequence)
        else:
            message.ack()


class SparkQuery:
    """Spark's part in a streaming query: offsets through JSON, batches in order, retries and restarts."""

    def __init__(self, history, name):
        self.history = history
        self.name = name
        self.random = history.chance(name)
        self.read = []

    def run(self):
        """Read batches until the world is calm, and then to the end of the stream."""
        random, world = self.random, self.history.world
        self.history.queries.append(self)
        given = {
            "servers": self.history.hub.url, "stream": "PLAIN", "retryFor": "60s", "connectTimeout": "1s",
            "maxMessagesPerTrigger": str(random.choice((7, 100, 10_000))),
        }  # fmt: skip
        self.options = SourceOptions.of(given)
        driver = Driver(self.options)
        offset = Offset(start=str(self.options.starting)).to_json()
        failures = 0
        while True:
            was_calm = self.history.is_calm and not self.history.working()
            try:
                start = read_offset(offset)
                end = driver.latest_offset(start)
                if end == start:
                    if was_calm:
                        return
                    continue
                end = json.loads(json.dumps(end.to_json()))
                sequences = self._batch(driver, offset, end)
                if random.random() < 0.2:
                    world.count("spark retries")
                    driver = Driver(self.options) if random.random() < 0.5 else driver
                    again = self._batch(driver, offset, end)
                    if again != sequences:
                        raise BrokenPromiseError(f"{self.name} read {sequences} and, again, {again}")
                self.read += sequences
                offset = end
                world.count("spark batches")
            except JetlakeError as error:
                world.count(f"spark error {type(error).__name__}")
                failures += 1
                if failures > 20:
                    raise
                driver = Driver(self.options)
                world.scheduler.sleep(1)
            if random.random() < 0.1:
                driver = Driver(self.options)

    def _batch(self, driver, offset, end):
        return [
            sequence
            for partition in driver.partitions(read_offset(offset), read_offset(end))
            for messages in read_task(partition, self.options)
            for sequence in messages.sequence.tolist()
        ]

    def check(self, stored):
        """Compare with what the stream holds at the end."""
        if sorted(self.read) != stored:
            lost, twice = set(stored) - set(self.read), len(self.read) - len(set(self.read))
            raise BrokenPromiseError(f"{self.name} read {len(self.read)} of {len(stored)}: lost {lost}, {twice} twice")
