"""A stream as a table, for polars and whatever else knows Arrow: no Spark, no Java."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("READINGS", subjects=["readings.*"])
        for number in range(100):
            await js.publish_async(f"readings.{number % 4}", b'{"celsius": %d}' % (number % 30))
        await js.publish_async_complete()
        frame = await stream.to_polars(payload="json", subjects=["readings.1", "readings.2"])
        print(frame.height, "readings, the warmest", frame["value"].struct.field("celsius").max())
        await stream.delete()


asyncio.run(main())
