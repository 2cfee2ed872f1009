"""Connections of a server without sockets: transports that only remember, a log that is a list, and clients."""

import asyncio
import json

from jetlake.server.shell.log import Log


class Transport:
    """What a connection writes, and how it ends."""

    def __init__(self, peer=("127.0.0.1", 5555)):
        self.written = []
        self.buffered = 0
        self.is_reading = True
        self.ended = False
        self.closed = False
        self.aborted = False
        self._peer = peer

    def set_write_buffer_limits(self, high, low):
        pass

    def get_extra_info(self, name, default=None):
        return self._peer if name == "peername" else default

    def get_write_buffer_size(self):
        return self.buffered

    def write(self, data):
        self.written.append(bytes(data))

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.ended = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


class Lines(Log):
    """A log that is a list."""

    debugging = True

    def __init__(self):
        self.lines = []

    def write(self, level, text):
        self.lines.append(f"[{level}] {text}")


class Client:
    """The far end of a connection without a socket."""

    def __init__(self, server):
        self.transport = Transport()
        self.connection = server.make_connection()
        self._server = server
        self.connection.connection_made(self.transport)

    def send(self, data):
        self.connection.data_received(data)

    async def send_when_read(self, data):
        """Send as a socket gives: not before the connection reads."""
        while not self.transport.is_reading:
            await asyncio.sleep(0)
        self.send(data)

    async def take(self):
        """What was written since the last call, after the loop has had its turn; INFO lines left out."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        lines = data.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"INFO "))

    async def hello(self, **options):
        merged = {"verbose": False, "pedantic": False, "headers": True, **options}
        self.send(b"CONNECT " + json.dumps(merged).encode() + b"\r\nPING\r\n")
        assert await self.take() == b"PONG\r\n"
        return self
