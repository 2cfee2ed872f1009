"""Two members of a consumer group, each with its own keys, and every key in order."""

import asyncio
import os

import jetlake
from jetlake.client import Message


async def main() -> None:
    async with await jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("PARCELS", subjects=["parcels.*"])
        groups = js.consumer_groups("PARCELS")
        drivers = await groups.create_elastic("drivers", max_members=4, keys={"parcels.*": [1]}, members=["x", "y"])
        for step in range(3):
            for town in ("bonn", "cork", "graz", "nice"):
                await js.publish(f"parcels.{town}", b"%d" % step)

        handled: dict[str, list[int]] = {}

        def handle(message: Message) -> None:
            handled.setdefault(message.subject, []).append(int(message.payload))

        async with drivers.consume("x", handle), drivers.consume("y", handle):
            while sum(map(len, handled.values())) < 12:
                await asyncio.sleep(0.01)
        print(dict(sorted(handled.items())))
        await groups.delete("drivers")
        await stream.delete()


asyncio.run(main())
