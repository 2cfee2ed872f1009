"""The kombu transport `jetstream://`: a queue is a work queue stream, a task a message that is acknowledged.

Always true:

- A task is stored on the server's disk when `basic_publish` returns. One that is published again after a lost
  connection, as kombu does by itself, has the same message id and is stored once.
- A task is acknowledged when kombu says so and never before: with `task_acks_late`, after it ran. A task that a worker
  held when it was killed goes to another one after the visibility timeout, which is extended while the worker lives.
- What goes to a fanout or topic exchange, or to a direct one that is not durable, is also broadcast: published to a
  subject of the exchange, without a stream. A queue that ends with its declarer (`auto_delete`) and is bound to such an
  exchange is a subscription: remote control, events, broadcast queues. Who is not connected misses what is broadcast.
- A connection has a client of its own. A forked process cannot use it: the client raises, and kombu connects again.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any
from uuid import uuid4

from kombu.transport import virtual
from kombu.transport.base import Transport as BaseTransport
from kombu.utils.json import dumps, loads

import jetlake.blocking
from jetlake.client.messages.message import Message, give_back
from jetlake.errors import (
    AlreadyAcknowledgedError,
    ApiError,
    ClientConnectionError,
    ConfigError,
    ConnectionClosedError,
    JetlakeError,
    NoRespondersError,
    RequestTimeoutError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from jetlake.integrations.celery.broadcasts import Broadcasts
from jetlake.integrations.celery.puller import Level, Puller, QueueGoneError
from jetlake.integrations.celery.queues import QueueOptions, connect_options, due_at, server_url
from jetlake.protocol.subjects import is_subset
from jetlake.version import __version__

# How long a drain looks at the queues at once, before it sees whether it is to end.
_SLICE_S = 1.0
_UNLIMITED_PER_FETCH = 100
# The message id, in a task's properties until it is stored. kombu passes the same properties at each try of a publish.
_ID = "x-jetlake-id"
_KNOWN_OPTIONS = {"visibility_timeout", "priority_steps", "replicas", "connect", "body_encoding", "polling_interval"}
# What kombu itself reads.
_KOMBU_OPTIONS = {
    "callback",
    "client_properties",
    "connect_retries_timeout",
    "deadletter_queue",
    "errback",
    "interval_max",
    "interval_start",
    "interval_step",
    "max_retries",
}

logger = logging.getLogger("jetlake.celery")


class QoS(virtual.QoS):
    """What a channel has delivered and kombu has not settled."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        # Of the connection that delivers, which the channel forgets when it is closed.
        self._puller = channel.transport.puller
        self._room = channel.transport.room

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a task: it is done."""
        message = self._puller.held.pop(delivery_tag, None)
        super().ack(delivery_tag)
        if message is not None:
            _settle(message.ack)
        self._room.set()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a task to its queue, or give it up."""
        message = self._puller.held.pop(delivery_tag, None)
        super().ack(delivery_tag)
        if message is not None:
            _settle(message.nak if requeue else partial(message.term, "rejected by the worker"))
        self._room.set()

    def restore_unacked(self) -> list[Any]:
        """Return all tasks that were not settled to their queues."""
        self._flush()
        for delivery_tag in list(self._delivered):
            message = self._puller.held.pop(delivery_tag, None)
            if message is not None:
                _settle(message.nak)
        self._delivered.clear()
        return []


