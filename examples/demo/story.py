"""The course of the demonstration, from an empty folder to the table that proves the counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from demo.processes import PipelineProcess, ServerProcess, start_dashboard
from demo.shop import CONSUMER, STREAM, Fate, Order, Shop, with_duplicates
from jetlake.client import connect
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Two cores and a short life: a JVM that starts quickly is better than one that gets fast later.
_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}
_MASTER = "local[2]"

_SQL = """\
name: revenue
sources:
  orders:
    stream: {stream}
    schema: id bigint, country string, amount decimal(12,2)
    watermark: 1 minute
steps:
  - name: per_country
    sql: |
      SELECT window.start AS minute, country, count(*) AS orders, sum(amount) AS revenue
      FROM orders
      GROUP BY window(timestamp, '1 minute'), country
sinks:
  - from: per_country
    to: parquet:{folder}
    mode: complete
"""

_ARCHIVE_WAIT_S = 400.0


class Story:
    """One demonstration.

    Args:
        folder: where everything goes; it must be empty or missing.
        orders: how many different orders.
        say: tells a person what happens.
    """

    def __init__(self, folder: Path, orders: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._orders = with_duplicates(orders)
        self._say = say
        self._began_s = time.monotonic()
        self.server = ServerProcess(folder / "server")
        self.lake = folder / "lake"
        self.revenue = folder / "revenue"
        self.sql_file = folder / "revenue.yml"
        self.health_rows: list[tuple[Any, ...]] = []
        self._archive: PipelineProcess | None = None

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {text}")

    def close(self) -> None:
        """End every process that still runs."""
        if self._archive is not None and self._archive.is_running:
            self._archive.kill()
        self.server.stop()

    async def run(self) -> list[Check]:
        """Everything, in order; the lines of the table.

        Raises:
            JetlakeError: something failed that has to work.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self.sql_file.write_text(_SQL.format(stream=STREAM, folder=self.revenue))
        self.server.start()
        self._tell(f"the embedded server runs at {self.server.url}")
        self._archive = self._start_archive("--follow")
        session = asyncio.create_task(asyncio.to_thread(_session))
        try:
            client = await connect(self.server.url, name="demo", connect_timeout=20, reconnect_wait_max=0.5)
            async with client:
                shop = Shop(client)
                await shop.open()
                counts = await self._with_shop(shop, session)
        finally:
            (await session).stop()
        return checks(counts)

    async def _with_shop(self, shop: Shop, session: asyncio.Task[SparkSession]) -> Counts:
        everything = asyncio.Event()
        workers = asyncio.create_task(shop.work(everything))
        try:
            half = len(self._orders) // 2
            await shop.publish(self._orders[:half])
            self._tell(f"{shop.sent:,} orders are published, workers ack, nak and time out")
            self._tell("Spark starts twice, for the archive and for SQL, which takes the longest of all")
            await self._kill_archive()
            await self._publish_through_a_crash(shop, self._orders[half:])
            everything.set()
            self._archive = self._start_archive("--once")
            self._tell("the archive is started again, and goes on where it was")
            spark = await session
            aggregated = await asyncio.to_thread(self._aggregate, spark)
            await workers
        finally:
            workers.cancel()
        fates = shop.fates
        self._tell(
            f"workers are done: {fates[Fate.ACK]:,} acks, {fates[Fate.NAK]:,} naks, {fates[Fate.SILENCE]:,} timeouts, "
            f"{fates[Fate.TERM]:,} given up"
        )
        samples = await _settled(shop.ack_samples)
        health_acks = await asyncio.to_thread(self._health, spark)
        summary = await asyncio.to_thread(self._archive.finish)
        self._tell(f"the archive has caught up: {summary['rows']:,} rows in its second run")
        archived, distinct = await asyncio.to_thread(self._count_archive, spark)
        return Counts(
            sent=shop.sent,
            distinct=len(shop.ids),
            stored=await shop.stored(),
            handled=len(shop.acked | shop.given_up),
            unsettled=await shop.unsettled(),
            archived=archived,
            archived_distinct=distinct,
            aggregated=aggregated[0],
            revenue_sent=_revenue_cents(self._orders),
            revenue_aggregated=aggregated[1],
            ack_samples=samples,
            health_acks=health_acks,
        )

    def _start_archive(self, how: str) -> PipelineProcess:
        conf = [word for key, value in _SPARK.items() for word in ("--conf", f"{key}={value}")]
        arguments = ["-s", self.server.url, "pipeline", "archive", STREAM, str(self.lake), how, "--master", _MASTER]
        return PipelineProcess([*arguments, "--batch-messages", "3000", *conf], self._folder / "archive.log")

    async def _kill_archive(self) -> None:
        """Kill the archive when it is in the middle of its work."""
        archive = self._archive
        assert archive is not None
        deadline_s = time.monotonic() + _ARCHIVE_WAIT_S
        while archive.rows == 0:
            if not archive.is_running or time.monotonic() > deadline_s:
                raise JetlakeError(f"the archive did not start; see {self._folder / 'archive.log'}")
            await asyncio.sleep(0.05)
        await asyncio.to_thread(archive.kill)
        self._tell(f"the archive is killed (kill -9) after {archive.rows:,} rows")

    async def _publish_through_a_crash(self, shop: Shop, orders: list[Order]) -> None:
        """Kill the server while orders are on their way, and start it again."""
        publishing = asyncio.create_task(shop.publish(orders))
        before = shop.sent
        while shop.sent - before < len(orders) // 3 and not publishing.done():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(self.server.kill)
        self._tell("the server is killed (kill -9) while orders are on their way")
        await asyncio.to_thread(self.server.start)
        await publishing
        self._tell(f"the server is back with its streams, and {shop.sent:,} orders are acknowledged")

    def _settings(self) -> Any:
        from jetlake.spark.pipelines.settings import PipelineSettings

        return PipelineSettings(connection={"servers": self.server.url})

    def _aggregate(self, spark: SparkSession) -> tuple[int, int]:
        from jetlake.spark.pipelines.runner import run_pipeline
        from jetlake.spark.pipelines.sql import SqlPipeline
        from jetlake.spark.pipelines.sql_file import read_sql_file

        run_pipeline(SqlPipeline(read_sql_file(str(self.sql_file))), spark, self._settings())
        row = spark.read.parquet(str(self.revenue)).selectExpr("sum(orders)", "sum(revenue) * 100").collect()[0]
        self._tell(f"SQL has added up {row[0]:,} orders per minute and country")
        return int(row[0]), round(row[1])

    def _health(self, spark: SparkSession) -> int:
        from jetlake.spark.pipelines.health import Health
        from jetlake.spark.pipelines.sinks import Target

        table = Health(Target("console"), (STREAM,)).present_table(spark, self._settings())
        rows = table.collect()
        self.health_rows = [tuple(row) for row in rows]
        table.coalesce(1).write.mode("overwrite").parquet(str(self._folder / "health"))
        self._tell(f"health of consumer {CONSUMER} is summed up per minute")
        return sum(row["acks"] for row in rows)

    def _count_archive(self, spark: SparkSession) -> tuple[int, int]:
        row = spark.read.parquet(str(self.lake)).selectExpr("count(*)", "count(distinct sequence)").collect()[0]
        return int(row[0]), int(row[1])

    def keep(self) -> tuple[str, int]:
        """Start the dashboard beside the server, to stay: its address and its process id."""
        return start_dashboard(self.server.url, self._folder / "dashboard.log")


