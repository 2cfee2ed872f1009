"""Blocking forms of the JetStream context, streams and consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from jetlake import client
from jetlake.blocking.facade import Call, Facade, Made, Method, Wrapped
from jetlake.blocking.key_value import KeyValue
from jetlake.blocking.loop_thread import LoopThread
from jetlake.blocking.message import Message
from jetlake.blocking.publish_queue import PendingAck, PublishQueue
from jetlake.blocking.reading import MessageHandler, Reading, Subscription
from jetlake.client.message import give_back
from jetlake.client.ordered import OrderedConsumer as AsyncOrderedConsumer
from jetlake.client.pull_options import next_options
from jetlake.client.pull_subscription import PullSubscription as AsyncPullSubscription
from jetlake.client.push_subscription import PushSubscription as AsyncPushSubscription
from jetlake.client.wire_values import HeadersLike
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.durations import Seconds
from jetlake.model.stream import StreamConfig, StreamInfo

__all__ = ["Consumer", "JetStream", "OrderedConsumer", "PendingAck", "PullSubscription", "PushSubscription", "Stream"]

P = ParamSpec("P")
T = TypeVar("T")


def _messages(received: list[client.Message], thread: LoopThread) -> list[Message]:
    return cast("list[Message]", received)


def _message(received: client.Message | None, thread: LoopThread) -> Message | None:
    return cast("Message | None", received)


def _give_back(message: client.Message | None) -> None:
    if message is not None:
        give_back([message])


class _Consume(Method, Generic[P]):
    """The blocking form of `consume`: a handler, if there is one, runs in threads."""

    def __init__(self, method: Callable[Concatenate[Any, P], Any]) -> None:
        super().__init__(method)

    @overload
    def __get__(self, instance: None, owner: type) -> _Consume[P]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, Reading]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(
        self, instance: Facade, handler: MessageHandler | None = None, *, concurrency: int = 1, **options: Any
    ) -> Any:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidOptionError(f"concurrency is 1 or more, not {concurrency!r}")
        if concurrency > 1 and handler is None:
            raise InvalidOptionError("concurrency needs a handler")
        return Reading(self._method(instance._inner, **options), instance._thread, handler, concurrency)


class Consumer(Facade):
    """The blocking form of `jetlake.client.Consumer`."""

    _inner: client.Consumer

    fetch = Wrapped(client.Consumer.fetch, _messages, give_back)
    next = Wrapped(client.Consumer.next, _message, _give_back)
    consume = _Consume(client.Consumer.consume)
    messages = consume
    info = Call(client.Consumer.info)
    delete = Call(client.Consumer.delete)
    pause = Call(client.Consumer.pause)
    resume = Call(client.Consumer.resume)
    reset = Call(client.Consumer.reset)
    unpin = Call(client.Consumer.unpin)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The stream's name."""
        return self._inner.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said last about it."""
        return self._inner.cached_info

    @property
    def config(self) -> ConsumerConfig:
        """The configuration, as the server said last."""
        return self._inner.config


class OrderedConsumer(Facade):
    """The blocking form of `jetlake.client.OrderedConsumer`; iterate over it, or use `consume`, `fetch` and `next`."""

    _inner: AsyncOrderedConsumer

    consume = _Consume(AsyncOrderedConsumer.consume)
    messages = consume
    info = Call(AsyncOrderedConsumer.info)
    delete = Call(AsyncOrderedConsumer.delete)

    def __init__(self, inner: AsyncOrderedConsumer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        # What an interrupted call has fetched is what the next one gets: the position is behind it already.
        self._fetched: deque[Message] = deque()

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
    ) -> list[Message]:
        """The next messages, as `Consumer.fetch`; each call goes on where the last one ended."""
        if not self._fetched:
            fetch = self._inner.fetch(
                max_messages, expires=expires, max_bytes=max_bytes, idle_heartbeat=idle_heartbeat, no_wait=no_wait
            )
            self._thread.call(self._keep(lambda: fetch))
        count = len(self._fetched) if max_messages is None else max_messages
        rest = deque(islice(self._fetched, count, None))
        messages = [*islice(self._fetched, count)]
        self._fetched = rest
        return messages

    def next(self, timeout: Seconds = 5.0) -> Message | None:
        """The next message, or None if none came within `timeout` seconds; 0 takes what is there."""
        if not self._fetched:
            options = next_options(timeout)
            self._thread.call(self._keep(lambda: self._inner.fetch_once(options)))
        if not self._fetched:
            return None
        message = self._fetched[0]
        del self._fetched[0]
        return message

    async def _keep(self, fetch: Callable[[], Awaitable[list[client.Message]]]) -> None:
        self._fetched.extend(cast("list[Message]", await fetch()))

    @property
    def name(self) -> str:
        """The name of the consumer that is used right now; it changes. Empty before the first read."""
        return self._inner.name

    @property
    def stream_name(self) -> str:
        """The stream's name."""
        return self._inner.stream_name

    def __iter__(self) -> Iterator[Message]:
        with self.consume() as messages:
            yield from messages

    def batches(self) -> Iterator[list[Message]]:
        """All messages that are there, again and again; the fastest way to take many."""
        with self.consume() as messages:
            yield from messages.batches()


