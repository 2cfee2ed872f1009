"""The client: flow control as pure state machines, an asyncio shell around them, and a small blocking connection.

Names are loaded when they are first used: a client that only publishes and subscribes loads no JetStream.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.client.client import Client
    from jetlake.client.connecting import connect
    from jetlake.client.connection.subscription import Subscription
    from jetlake.client.counters import Counters
    from jetlake.client.groups import ConsumerGroup, ConsumerGroups, GroupMember
    from jetlake.client.jetstream import JetStream
    from jetlake.client.kv import KeyValue, KeyWatch
    from jetlake.client.messages.message import Message
    from jetlake.client.messages.message_batch import MessageBatch
    from jetlake.client.objects import ObjectReader, ObjectStore, ObjectWatch
    from jetlake.client.ordered.ordered import OrderedConsumer
    from jetlake.client.publish.atomic_batch import AtomicBatch
    from jetlake.client.publish.fast_publisher import FastPublisher
    from jetlake.client.publish.pending_ack import PendingAck
    from jetlake.client.pull.consume import Consume
    from jetlake.client.pull.consumer import Consumer
    from jetlake.client.pull.fetch import Fetch
    from jetlake.client.schemas.schemas import Schemas
    from jetlake.client.services.discovery import Services
    from jetlake.client.services.request import ServiceRequest
    from jetlake.client.services.service import Service
    from jetlake.client.streams.stored_message import StoredMessage
    from jetlake.client.streams.stream import Stream
    from jetlake.client.subscribe.pull_subscription import PullSubscription
    from jetlake.client.subscribe.push_subscription import PushSubscription
    from jetlake.client.tables.table import Table

__all__ = [
    "AtomicBatch",
    "Client",
    "Consume",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroups",
    "Counters",
    "FastPublisher",
    "Fetch",
    "GroupMember",
    "JetStream",
    "KeyValue",
    "KeyWatch",
    "Message",
    "MessageBatch",
    "ObjectReader",
    "ObjectStore",
    "ObjectWatch",
    "OrderedConsumer",
    "PendingAck",
    "PullSubscription",
    "PushSubscription",
    "Schemas",
    "Service",
    "ServiceRequest",
    "Services",
    "StoredMessage",
    "Stream",
    "Subscription",
    "Table",
    "connect",
]

# Where each name lives.
_HOMES = {
    "AtomicBatch": "publish.atomic_batch",
    "Client": "client",
    "Consume": "pull.consume",
    "Consumer": "pull.consumer",
    "ConsumerGroup": "groups",
    "ConsumerGroups": "groups",
    "Counters": "counters",
    "FastPublisher": "publish.fast_publisher",
    "Fetch": "pull.fetch",
    "GroupMember": "groups",
    "JetStream": "jetstream",
    "KeyValue": "kv",
    "KeyWatch": "kv",
    "Message": "messages.message",
    "MessageBatch": "messages.message_batch",
    "ObjectReader": "objects",
    "ObjectStore": "objects",
    "ObjectWatch": "objects",
    "OrderedConsumer": "ordered.ordered",
    "PendingAck": "publish.pending_ack",
    "PullSubscription": "subscribe.pull_subscription",
    "PushSubscription": "subscribe.push_subscription",
    "Schemas": "schemas.schemas",
    "Service": "services.service",
    "ServiceRequest": "services.request",
    "Services": "services.discovery",
    "StoredMessage": "streams.stored_message",
    "Stream": "streams.stream",
    "Subscription": "connection.subscription",
    "Table": "tables.table",
    "connect": "connecting",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jetlake.client' has no attribute {name!r}")
    return getattr(import_module(f"jetlake.client.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
