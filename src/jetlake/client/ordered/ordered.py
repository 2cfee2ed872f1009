"""Ordered reads: every message once and in order, through consumers that the client makes and makes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.ordered.ordered_consume import OrderedConsume, make_consumer
from jetlake.client.ordered.ordered_state import OrderedState
from jetlake.client.pull.fetch import Fetch
from jetlake.client.pull.handler_pool import MessageHandler
from jetlake.client.pull.pull_options import FetchOptions, consume_options, fetch_options, next_options
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.client.settings.options import EventCallback, duration_s
from jetlake.completion import hides
from jetlake.errors import (
    ClientConnectionError,
    ConsumeError,
    ConsumerNotFoundError,
    InvalidOptionError,
    RequestTimeoutError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import Seconds
from jetlake.protocol.nuid import next_nuid

__all__ = ["OrderedConsume", "OrderedConsumer"]

_EXPIRES_S = 30.0
_HEARTBEAT_S = 5.0


@hides("fetch_once")
class OrderedConsumer:
    """A consumer for one reader that wants everything in order and acknowledges nothing.

    Iterate over it (`async for message in stream.ordered()`), enter it (`async with stream.ordered() as messages`), or
    use `consume`, `fetch` and `next` as with others.
    Missing deliveries, missed heartbeats, lost connections and restarted servers make it begin again behind the last
    message; nothing comes twice.
    """

    def __init__(self, api: ApiCaller, stream_name: str, config: ConsumerConfig) -> None:
        self._api = api
        self._config = config
        self._state = self._new_state()
        self._consumer: PulledConsumer | None = None
        self._entered: OrderedConsume | None = None
        self.stream_name = stream_name

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self.stream_name!r} behind sequence {self._state.last_stream_seq}>"

    def _new_state(self) -> OrderedState:
        return OrderedState(self._config, f"{self._config.name or 'ordered'}_{next_nuid()}")

    @property
    def name(self) -> str:
        """The name of the consumer that is used right now; it changes. Empty before the first read."""
        return self._consumer.name if self._consumer is not None else ""

    async def info(self) -> ConsumerInfo:
        """Return what the server says about the consumer that is used right now; one is made if there is none."""
        return await (await self._ready()).info()

    # Reading on and on

    def consume(
        self,
        handler: MessageHandler | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds = _EXPIRES_S,
        idle_heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        stop_after: int | None = None,
        on_error: EventCallback | None = None,
    ) -> OrderedConsume:
        """Read without end; the options are those of `Consumer.consume`. A handler gets one message at a time.

        Every call is a read of its own, from the start that the ordered consumer was given.
        """
        if idle_heartbeat is None:
            idle_heartbeat = min(_HEARTBEAT_S, duration_s("expires", expires) / 2)
        options = consume_options(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            stop_after=stop_after,
            on_error=on_error,
        )
        return OrderedConsume(self._api, self.stream_name, self._new_state(), options, handler)

    messages = consume
    """Another name for `consume`."""

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.consume().__aiter__()

    async def __aenter__(self) -> OrderedConsume:
        if self._entered is not None:
            raise InvalidOptionError(f"{self!r} is entered already; another read is another consume()")
        self._entered = self.consume()
        return self._entered.start()

    async def __aexit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.stop()

    def batches(self) -> AsyncIterator[MessageBatch[Message]]:
        """Return all messages that are there, again and again; the fastest way to take many."""
        return self.consume().batches()

    # Reading in pieces

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
    ) -> OrderedFetch:
        """Return the next messages, as `Consumer.fetch`; each call goes on where the last one ended."""
        options = fetch_options(
            max_messages, max_bytes=max_bytes, expires=expires, idle_heartbeat=idle_heartbeat, no_wait=no_wait
        )
        return OrderedFetch(self, options)

    async def next(self, timeout: Seconds = 5.0) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds; 0 takes what is there."""
        messages = await self.fetch_once(next_options(timeout))
        return messages[0] if messages else None

    async def fetch_once(self, options: FetchOptions) -> list[Message]:
        """Return one fetch, repeated on new consumers while the old one is lost; once, when it is refused."""
        connection = self._api.connection
        end_at = connection.loop.time() + (options.expires_s or connection.options.request_timeout_s)
        has_failed = False
        while True:
            consumer = await self._ready_until(end_at)
            fetch = Fetch(connection, consumer, options.within(end_at - connection.loop.time()), is_patient=False)
            try:
                messages = await fetch
            except (ConsumeError, ConsumerNotFoundError, ClientConnectionError):
                self._consumer = None
                is_over = has_failed if not fetch.is_lost else connection.loop.time() >= end_at
                if is_over or connection.is_closed:
                    raise
                has_failed = True
                continue
            good = self._state.accept(messages)
            if self._state.gap is not None or fetch.error is not None or fetch.is_lost:
                self._consumer = None
                if not good and not has_failed:
                    has_failed = True
                    continue
            return good

    async def _ready_until(self, end_at: float) -> PulledConsumer:
        connection = self._api.connection
        try:
            async with asyncio.timeout_at(end_at):
                await connection.wait_connected(max(0.0, end_at - connection.loop.time()))
                return await self._ready()
        except TimeoutError as error:
            if isinstance(error, RequestTimeoutError):
                raise
            raise RequestTimeoutError(f"no consumer of {self.stream_name!r} could be made in time") from None

    async def delete(self) -> None:
        """Delete the consumer that `fetch` and `next` use; the next call would make another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.delete()

    async def _ready(self) -> PulledConsumer:
        if self._consumer is None:
            self._consumer = await make_consumer(self._api, self.stream_name, self._state)
        return self._consumer


class OrderedFetch:
    """Messages of one pull of an ordered consumer: await it for a list, or iterate over it."""

    __slots__ = ("_consumer", "_options")

    def __init__(self, consumer: OrderedConsumer, options: FetchOptions) -> None:
        self._consumer = consumer
        self._options = options

    def __repr__(self) -> str:
        return f"<OrderedFetch of {self._consumer.stream_name!r}: await it, or iterate over it>"

    def __await__(self) -> Generator[Any, None, list[Message]]:
        return self._consumer.fetch_once(self._options).__await__()

    async def __aiter__(self) -> AsyncIterator[Message]:
        for message in await self:
            yield message
