"""The client: flow control as pure state machines, an asyncio shell around them, and a small blocking connection.

Names are loaded when they are first used: who only publishes and subscribes never pays for JetStream's nouns.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.client.client import Client, connect
    from jetlake.client.consume import Consume
    from jetlake.client.consumer import Consumer
    from jetlake.client.fetch import Fetch
    from jetlake.client.jetstream import JetStream
    from jetlake.client.kv import KeyValue, KeyWatch
    from jetlake.client.message import Message
    from jetlake.client.ordered import OrderedConsumer
    from jetlake.client.publish_window import PendingAck
    from jetlake.client.pull_subscription import PullSubscription
    from jetlake.client.push_subscription import PushSubscription
    from jetlake.client.stored_message import StoredMessage
    from jetlake.client.stream import Stream
    from jetlake.client.subscription import Subscription

__all__ = [
    "Client",
    "Consume",
    "Consumer",
    "Fetch",
    "JetStream",
    "KeyValue",
    "KeyWatch",
    "Message",
    "OrderedConsumer",
    "PendingAck",
    "PullSubscription",
    "PushSubscription",
    "StoredMessage",
    "Stream",
    "Subscription",
    "connect",
]

# Where each name lives.
_HOMES = {
    "Client": "client",
    "Consume": "consume",
    "Consumer": "consumer",
    "Fetch": "fetch",
    "JetStream": "jetstream",
    "KeyValue": "kv",
    "KeyWatch": "kv",
    "Message": "message",
    "OrderedConsumer": "ordered",
    "PendingAck": "publish_window",
    "PullSubscription": "pull_subscription",
    "PushSubscription": "push_subscription",
    "StoredMessage": "stored_message",
    "Stream": "stream",
    "Subscription": "subscription",
    "connect": "client",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jetlake.client' has no attribute {name!r}")
    return getattr(import_module(f"jetlake.client.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
