"""Continuous ordered reading: whenever something is missing, a new consumer behind the last good message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.consumer_api import create_consumer
from jetlake.client.messages.message import Message
from jetlake.client.ordered.ordered_state import OrderedState
from jetlake.client.pull.continuous_pull import Reading
from jetlake.client.pull.handler_pool import MessageHandler
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.errors import (
    ClientConnectionError,
    ConnectionClosedError,
    JetlakeError,
    PermissionsError,
    PullStatusError,
    StreamNotFoundError,
)
from jetlake.model.enums import ConsumerAction
from jetlake.model.replies import StreamInfoReply
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

__all__ = ["OrderedConsume", "make_consumer"]

T = TypeVar("T")

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0
_GIVE_UP_S = 60.0


async def make_consumer(api: ApiCaller, stream: str, state: OrderedState) -> PulledConsumer:
    """Make the next consumer of an ordered read, trying again while the server is not ready.

    Raises:
        StreamNotFoundError: the stream is gone.
        StreamReplacedError: the stream is not the one that the read began with.
        JetlakeError: the server refuses the consumer, or is not ready for too long.
    """
    config = state.next_config()
    info = await _until_ready(api, lambda: create_consumer(api, stream, config, ConsumerAction.CREATE))
    if state.resets:
        # Asked after the consumer was made, so that the stream cannot be replaced unseen between the two.
        try:
            state.check_stream(await _until_ready(api, lambda: api.call(StreamInfoReply, "STREAM.INFO", stream)))
        except PermissionsError:
            pass  # Who may not ask cannot know.
        except BaseException:
            discard_consumer(api, stream, info.name)
            raise
    state.created(info)
    return PulledConsumer(api, info)


async def _until_ready(api: ApiCaller, call: Callable[[], Awaitable[T]]) -> T:
    """The result of the call, made again while the server is not ready."""
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
    """Whether trying again may help: no answer, no connection, JetStream not there yet."""
    code = getattr(error, "code", None)
    return isinstance(error, (ClientConnectionError, TimeoutError)) or (isinstance(code, int) and code >= 500)


class OrderedConsume(Reading):
    """An ordered read without end; see `OrderedConsumer.consume`."""

    __slots__ = ("_api", "_consumer", "_ordered", "_stream")

    def __init__(
        self,
        api: ApiCaller,
        stream: str,
        state: OrderedState,
        options: ConsumeOptions,
        handler: MessageHandler | None,
    ) -> None:
        self._api = api
        self._stream = stream
        self._ordered = state
        self._consumer: PulledConsumer | None = None
        super().__init__(api.connection, options, handler=handler)

    @property
    def resets(self) -> int:
        """How often the consumer was made anew."""
        return max(0, self._ordered.resets)

    async def pending_at_start(self) -> int:
        """How many messages there were to read when the read began; waits until that is known.

        Raises:
            ConsumeError: the read ended before it was.
        """
        self.start()
        while (pending := self._ordered.pending_at_start) is None:
            if self._mailbox.is_ended:
                raise self._end()
            await self._mailbox.wait()
        return pending

    async def is_caught_up(self) -> bool:
        """Ask the server whether everything that there is to read has come and was taken."""
        consumer = self._consumer
        if consumer is None:
            return False
        try:
            info = await consumer.info()
        except JetlakeError:
            return False
        is_same = consumer is self._consumer
        return is_same and not info.num_pending and self._ordered.has_all(info) and not self._mailbox.messages

    def _source(self) -> str:
        return repr(self._stream)

    def _begin(self) -> None:
        self._begin_recovery()

    async def _recover(self) -> None:
        """Make a consumer that begins behind the last message, on an inbox of its own, and pull."""
        old, self._consumer = self._consumer, None
        connection = self._connection
        connection.unsubscribe(self)
        if old is not None:
            self._discard(old)
        try:
            self._consumer = await make_consumer(self._api, self._stream, self._ordered)
        except asyncio.CancelledError:
            raise
        except JetlakeError as error:
            if not self._mailbox.is_ended:
                self._fail(error)
            return
        if self._is_stopping or self._mailbox.is_ended:
            self._discard(self._consumer)
            return
        # Whatever still comes from the old consumer comes to a subscription that nobody knows any more.
        self.subject = new_inbox(connection.options.inbox_prefix).encode()
        connection.subscribe(self)
        self._mailbox.wake()  # For those who wait for `pending_at_start`.
        self._puller.aim(self._consumer.pull_subject, self.subject)
        self._puller.resume()

    def _discard(self, consumer: PulledConsumer) -> None:
        discard_consumer(self._api, self._stream, consumer.name)

    async def _end_delivery(self) -> None:
        try:
            await super()._end_delivery()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                self._discard(consumer)

    def _fail(self, error: Exception | None) -> None:
        super()._fail(error)
        if error is None and self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            self._discard(consumer)

    # What differs from a consumer that stays

    def _accept(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            message._settled = True
        good = self._ordered.accept(messages)
        if self._ordered.gap is not None:
            self.report(self._ordered.gap)
            self._begin_recovery()
        return good

    def _heard(self, status: PullStatus, now: float) -> None:
        outcome = self._puller.state.heard(status, now)
        if outcome is PullOutcome.TERMINAL:
            self._fail(PullStatusError(status.status, status.description))
        elif outcome in (PullOutcome.DELETED, PullOutcome.UNAVAILABLE, PullOutcome.LOST) or (
            outcome is PullOutcome.HEARTBEAT
            and status.last_consumer_seq is not None
            and not self._ordered.heard_heartbeat(status.last_consumer_seq)
        ):
            self._begin_recovery()

    def _missed(self) -> None:
        self._begin_recovery()
