"""Damage to the files of a killed server: one flipped byte, a cut tail; and what the server makes of it afterwards."""

from dataclasses import dataclass

import nats

from tests.faults.killable import KillableServer
from tests.faults.load_clients import STREAM, create, stored_messages

MESSAGES = 50


@dataclass
class Damage:
    """What the experiments have found; of the last four, all must be zero."""

    flips: int = 0
    """Experiments in which one byte of a message file was flipped."""
    hit: int = 0
    """Messages whose own record was hit, and which are gone with it; no server can bring them back."""
    lost: int = 0
    """Other acknowledged messages that are gone."""
    wrong: int = 0
    """Messages that were handed out with other content than they were stored with."""
    reused: int = 0
    """Experiments (flipped or cut) after which a sequence that was in use belongs to a new message."""
    cuts: int = 0
    """Experiments in which the end of the newest message file was cut off."""
    lost_to_cuts: int = 0
    """Acknowledged messages that are gone although their record lies before the cut."""

    @property
    def losses(self):
        return self.lost + self.wrong + self.reused + self.lost_to_cuts


async def publish(url, first, count):
    """Publish so many messages; sequence of the acknowledgement: payload."""
    client = await nats.connect(url)
    jetstream = client.jetstream(timeout=10)
    acknowledged = {}
    for number in range(first, first + count):
        payload = b"message %d " % number + b"." * (number % 40)
        acknowledged[(await jetstream.publish("faults.damage", payload)).seq] = payload
    await client.close()
    return acknowledged


async def _damaged(server, acknowledged, damage):
    """Start again after `damage`; what is stored now, and whether the next message gets a sequence of its own."""
    damage(server.message_files()[-1])
    server.start()
    stored, _ = await stored_messages(server.url)
    new = await publish(server.url, 1000, 1)
    return stored, bool(new.keys() & acknowledged.keys())


async def flip_one_byte(kind, random, result):
    """One experiment with a fresh folder."""
    with KillableServer(kind) as server:
        await create(server.url, 30)
        acknowledged = await publish(server.url, 0, MESSAGES)
        server.kill()

        def flip(path):
            data = bytearray(path.read_bytes())
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            path.write_bytes(data)

        stored, reused = await _damaged(server, acknowledged, flip)
        missing = [sequence for sequence in acknowledged if sequence not in stored]
        result.flips += 1
        result.hit += min(len(missing), 1)
        result.lost += max(len(missing) - 1, 0)
        result.wrong += sum(acknowledged.get(sequence) != payload for sequence, payload in stored.items())
        result.reused += reused


async def cut_the_tail(kind, random, result):
    """One experiment with a fresh folder: the last record loses some of its bytes."""
    with KillableServer(kind) as server:
        await create(server.url, 30)
        acknowledged = await publish(server.url, 0, MESSAGES)
        server.kill()
        last = max(acknowledged)

        def cut(path):
            data = path.read_bytes()
            path.write_bytes(data[: -random.randint(1, len(acknowledged[last]))])

        stored, reused = await _damaged(server, acknowledged, cut)
        result.cuts += 1
        result.lost_to_cuts += sum(sequence not in stored for sequence in acknowledged if sequence != last)
        result.reused += reused


async def damage_rounds(kind, rounds, random):
    """So many experiments of each sort; the findings."""
    result = Damage()
    for _ in range(rounds):
        await flip_one_byte(kind, random, result)
        await cut_the_tail(kind, random, result)
    return result


__all__ = ["STREAM", "Damage", "cut_the_tail", "damage_rounds", "flip_one_byte", "publish"]
