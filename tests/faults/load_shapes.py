"""Shapes of load that a server has to stand, each with a bystander whose round trips are timed; figures come back.

Every shape runs against a server in a process of its own, so that its memory can be read from outside.
"""

import asyncio
import json
import os
import statistics
import time
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.killable import KillableServer

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'


def memory_mib(pid):
    """What the process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid):
    """How many files and sockets the process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def settled_files(pid, limit):
    """How many files the process has open once it has fewer than a limit; files are also open while they are synced."""
    async with asyncio.timeout(60):
        while (count := open_files(pid)) >= limit:
            await asyncio.sleep(0.05)
    return count


class Raw:
    """A raw connection: one request at a time."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self._requests = 0

    @classmethod
    async def open(cls, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        raw = cls(reader, writer)
        await raw.line(b"INFO ")
        writer.write(CONNECT + b"SUB _INBOX.raw%d.* 1\r\nPING\r\n" % id(raw))
        await raw.line(b"PONG\r\n")
        return raw

    async def line(self, start=b""):
        """The next line that starts so; those before it are left out."""
        async with asyncio.timeout(60):
            while line := await self.reader.readline():
                if line.startswith(start):
                    return line
        raise ConnectionError("closed")

    async def request(self, subject, body=b""):
        """Publish with a reply and return the payload of the answer."""
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self._requests += 1
        inbox = b"_INBOX.raw%d.%d" % (id(self), self._requests)
        self.writer.write(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body))
        while True:
            line = await self.line()
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split()
                payload = (await self.reader.readexactly(int(words[-1]) + 2))[:-2]
                # A message from a stream comes under its own subject, and with an ack subject.
                if words[1] == inbox or words[3].startswith(b"$JS.ACK."):
                    return payload
            elif line.startswith(b"PING"):
                self.writer.write(b"PONG\r\n")

    async def api(self, verb, body=b""):
        answer = json.loads(await self.request(f"$JS.API.{verb}", body))
        if "error" in answer:
            raise RuntimeError(f"{verb}: {answer['error']}")
        return answer

    async def close(self):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


class Bystander:
    """Somebody who only wants his acknowledgements, and times them."""

    def __init__(self, raw):
        self._raw = raw
        self._task = None
        self._is_over = False
        self.times_s = []

    async def watch(self):
        await self._raw.api(
            "STREAM.CREATE.BYSTANDER", {"name": "BYSTANDER", "subjects": ["bystander"], "max_msgs": 100}
        )
        self._task = asyncio.ensure_future(self._run())

    async def _run(self):
        while True:
            started = time.perf_counter()
            answer = json.loads(await self._raw.request("bystander", b"x"))
            assert "seq" in answer, answer
            self.times_s.append(time.perf_counter() - started)
            if self._is_over:
                return
            await asyncio.sleep(0.02)

    async def stop(self):
        """Wait for the answer under way; what ended the watch early is told."""
        self._is_over = True
        await self._task
        await self._raw.close()


class Scene:
    """A server, a bystander, and what was measured."""

    def __init__(self, server, bystander):
        self.server = server
        self.bystander = bystander
        self.figures = {}

    @property
    def pid(self):
        return self.server.process.pid

    async def connect(self):
        return await Raw.open(self.server.port)

    def note_peak(self):
        self.figures["peak MiB"] = max(self.figures.get("peak MiB", 0.0), memory_mib(self.pid))


SETTLE_S = 1.0
"""How long the bystander publishes before his waits count: a server that has just started still loads modules."""


@asynccontextmanager
async def scene(kind, config=""):
    """A server of that kind under watch; figures are complete at the end."""
    with KillableServer(kind, config) as server:
        bystander = Bystander(await Raw.open(server.port))
        stage = Scene(server, bystander)
        stage.figures["start MiB"] = memory_mib(stage.pid)
        await bystander.watch()
        await asyncio.sleep(SETTLE_S)
        bystander.times_s.clear()
        used_s = server.cpu_s()
        peak = asyncio.ensure_future(_sample(stage))
        try:
            yield stage
        finally:
            peak.cancel()
            stage.note_peak()
            await bystander.stop()
        stage.figures["CPU us"] = (server.cpu_s() - used_s) / max(stage.figures.get("took part", 0), 1) * 1e6
        times = sorted(bystander.times_s)
        stage.figures["bystander ms"] = statistics.median(times) * 1e3 if times else 0.0
        stage.figures["worst ms"] = times[-1] * 1e3 if times else 0.0
        stage.figures["answers"] = len(times)


async def _sample(stage):
    while True:
        stage.note_peak()
        await asyncio.sleep(0.05)


async def nobody_else(seconds, kind="jetlake"):
    """The bystander alone."""
    async with scene(kind) as stage:
        await asyncio.sleep(seconds)
        stage.figures["took part"] = len(stage.bystander.times_s)
    return stage.figures


async def many_connections(count, kind="jetlake"):
    """So many clients at once, each with a subscription, and a message that goes to all of them."""
    async with scene(kind) as stage:
        raws = []
        for first in range(0, count, 50):
            raws += await asyncio.gather(*(stage.connect() for _ in range(min(50, count - first))))
        for raw in raws:
            raw.writer.write(b"SUB all 2\r\nPING\r\n")
        for raw in raws:
            await raw.line(b"PONG\r\n")
        raws[0].writer.write(b"PUB all 5\r\nhello\r\n")
        received = 0
        for raw in raws:
            await raw.line(b"MSG all")
            received += 1
        stage.figures["took part"] = received
        for raw in raws:
            await raw.close()
    return stage.figures


async def many_streams(count, kind="jetlake"):
    """So many streams, a message in each."""
    async with scene(kind) as stage:
        raw = await stage.connect()
        for number in range(count):
            await raw.api(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}"]})
        stored = 0
        for number in range(count):
            stored += "seq" in json.loads(await raw.request(f"s.{number}", b"x"))
        stage.figures["took part"] = stored
        stage.figures["open files"] = open_files(stage.pid)
        await raw.close()
    return stage.figures


async def many_consumers(count, kind="jetlake"):
    """One stream with so many consumers; a message that each of them can have."""
    async with scene(kind) as stage:
        raw = await stage.connect()
        await raw.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        for number in range(count):
            config = {"durable_name": f"c{number}", "ack_policy": "explicit"}
            await raw.api(f"CONSUMER.CREATE.S.c{number}", {"stream_name": "S", "config": config})
        await raw.request("s.a", b"for everybody")
        got = 0
        for number in range(count):
            got += await raw.request(f"$JS.API.CONSUMER.MSG.NEXT.S.c{number}", b"1") == b"for everybody"
        stage.figures["took part"] = got
        stage.figures["open files"] = await settled_files(stage.pid, count)
        await raw.close()
    return stage.figures


async def never_reading_subscriber(messages, kind="jetlake"):
    """A subscriber that takes nothing while somebody publishes to it; it is cut off at its limit, and nobody else."""
    async with scene(kind, "max_pending: 8MB") as stage:
        lazy = await stage.connect()
        lazy.writer.write(b"SUB flood 2\r\nPING\r\n")
        await lazy.writer.drain()
        lazy.writer.transport.pause_reading()
        busy = await stage.connect()
        payload = b"x" * 16384
        for _ in range(messages):
            busy.writer.write(b"PUB flood %d\r\n%b\r\n" % (len(payload), payload))
            await busy.writer.drain()
        busy.writer.write(b"PING\r\n")
        await busy.line(b"PONG\r\n")
        stage.figures["took part"] = messages
        stage.figures["cut off"] = stage.server.log.count("Slow Consumer Detected")
        await busy.close()
        lazy.writer.transport.abort()
        await lazy.close()
    return stage.figures


async def byte_by_byte(clients, messages=20, kind="jetlake"):
    """Clients whose every byte comes alone, headers and all."""
    frame = b"HPUB slow 27 32\r\nNATS/1.0\r\nSome-Key: v1\r\n\r\nhello\r\n"
    header = frame[frame.index(b"NATS") : frame.index(b"hello")]
    frame = b"HPUB slow %d %d\r\n" % (len(header), len(header) + 5) + header + b"hello\r\n"
    async with scene(kind) as stage:
        listener = await stage.connect()
        listener.writer.write(b"SUB slow 2\r\nPING\r\n")
        await listener.line(b"PONG\r\n")

        async def trickle():
            raw = await stage.connect()
            raw.writer.get_extra_info("socket").setsockopt(6, 1, 1)
            for _ in range(messages):
                for at in range(len(frame)):
                    raw.writer.write(frame[at : at + 1])
                    await raw.writer.drain()
                    await asyncio.sleep(0)
            raw.writer.write(b"PING\r\n")
            await raw.line(b"PONG\r\n")
            await raw.close()

        await asyncio.gather(*(trickle() for _ in range(clients)))
        got = 0
        while got < clients * messages:
            await listener.line(b"HMSG slow")
            got += 1
        stage.figures["took part"] = got
        await listener.close()
    return stage.figures


async def faster_than_the_disk(seconds, payload_bytes=65536, kind="jetlake"):
    """Publishers that never wait for an acknowledgement, as fast as their sockets take it."""
    async with scene(kind) as stage:
        raw = await stage.connect()
        await raw.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "max_bytes": 256 * 2**20})
        payload = b"x" * payload_bytes
        frame = b"PUB s %d\r\n%b\r\n" % (len(payload), payload)
        deadline = time.monotonic() + seconds
        sent = 0
        while time.monotonic() < deadline:
            for _ in range(8):
                raw.writer.write(frame)
            await raw.writer.drain()
            sent += 8
        state = (await raw.api("STREAM.INFO.S"))["state"]
        stage.figures["sent"] = sent
        stage.figures["took part"] = state["last_seq"]
        await raw.close()
    return stage.figures
