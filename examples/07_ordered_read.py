"""Read a stream from any place, in order, without acknowledgements: an ordered consumer repairs itself."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        log = await js.create_stream("LOG", subjects=["log.*"], storage="memory")
        for number in range(100):
            await js.publish_async(f"log.{'even' if number % 2 == 0 else 'odd'}", b"%d" % number)
        await js.publish_async_complete()
        read = []
        async for message in log.ordered(
            deliver_policy="by_start_sequence", opt_start_seq=91, filter_subject="log.odd"
        ):
            read.append(int(message.payload))
            if message.metadata.pending == 0:
                break
        print(read)
        await log.delete()


asyncio.run(main())
