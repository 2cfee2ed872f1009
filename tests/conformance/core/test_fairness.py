"""Nobody waits for somebody else: what one client does while another one floods, by the order of events alone."""

import asyncio

FLOOD = 300_000


async def test_a_bystander_is_answered_while_another_client_floods(start, connect):
    server = await start("", ["no_jetstream"])
    flood, bystander = await (await connect(server)).hello(), await (await connect(server)).hello()
    flooding = asyncio.create_task(flood.send(b"PUB a 1\r\nx\r\n" * FLOOD + b"PING\r\n"))
    flooded = asyncio.create_task(flood.line())
    answered = 0
    while not flooded.done():
        await bystander.ping()
        answered += 1
    await flooding
    assert flooded.result() == b"PONG"
    assert answered > 10
