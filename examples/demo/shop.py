"""The shop of the demonstration: publishes orders with duplicates, and lets workers handle them, badly at times."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from jetlake.client import Client, JetStream, Message
from jetlake.errors import ApiError, JetlakeError
from jetlake.spark.pipelines.event_pipeline import EVENTS_STREAM, events_config

STREAM, CONSUMER = "ORDERS", "billing"
WORKERS = 2
_CHUNK = 500
_COUNTRIES = ("de", "fr", "it", "pl", "se")
_STATES = ("new", "paid", "sent")


class Fate(Enum):
    """What a worker does when it gets an order."""

    ACK = "acknowledge"
    NAK = "refuse, so that it comes again"
    SILENCE = "say nothing, so that it comes again after the ack wait"
    TERM = "give it up for good"


class Order(NamedTuple):
    """One message to publish."""

    subject: str
    payload: bytes
    message_id: str


class _Numbered(msgspec.Struct):
    id: int


_number = msgspec.json.Decoder(_Numbered)


@dataclass
class Shop:
    """What was sent and what the workers did.

    Attributes:
        sent: messages that the stream has acknowledged, duplicates included.
        ids: the different orders among them.
        fates: how often workers did what.
        acked, given_up: the orders that came to an end, one way or the other.
    """

    client: Client
    sent: int = 0
    ids: set[str] = field(default_factory=set)
    fates: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    acked: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)

    @property
    def js(self) -> JetStream:
        """JetStream, with patience for a server that is being restarted."""
        return self.client.jetstream(timeout=20)

    async def open(self) -> None:
        """Make the streams and the workers' consumer."""
        await self.js.create_stream(EVENTS_STREAM, **events_config())
        orders = await self.js.create_stream(STREAM, subjects=["orders.>"], allow_direct=True, duplicate_window=3600)
        await orders.create_consumer(CONSUMER, ack_wait=2, max_deliver=10, max_ack_pending=2000, sample_freq="100")

    async def publish(self, orders: list[Order]) -> None:
        """Publish until all are acknowledged; what a dying server did not acknowledge is sent again."""
        js = self.js
        for first in range(0, len(orders), _CHUNK):
            chunk = orders[first : first + _CHUNK]
            while not await _published(js, chunk):
                await asyncio.sleep(0.1)
            self.sent += len(chunk)
            self.ids.update(order.message_id for order in chunk)

    async def work(self, everything: asyncio.Event) -> None:
        """Handle orders, until all that were published have come to an end."""
        await asyncio.gather(*(self._worker(everything) for _ in range(WORKERS)))

    async def _worker(self, everything: asyncio.Event) -> None:
        while not (everything.is_set() and len(self.acked) + len(self.given_up) >= len(self.ids)):
            try:
                consumer = await self.js.consumer(STREAM, CONSUMER)
                for message in await consumer.fetch(200, expires=1):
                    await self._handle(message)
            except (JetlakeError, OSError):
                # The server is away; the orders are not.
                await asyncio.sleep(0.1)

    async def _handle(self, message: Message) -> None:
        number = _number.decode(message.data).id
        fate = fate_of(number, message.metadata.delivered)
        self.fates[fate] += 1
        if fate is Fate.ACK:
            await message.ack()
            self.acked.add(number)
        elif fate is Fate.NAK:
            await message.nak()
        elif fate is Fate.TERM:
            await message.term("no such article")
            self.given_up.add(number)

    async def stored(self) -> int:
        """Count the messages in the stream of orders."""
        return (await self.js.stream(STREAM)).cached_info.state.messages

    async def unsettled(self) -> int:
        """Count the orders that are not acknowledged."""
        info = await (await self.js.stream(STREAM)).consumer_info(CONSUMER)
        return info.num_pending + info.num_ack_pending

    async def ack_samples(self) -> int:
        """Count the ack samples in the stream of events."""
        subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{STREAM}.{CONSUMER}"
        info = await (await self.js.stream(EVENTS_STREAM)).info(subjects_filter=subject)
        return sum(info.state.subjects.values())


async def _published(js: JetStream, chunk: list[Order]) -> bool:
    """Return whether all of them were acknowledged."""
    try:
        for order in chunk:
            await js.publish_async(order.subject, order.payload, msg_id=order.message_id)
        await js.publish_async_complete(timeout=30)
    except ApiError:
        raise
    except (JetlakeError, OSError):
        return False
    return True


def order(number: int, rng: random.Random) -> Order:
    """Return the order of that number."""
    country = rng.choice(_COUNTRIES)
    body = {"id": number, "country": country, "amount": round(rng.uniform(5, 500), 2)}
    return Order(f"orders.{country}.{_STATES[number % 3]}", msgspec.json.encode(body), f"order-{number}")


def with_duplicates(count: int, seed: int = 1) -> list[Order]:
    """So many orders, every tenth of them sent a second time shortly after."""
    rng = random.Random(seed)
    sent: list[Order] = []
    again: list[Order] = []
    for number in range(count):
        made = order(number, rng)
        sent.append(made)
        if number % 10 == 0:
            again.append(made)
        if len(again) >= 20:
            sent += again
            again = []
    return sent + again


def fate_of(number: int, delivered: int) -> Fate:
    """Return what happens to an order at a delivery, counted from 1."""
    if number % 100 == 50:
        return Fate.TERM
    if delivered == 1 and number % 20 == 3:
        return Fate.NAK
    if delivered == 1 and number % 50 == 7:
        return Fate.SILENCE
    return Fate.ACK
