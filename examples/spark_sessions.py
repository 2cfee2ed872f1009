"""Sessions per user from a stream of clicks, by Spark's `transformWithState`: a pause of half an hour ends one."""

import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import jetlake.blocking
import jetlake.spark

PAUSE_MS = 30 * 60 * 1000
SESSION = "user string, began timestamp, ended timestamp, clicks bigint"

CLICKS = [
    ("ann", "09:00"),
    ("bob", "09:05"),
    ("ann", "09:20"),
    ("ann", "11:00"),
    ("bob", "09:10"),
    ("cid", "13:00"),
]


class Sessions(StatefulProcessor):
    """Keeps the open session of each user; it is over when the watermark has passed the pause behind its last click."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", "began_ms bigint, ended_ms bigint, clicks bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in sorted(rows, key=lambda row: row.at):
            at_ms = round(row.at.timestamp() * 1000)
            began_ms, ended_ms, clicks = self._open.get() if self._open.exists() else (at_ms, at_ms, 0)
            if clicks:
                self._handle.deleteTimer(ended_ms + PAUSE_MS)
            if clicks and at_ms > ended_ms + PAUSE_MS:
                yield self._session(key)
                began_ms, ended_ms, clicks = at_ms, at_ms, 0
            began_ms, ended_ms = min(began_ms, at_ms), max(ended_ms, at_ms)
            self._open.update((began_ms, ended_ms, clicks + 1))
            self._handle.registerTimer(ended_ms + PAUSE_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield self._session(key)
        self._open.clear()

    def _session(self, key: Any) -> Row:
        began_ms, ended_ms, clicks = self._open.get()
        times = [datetime.fromtimestamp(time_ms / 1000, UTC) for time_ms in (began_ms, ended_ms)]
        return Row(user=key[0], began=times[0], ended=times[1], clicks=clicks)


def sessions(spark: SparkSession, servers: str, stream: str) -> DataFrame:
    """The sessions that are over, as the stream goes on."""
    # The only state store of Spark that transformWithState works with.
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    clicks = (
        spark.readStream.format("jetstream")
        .options(servers=servers, payloadFormat="json", payloadSchema="user string, at timestamp")
        .load(stream)
        .select("value.user", "value.at")
        .withWatermark("at", "10 minutes")
    )
    return clicks.groupBy("user").transformWithState(Sessions(), SESSION, "append", "eventTime")


def main(spark: SparkSession, url: str) -> None:
    with jetlake.blocking.connect(url) as nc, tempfile.TemporaryDirectory() as checkpoint:
        js = nc.jetstream()
        stream = js.create_stream("CLICKS", subjects=["clicks"])
        for user, time in CLICKS:
            js.publish("clicks", json.dumps({"user": user, "at": f"2026-01-31T{time}:00Z"}).encode())
        writer = sessions(spark, url, "CLICKS").writeStream.format("memory").queryName("sessions")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        for row in spark.table("sessions").orderBy("began").collect():
            print(f"{row.user}: {row.clicks} from {row.began:%H:%M} to {row.ended:%H:%M}")
        stream.delete()


if __name__ == "__main__":
    conf = {"spark.sql.session.timeZone": "UTC"}
    main(jetlake.spark.session(conf=conf), os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
