"""A worker whose odd messages fail, made to be killed: by somebody else, or by itself between letter and termination.

python dead_letter_worker.py URL [die]
"""

import asyncio
import os
import sys

import jetlake
from jetlake.client.pull.handlers import FailedMessages


async def die_before_terminating(self, message, reason):
    os._exit(9)


async def handle(message):
    if int(message.payload) % 2:
        raise ValueError(f"odd: {message.payload.decode()}")
    await message.ack_sync()


async def main(url):
    async with await jetlake.connect(url, on_error=lambda error: None) as nc:
        consumer = await nc.jetstream().consumer("JOBS", "w")
        reading = consumer.consume(handle, concurrency=4, retries=1, backoff=0.01, dead_letter="dead")
        await reading.wait()


if __name__ == "__main__":
    if sys.argv[2:] == ["die"]:
        FailedMessages._terminate = die_before_terminating
    asyncio.run(main(sys.argv[1]))
