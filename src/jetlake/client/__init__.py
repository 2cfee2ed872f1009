"""The client: flow control as pure state machines, an asyncio shell around them, and a small blocking connection."""

from __future__ import annotations

from jetlake.client.client import Client, connect
from jetlake.client.consume import Consume
from jetlake.client.consumer import Consumer
from jetlake.client.fetch import Fetch
from jetlake.client.jetstream import JetStream
from jetlake.client.message import Message
from jetlake.client.ordered import OrderedConsumer
from jetlake.client.publish_window import PendingAck
from jetlake.client.stored_message import StoredMessage
from jetlake.client.stream import Stream
from jetlake.client.subscription import Subscription

__all__ = [
    "Client",
    "Consume",
    "Consumer",
    "Fetch",
    "JetStream",
    "Message",
    "OrderedConsumer",
    "PendingAck",
    "StoredMessage",
    "Stream",
    "Subscription",
    "connect",
]
