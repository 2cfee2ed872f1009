"""Blocking forms of the JetStream context and of its push and pull subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, Unpack, cast, overload

from jetlake import client
from jetlake.blocking.counters import Counters
from jetlake.blocking.facade import Call, Facade, Made, View, Wrapped
from jetlake.blocking.groups import ConsumerGroups
from jetlake.blocking.key_value import KeyValue
from jetlake.blocking.loop_thread import LoopThread
from jetlake.blocking.message import Message
from jetlake.blocking.object_store import ObjectStore
from jetlake.blocking.reading import MessageHandler, Reading, Subscription
from jetlake.blocking.schemas import Schemas
from jetlake.blocking.send_queue import PendingAck, PublishQueue, SendQueue
from jetlake.blocking.stream import Consumer, Stream, messages
from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.messages.message import give_back
from jetlake.client.publish.fast_publisher import GapMode
from jetlake.client.publish.many_messages import ManyMessages, ManyPublished, MessageLike
from jetlake.client.publish.outgoing_message import PublishOptions
from jetlake.client.streams.tables import table_messages
from jetlake.client.subscribe.pull_subscription import PullSubscription as AsyncPullSubscription
from jetlake.client.subscribe.push_subscription import PushSubscription as AsyncPushSubscription
from jetlake.completion import hides
from jetlake.errors import ApiError, ConnectionClosedError, InvalidOptionError, NotFoundError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck


class PushSubscription(Subscription):
    """The blocking form of `jetlake.client.subscribe.push_subscription.PushSubscription`."""

    _inner: AsyncPushSubscription

    consumer_info = Call(AsyncPushSubscription.consumer_info)

    consumer_name = View[str]("The consumer's name.")
    stream_name = View[str]("The stream's name.")
    owns_consumer = View[bool]("Whether this subscription created the consumer, and deletes it at its end.")


class PullSubscription(Facade):
    """The blocking form of `jetlake.client.subscribe.pull_subscription.PullSubscription`."""

    _inner: AsyncPullSubscription

    fetch = Wrapped(AsyncPullSubscription.fetch, messages, give_back)
    consumer_info = Call(AsyncPullSubscription.consumer_info)
    unsubscribe = Call(AsyncPullSubscription.unsubscribe)
    drain = Call(AsyncPullSubscription.drain)

    consumer_name = View[str]("The consumer's name.")
    stream_name = View[str]("The stream's name.")
    owns_consumer = View[bool]("Whether this subscription created the consumer, and deletes it at its end.")

    def __enter__(self) -> PullSubscription:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(NotFoundError):  # Deleted in the block.
            self.unsubscribe()


class Api(Facade):
    """The blocking form of `jetlake.client.api.api_caller.ApiCaller`."""

    _inner: ApiCaller

    call = Call(ApiCaller.call)

    def subject(self, verb: str, *names: str) -> bytes:
        """Return the subject of a call."""
        return self._inner.subject(verb, *names)


class AtomicBatch(Facade):
    """The blocking form of `jetlake.client.AtomicBatch`."""

    _inner: client.AtomicBatch

    commit = Call(client.AtomicBatch.commit)

    ack = View[PubAck]("The acknowledgement: sequence of the last message, and number of messages.")

    def __len__(self) -> int:
        return len(self._inner)

    def publish(self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]) -> None:
        """Add a message, as `jetlake.client.AtomicBatch.publish`."""
        self._inner.publish(subject, payload, **options)

    def discard(self) -> None:
        """Discard the messages; nothing was sent."""
        self._inner.discard()

    def __enter__(self) -> AtomicBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif len(self):
            self.commit()


class FastPublisher(Facade):
    """The blocking form of `jetlake.client.FastPublisher`."""

    _inner: client.FastPublisher

    publish = Call(client.FastPublisher.publish)
    commit = Call(client.FastPublisher.commit)
    _leave = Call(client.FastPublisher.__aexit__)

    ack = View[PubAck]("The acknowledgement of the whole: last sequence in the stream, number of messages.")
    published = View[int]("Messages published so far.")
    acknowledged = View[int]("Messages that the stream has taken or refused, as far as is known.")
    lost = View[list[tuple[int, int]]]("Ranges of messages that did not arrive, with gaps `ok`.")
    refused = View[list[tuple[int, ApiError]]]("Numbers of messages that the stream refused, with the errors.")

    def __enter__(self) -> FastPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind)


@hides("api")
class JetStream(Facade):
    """The blocking form of `jetlake.client.JetStream`."""

    _inner: client.JetStream

    publish = Call(client.JetStream.publish)
    schedule = Call(client.JetStream.schedule)
    replay_dead_letters = Call(client.JetStream.replay_dead_letters)
    account_info = Call(client.JetStream.account_info)
    create_stream = Wrapped(client.JetStream.create_stream, Stream)
    update_stream = Wrapped(client.JetStream.update_stream, Stream)
    create_or_update_stream = Wrapped(client.JetStream.create_or_update_stream, Stream)
    stream = Wrapped(client.JetStream.stream, Stream)
    delete_stream = Call(client.JetStream.delete_stream)
    restore = Wrapped(client.JetStream.restore, Stream)
    streams = Call(client.JetStream.streams)
    stream_names = Call(client.JetStream.stream_names)
    create_consumer = Wrapped(client.JetStream.create_consumer, Consumer)
    create_or_update_consumer = Wrapped(client.JetStream.create_or_update_consumer, Consumer)
    consumer = Wrapped(client.JetStream.consumer, Consumer)
    delete_consumer = Call(client.JetStream.delete_consumer)
    create_key_value = Wrapped(client.JetStream.create_key_value, KeyValue)
    create_or_update_key_value = Wrapped(client.JetStream.create_or_update_key_value, KeyValue)
    key_value = Wrapped(client.JetStream.key_value, KeyValue)
    delete_key_value = Call(client.JetStream.delete_key_value)
    key_value_names = Call(client.JetStream.key_value_names)
    create_counters = Wrapped(client.JetStream.create_counters, Counters)
    counters = Wrapped(client.JetStream.counters, Counters)
    schemas = Made(client.JetStream.schemas, Schemas)
    consumer_groups = Made(client.JetStream.consumer_groups, ConsumerGroups)
    create_object_store = Wrapped(client.JetStream.create_object_store, ObjectStore)
    create_or_update_object_store = Wrapped(client.JetStream.create_or_update_object_store, ObjectStore)
    object_store = Wrapped(client.JetStream.object_store, ObjectStore)
    delete_object_store = Call(client.JetStream.delete_object_store)
    object_store_names = Call(client.JetStream.object_store_names)

    def __init__(self, inner: client.JetStream, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._queue = PublishQueue(cast("SendQueue", inner._connection.outlet), inner._publisher)

    @property
    def api(self) -> Api:
        """The API itself, for calls that have no method here: `js.api.call(ReplyType, "STREAM.INFO", name)`."""
        return Api(self._inner.api, self._thread)

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._inner.is_closed or self._thread.port.is_shut

    def batch(self) -> AtomicBatch:
        """Begin an atomic batch, as `jetlake.client.JetStream.batch`: `with js.batch() as batch: ...`."""
        return AtomicBatch(self._inner.batch(), self._thread)

    def fast_publisher(self, *, flow: int = 100, outstanding: int = 2, gaps: GapMode = "fail") -> FastPublisher:
        """Begin a fast batch, as `jetlake.client.JetStream.fast_publisher`."""
        return FastPublisher(self._inner.fast_publisher(flow=flow, outstanding=outstanding, gaps=gaps), self._thread)

    def publish_async(self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]) -> PendingAck:
        """Publish without waiting for the stream, as `jetlake.client.JetStream.publish_async`.

        `result()` of what it returns waits for the acknowledgement, `publish_async_complete` for all.
        """
        if options.get("validate"):
            options = self._thread.call(self._inner.schemas().validated(subject, payload, options))
        return self._queue.put(self._inner._publisher.prepare(subject, payload, options))

    def publish_many(self, messages: Iterable[MessageLike]) -> ManyPublished:
        """Publish all messages of an iterable, as `jetlake.client.JetStream.publish_many`.

        The iterable runs in the caller's thread. Messages of `publish_async` that were published before stay before.

        Raises:
            PublishWindowError: some were not acknowledged; `positions` and `failures` name them.
            InvalidOptionError: something is not a message, or the iterable is an async one.
        """
        if isinstance(messages, AsyncIterable):
            raise InvalidOptionError("an async iterable needs an event loop: use publish_many of jetlake.connect()")
        many = self._thread.call(self._begin_many())
        try:
            for step in many.steps(iter(messages)):
                self._thread.call(step)
        except BaseException:
            with suppress(ConnectionClosedError):
                self._thread.port.post(many.leave)
            raise
        return many.published()

    def publish_table(
        self,
        table: Any,
        *,
        subject: str | Callable[[Mapping[str, Any]], str] = "",
        key: str = "",
        progress: Callable[[int], object] | None = None,
    ) -> ManyPublished:
        """Publish the rows of a table as messages, as `jetlake.client.JetStream.publish_table`.

        Raises:
            InvalidOptionError: a column is missing, or a row has no subject or key.
            PublishWindowError: rows were not acknowledged; `positions` and `failures` name them.
        """
        return self.publish_many(table_messages(table, subject, key, progress))

    async def _begin_many(self) -> ManyMessages:
        await self._queue.emptied()
        return self._inner._many()

    def publish_async_complete(self, timeout: Seconds | None = None) -> None:
        """Wait until all messages of `publish_async` are acknowledged.

        Raises:
            PublishWindowError: some were not; it lists them.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        self._thread.call(self._queue.complete(timeout))

    @property
    def publish_async_pending(self) -> int:
        """Messages of `publish_async` that wait for their acknowledgement."""
        return self._inner.publish_async_pending + self._queue.waiting

    @overload
    def subscribe(
        self,
        subject: str = "",
        callback: MessageHandler | None = None,
        *,
        ordered: Literal[False] = False,
        manual_ack: bool = False,
        **options: Any,
    ) -> PushSubscription: ...

    @overload
    def subscribe(
        self,
        subject: str = "",
        callback: MessageHandler | None = None,
        *,
        ordered: Literal[True],
        manual_ack: bool = False,
        **options: Any,
    ) -> Reading: ...

    def subscribe(
        self,
        subject: str = "",
        callback: MessageHandler | None = None,
        *,
        ordered: bool = False,
        manual_ack: bool = False,
        **options: Any,
    ) -> PushSubscription | Reading:
        """As `jetlake.client.JetStream.subscribe`; the callback runs in a thread of its own."""
        if ordered:
            read = self._thread.call(self._inner.subscribe(subject, ordered=True, **options))
            return Reading(read, self._thread, callback).start()
        found = self._thread.call(self._inner.subscribe(subject, **options))
        return self._subscribed(found, callback, manual_ack)

    def pull_subscribe(self, subject: str = "", durable: str = "", **options: Any) -> PullSubscription:
        """As `jetlake.client.JetStream.pull_subscribe`."""
        return PullSubscription(
            self._thread.call(self._inner.pull_subscribe(subject, durable, **options)), self._thread
        )

    def queue_subscribe(
        self,
        subject: str,
        queue: str,
        callback: MessageHandler | None = None,
        *,
        manual_ack: bool = False,
        **options: Any,
    ) -> PushSubscription:
        """As `jetlake.client.JetStream.queue_subscribe`; the callback runs in a thread of its own."""
        found = self._thread.call(self._inner.queue_subscribe(subject, queue, **options))
        return self._subscribed(found, callback, manual_ack)

    def _subscribed(
        self, found: AsyncPushSubscription, callback: MessageHandler | None, manual_ack: bool
    ) -> PushSubscription:
        subscription = PushSubscription(found, self._thread)
        if callback is not None:
            handler = callback

            def call_and_ack(message: Message) -> None:
                handler(message)
                message.ack()

            subscription.run(callback if manual_ack else call_and_ack, f"jetlake-{found.consumer_name}")
        return subscription
