"""`compression: s2` on a real disk: full blocks shrink, and everything can be read, also after a restart."""

import asyncio

BODY = b"words that are said again and again " * 14_000
COUNT = 20


def bytes_on_disk(server):
    return sum(
        path.stat().st_size for path in server.folder.glob("data/jetstream/*/streams/S/msgs/*") if path.is_file()
    )


async def test_full_blocks_shrink(server, clients):
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s"], compression="s2")
    for _ in range(COUNT):
        await js.publish("s", BODY)
    while await asyncio.to_thread(bytes_on_disk, server) > 0.6 * COUNT * len(BODY):
        await asyncio.sleep(0.02)
    assert (await stream.info()).state.bytes > COUNT * len(BODY)
    await server.restart()
    js = (await clients(server)).jetstream()
    stream = await js.stream("S")
    for sequence in (1, 7, COUNT):
        assert (await stream.get(sequence)).data == BODY
    assert (await js.publish("s", BODY)).seq == COUNT + 1
