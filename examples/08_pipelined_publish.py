"""Publish many messages without waiting for each: a window holds the publisher back, and no failure is silent."""

import asyncio
import os

import jetlake
from jetlake.errors import PublishWindowError


async def main() -> None:
    url = os.environ.get("NATS_URL")
    async with jetlake.connect(url, on_error=lambda error: None) as nc:
        js = nc.jetstream(publish_window=500)
        readings = await js.create_stream("READINGS", subjects=["readings"], max_msgs=5000, discard="new")
        for number in range(5000):
            await js.publish_async("readings", b"%d" % number, msg_id=str(number))
        await js.publish_async_complete()
        print((await readings.info()).state.messages, "readings stored")
        await js.publish_async("readings", b"one too many")
        try:
            await js.publish_async_complete()
        except PublishWindowError as error:
            print(len(error.failures), "refused:", error.failures[0][1])
        await readings.delete()


asyncio.run(main())
