"""Kill -9 during publishing: no acknowledged message is missing, none is stored twice, no sequence is used again.

The suite kills a few times; JETLAKE_CRASH_ROUNDS=100 kills as often as it says.
"""

import asyncio
import os
import random
import time

import pytest

from tests.support.copying import Streams
from tests.support.servers import make_server
from tests.support.wire import Wire

ROUNDS = int(os.environ.get("JETLAKE_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("JETLAKE_CRASH_SEED", "20261115"))
WINDOW = 256


class Journalist:
    """A publisher that writes down what it was promised, and afterwards looks whether it was kept.

    Every message has an id of its own. What was not acknowledged when the server died is published again with the same
    id, as a careful client does.
    """

    def __init__(self):
        self.number = 0
        self.unacknowledged = []  # ids, in the order in which they were published
        self.sequences = {}  # id -> sequence, as acknowledged
        self.seen = {}  # sequence -> id, as acknowledged or read in any round

    async def publish_until_killed(self, server, wire, after_s):
        """Publish as fast as the window allows, kill the server when its time has come, hear what it had still said."""
        await wire.subscribe("_INBOX.crash.*", "1")
        again, self.unacknowledged = self.unacknowledged, []
        in_flight = {}
        deadline = time.monotonic() + after_s
        killed = None
        try:
            while True:
                while len(in_flight) < WINDOW and killed is None:
                    name = again.pop(0) if again else self._new_id()
                    in_flight[name] = None
                    await wire.send(self._frame(name))
                if killed is None and time.monotonic() >= deadline:
                    killed = asyncio.ensure_future(server.kill())
                message = await wire.message()
                name = message.subject.rpartition(".")[2]
                del in_flight[name]
                self._acknowledged(name, message.json)
        except (EOFError, ConnectionError, asyncio.IncompleteReadError):
            assert killed is not None, "the server went by itself"
        await killed
        self.unacknowledged = [*in_flight, *again]

    def _new_id(self):
        self.number += 1
        return str(self.number)

    @staticmethod
    def _frame(name):
        block = f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n\r\n"
        # Some messages are long, so that some of the kills come in the middle of a write.
        payload = f"{name} " + "x" * (20_000 if int(name) % 97 == 0 else 100)
        head = f"HPUB crash.{int(name) % 5} _INBOX.crash.{name} {len(block)} {len(block) + len(payload)}\r\n"
        return f"{head}{block}{payload}\r\n"

    def _acknowledged(self, name, ack):
        assert "error" not in ack, ack
        sequence = ack["seq"]
        assert self.sequences.setdefault(name, sequence) == sequence
        self._saw(sequence, name)

    def _saw(self, sequence, name):
        assert self.seen.setdefault(sequence, name) == name, f"sequence {sequence} was used for two messages"

    async def check(self, wire, first=1):
        """Read what is stored from a sequence on, and hold it against what was promised; the last sequence."""
        stored = {}
        sequence = first
        await wire.subscribe("_INBOX.check", "2")
        while True:
            request = b'{"seq":%d,"batch":1000}' % sequence
            await wire.publish("$JS.API.DIRECT.GET.CRASH", request, reply="_INBOX.check")
            message = await wire.message()
            while message.status is None:
                sequence = int(message.headers["Nats-Sequence"])
                name = message.headers["Nats-Msg-Id"]
                assert message.payload.startswith(name.encode() + b" "), "a message with the payload of another"
                assert name not in stored, f"message {name} is stored twice: as {stored[name]} and as {sequence}"
                stored[name] = sequence
                self._saw(sequence, name)
                message = await wire.message()
            assert message.status in (204, 404), message
            if message.status == 404 or message.headers["Nats-Num-Pending"] == "0":
                break
            sequence += 1
        for name, promised in self.sequences.items():
            if promised >= first:
                found = stored.get(name)
                assert found == promised, f"message {name} was acknowledged as {promised} and is {found}"
        return sequence


@pytest.mark.parametrize("sync", ["always", "2m"])
async def test_what_was_acknowledged_is_there_after_a_kill(sync):
    moments = random.Random(SEED)
    journalist = Journalist()
    server = make_server("embedded", f'jetstream {{ store_dir: "STORE_DIR", sync_interval: "{sync}" }}', process=True)
    try:
        await server.start()
        async with await Wire.open(server.host, server.port) as wire:
            await wire.hello()
            config = {"name": "CRASH", "subjects": ["crash.*"], "allow_direct": True}
            assert "error" not in (await wire.request("$JS.API.STREAM.CREATE.CRASH", config)).json
        checked = 1
        for _ in range(ROUNDS):
            async with await Wire.open(server.host, server.port) as wire:
                await wire.hello()
                await journalist.publish_until_killed(server, wire, moments.uniform(0.0, 0.25))
            await server.start()
            async with await Wire.open(server.host, server.port) as wire:
                await wire.hello()
                # What came in this round and some before it; all of it is read at the end.
                checked = await journalist.check(wire, max(checked - 1000, 1))
        async with await Wire.open(server.host, server.port) as wire:
            await wire.hello()
            await journalist.check(wire)
        assert len(journalist.sequences) > ROUNDS * 10
        assert "[ERR]" not in server.log and "Traceback" not in server.log
    finally:
        await server.discard()


async def test_copies_survive_the_death_of_their_server():
    """A mirror and a source of a work queue are killed while they copy: every message is there once, in order."""
    randomness = random.Random(SEED)
    server = make_server("embedded", process=True)
    await server.start()
    try:
        streams = await Streams.open(server)
        await streams.create("O", subjects=["o"])
        await streams.create("Q", subjects=["q"], retention="workqueue")
        await streams.create("M", mirror={"name": "O"})
        await streams.create("D", sources=[{"name": "O"}, {"name": "Q"}])
        acknowledged = {"o": [], "q": []}
        for number in range(3):
            for index in range(200):
                for subject, sequences in acknowledged.items():
                    await streams.wire.publish(subject, b"%d.%d" % (number, index), reply="_INBOX.none")
                    sequences.append(b"%d.%d" % (number, index))
            await streams.api("INFO")
            await streams.close()
            await asyncio.sleep(randomness.uniform(0, 0.3))
            await server.kill()
            await server.start()
            streams = await Streams.open(server)
        last = len(acknowledged["o"])
        await streams.reaches("M", (last, 1, last), timeout=30)
        await streams.reaches("D", (2 * last, 1, 2 * last), timeout=30)
        await streams.until(lambda: streams.state("Q"), (0, last + 1, last))
        copies = await streams.messages("D")
        for subject, payloads in acknowledged.items():
            assert [message.payload for message in copies if message.subject == subject] == payloads
        assert [message.payload for message in await streams.messages("M")] == acknowledged["o"]
        await streams.close()
    finally:
        await server.discard()
