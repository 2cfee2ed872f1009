"""Blocking forms of streams and consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from jetlake import client
from jetlake.blocking.facade import Call, Collect, Facade, Made, Method, View, Wrapped
from jetlake.blocking.loop_thread import LoopThread
from jetlake.blocking.message import Message
from jetlake.blocking.reading import MessageHandler, Reading
from jetlake.client.messages.message import give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.ordered.ordered import OrderedConsumer as AsyncOrderedConsumer
from jetlake.client.pull.options import next_options
from jetlake.client.streams.tables import TableArguments
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import Seconds
from jetlake.model.stream import StreamConfig, StreamInfo

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow import Table as ArrowTable

    from jetlake.client.tables.table import Table, TableRead

P = ParamSpec("P")
T = TypeVar("T")


def messages(received: MessageBatch[client.Message], thread: LoopThread) -> MessageBatch[Message]:
    return cast("MessageBatch[Message]", received)


def table_read(table: Table, thread: LoopThread) -> TableRead:
    """Return the table for reading in the calling thread."""
    return table.read


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
            raise InvalidOptionError(f"concurrency must be 1 or more, not {concurrency!r}")
        if concurrency > 1 and handler is None:
            raise InvalidOptionError("concurrency needs a handler")
        return Reading(self._method(instance._inner, **options), instance._thread, handler, concurrency)


class Consumer(Facade):
    """The blocking form of `jetlake.client.Consumer`."""

    _inner: client.Consumer

    fetch = Wrapped(client.Consumer.fetch, messages, give_back)
    ack_next = Wrapped(client.Consumer.ack_next, messages, give_back)
    next = Wrapped(client.Consumer.next, _message, _give_back)
    consume = _Consume(client.Consumer.consume)
    messages = consume
    info = Call(client.Consumer.info)
    explain = Call(client.Consumer.explain)
    delete = Call(client.Consumer.delete)
    pause = Call(client.Consumer.pause)
    resume = Call(client.Consumer.resume)
    reset = Call(client.Consumer.reset)
    unpin = Call(client.Consumer.unpin)

    name = View[str]("The consumer's name.")
    stream_name = View[str]("The stream's name.")
    cached_info = View[ConsumerInfo]("The server's last answer about it; names alone while `is_known` is False.")
    is_known = View[bool]("The server has answered; without that, nothing is checked against the configuration.")
    config = View[ConsumerConfig]("The configuration in the server's last answer.")


class OrderedConsumer(Facade):
    """The blocking form of `jetlake.client.OrderedConsumer`; iterate over it, enter it, use `consume` or `fetch`."""

    _inner: AsyncOrderedConsumer

    consume = _Consume(AsyncOrderedConsumer.consume)
    messages = consume
    info = Call(AsyncOrderedConsumer.info)
    delete = Call(AsyncOrderedConsumer.delete)

    def __init__(self, inner: AsyncOrderedConsumer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        # Messages that an interrupted call has fetched go to the next one: the position is after them already.
        self._fetched: deque[Message] = deque()
        self._entered: Reading | None = None

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
    ) -> list[Message]:
        """Return the next messages, as `Consumer.fetch`; each call continues after the last one."""
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
        """Return the next message, or None if none arrived within `timeout` seconds; 0 does not wait."""
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

    name = View[str]("The name of the current consumer; it changes. Empty before the first read.")
    stream_name = View[str]("The stream's name.")

    def __enter__(self) -> Reading:
        if self._entered is not None:
            raise InvalidOptionError(f"{self!r} was already entered; call consume() again for another read")
        self._entered = self.consume()
        return self._entered.__enter__()

    def __exit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.stop()

    def __iter__(self) -> Iterator[Message]:
        with self.consume() as messages:
            yield from messages

    def batches(self) -> Iterator[MessageBatch[Message]]:
        """Yield batches of all messages that are there; the fastest way to take many."""
        with self.consume() as messages:
            yield from messages.batches()


class Stream(Facade):
    """The blocking form of `jetlake.client.Stream`."""

    _inner: client.Stream

    info = Call(client.Stream.info)
    update = Call(client.Stream.update)
    delete = Call(client.Stream.delete)
    purge = Call(client.Stream.purge)
    backup = Call(client.Stream.backup)
    get = Call(client.Stream.get)
    get_last_for = Call(client.Stream.get_last_for)
    get_batch = Collect(client.Stream.get_batch)
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
    table = Made(client.Stream.table, table_read)

    def arrow_batches(self, **options: Unpack[TableArguments]) -> Iterator[RecordBatch]:
        """Return the messages as Arrow record batches when they arrive: `table(…).arrow_batches()`."""
        return self.table(**options).arrow_batches()

    def to_arrow(self, **options: Unpack[TableArguments]) -> ArrowTable:
        """Return the messages as a `pyarrow.Table`: `table(…).to_arrow()`."""
        return self.table(**options).to_arrow()

    def to_polars(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a polars DataFrame: `table(…).to_polars()`."""
        return self.table(**options).to_polars()

    def to_pandas(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a pandas DataFrame: `table(…).to_pandas()`."""
        return self.table(**options).to_pandas()

    def scan(self, **options: Unpack[TableArguments]) -> Any:
        """Return the messages as a polars LazyFrame, which reads what a query needs: `table(…).scan()`."""
        return self.table(**options).scan()

    name = View[str]("The stream's name.")
    cached_info = View[StreamInfo]("The server's last answer about it.")
    config = View[StreamConfig]("The configuration in the server's last answer.")