def _session() -> SparkSession:
    from jetlake.spark.pipelines.session import build_session

    return build_session("jetlake demo", _MASTER, _SPARK)


async def _settled(count: Callable[[], Any]) -> int:
    """Return a count that no longer changes: the last events are on their way when the last ack is."""
    before = -1
    while (now := await count()) != before:
        before = now
        await asyncio.sleep(0.5)
    return before


def _revenue_cents(orders: list[Order]) -> int:
    """Return the money in all different orders."""
    amounts = {order.message_id: msgspec.json.decode(order.payload)["amount"] for order in orders}
    return sum(round(amount * 100) for amount in amounts.values())


@dataclass(frozen=True)
class Counts:
    """What was counted, each in its own place.

    Attributes:
        sent: messages sent to the server, duplicates included.
        distinct: different orders among them.
        stored: messages in the stream.
        handled: orders that workers acknowledged or gave up.
        unsettled: deliveries that the server still waits for.
        archived: rows in the archive's files.
        archived_distinct: different sequences among them.
        aggregated: orders that the SQL result adds up to.
        revenue_sent, revenue_aggregated: the money in the orders, and in the SQL result, in cents.
        ack_samples: measured acks in the stream of events.
        health_acks: those that the health table adds up to.
    """

    sent: int
    distinct: int
    stored: int
    handled: int
    unsettled: int
    archived: int
    archived_distinct: int
    aggregated: int
    revenue_sent: int
    revenue_aggregated: int
    ack_samples: int
    health_acks: int


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    what: str
    count: int
    must_be: int | None
    because: str

    @property
    def holds(self) -> bool:
        """Whether it is what it must be."""
        return self.must_be is None or self.count == self.must_be


def checks(counts: Counts) -> list[Check]:
    """Return all lines."""
    distinct = counts.distinct
    return [
        Check("published", counts.sent, None, "orders sent, every tenth of them twice"),
        Check("deduplicated", counts.sent - counts.stored, counts.sent - distinct, "sent twice, stored once"),
        Check("stored", counts.stored, distinct, "in the stream, after the server was killed"),
        Check("handled", counts.handled, distinct, "acknowledged or given up by workers"),
        Check("unsettled", counts.unsettled, 0, "still owed to workers"),
        Check("archived", counts.archived, counts.stored, "rows in files, after the archive was killed"),
        Check("archived once", counts.archived_distinct, counts.stored, "different sequences in these files"),
        Check("aggregated", counts.aggregated, counts.stored, "orders in the SQL result"),
        Check("revenue, cents", counts.revenue_aggregated, counts.revenue_sent, "sum of the SQL result"),
        Check("health", counts.health_acks, counts.ack_samples, "measured acks in the health table"),
    ]
