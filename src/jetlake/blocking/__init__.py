"""The client and the server without await: the same names, for scripts, notebooks, threads and Spark.

::

    import jetlake.blocking

    with jetlake.blocking.connect("nats://localhost:4222") as nc:
        js = nc.jetstream()
        orders = js.create_stream("ORDERS", subjects=["orders.>"])
        js.publish("orders.new", b"1")
        worker = orders.create_consumer("worker")
        for message in worker.fetch(10, expires=1):
            message.ack()
"""

from __future__ import annotations

from jetlake.blocking.client import Client, connect
from jetlake.blocking.counters import Counters
from jetlake.blocking.groups import ConsumerGroup, ConsumerGroups, GroupMember
from jetlake.blocking.jetstream import AtomicBatch, FastPublisher, JetStream, PullSubscription, PushSubscription
from jetlake.blocking.key_value import KeyValue, KeyWatch
from jetlake.blocking.message import Message
from jetlake.blocking.object_store import ObjectReader, ObjectStore, ObjectWatch
from jetlake.blocking.reading import Reading, Subscription
from jetlake.blocking.schemas import Schemas
from jetlake.blocking.send_queue import PendingAck
from jetlake.blocking.server import Server
from jetlake.blocking.service import Service, Services
from jetlake.blocking.stream import Consumer, OrderedConsumer, Stream
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.services.request import ServiceRequest
from jetlake.client.streams.stored_message import StoredMessage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from jetlake.client.tables.table import TableRead as Table

__all__ = [
    "AtomicBatch",
    "Client",
    "Consumer",
    "ConsumerGroup",
    "ConsumerGroups",
    "Counters",
    "FastPublisher",
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
    "Reading",
    "Schemas",
    "Server",
    "Service",
    "ServiceRequest",
    "Services",
    "StoredMessage",
    "Stream",
    "Subscription",
    "Table",
    "connect",
]


def __getattr__(name: str) -> object:
    # Arrow is loaded only where tables are used.
    if name == "Table":
        from jetlake.client.tables.table import TableRead

        return TableRead
    raise AttributeError(f"module 'jetlake.blocking' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
