"""A consumer remembers how far it is. `fetch` asks once for a list of messages; one call acknowledges all."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        jobs = await js.create_stream("JOBS", subjects=["jobs.*"], retention="workqueue")
        for number in range(10):
            await js.publish("jobs.resize", b"%d" % number)
        worker = await jobs.create_consumer("worker", ack_wait=30)
        while messages := await worker.fetch(4, expires=1):
            print("got", [int(message.payload) for message in messages])
            await messages.ack()
        print((await jobs.info()).state.messages, "jobs left")
        await jobs.delete()


asyncio.run(main())
