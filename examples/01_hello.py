"""Publish and subscribe: whoever listens now gets the message."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        subscription = await nc.subscribe("greetings.*")
        await nc.publish("greetings.world", b"hello")
        message = await subscription.next(timeout=5)
        print(message.subject, message.payload.decode())


asyncio.run(main())
