"""A client of the wire and nothing else: bytes over a socket, read frame by frame, with no help from the package.

A server asks with PING whether a client is still there, first after a second or two; on a busy machine that is in the
middle of any test. So PINGs are answered here, and no test sees one but those that read with `any_line`.
"""

import asyncio
import json
import re
from typing import NamedTuple

TIMEOUT_S = 60

# What a server says of itself, at any time.
_ASIDE = re.compile(rb"^(?:INFO \{[^\r\n]*|PING)\r\n", re.MULTILINE)


class Message(NamedTuple):
    subject: str
    sid: str
    reply: str
    header: bytes
    payload: bytes

    @property
    def status(self):
        """The number in the first line of the header; None when there is none."""
        found = re.match(rb"NATS/1\.0 (\d{3})", self.header)
        return int(found[1]) if found else None

    @property
    def description(self):
        """The text behind the status."""
        first = self.header.split(b"\r\n", 1)[0].decode()
        return first.split(" ", 2)[2] if first.count(" ") >= 2 else ""

    @property
    def headers(self):
        """The pairs of the header; of a key given twice the last."""
        lines = self.header.decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) if ": " in line else line.split(":", 1) for line in lines if ":" in line)

    @property
    def json(self):
        return json.loads(self.payload)


def publish_frame(subject, payload=b"", reply="", header=b""):
    """PUB, or HPUB where there is a header."""
    payload = payload if isinstance(payload, bytes) else payload.encode()
    head = f"{subject} {reply} " if reply else f"{subject} "
    if header:
        line = f"HPUB {head}{len(header)} {len(header) + len(payload)}\r\n".encode()
    else:
        line = f"PUB {head}{len(payload)}\r\n".encode()
    return line + header + payload + b"\r\n"


class Wire:
    """A raw connection; `async with Wire.connect(server) as wire`."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._inboxes = 0
        self._sids = 1000
        self.info = {}

    @classmethod
    async def open(cls, host, port, *, ssl=None, greeted=True):
        """Connect and read INFO, unless it comes later."""
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=ssl), TIMEOUT_S)
        wire = cls(reader, writer)
        if greeted:
            wire.read_info(await wire.line())
        return wire

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def read_info(self, line):
        verb, text = line.split(b" ", 1)
        assert verb == b"INFO", line
        self.info = json.loads(text)

    async def close(self):
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), TIMEOUT_S)
        except OSError:
            pass

    async def start_tls(self, context, hostname="localhost"):
        """Go on encrypted, after INFO in the clear."""
        await asyncio.wait_for(self._writer.start_tls(context, server_hostname=hostname), TIMEOUT_S)

    # Sending

    async def send(self, data):
        self._writer.write(data if isinstance(data, bytes) else data.encode())
        await asyncio.wait_for(self._writer.drain(), TIMEOUT_S)

    async def hello(self, **options):
        """CONNECT as a current client does, and wait until the server has taken it; options change the defaults."""
        defaults = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        await self.send(b"CONNECT " + json.dumps({**defaults, **options}).encode() + b"\r\nPING\r\n")
        assert await self.line() == b"PONG"
        if {**defaults, **options}["protocol"] >= 1:
            self.read_info(await self.line())
        return self

    async def publish(self, subject, payload=b"", reply="", header=b""):
        await self.send(publish_frame(subject, payload, reply, header))

    async def subscribe(self, subject, sid, queue=""):
        await self.send(f"SUB {subject} {queue + ' ' if queue else ''}{sid}\r\n")

    async def request(self, subject, payload=b"", header=b""):
        """Publish with a fresh inbox and return the first message that comes to it."""
        payload = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self._inboxes += 1
        self._sids += 1
        inbox = f"_INBOX.wire.{id(self)}.{self._inboxes}"
        await self.send(f"SUB {inbox} {self._sids}\r\nUNSUB {self._sids} 1\r\n")
        await self.publish(subject, payload, reply=inbox, header=header)
        return await self.message()

    # Receiving

    async def line(self):
        """The next line but PING, without its end."""
        while (line := await self.any_line()) == b"PING":
            await self.send(b"PONG\r\n")
        return line

    async def any_line(self):
        """The next line, without its end."""
        line = await asyncio.wait_for(self._reader.readline(), TIMEOUT_S)
        if not line.endswith(b"\r\n"):
            raise EOFError(f"closed after {line!r}")
        return line[:-2].rstrip(b" ")

    async def message(self):
        """The next frame, which must be a message."""
        line = await self.line()
        words = line.decode().split(" ")
        assert words[0] in ("MSG", "HMSG"), line
        size = int(words[-1])
        header_size = int(words[-2]) if words[0] == "HMSG" else 0
        names = words[1:-2] if words[0] == "HMSG" else words[1:-1]
        body = await asyncio.wait_for(self._reader.readexactly(size + 2), TIMEOUT_S)
        assert body.endswith(b"\r\n")
        reply = names[2] if len(names) > 2 else ""
        return Message(names[0], names[1], reply, body[:header_size], body[header_size:size])

    async def messages(self, count):
        return [await self.message() for _ in range(count)]

    async def ping(self):
        """PING, and all that comes before its PONG."""
        await self.send(b"PING\r\n")
        return await self.until(b"PONG\r\n")

    async def until(self, end):
        """All bytes up to and without `end`; INFO and PING lines left out."""
        data = await asyncio.wait_for(self._reader.readuntil(end), TIMEOUT_S)
        return _ASIDE.sub(b"", data[: -len(end)])

    async def rest(self):
        """All bytes until the server closes; INFO and PING lines left out."""
        try:
            return _ASIDE.sub(b"", await asyncio.wait_for(self._reader.read(-1), TIMEOUT_S))
        except ConnectionResetError:
            return b""

    async def read(self, count):
        return await asyncio.wait_for(self._reader.readexactly(count), TIMEOUT_S)
