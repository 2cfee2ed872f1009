"""A stream and its consumers under test: requests on one connection, deliveries on another."""

import asyncio
import json

from tests.support.wire import Wire

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

# How long silence must last to count; whatever is to come is on its way by then.
QUIET_S = 0.05


class Workbench:
    """A server, two raw connections to it, and a stream `S` on `s.>`."""

    def __init__(self, server):
        self.server = server
        self.control = None
        self.data = None
        self._acks = 0

    @classmethod
    async def open(cls, server, **stream):
        bench = cls(server)
        await bench.connect()
        await bench.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **stream})
        return bench

    async def connect(self):
        """Open both connections; deliveries and answers come to `inbox` and `inbox.*`."""
        server = self.server
        self.control = await (await Wire.open(server.host, server.port)).hello()
        self.data = await (await Wire.open(server.host, server.port)).hello()
        await self.data.subscribe("inbox", "1")
        await self.data.subscribe("inbox.*", "2")
        await self.data.ping()

    async def reconnect(self):
        """Open both connections anew, to a server that was restarted."""
        await self.close()
        await self.connect()

    async def close(self):
        await self.control.close()
        await self.data.close()

    @property
    def is_embedded(self):
        return self.server.is_embedded

    async def api(self, verb, body=b""):
        return (await self.control.request(f"$JS.API.{verb}", body)).json

    async def store(self, *subjects, payload=b"hello", header=b""):
        """Store a message on each subject and return the last acknowledgement."""
        for subject in subjects:
            answer = (await self.control.request(subject, payload, header)).json
            assert "error" not in answer, answer
        return answer

    async def fill(self, count, payload=b"hello"):
        return await self.store(*(f"s.{number}" for number in range(1, count + 1)), payload=payload)

    async def consumer(self, name="c", **config):
        """Create a durable consumer with explicit acks, unless told otherwise."""
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        answer = await self.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
        assert "error" not in answer, answer
        return answer

    async def info(self, name="c"):
        return await self.api(f"CONSUMER.INFO.S.{name}")

    async def numbers(self, name="c"):
        """Delivered and floor as pairs, then pending, ack pending, redelivered and waiting."""
        info = await self.info(name)
        return (
            (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]),
            (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]),
            info["num_pending"],
            info["num_ack_pending"],
            info["num_redelivered"],
            info["num_waiting"],
        )

    async def reaches(self, numbers, name="c"):
        """Wait until the numbers are these: what was published is on its way."""
        async with asyncio.timeout(60):
            while (found := await self.numbers(name)) != numbers:
                await asyncio.sleep(0.005)
        return found

    async def has_pending(self, count, name="c"):
        """Wait until so many messages are pending: nats-server counts a message after its PubAck."""
        async with asyncio.timeout(60):
            while (await self.numbers(name))[2] != count:
                await asyncio.sleep(0.005)

    async def is_unbound(self, name="c"):
        """Wait until a push consumer knows that nobody listens any more."""
        async with asyncio.timeout(60):
            while "push_bound" in await self.info(name):
                await asyncio.sleep(0.005)

    async def is_gone(self, name="c"):
        """Wait until there is no such consumer."""
        async with asyncio.timeout(60):
            while "error" not in await self.info(name):
                await asyncio.sleep(0.02)

    async def pull(self, body=b"", name="c", inbox="inbox"):
        """Send a pull request; `take` reads what comes."""
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        await self.data.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", payload, reply=inbox)

    async def take(self, count=1):
        """The next so many messages on the data connection; one alone comes without a list."""
        messages = await self.data.messages(count)
        return messages[0] if count == 1 else messages

    async def next(self, body=b"", name="c"):
        """Pull one message."""
        await self.pull(body, name)
        return await self.take()

    async def status(self, body, name="c"):
        """Pull, and return the status line that answers."""
        message = await self.next(body, name)
        return f"{message.status} {message.description}"

    async def answer(self, message, body=b""):
        """Acknowledge in some way, and wait for the server to say that it has."""
        self._acks += 1
        inbox = f"inbox.ack{self._acks}"
        await self.data.publish(message.reply, body, reply=inbox)
        confirmation = await self.take()
        assert (confirmation.subject, confirmation.payload) == (inbox, b""), confirmation

    async def quiet(self):
        """Nothing comes on the data connection."""
        await asyncio.sleep(QUIET_S)
        assert await self.data.ping() == b""


def numbers_of(message):
    """What an ack subject says: deliveries, stream sequence, consumer sequence, pending."""
    tokens = message.reply.split(".")
    return int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8])


def sequences(messages):
    return [numbers_of(message)[1] for message in messages]
