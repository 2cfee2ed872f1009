"""The same with a handler: several messages are worked on at once, and a failing one does not stop the others."""

import asyncio
import os

import jetlake
from jetlake.client import Message


async def main() -> None:
    done: set[int] = set()

    async def handle(message: Message) -> None:
        number = int(message.payload)
        if number == 3 and message.metadata.delivered == 1:
            raise ValueError("three is difficult at first")
        await asyncio.sleep(0.01)
        await message.ack()
        done.add(number)
        if len(done) == 10:
            await reading.drain()

    url = os.environ.get("NATS_URL")
    async with jetlake.connect(url, on_error=lambda error: print("reported:", error)) as nc:
        js = nc.jetstream()
        tasks = await js.create_stream("TASKS", subjects=["tasks"])
        for number in range(10):
            await js.publish("tasks", b"%d" % number)
        worker = await tasks.create_consumer("worker", ack_wait=0.5)
        async with worker.consume(handle, concurrency=4) as reading:
            await reading.wait()  # Until it is drained; raises if the consumer is gone.
        print("done:", sorted(done))
        await tasks.delete()


asyncio.run(main())
