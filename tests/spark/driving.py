"""Spark's part in a streaming query, played by hand: the driver's half and its tasks, without a Spark session."""

from __future__ import annotations

import json

from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.driver import Driver
from jetlake.spark.source.executor import read_task
from jetlake.spark.source.shared_driver import SharedDriver
from jetlake.spark.source.stream_watch import Clock


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sleeps = 0
        self.on_sleep = lambda: None
        self.clock = Clock(lambda: self.now_s, lambda: int(self.now_s * 1e9), self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps += 1
        self.on_sleep()


class Query:
    """Spark's part: offsets through JSON, batches in order, and a restart that forgets everything else."""

    def __init__(self, server, stream, **options) -> None:
        self.given = {"servers": server.url, "stream": stream, "retryFor": "2s", **options}
        self.time = Time()
        self.restart()
        self.offset = Offset(start=str(self.options.starting)).to_json()

    def restart(self, **options) -> None:
        """Go on as a new process would, with other options if they are given."""
        self.given.update(options)
        self.options = SourceOptions.of(self.given)
        shared = self.options.guarantee == "atLeastOnce"
        self.driver = (SharedDriver if shared else Driver)(self.options, self.time.clock)

    def plan(self):
        """The next batch's end, or None when there is nothing to read."""
        self.time.now_s += 1
        start = read_offset(self.offset)
        end = self.driver.latest_offset(start)
        return None if end == start else json.loads(json.dumps(end.to_json()))

    def read(self, end):
        partitions = self.driver.partitions(read_offset(self.offset), read_offset(end))
        return [
            sequence
            for partition in partitions
            for messages in read_task(partition, self.options)
            for sequence in messages.sequence.tolist()
        ]

    def ranges(self, end):
        partitions = self.driver.partitions(read_offset(self.offset), read_offset(end))
        return [(partition.stream, partition.first, partition.end) for partition in partitions]

    def batch(self):
        """Plan, read and commit one batch; the sequences it read."""
        end = self.plan()
        if end is None:
            return None
        sequences = self.read(end)
        self.offset = end
        return sequences

    def of(self, stream):
        return self.offset["streams"][stream]

    @property
    def lost(self):
        """What the query counts as lost, by stream."""
        return {stream: entry.get("lost", 0) for stream, entry in self.offset["streams"].items()}
