"""A stream keeps what is published to its subjects, and says so; a message id makes publishing again harmless."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        orders = await js.create_stream("ORDERS", subjects=["orders.>"], max_age=3600)
        for _ in range(2):
            ack = await js.publish("orders.new", b'{"id": 42}', msg_id="order-42")
            print(f"sequence {ack.seq}, duplicate: {ack.duplicate}")
        print((await orders.info()).state.messages, "message in the stream")
        await orders.delete()


asyncio.run(main())
