"""Failed messages are tried again after a back-off; what is given up becomes a dead letter."""

import asyncio
import os

import jetlake
from jetlake.client import Message


async def bill(message: Message) -> None:
    print("try", message.metadata.delivered, "of", message.payload.decode())
    int(message.payload)
    await message.ack()


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        orders = await js.create_stream("ORDERS", subjects=["orders"])
        dead = await js.create_stream("DEAD", subjects=["dead.>"])
        await js.publish("orders", b"ten")
        worker = await orders.create_consumer("billing")
        options = {"retries": 1, "backoff": 0.1, "dead_letter": "dead.{stream}", "on_error": lambda error: None}
        async with worker.consume(bill, **options):
            while not (await dead.info()).state.messages:
                await asyncio.sleep(0.05)
        letter = await dead.get(1)
        print(letter.subject, letter.headers["Dead-Letter-Description"])
        await orders.delete()
        await dead.delete()


asyncio.run(main())
