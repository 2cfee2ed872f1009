"""Streams that copy from each other: created, filled, and looked at until they hold what they should."""

import asyncio
import base64
from typing import NamedTuple

from tests.support.wire import Wire


class Copy(NamedTuple):
    sequence: int
    subject: str
    header: bytes
    payload: bytes
    time: str


class Streams:
    """The streams of one server, over one raw connection."""

    def __init__(self, wire):
        self.wire = wire

    @classmethod
    async def open(cls, server):
        return cls(await (await Wire.open(server.host, server.port)).hello())

    async def close(self):
        await self.wire.close()

    async def api(self, verb, body=b"", header=b""):
        return (await self.wire.request(f"$JS.API.{verb}", body, header)).json

    async def create(self, name, **config):
        answer = await self.api(f"STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
        return answer

    async def update(self, name, **config):
        answer = await self.api(f"STREAM.UPDATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
        return answer

    async def origin(self, name="O", count=0, **config):
        """Create a stream on `<name in small letters>.>`, with so many messages on `.0` and `.1` in turn."""
        await self.create(name, subjects=[f"{name.lower()}.>"], **config)
        await self.fill(name, count)

    async def fill(self, name, count):
        for number in range(count):
            await self.store(f"{name.lower()}.{number % 2}", b"m%d" % (number + 1))

    async def store(self, subject, payload=b"", header=b""):
        answer = (await self.wire.request(subject, payload, header)).json
        assert "error" not in answer, answer
        return answer

    async def info(self, name):
        return await self.api(f"STREAM.INFO.{name}")

    async def state(self, name):
        """Messages, first and last sequence."""
        state = (await self.info(name))["state"]
        return state["messages"], state["first_seq"], state["last_seq"]

    async def reaches(self, name, state, timeout=60):
        """Wait until a stream has so many messages, and these first and last sequences."""
        await self.until(lambda: self.state(name), state, timeout)

    async def until(self, look, expected, timeout=60):
        found = None
        try:
            async with asyncio.timeout(timeout):
                while (found := await look()) != expected:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{found} instead of {expected}") from None

    async def get(self, name, sequence):
        message = (await self.api(f"STREAM.MSG.GET.{name}", {"seq": sequence})).get("message")
        if message is None:
            return None
        header, payload = (base64.b64decode(message.get(key, "")) for key in ("hdrs", "data"))
        return Copy(message["seq"], message["subject"], header, payload, message["time"])

    async def messages(self, name):
        _, first, last = await self.state(name)
        found = [await self.get(name, sequence) for sequence in range(max(first, 1), last + 1)]
        return [message for message in found if message is not None]
