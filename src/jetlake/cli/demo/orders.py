"""The orders of the demonstration: which there are, which are sent twice, and what the workers do with each."""

from __future__ import annotations

import random
from enum import Enum
from typing import NamedTuple

import msgspec

__all__ = ["Fate", "Order", "fate_of", "order", "with_duplicates"]

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
