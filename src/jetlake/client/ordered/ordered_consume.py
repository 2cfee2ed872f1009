"""Continuous ordered reading: whenever something is missing, a new consumer behind the last good message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.consumer_api import create_consumer
from jetlake.client.messages.message import Message
from jetlake.client.ordered.ordered_state import OrderedState
from jetlake.client.pull.continuous_pull import ContinuousPull
from jetlake.client.pull.handler_pool import MessageHandler
from jetlake.client.pull.message_reader import MessageReader
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_source import NextStep, Verdict
from jetlake.client.pull.pull_state import PullState
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.client.pull.puller import Puller
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    JetlakeError,
    PermissionsError,
    PullStatusError,
    StreamNotFoundError,
    StreamReplacedError,
)
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import ConsumerAction
from jetlake.model.replies import StreamInfoReply
from jetlake.protocol import encoder

__all__ = ["OrderedConsume", "make_consumer"]

T = TypeVar("T")

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0
_GIVE_UP_S = 60.0
_CREATE_FIRST_S = 2.0
_DISCARD_AGAIN_S = 1.0
_LOOK_S = 2.0
_CATCH_UP_S = 5.0


async def make_consumer(api: ApiCaller, stream: str, state: OrderedState) -> PulledConsumer:
    """Make the next consumer of an ordered read, trying again while the server is not ready.

    Raises:
        StreamNotFoundError: the stream is gone.
        StreamReplacedError: the stream is not the one that the read began with.
        JetlakeError: the server refuses the consumer, or is not ready for too long.
    """
    info = await _until_ready(api, _Creation(api, stream, state.next_config()).attempt)
    if state.resets:
        # Asked after the consumer was made, so that the stream cannot be replaced unseen between the two.
        try:
            await _check_stream(api, stream, state)
        except PermissionsError:
            pass  # A user without permission for STREAM.INFO goes on unchecked.
        except BaseException:
            discard_consumer(api, stream, info.name)
            raise
    state.created(info)
    return PulledConsumer(api, info)


class _Creation:
    """Attempts to create one consumer, each under a name of its own.

    A cluster may have put the consumer of an attempt without an answer on a server that is gone since.
    """

    def __init__(self, api: ApiCaller, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._stream = stream
        self._config = config
        self._attempts = 0

    async def attempt(self) -> ConsumerInfo:
        """Create the consumer; an attempt that gets no answer takes its consumer back."""
        self._attempts += 1
        name = self._config.name if self._attempts == 1 else f"{self._config.name}_{self._attempts}"
        config = msgspec.structs.replace(self._config, name=name)
        timeout_s = min(self._api.timeout_s, _CREATE_FIRST_S * self._attempts)
        try:
            return await create_consumer(self._api, self._stream, config, ConsumerAction.CREATE, timeout_s)
        except (ClientConnectionError, TimeoutError, asyncio.CancelledError):
            discard_consumer(self._api, self._stream, name)
            # nats-server may carry this request out before the one that creates the consumer.
            self._api.connection.loop.call_later(_DISCARD_AGAIN_S, discard_consumer, self._api, self._stream, name)
            raise


async def _check_stream(api: ApiCaller, stream: str, state: OrderedState) -> None:
    """Make sure that the stream is the one that the read began with.

    Raises:
        StreamReplacedError: the stream is another one.
    """
    give_up_at = api.connection.loop.time() + _CATCH_UP_S
    while True:
        info = await _until_ready(api, lambda: api.call(StreamInfoReply, "STREAM.INFO", stream))
        try:
            state.check_stream(info)
            return
        except StreamReplacedError:
            is_replicated = info.cluster is not None and bool(info.cluster.replicas)
            if not is_replicated or api.connection.loop.time() >= give_up_at:
                raise
        # A leader that was just elected may be behind what the last one has delivered.
        await asyncio.sleep(_RETRY_FIRST_S)


async def _until_ready(api: ApiCaller, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the call, made again while the server is not ready."""
    give_up_at = api.connection.loop.time() + _GIVE_UP_S
    wait_s = _RETRY_FIRST_S
    while True:
        try:
            return await call()
        except (StreamNotFoundError, ConnectionClosedError):
            raise
        except JetlakeError as error:
            if not _is_passing(error) or api.connection.loop.time() >= give_up_at:
                raise
            await asyncio.sleep(wait_s)
            wait_s = min(_RETRY_MAX_S, wait_s * 2)


