"""Two servers asked the same: every answer of ours is held against that of nats-server, byte for byte but for masks."""

import asyncio
import json
import re

from tests.support.servers import make_server
from tests.support.wire import Wire

# What differs from run to run: times, and names that a server gives itself.
_MASKS = (
    (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\bN[A-Z2-7]{55}\b"), "SERVER"),
    (re.compile(r"_INBOX\.wire\.\d+\.\d+"), "INBOX"),
    (re.compile(r'"id":"\w{22}"'), '"id":"NUID"'),
    (re.compile(r"(\$JS\.ACK\.\S+\.\d+\.\d+\.\d+)\.\d{19}\."), r"\1.NS."),
    (re.compile(r'"pause_remaining":\d+'), '"pause_remaining":"NS"'),
    # What is wrong with a JSON is told in the words of the library that read it; clients match the code.
    (re.compile(r'"description":"invalid JSON: (?!json: unknown field)[^}]*"'), '"description":"invalid JSON"'),
)

_INFO_ATTEMPTS = 250


class Pair:
    """The embedded server and nats-server with the same configuration."""

    def __init__(self, config="", flags=()):
        self._servers = [make_server(kind, config, flags) for kind in ("embedded", "nats-server")]
        self._wires = []

    async def __aenter__(self):
        await asyncio.gather(*(server.start() for server in self._servers))
        await self.connect()
        return self

    async def __aexit__(self, *_):
        await self._disconnect()
        await asyncio.gather(*(server.discard() for server in self._servers))

    async def connect(self, **options):
        """Say hello to both, anew."""
        await self._disconnect()
        for server in self._servers:
            self._wires.append(await (await Wire.open(server.host, server.port)).hello(**options))

    async def _disconnect(self):
        for wire in self._wires:
            await wire.close()
        self._wires.clear()

    async def restart(self):
        """Stop both cleanly, and start them on the same data."""
        await self._disconnect()
        await asyncio.gather(*(server.restart() for server in self._servers))
        await self.connect()

    async def request(self, subject, payload=b"", header=b""):
        """The one answer to a request, which must be the same from both.

        Info of a consumer is asked for again while the answers differ: nats-server counts pending messages later.
        """
        attempts = _INFO_ATTEMPTS if subject.startswith("$JS.API.CONSUMER.INFO.") else 1
        for _ in range(attempts):
            answers = [await self._request(wire, subject, payload, header) for wire in self._wires]
            ours, theirs = (_masked(answer) for answer in answers)
            if ours == theirs:
                break
            await asyncio.sleep(0.02)
        assert ours == theirs, f"{subject} {payload!r} {header!r}\n  ours: {ours}\ntheirs: {theirs}"
        return answers[0]

    async def api(self, verb, body=b"", header=b""):
        """The JSON answer to an API request."""
        payload = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        return (await self.request(f"$JS.API.{verb}", payload, header)).json

    async def store(self, subject, payload=b"", header=b""):
        """The JSON acknowledgement of a message."""
        return (await self.request(subject, payload, header)).json

    async def exchange(self, subject, payload=b"", header=b"", *, until):
        """All messages that come in answer to one, up to that for which `until` is true; the same from both."""
        payload = json.dumps(payload).encode() if isinstance(payload, (dict, list)) else payload
        found = [await self._exchange(wire, subject, payload, header, until) for wire in self._wires]
        ours, theirs = ([_masked(message) for message in messages] for messages in found)
        assert ours == theirs, f"{subject} {payload!r}\n  ours: {ours}\ntheirs: {theirs}"
        return found[0]

    async def heard(self, pattern, act, count, mask=lambda payload: payload):
        """What subscribers of the pattern get while `act(wire)` runs: so many messages, the same from both.

        Ours are returned as they came. `mask` gets each payload and gives what of it must be the same.
        """
        found = []
        for server, wire in zip(self._servers, self._wires, strict=True):
            async with await Wire.open(server.host, server.port) as listener:
                await listener.hello()
                await listener.subscribe(pattern, "7")
                await listener.ping()
                await act(wire)
                found.append(await listener.messages(count))
        if pattern.startswith("$JS.EVENT."):
            # Each event of nats-server leaves by itself, and one may overtake another.
            compared = [sorted(messages, key=_event_order) for messages in found]
        else:
            compared = found
        ours, theirs = ([mask(_masked(message)[1]) for message in messages] for messages in compared)
        assert ours == theirs, f"{pattern}\n  ours: {ours}\ntheirs: {theirs}"
        assert [message.subject for message in compared[0]] == [message.subject for message in compared[1]]
        return found[0]

    async def silent(self, subject, payload=b""):
        """Neither server answers: a later request is answered first."""
        for wire in self._wires:
            await wire.send("SUB _INBOX.pair.> 500\r\n")
            await wire.publish(subject, payload, reply="_INBOX.pair.1")
            answer = await wire.request("$JS.API.INFO")
            assert answer.subject != "_INBOX.pair.1", answer
            await wire.send("UNSUB 500\r\n")

    async def _request(self, wire, subject, payload, header):
        return await wire.request(subject, payload, _block(header))

    async def _exchange(self, wire, subject, payload, header, until):
        await wire.send("SUB _INBOX.pair.> 500\r\n")
        await wire.publish(subject, payload, reply="_INBOX.pair.1", header=_block(header))
        messages = [await wire.message()]
        while not until(messages[-1]):
            messages.append(await wire.message())
        await wire.send("UNSUB 500\r\n")
        return messages


def _block(header):
    if isinstance(header, bytes):
        return header
    return b"NATS/1.0\r\n" + b"".join(f"{key}: {value}\r\n".encode() for key, value in header.items()) + b"\r\n"


def _event_order(message):
    event = message.json
    return message.subject, *(str(event.get(key, "")) for key in ("subject", "action", "request"))


def _masked(message):
    """What must be the same: subject, reply and header as text, and the payload as JSON where it is some.

    The order of keys is nobody's promise, nor which characters are escaped.
    """
    head = _mask(f"{message.subject} {message.reply} {message.header.decode('utf-8', 'replace')}")
    payload = _mask(message.payload.decode("utf-8", "replace"))
    try:
        return head, json.loads(payload)
    except ValueError:
        return head, payload


def _mask(text):
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text
