"""Queues that fill: whoever reads gets everything, however much is published."""

import asyncio

from jetlake.server import Options, Server

COUNT = 20_000
MESSAGE = b"MSG self 1 1024\r\n" + b"x" * 1024 + b"\r\n"


async def test_a_client_may_publish_more_to_itself_than_may_wait():
    # Nobody takes what the reader has, so it stops; the queue fills until the server stops reading too.
    async with Server(options=Options(port=0, max_pending=4_000_000), jetstream=False) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b'CONNECT {"verbose":false}\r\nSUB self 1\r\nPING\r\n')
        await reader.readuntil(b"PONG\r\n")
        writer.writelines([b"PUB self 1024\r\n" + b"x" * 1024 + b"\r\n"] * COUNT)
        async with asyncio.timeout(10):
            while not server.statistics.stalled and server.connections:
                await asyncio.sleep(0.001)
        received = b""
        while len(received) < COUNT * len(MESSAGE) and (data := await reader.read(1 << 20)):
            received += data
        writer.close()
        assert received.count(b"MSG self 1 1024\r\n") == COUNT
        assert server.statistics.slow_consumers == 0
