"""Relays between a client and its server, which stall or break connections as a test tells them."""

import asyncio


class Relay:
    """Forwards connections to a server; while `is_open` is cleared, bytes wait on their way.

    Attributes:
        url: the address for clients.
    """

    def __init__(self, port):
        self._port = port
        self._tasks = set()
        self._drops = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def __aenter__(self):
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for pair in ((reader, there_writer), (there_reader, writer)):
            self._tasks.add(asyncio.create_task(self._forward(*pair)))

    def drop(self):
        """Let the connections that there are carry nothing any more, and tell neither end, as a NAT does."""
        self._drops += 1

    async def _forward(self, reader, writer):
        drops = self._drops
        try:
            while chunk := await reader.read(65536):
                await self.is_open.wait()
                if drops == self._drops:
                    writer.write(chunk)
            while drops != self._drops:
                await asyncio.sleep(3600)
        finally:
            writer.close()


class BreaksOnce(Relay):
    """Breaks one connection at a request: before the server has it, or before its answer.

    Attributes:
        is_lost: set when the connection is broken; others are accepted when `is_open` is set again.
    """

    def __init__(self, port, request, *, is_sent):
        super().__init__(port)
        self._request = request
        self._is_sent = is_sent
        self.is_lost = asyncio.Event()

    async def _accept(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        writers = [writer]
        try:
            await self.is_open.wait()
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
            writers.append(there_writer)
            await asyncio.gather(self._send(reader, there_writer), self._answer(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for opened in writers:
                opened.transport.abort()

    async def _send(self, reader, writer):
        while data := await reader.read(65536):
            if self._request in data and not self.is_lost.is_set():
                self.is_open.clear()
                if not self._is_sent:
                    self._break()
            writer.write(data)
        raise ConnectionResetError

    async def _answer(self, reader, writer):
        while data := await reader.read(65536):
            if not self.is_open.is_set():
                self._break()
            writer.write(data)
        raise ConnectionResetError

    def _break(self):
        self.is_lost.set()
        raise ConnectionResetError
