"""Consumers whose acknowledgements are confirmed."""

import asyncio

from jetlake.errors import JetlakeError
from tests.power_cuts.promises import Act
from tests.power_cuts.scenario import Scenario, lost_sequences, stored

ACK_WAIT_S = 3600


class Worker(Scenario):
    """A consumer whose acknowledgements are confirmed.

    Args:
        retention: the stream's.
    """

    def __init__(self, name, random, position, retention):
        super().__init__(name, random, position)
        self._retention = retention
        self.published = {}
        self.settled = {}

    def promises(self):
        return [*self.published.values(), *self.settled.values()]

    async def create(self, jetstream):
        stream = await jetstream.create_stream(
            self.name, subjects=[f"{self.name}.>"], allow_direct=True, retention=self._retention
        )
        await stream.create_consumer("worker", ack_policy="explicit", ack_wait=ACK_WAIT_S, max_ack_pending=100_000)

    async def act(self, jetstream):
        payloads = [self.payload() for _ in range(self.random.randint(1, 8))]
        acts = [Act(self.position(), payload) for payload in payloads]
        for act in acts:
            self.published[act.state] = act
        pending = [await jetstream.publish_async(f"{self.name}.1", payload) for payload in payloads]
        for act, ack in zip(acts, pending, strict=True):
            await ack
            act.end(self.position())
        consumer = await jetstream.consumer(self.name, "worker")
        messages = await consumer.fetch(8, no_wait=True)
        await asyncio.gather(*(self._settle(message) for message in messages))

    async def _settle(self, message):
        way = self.random.choices(["ack", "term", "plain", "nak", "leave"], [60, 10, 15, 10, 5])[0]
        if way in ("nak", "leave"):
            if way == "nak":
                message.nak()
            return
        act = self.settled[message.data] = Act(self.position(), message.data)
        if way == "plain":
            message.ack()
            return
        await (message.ack_sync() if way == "ack" else message.term_sync())
        act.end(self.position())

    async def check(self, jetstream, cut):
        found, state = await stored(jetstream, self.name)
        payloads = {payload: sequence for sequence, (_, payload) in found.items()}
        delivered = await self._drain(jetstream)
        confirmed = {data for data, act in self.settled.items() if act.is_kept_by(cut)}
        attempted = {data for data, act in self.settled.items() if act.is_possible_at(cut)}
        promised = {data for data, act in self.published.items() if act.is_kept_by(cut)}
        broken = []
        is_queue = self._retention != "limits"
        needed = promised - attempted if is_queue else promised
        if lost := needed - set(payloads):
            broken.append(f"{len(lost)} messages are lost: {sorted(lost)[0][:24]} of {len(found)}")
        if again := confirmed & delivered:
            broken.append(f"{len(again)} confirmed acknowledgements are undone: {sorted(again)[0][:24]}")
        if is_queue and (kept := confirmed & set(payloads)):
            broken.append(f"{len(kept)} messages that were done are back: {sorted(kept)[0][:24]}")
        if silent := set(payloads) - attempted - delivered:
            broken.append(f"{len(silent)} messages are never delivered: {sorted(silent)[0][:24]}")
        if told := lost_sequences(state) & {payloads.get(data) for data in promised - attempted}:
            broken.append(f"acknowledged sequences are called lost: {sorted(told)[:5]}")
        return broken

    async def _drain(self, jetstream):
        """Take all that the consumer has to give."""
        consumer = await jetstream.consumer(self.name, "worker")
        delivered = set()
        for _ in range(200):
            messages = await consumer.fetch(500, no_wait=True)
            for message in messages:
                delivered.add(message.data)
                message.ack()
            if not messages:
                info = await consumer.info()
                if not info.num_pending and not info.num_ack_pending:
                    return delivered
        raise JetlakeError(f"{self.name}: the consumer gives nothing and has {info}")
