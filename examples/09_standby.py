"""One client does all the work and another stands by: a priority group with a pinned client."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("LEADER", subjects=["leader"])
        consumer = await stream.create_consumer(
            "worker", priority_policy="pinned_client", priority_groups=["main"], priority_timeout=10
        )

        first = consumer.consume(group="main", on_pinned=lambda pin: print("the first is pinned"))
        second = consumer.consume(group="main", on_pinned=lambda pin: print("the second is pinned"))
        async with first, second:
            await js.publish("leader", b"1")
            await (await first.next(5)).ack()
            await first.stop()
            await consumer.unpin("main")
            await js.publish("leader", b"2")
            await (await second.next(5)).ack()
        await stream.delete()


asyncio.run(main())