def discard_consumer(api: ApiCaller, stream: str, name: str) -> None:
    """Delete a consumer without waiting for it; if that fails, the server removes it after a while."""
    connection = api.connection
    if not connection.is_closed:
        try:
            connection.send(encoder.pub(api.subject("CONSUMER.DELETE", stream, name), b"", b""))
        except ClientConnectionError:
            pass


def _is_passing(error: JetlakeError) -> bool:
    """Return whether trying again may help: no answer, no connection, JetStream not there yet."""
    code = getattr(error, "code", None)
    return isinstance(error, (ClientConnectionError, TimeoutError)) or (isinstance(code, int) and code >= 500)


class OrderedConsume(MessageReader):
    """An ordered read without end; see `OrderedConsumer.consume`."""

    __slots__ = ("_source",)

    def __init__(
        self,
        api: ApiCaller,
        stream: str,
        state: OrderedState,
        options: ConsumeOptions,
        handler: MessageHandler | None,
    ) -> None:
        puller = Puller(api.connection, options)
        report = partial(api.connection.report, options.on_error)
        self._source = _OrderedSource(api, stream, state, puller.state, report)
        super().__init__(ContinuousPull(api.connection, puller, self._source, options, handler), repr(stream))

    @property
    def resets(self) -> int:
        """How often the consumer was replaced."""
        return max(0, self._source.ordered.resets)

    async def pending_at_start(self) -> int:
        """Wait for the number of messages that there were to read when the read began.

        Raises:
            ConsumeError: the read ended before the number was known.
        """
        self.start()
        while (pending := self._source.ordered.pending_at_start) is None:
            if self._mailbox.is_ended:
                raise self._pull.end_reason()
            await self._mailbox.wait()
        return pending

    async def is_caught_up(self) -> bool:
        """Ask the server whether everything that there is to read was received and taken."""
        return await self._source.has_received_all() and not self._mailbox.messages


class _OrderedSource:
    """The consumers of one ordered read, one after another, as `PullSource`.

    Attributes:
        ordered: where the read is.
    """

    __slots__ = ("_api", "_consumer", "_pulls", "_report", "_stream", "is_replaced", "ordered", "pull_subject")

    needs_ack = False

    def __init__(
        self,
        api: ApiCaller,
        stream: str,
        ordered: OrderedState,
        pulls: PullState,
        report: Callable[[Exception], None],
    ) -> None:
        self._api = api
        self._stream = stream
        self._pulls = pulls
        self._report = report
        self._consumer: PulledConsumer | None = None
        self.ordered = ordered
        self.pull_subject = b""
        self.is_replaced = True

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
        # A consumer that counts from 1 again was made anew with its server: nothing is missing.
        if self.ordered.gap.received > self.ordered.gap.expected:
            self._report(self.ordered.gap)
        return good, NextStep.RECOVER

    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status; only one that no new consumer can mend ends the read."""
        outcome = self._pulls.heard(status, now)
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

    @property
    def can_move(self) -> bool:
        """Tell nothing: silence always leads to a new consumer."""
        return False

    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether the consumer's server is gone, or has lost the consumer's state, and the pulls with it."""
        consumer = self._consumer
        if consumer is None:
            return True
        try:
            info = await consumer.info(_LOOK_S)
        except (ConnectionClosedError, PermissionsError):
            return False
        except JetlakeError:
            return True
        return not info.num_waiting or self.ordered.has_more_than(info)

    async def recover(self) -> Verdict:
        """Make a consumer that begins behind the last message."""
        self.release()
        try:
            self._consumer = await make_consumer(self._api, self._stream, self.ordered)
        except JetlakeError as error:
            return error
        self.pull_subject = self._consumer.pull_subject
        return NextStep.PULL

    def gave_back(self, messages: list[Message]) -> None:
        """Ignore messages that were not handed out: the consumer waits for no acknowledgement."""

    def release(self) -> None:
        """Delete the consumer, without waiting for the answer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            discard_consumer(self._api, self._stream, consumer.name)