class Channel(virtual.Channel):
    """A channel: declares queues, publishes tasks and takes them."""

    QoS = QoS
    connection: Transport | None
    supports_fanout = True
    # kombu counts levels the way RabbitMQ does: a higher number is more urgent.
    max_priority = 255

    def __init__(self, connection: Transport, **options: Any) -> None:
        self._temporary: set[str] = set()  # Queues of broadcasts that this channel bound.
        super().__init__(connection, **options)

    @property
    def transport(self) -> Transport:
        """The connection of this channel.

        Raises:
            ConnectionClosedError: the channel is closed. kombu connects again and repeats a publish for this error, and
                for no other: Celery gives a task up whose retry cannot be published.
        """
        transport = self.connection
        if transport is None:
            raise ConnectionClosedError("the channel is closed")
        return transport

    @property
    def state(self) -> Any:
        """The exchanges and bindings that this connection declared."""
        return self.transport.state

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> Any:
        """Publish a task; it is stored when this returns."""
        transport = self.transport  # A channel that is closed cannot tell what type its exchanges have.
        result = super().basic_publish(message, exchange, routing_key, **options)
        if self._is_broadcast(exchange):
            transport.broadcasts.publish(exchange, dumps(message).encode())
        return result

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        """Do nothing: `basic_publish` broadcasts the message."""

    def _is_broadcast(self, exchange: str) -> bool:
        declared = self.state.exchanges.get(exchange)
        if declared is None:
            # Celery does not declare the exchange of a broadcast task that it publishes: its queues know it.
            return bool(exchange)
        return declared["type"] != "direct" or not declared["durable"]

    # Queues

    def _new_queue(self, queue: str, *, auto_delete: bool = False, **_: Any) -> None:
        if auto_delete:
            # A stream is created when it is used first, unless the queue is bound to what is broadcast.
            self.transport.broadcasts.may_have(queue)
        else:
            self.transport.declare(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if not self._is_broadcast(exchange):
            return
        kind = self.state.exchanges[exchange]["type"]
        if self.transport.broadcasts.bind(queue, exchange, kind, routing_key, pattern):
            self._temporary.add(queue)
        elif kind == "fanout":
            raise ConfigError(
                f"queue {queue!r} is bound to the fanout exchange {exchange!r}, which reaches who is connected: "
                "declare it with auto_delete=True, as kombu.common.Broadcast does"
            )

    def close(self) -> None:
        """Close the channel; its queues of broadcasts end with it."""
        if self.connection is not None:
            for queue in self._temporary:
                self._forget_broadcasts(queue)
        self._temporary.clear()
        super().close()

    def _forget_broadcasts(self, queue: str) -> None:
        self.transport.broadcasts.unbind(queue)
        self.state.queue_bindings_delete(queue)
        for exchange in self.state.exchanges.values():
            table = exchange.get("table", [])
            table[:] = [binding for binding in table if binding[2] != queue]

    def _has_queue(self, queue: str, **_: Any) -> bool:
        if self.transport.broadcasts.has(queue):
            return True
        try:
            self.transport.jetstream.stream(self.transport.queues.stream(queue))
        except StreamNotFoundError:
            return False
        return True

    def _size(self, queue: str) -> int:
        if self.transport.broadcasts.has(queue):
            return self.transport.broadcasts.size(queue)
        try:
            return self._stream(queue).info().state.messages
        except StreamNotFoundError:
            return 0

    def _purge(self, queue: str) -> int:
        if self.transport.broadcasts.has(queue):
            return len(self.transport.broadcasts.take([queue], None))
        try:
            return self._stream(queue).purge()
        except StreamNotFoundError:
            return 0

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        if self.transport.broadcasts.has(queue):
            self._forget_broadcasts(queue)
            return
        self.transport.forget(queue)
        try:
            self.transport.jetstream.delete_stream(self.transport.queues.stream(queue))
        except StreamNotFoundError:
            pass

    def _stream(self, queue: str) -> jetlake.blocking.Stream:
        return self.transport.jetstream.stream(self.transport.queues.stream(queue))

    # Publishing

    def _inplace_augment_message(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        message["properties"].setdefault(_ID, uuid4().hex)
        super()._inplace_augment_message(message, exchange, routing_key)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Store a task: for now, or as a schedule for the time that its ETA says."""
        transport = self.transport
        if transport.broadcasts.has(queue):
            return  # It gets the message as everybody does, by its subscription.
        transport.declare(queue)
        properties = message["properties"]
        message_id = properties.get(_ID) or uuid4().hex
        stored = {**message, "properties": {key: value for key, value in properties.items() if key != _ID}}
        payload = dumps(stored).encode()
        target = transport.queues.subject(queue, f"p{transport.queues.level(properties.get('priority'))}")
        due = due_at(message, datetime.now(UTC))
        if due is None:
            transport.jetstream.publish(target, payload, msg_id=message_id)
        else:
            transport.jetstream.schedule(
                transport.queues.subject(queue, "eta", message_id),
                payload,
                target=target,
                at=due,
                publish={"msg_id": message_id},
            )

    # Taking

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Consume a queue; without acknowledgements, a task is done when it is delivered."""
        if not self.transport.broadcasts.has(queue):
            self.transport.declare(queue)

        def deliver(message: Any) -> Any:
            if no_ack:
                self.qos.ack(message.delivery_tag)
            return callback(message)

        super().basic_consume(queue, no_ack, deliver, consumer_tag, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next task of a queue, or None."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for _, message in self.transport.take([queue], 1, 0):
            return message
        raise Empty

    @property
    def takes(self) -> bool:
        """Whether tasks are wanted now."""
        return bool(self._consumers) and self.qos.can_consume()

    @property
    def waits(self) -> bool:
        """Whether tasks of streams are wanted now: with broadcasts alone, no pull waits at a stream."""
        return self.takes and not all(self.transport.broadcasts.has(queue) for queue in self._active_queues)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver tasks of the queues that are consumed, the most urgent first.

        Raises:
            Empty: none came in time, or the prefetch limit is reached.
        """
        if not self.takes:
            raise Empty
        limit = self.qos.can_consume_max_estimate() or _UNLIMITED_PER_FETCH
        taken = self.transport.take(self._active_queues, limit, _SLICE_S if timeout is None else timeout)
        if not taken:
            raise Empty
        for queue, raw in taken:
            (callback or self.transport._deliver)(raw, queue)


class Transport(virtual.Transport):
    """A connection to JetStream as kombu sees it.

    Attributes:
        room: set when a task was settled, so that another one may be taken.
    """

    Channel = Channel
    default_port = 4222
    driver_type = "jetstream"
    driver_name = "jetlake"
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))
    connection_errors = (
        *BaseTransport.connection_errors,
        ClientConnectionError,
        RequestTimeoutError,
        NoRespondersError,
    )
    channel_errors = (*BaseTransport.channel_errors, ApiError)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        given = client.transport_options
        unknown = sorted(set(given) - _KNOWN_OPTIONS - _KOMBU_OPTIONS)
        if unknown:
            raise ConfigError(
                f"broker_transport_options has {unknown[0]!r}, which jetstream:// does not know; "
                f"it knows {', '.join(sorted(_KNOWN_OPTIONS))}"
            )
        if isinstance(client.ssl, dict) and client.ssl:
            raise ConfigError(
                "broker_use_ssl is True or False with jetstream://; give certificates as an SSL context: "
                "broker_transport_options={'connect': {'tls': context}}"
            )
        self.queues = QueueOptions.of(client.virtual_host, given)
        self._options = connect_options(given.get("connect", {}))
        self.room = threading.Event()
        self._client: jetlake.blocking.Client | None = None
        self._declared: dict[str, list[Level]] = {}
        self._turn = 0

    def driver_version(self) -> str:
        """Return jetlake's version."""
        return __version__

    # The connection

    def establish_connection(self) -> Any:
        """Connect; kombu tries again, as `broker_connection_retry` says, when that fails."""
        options = self.client
        url = server_url(options.hostname, options.port, options.userid, options.password, tls=bool(options.ssl))
        connect = {"name": "celery", "connect_timeout": options.connect_timeout or 5}
        self._client = jetlake.blocking.connect(url, **{**connect, **self._options})
        self.jetstream = self._client.jetstream()
        self.puller = Puller(self.queues.visibility_timeout_s)
        self._client._thread.call(self.puller.start())
        self.broadcasts = Broadcasts(self._client, self.queues, self._wake)
        self._declared.clear()
        return super().establish_connection()

    def verify_connection(self, connection: Any) -> bool:
        """Whether the client has not been closed."""
        return self._client is not None and not self._client.is_closed

    def close_connection(self, connection: Any) -> None:
        """Give held tasks back to their queues, and close."""
        super().close_connection(connection)
        if self._client is not None:
            self._client.close()

    # Queues

    def declare(self, queue: str) -> None:
        """Create the stream and the consumers of a queue, unless that was done before."""
        if queue in self._declared:
            return
        queues, name = self.queues, self.queues.stream(queue)
        try:
            stream = self.jetstream.create_stream(
                name,
                subjects=[queues.subject(queue, ">")],
                retention="workqueue",
                allow_msg_schedules=True,
                num_replicas=queues.replicas,
                description=f"Celery's queue {queue}",
            )
        except StreamNameInUseError:
            stream = self.jetstream.stream(name)  # Its configuration was changed by hand, and is kept.
            stored = stream.cached_info.config.subjects
            if not any(is_subset(queues.subject(queue, ">").encode(), subject.encode()) for subject in stored):
                raise ConfigError(
                    f"queue {queue!r} needs the stream {name}, but that one stores {', '.join(stored)}: "
                    "delete it, or put another path into the URL of the broker"
                ) from None
        levels = []
        for step in sorted(queues.priority_steps, reverse=True):
            consumer = stream.create_or_update_consumer(
                f"p{step}",
                filter_subject=queues.subject(queue, f"p{step}"),
                ack_wait=queues.visibility_timeout_s,
                max_ack_pending=-1,
            )
            levels.append(Level(queue, step, consumer._inner))
        self._declared[queue] = levels

    def forget(self, queue: str) -> None:
        """Declare a queue again before it is used next."""
        self._declared.pop(queue, None)

    # Taking

    def _wake(self) -> None:
        """Wake the waiting thread for a broadcast; called on the client's loop."""
        self.room.set()
        self.puller.wake()

    def take(self, queues: list[str], limit: int, wait_s: float) -> list[tuple[str, dict[str, Any]]]:
        """Return tasks with their queues: of the highest priority; of equal ones, the queues take turns."""
        taken = self.broadcasts.take(queues, limit)
        if taken:
            return [(queue, opened) for queue, raw in taken if (opened := _opened_broadcast(raw)) is not None]
        queues = [queue for queue in queues if not self.broadcasts.has(queue)]
        if not queues:
            return []
        for queue in queues:
            self.declare(queue)
        self._turn += 1
        start = self._turn % len(queues)
        turned = queues[start:] + queues[:start]
        levels = [level for queue in turned for level in self._declared[queue]]
        levels.sort(key=lambda level: -level.priority)
        client = self._client
        assert client is not None
        try:
            found = client._thread.call(self.puller.take(levels, limit, wait_s), _give_back)
        except QueueGoneError as gone:
            logger.warning("%s; it is created again", gone)
            self.forget(gone.queue)
            return []
        return [(level.queue, raw) for level, message in found if (raw := self._opened(level, message)) is not None]

    def _opened(self, level: Level, message: Message) -> dict[str, Any] | None:
        """Return a message as kombu's, and hold it until it is settled."""
        try:
            raw: dict[str, Any] = loads(message.payload)
            properties = raw["properties"]
            properties["delivery_tag"] = tag = uuid4().hex
            properties.setdefault("delivery_info", {})["redelivered"] = message.metadata.delivered > 1
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.error(
                "message %d of queue %s is not a task; it is removed", message.metadata.stream_seq, level.queue
            )
            _settle(partial(message.term, "not a task"))
            return None
        self.puller.held[tag] = message
        return raw

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver messages as they arrive; wait for them, and for room under the prefetch limit.

        Raises:
            TimeoutError: nothing came in time.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left_s = _SLICE_S if deadline is None else min(_SLICE_S, max(0.0, deadline - monotonic()))
            self.room.clear()
            consuming = sum(1 for channel in self.channels if channel.waits)
            try:
                self.cycle.get(self._deliver, timeout=left_s / max(1, consuming))
                return
            except Empty:
                pass
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError
            if not consuming:
                self.room.wait(left_s)


def _opened_broadcast(payload: bytes) -> dict[str, Any] | None:
    """Return a broadcast as kombu's message, or None if it is none."""
    try:
        raw: dict[str, Any] = loads(payload)
        raw["properties"]["delivery_tag"] = uuid4().hex
    except (ValueError, KeyError, TypeError):
        logger.error("a broadcast that is not a message was dropped")
        return None
    return raw


def _settle(answer: Any) -> None:
    """Answer the server; without a connection, the task is delivered again after its visibility timeout."""
    try:
        answer()
    except (AlreadyAcknowledgedError, ConnectionClosedError):
        pass
    except JetlakeError as error:
        logger.warning("a task could not be settled, and will run again: %s", error)


def _give_back(taken: list[tuple[Level, Message]]) -> None:
    give_back([message for _, message in taken])