class _Collect(Method, Generic[P, T]):
    """The blocking form of a method that gives an async iterator: all of it, as a list."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        super().__init__(method)

    @overload
    def __get__(self, instance: None, owner: type) -> _Collect[P, T]: ...

    @overload
    def __get__(self, instance: Facade, owner: type) -> Callable[P, list[T]]: ...

    def __get__(self, instance: Facade | None, owner: type) -> Any:
        return self._bound(instance)

    def _call(self, instance: Facade, *args: Any, **kwargs: Any) -> Any:
        async def gather() -> list[Any]:
            return [item async for item in self._method(instance._inner, *args, **kwargs)]

        return instance._thread.call(gather())


class Stream(Facade):
    """The blocking form of `jetlake.client.Stream`."""

    _inner: client.Stream

    info = Call(client.Stream.info)
    update = Call(client.Stream.update)
    delete = Call(client.Stream.delete)
    purge = Call(client.Stream.purge)
    get = Call(client.Stream.get)
    get_batch = _Collect(client.Stream.get_batch)
    delete_message = Call(client.Stream.delete_message)
    create_consumer = Wrapped(client.Stream.create_consumer, Consumer)
    create_or_update_consumer = Wrapped(client.Stream.create_or_update_consumer, Consumer)
    update_consumer = Wrapped(client.Stream.update_consumer, Consumer)
    consumer = Wrapped(client.Stream.consumer, Consumer)
    consumer_info = Call(client.Stream.consumer_info)
    delete_consumer = Call(client.Stream.delete_consumer)
    consumers = Call(client.Stream.consumers)
    consumer_names = Call(client.Stream.consumer_names)
    ordered = Made(client.Stream.ordered, OrderedConsumer)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._inner.name

    @property
    def cached_info(self) -> StreamInfo:
        """What the server said last about it."""
        return self._inner.cached_info

    @property
    def config(self) -> StreamConfig:
        """The configuration, as the server said last."""
        return self._inner.config


class PushSubscription(Subscription):
    """The blocking form of `jetlake.client.push_subscription.PushSubscription`."""

    _inner: AsyncPushSubscription

    consumer_info = Call(AsyncPushSubscription.consumer_info)

    @property
    def consumer_name(self) -> str:
        """The consumer's name."""
        return self._inner.consumer_name

    @property
    def stream_name(self) -> str:
        """The stream's name."""
        return self._inner.stream_name

    @property
    def owns_consumer(self) -> bool:
        """Whether this subscription created the consumer, and deletes it at its end."""
        return self._inner.owns_consumer


class PullSubscription(Facade):
    """The blocking form of `jetlake.client.pull_subscription.PullSubscription`."""

    _inner: AsyncPullSubscription

    fetch = Wrapped(AsyncPullSubscription.fetch, _messages, give_back)
    consumer_info = Call(AsyncPullSubscription.consumer_info)
    unsubscribe = Call(AsyncPullSubscription.unsubscribe)
    drain = unsubscribe

    @property
    def consumer_name(self) -> str:
        """The consumer's name."""
        return self._inner.consumer_name

    @property
    def stream_name(self) -> str:
        """The stream's name."""
        return self._inner.stream_name

    def __enter__(self) -> PullSubscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()


class JetStream(Facade):
    """The blocking form of `jetlake.client.JetStream`."""

    _inner: client.JetStream

    publish = Call(client.JetStream.publish)
    account_info = Call(client.JetStream.account_info)
    create_stream = Wrapped(client.JetStream.create_stream, Stream)
    update_stream = Wrapped(client.JetStream.update_stream, Stream)
    create_or_update_stream = Wrapped(client.JetStream.create_or_update_stream, Stream)
    stream = Wrapped(client.JetStream.stream, Stream)
    delete_stream = Call(client.JetStream.delete_stream)
    streams = Call(client.JetStream.streams)
    stream_names = Call(client.JetStream.stream_names)
    create_consumer = Wrapped(client.JetStream.create_consumer, Consumer)
    create_or_update_consumer = Wrapped(client.JetStream.create_or_update_consumer, Consumer)
    consumer = Wrapped(client.JetStream.consumer, Consumer)
    delete_consumer = Call(client.JetStream.delete_consumer)
    pull_subscribe = Wrapped(client.JetStream.pull_subscribe, PullSubscription)
    create_key_value = Wrapped(client.JetStream.create_key_value, KeyValue)
    create_or_update_key_value = Wrapped(client.JetStream.create_or_update_key_value, KeyValue)
    key_value = Wrapped(client.JetStream.key_value, KeyValue)
    delete_key_value = Call(client.JetStream.delete_key_value)
    key_value_names = Call(client.JetStream.key_value_names)

    def __init__(self, inner: client.JetStream, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._queue = PublishQueue(thread.port, inner)

    def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_sequence: int | None = None,
        expected_last_subject_sequence: int | None = None,
        expected_last_msg_id: str | None = None,
        ttl: float | str | None = None,
    ) -> PendingAck:
        """Publish without waiting for the stream, as `jetlake.client.JetStream.publish_async`.

        `result()` of what it returns waits for the acknowledgement, `publish_async_complete` for all.
        """
        subject_bytes, header, content = self._inner.prepare(
            subject,
            payload,
            headers,
            msg_id,
            expected_stream,
            expected_last_sequence,
            expected_last_subject_sequence,
            expected_last_msg_id,
            ttl,
        )
        return self._queue.put(subject_bytes, header, content, msg_id is not None)

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
