"""Ordered reads: every message once and in order, through consumers that the client creates and recreates.

The consumer of an ordered read belongs to the read: it is in memory, needs no acknowledgement and numbers its
deliveries. When a number is missing, heartbeats stop, or its server is gone, the read deletes it and creates the next
one after the last message that was accepted (`OrderedState`). Each consumer delivers to an inbox of its own, so that
late deliveries of a deleted consumer are never attributed to its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import msgspec

from jetlake.client.api.api_caller import ApiCaller, until_ready
from jetlake.client.api.consumer_api import create_consumer
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.messages.ready import Deferred
from jetlake.client.ordered.ordered_state import OrderedState
from jetlake.client.pull.consume import MessageReader
from jetlake.client.pull.consumer import Consumer
from jetlake.client.pull.continuous_pull import ContinuousPull, NextStep, Verdict
from jetlake.client.pull.fetch import Fetch
from jetlake.client.pull.handlers import MessageHandler
from jetlake.client.pull.options import ConsumeOptions, FetchOptions, consume_options, fetch_options, next_options
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.settings.options import ErrorCallback, duration_s
from jetlake.completion import hides
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    ConsumeError,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetlakeError,
    PermissionsError,
    PullStatusError,
    RequestTimeoutError,
    StreamReplacedError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import Seconds
from jetlake.model.enums import ConsumerAction
from jetlake.model.replies import StreamInfoReply
from jetlake.protocol import encoder
from jetlake.protocol.nuid import next_nuid

_EXPIRES_S = 30.0
_HEARTBEAT_S = 5.0
_INFO_S = 60.0
_RETRY_FIRST_S = 0.05
_GIVE_UP_S = 60.0
_CREATE_FIRST_S = 2.0
_DISCARD_AGAIN_S = 1.0
_LOOK_S = 2.0
_CATCH_UP_S = 5.0


@hides("fetch_once")
class OrderedConsumer:
    """A consumer for one reader, in order and without acknowledgements.

    Iterate over it (`async for message in stream.ordered()`), enter it (`async with stream.ordered() as messages`), or
    use `consume`, `fetch` and `next` as with others.
    After missing deliveries, missed heartbeats, lost connections and restarted servers it begins again after the last
    message; nothing comes twice.
    """

    def __init__(self, api: ApiCaller, stream_name: str, config: ConsumerConfig) -> None:
        self._api = api
        self._config = config
        self._state = self._new_state()
        self._consumer: Consumer | None = None
        self._entered: OrderedConsume | None = None
        self.stream_name = stream_name

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self.stream_name!r} after sequence {self._state.last_stream_seq}>"

    def _new_state(self) -> OrderedState:
        return OrderedState(self._config, f"{self._config.name or 'ordered'}_{next_nuid()}")

    @property
    def name(self) -> str:
        """The name of the current consumer, which changes; empty before the first read."""
        return self._consumer.name if self._consumer is not None else ""

    async def info(self) -> ConsumerInfo:
        """Ask the server about the current consumer; one is created if there is none."""
        consumer = await self._ready_until(self._api.connection.loop.time() + _INFO_S)
        return await consumer.info()

    # Continuous reads

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
        on_error: ErrorCallback | None = None,
    ) -> OrderedConsume:
        """Read without end, with the options of `Consumer.consume`. A handler gets one message at a time.

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
            raise InvalidOptionError(f"{self!r} was already entered; call consume() again for another read")
        self._entered = self.consume()
        return self._entered.start()

    async def __aexit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.stop()

    def batches(self) -> AsyncIterator[MessageBatch[Message]]:
        """Return an iterator over lists of all messages that have arrived; the fastest way to read many."""
        return self.consume().batches()

    # Single fetches

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
    ) -> OrderedFetch:
        """Return the next messages, as `Consumer.fetch`; each call continues after the last one."""
        options = fetch_options(
            max_messages, max_bytes=max_bytes, expires=expires, idle_heartbeat=idle_heartbeat, no_wait=no_wait
        )
        return OrderedFetch(self, options)

    async def next(self, timeout: Seconds = 5.0) -> Message | None:
        """Return the next message, or None if none arrived within `timeout` seconds; 0 does not wait."""
        messages = await self.fetch_once(next_options(timeout))
        return messages[0] if messages else None

    async def fetch_once(self, options: FetchOptions) -> list[Message]:
        """Return one fetch, repeated on new consumers while consumers are lost, and once after a refusal."""
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

    async def _ready_until(self, end_at: float) -> Consumer:
        connection = self._api.connection
        try:
            async with asyncio.timeout_at(end_at):
                await connection.wait_connected(max(0.0, end_at - connection.loop.time()))
                return await self._ready()
        except TimeoutError as error:
            if isinstance(error, RequestTimeoutError):
                raise
            raise RequestTimeoutError(f"no consumer of {self.stream_name!r} could be created in time") from None

    async def delete(self) -> None:
        """Delete the consumer that `fetch` and `next` use; the next call creates another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.delete()

    async def _ready(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await _make_consumer(self._api, self.stream_name, self._state, self._api.connection.signal)
        return self._consumer


class OrderedFetch(Deferred[list[Message]]):
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


class OrderedConsume(MessageReader):
    """An ordered read without end; see `OrderedConsumer.consume`."""

    __slots__ = ()

    _pull: _OrderedPull

    def __init__(
        self,
        api: ApiCaller,
        stream: str,
        state: OrderedState,
        options: ConsumeOptions,
        handler: MessageHandler | None,
    ) -> None:
        super().__init__(_OrderedPull(api, stream, state, options, handler), repr(stream))

    @property
    def resets(self) -> int:
        """How often the consumer was replaced."""
        return max(0, self._pull.ordered.resets)

    async def pending_at_start(self) -> int:
        """Wait for the number of messages that there were to read when the read began.

        Raises:
            ConsumeError: the read ended before the number was known.
        """
        self.start()
        while (pending := self._pull.ordered.pending_at_start) is None:
            if self._mailbox.is_ended:
                raise self._pull.end_reason()
            await self._mailbox.wait()
        return pending

    async def is_caught_up(self) -> bool:
        """Ask the server whether everything that there is to read was received and taken."""
        return await self._pull.has_received_all() and not self._mailbox.messages


class _OrderedPull(ContinuousPull):
    """The continuous pull of an ordered read, through one consumer after another.

    Attributes:
        ordered: the position of the read.
    """

    __slots__ = ("_api", "_consumer", "_stream", "ordered")

    is_replaced = True
    needs_ack = False

    def __init__(
        self,
        api: ApiCaller,
        stream: str,
        ordered: OrderedState,
        options: ConsumeOptions,
        handler: MessageHandler | None,
    ) -> None:
        super().__init__(api.connection, options, handler)
        self._api = api
        self._stream = stream
        self._consumer: Consumer | None = None
        self.ordered = ordered

    async def has_received_all(self) -> bool:
        """Ask the server whether the consumer has nothing left and all its deliveries were received."""
        consumer = self._consumer
        if consumer is None:
            return False
        try:
            info = await consumer.info()
        except JetlakeError:
            return False
        return consumer is self._consumer and not info.num_pending and self.ordered.has_all(info)

    def accept(self, messages: list[Message]) -> tuple[list[Message], Verdict]:
        """Take the messages that follow the last good one; a gap needs a new consumer."""
        if not messages[0]._settled:
            for message in messages:
                message._settled = True
        good = self.ordered.accept(messages)
        if self.ordered.gap is None:
            return good, NextStep.PULL
        # A consumer that counts from 1 again was recreated with its server: nothing is missing.
        if self.ordered.gap.received > self.ordered.gap.expected:
            self.report(self.ordered.gap)
        # sometimes: an ordered read finds a gap
        return good, NextStep.RECOVER

    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status; only an error that a new consumer would have too ends the read."""
        outcome = self.state.heard(status, now)
        if outcome is PullOutcome.TERMINAL:
            return PullStatusError(status.status, status.description)
        if outcome in (PullOutcome.DELETED, PullOutcome.UNAVAILABLE, PullOutcome.LOST) or (
            outcome is PullOutcome.HEARTBEAT
            and status.last_consumer_seq is not None
            and not self.ordered.heard_heartbeat(status.last_consumer_seq)
        ):
            return NextStep.RECOVER
        return NextStep.PULL

    def missed(self) -> Verdict:
        """Replace the consumer of a server that was silent for too long."""
        return NextStep.RECOVER

    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether the consumer's server is gone, or has lost the consumer's state, and the pulls with it."""
        consumer = self._consumer
        if consumer is None:
            return True
        try:
            info = await consumer.info_within(_LOOK_S)
        except (ConnectionClosedError, PermissionsError):
            return False
        except JetlakeError:
            return True
        return not info.num_waiting or self.ordered.has_more_than(info)

    async def recover(self) -> Verdict:
        """Create a consumer that begins after the last message."""
        self.release()
        try:
            self._consumer = await _make_consumer(self._api, self._stream, self.ordered, self.report)
        except JetlakeError as error:
            return error
        self.pull_subject = self._consumer.pull_subject
        return NextStep.PULL

    def release(self) -> None:
        """Delete the consumer, without waiting for the answer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            _discard_consumer(self._api, self._stream, consumer.name)


