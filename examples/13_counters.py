"""Counters that add themselves up, and the answers of several services to one request."""

import asyncio
import os

import jetlake


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        js = nc.jetstream()
        votes = await js.create_counters("VOTES", subjects=["votes.*"])
        await asyncio.gather(*(votes.add(f"votes.{name}") for name in ["tea", "coffee", "tea", "tea"]))
        print({entry.subject: entry.value async for entry in votes.entries()})
        await votes.stream.delete()

        for seat in (b"left", b"right"):
            await nc.subscribe("who", lambda message, seat=seat: message.respond(seat))
        print(sorted([answer.payload.decode() async for answer in nc.request_many("who", max_messages=2)]))


asyncio.run(main())
