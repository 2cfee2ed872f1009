"""A server with twenty busy streams that dies, and a disk that has nothing but what was synced: the redo log has it."""

import asyncio
from itertools import count

import jetlake
from jetlake.store.files.disk import RealDisk
from jetlake.store.log.durability import MarkFile
from jetlake.store.redo.redo_format import find_entries, find_header
from jetlake.store.redo.redo_log import FILE_NAMES
from tests.faults.killable import KillableServer
from tests.faults.load_clients import GONE

STREAMS = [f"S{number}" for number in range(20)]
ENTRIES_LEAST = 20


def entry_count(redo_file):
    """How many entries a file of the redo log has; 0 without a file, or a header in it."""
    data = redo_file.read_bytes() if redo_file.exists() else b""
    header = find_header(data)
    return len(find_entries(data, header.salt)[0]) if header is not None else 0


async def publish_until_killed(server, acknowledged):
    """Publish to all streams, one message under way in each, and kill the server when its redo log is in use."""
    client = await jetlake.connect(server.url, reconnect=False, request_timeout=60)
    jetstream = client.jetstream()
    for name in STREAMS:
        await jetstream.create_stream(name=name, subjects=[name])

    async def publish(name):
        for number in count(1):
            try:
                ack = await jetstream.publish(name, b"%s %d" % (name.encode(), number))
            except GONE:
                return
            assert ack.seq == number
            acknowledged[name] = number

    publishers = [asyncio.create_task(publish(name)) for name in STREAMS]
    redo_file = server.folder / "data/jetstream" / FILE_NAMES[0]
    async with asyncio.timeout(120):
        while entry_count(redo_file) < ENTRIES_LEAST:
            await asyncio.sleep(0.02)
    server.kill()
    await asyncio.gather(*publishers)
    await client.close()


def lose_what_was_not_synced(server):
    """Cut each log where its mark says that it is synced; how many bytes that cost."""
    lost_bytes = 0
    for segment in server.message_files():
        number, end = MarkFile(RealDisk(), segment.parent / "mark", 0).read().safe_end
        assert segment.name == f"{number:010d}.seg"
        data = segment.read_bytes()
        lost_bytes += len(data[end:].rstrip(b"\0"))
        segment.write_bytes(data[:end])
    return lost_bytes


async def test_what_was_acknowledged_outlives_the_power():
    acknowledged = {}
    with KillableServer("jetlake") as server:
        await publish_until_killed(server, acknowledged)
        assert lose_what_was_not_synced(server), "the redo log made nothing durable"
        server.start()
        async with await jetlake.connect(server.url, request_timeout=60) as client:
            jetstream = client.jetstream()
            for name in STREAMS:
                stream = await jetstream.stream(name)
                state = (await stream.info()).state
                assert state.messages >= acknowledged[name], name
                message = await stream.get(acknowledged[name])
                assert message.data == b"%s %d" % (name.encode(), acknowledged[name])
        assert "lost" not in server.log
        assert not (server.folder / "data/jetstream" / FILE_NAMES[0]).exists()