async def _make_consumer(
    api: ApiCaller, stream: str, state: OrderedState, report: Callable[[Exception], None]
) -> Consumer:
    """Create the next consumer of an ordered read, retrying while the server is not ready.

    Before the first consumer it gives up after a minute, afterwards never.

    Args:
        report: takes the error of a server that is not ready for long.

    Raises:
        StreamNotFoundError: the stream is gone.
        StreamReplacedError: the stream was deleted and recreated during the read.
        JetlakeError: the server refuses the consumer, or is not ready for the first one for too long.
    """
    creation = _Creation(api, stream, state.next_config())
    give_up_s = None if state.has_begun else _GIVE_UP_S
    info = await until_ready(api.connection, creation.attempt, report, give_up_s)
    if state.resets:
        # Asked after the consumer was created, so that the stream cannot be replaced unseen between the two.
        try:
            await _check_stream(api, stream, state, report)
        except PermissionsError:
            pass  # A user without permission for STREAM.INFO reads unchecked.
        except BaseException:
            _discard_consumer(api, stream, info.name)
            raise
    state.created(info)
    return Consumer(api, info)


class _Creation:
    """Attempts to create one consumer, each under a name of its own.

    In a cluster, the consumer of an attempt without an answer may be on a server that is gone since.
    """

    def __init__(self, api: ApiCaller, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._stream = stream
        self._config = config
        self._attempts = 0

    async def attempt(self) -> ConsumerInfo:
        """Create the consumer; after an attempt without an answer, delete what it may have created."""
        self._attempts += 1
        name = self._config.name if self._attempts == 1 else f"{self._config.name}_{self._attempts}"
        config = msgspec.structs.replace(self._config, name=name)
        timeout_s = min(self._api.timeout_s, _CREATE_FIRST_S * self._attempts)
        try:
            return await create_consumer(self._api, self._stream, config, ConsumerAction.CREATE, timeout_s)
        except (ClientConnectionError, TimeoutError, asyncio.CancelledError):
            _discard_consumer(self._api, self._stream, name)
            # nats-server may process this deletion before the creation.
            self._api.connection.loop.call_later(_DISCARD_AGAIN_S, _discard_consumer, self._api, self._stream, name)
            raise


async def _check_stream(api: ApiCaller, stream: str, state: OrderedState, report: Callable[[Exception], None]) -> None:
    """Make sure that the stream is the one that the read began with.

    Raises:
        StreamReplacedError: the stream is another one.
    """
    give_up_at = api.connection.loop.time() + _CATCH_UP_S
    while True:
        info = await until_ready(api.connection, lambda: api.call(StreamInfoReply, "STREAM.INFO", stream), report)
        try:
            state.check_stream(info)
            return
        except StreamReplacedError:
            is_replicated = info.cluster is not None and bool(info.cluster.replicas)
            if not is_replicated or api.connection.loop.time() >= give_up_at:
                raise
        # A leader that was just elected may be behind what the last one has delivered.
        await asyncio.sleep(_RETRY_FIRST_S)


def _discard_consumer(api: ApiCaller, stream: str, name: str) -> None:
    """Delete a consumer without waiting for it; if that fails, the server removes it after a while."""
    connection = api.connection
    if not connection.is_closed:
        try:
            connection.send(encoder.pub(api.subject("CONSUMER.DELETE", stream, name), b"", b""))
        except ClientConnectionError:
            pass
