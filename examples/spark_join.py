"""Two streams joined as they go on: each order with its payment, or alone when an hour has passed without one."""

import json
import os
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

import jetlake.blocking
import jetlake.spark

ORDERS = [(1, "09:00"), (2, "09:10"), (3, "09:20"), (4, "13:00")]
PAYMENTS = [(1, "09:30"), (3, "09:25"), (4, "13:01")]


def messages(spark: SparkSession, servers: str, stream: str, names: str) -> DataFrame:
    """The order's number and the time of each message, under these names."""
    number, time = names.split()
    return (
        spark.readStream.format("jetstream")
        .options(servers=servers, payloadFormat="json", payloadSchema="order bigint, at timestamp")
        .load(stream)
        .selectExpr(f"value.order as {number}", f"value.at as {time}")
        .withWatermark(time, "10 minutes")
    )


def paid_orders(spark: SparkSession, servers: str) -> DataFrame:
    """Every order once. The watermarks say how long Spark keeps an order and waits for its payment."""
    orders = messages(spark, servers, "ORDERS", "order ordered_at")
    payments = messages(spark, servers, "PAYMENTS", "paid_order paid_at")
    in_time = "order = paid_order and paid_at between ordered_at and ordered_at + interval 1 hour"
    return orders.join(payments, expr(in_time), "left").select("order", "ordered_at", "paid_at")


def main(spark: SparkSession, url: str) -> None:
    with jetlake.blocking.connect(url) as nc, tempfile.TemporaryDirectory() as checkpoint:
        js = nc.jetstream()
        streams = [js.create_stream(name, subjects=[name.lower()]) for name in ("ORDERS", "PAYMENTS")]
        for subject, facts in (("orders", ORDERS), ("payments", PAYMENTS)):
            for order, time in facts:
                js.publish(subject, json.dumps({"order": order, "at": f"2026-01-31T{time}:00Z"}).encode())
        writer = paid_orders(spark, url).writeStream.format("memory").queryName("paid_orders")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        for row in spark.table("paid_orders").orderBy("order").collect():
            paid = f"paid at {row.paid_at:%H:%M}" if row.paid_at else "not paid within an hour"
            print(f"order {row.order} of {row.ordered_at:%H:%M}: {paid}")
        for stream in streams:
            stream.delete()


if __name__ == "__main__":
    conf = {"spark.sql.session.timeZone": "UTC"}
    main(jetlake.spark.session(conf=conf), os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
