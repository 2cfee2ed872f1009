"""`consume` goes on and on, with messages fetched ahead; `nak` asks for a message again, `term` gives it up."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        events = await js.create_stream("EVENTS", subjects=["events.>"])
        for word in ("good", "slow", "broken", "last"):
            await js.publish("events.new", word.encode())
        reader = await events.create_consumer("reader", max_deliver=3)
        async with reader.consume(max_messages=100) as messages:
            async for message in messages:
                word, tries = message.payload.decode(), message.metadata.delivered
                print(f"{word}, try {tries}")
                if word == "slow" and tries == 1:
                    await message.nak()
                elif word == "broken":
                    await message.term("cannot be read")
                else:
                    await message.ack()
                if word == "slow" and tries == 2:
                    break
        await events.delete()


asyncio.run(main())
