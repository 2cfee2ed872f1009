"""A service and its client: a request, and the first answer to it."""

import asyncio
import os

import jetlake
from jetlake.errors import NoRespondersError


async def main() -> None:
    async with jetlake.connect(os.environ.get("NATS_URL")) as nc:
        await nc.subscribe("shout", lambda message: message.respond(message.payload.upper()))
        answer = await nc.request("shout", b"is anybody there?", timeout=5)
        print(answer.payload.decode())
        try:
            await nc.request("whisper", b"is anybody there?")
        except NoRespondersError as error:
            print("no:", error)


asyncio.run(main())
