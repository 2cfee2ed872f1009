"""Continuous reading of a consumer that stays: what each status means for it, its pin, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.pull.continuous_pull import Reading
from jetlake.client.pull.handler_pool import MessageHandler
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.errors import (
    ConnectionClosedError,
    ConsumeError,
    ConsumerDeletedError,
    HeartbeatMissedError,
    JetlakeError,
    NotFoundError,
    NotJetStreamMessageError,
    PermissionsError,
    PullStatusError,
)
from jetlake.model.ack_subject import delivery_count
from jetlake.protocol.headers import find_value

__all__ = ["Consume", "PinnedCallback", "UnpinnedCallback"]

PinnedCallback = Callable[[str], None]
"""Called with the pin when this client becomes the pinned one."""

UnpinnedCallback = Callable[[], None]
"""Called when this client is no longer the pinned one."""

_RECOVER_WAIT_S = 0.1
_RECOVER_WAIT_MAX_S = 2.0


class Consume(Reading):
    """Messages of a consumer, without end; see `Consumer.consume`."""

    __slots__ = ("_ahead_deliveries_max", "_consumer", "_deliveries_max", "_on_pinned", "_on_unpinned")

    def __init__(
        self,
        connection: Connection,
        consumer: PulledConsumer,
        options: ConsumeOptions,
        *,
        handler: MessageHandler | None = None,
        concurrency: int = 1,
        on_pinned: PinnedCallback | None = None,
        on_unpinned: UnpinnedCallback | None = None,
    ) -> None:
        super().__init__(connection, options, handler=handler, concurrency=concurrency)
        self._consumer = consumer
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned
        self._deliveries_max = max(0, consumer.config.max_deliver) if not options.max_bytes else 0
        # What is given back unseen has used up a delivery; so much of it leaves some for being seen.
        self._ahead_deliveries_max = max(1, self._deliveries_max - 2) if self._deliveries_max > 1 else 0
        if self._deliveries_max:
            self._puller.state.wanted = 0
            self._mailbox.on_wait = self._want

    @property
    def pin_id(self) -> str:
        """The pin of this client in its priority group; empty while it is not the pinned one."""
        return self._puller.state.pin_id

    def _source(self) -> str:
        return repr(self._consumer)

    async def wind_down(self) -> None:
        if self._handlers.has_handler or self.is_emptied or not self._consumer.needs_ack:
            await self._drain()
        else:
            # The connection goes, and nobody could acknowledge what an iterator took later.
            await self._stop()

    def _begin(self) -> None:
        self._connection.subscribe(self)
        self._puller.aim(self._consumer.pull_subject, self.subject)
        self._puller.begin()

    def _accept(self, messages: list[Message]) -> list[Message]:
        self._consumer.prepare(messages)
        if self._options.group.group:
            self._read_pin(messages[-1])
        return self._look_at_deliveries(messages) if self._deliveries_max else messages

    # Consumers that give up after some deliveries

    def _want(self, waiting: int) -> None:
        """Pull for those who wait, when nothing is fetched ahead."""
        if self._puller.state.wanted is not None:
            self._puller.state.wanted = waiting
            self._puller.refill()

    def _look_at_deliveries(self, messages: list[Message]) -> list[Message]:
        """Fetch ahead only while what comes has deliveries left; what has none left is handed out first."""
        counts = [_deliveries(message) for message in messages]
        self._puller.state.wanted = None if max(counts) <= self._ahead_deliveries_max else 0
        if max(counts) < self._deliveries_max:
            return messages
        pairs = list(zip(counts, messages, strict=True))
        self._mailbox.messages.extendleft(
            reversed([message for count, message in pairs if count >= self._deliveries_max])
        )
        return [message for count, message in pairs if count < self._deliveries_max]

    def _give_back(self, messages: list[Message]) -> None:
        super()._give_back(messages)
        if self._deliveries_max:
            used_up = sum(_deliveries(message) >= self._deliveries_max for message in messages)
            if used_up:
                told = f"{used_up} messages of {self._source()} were not handed out in their last delivery"
                self._connection.signal(ConsumeError(f"{told}: fetch fewer ahead (max_messages), or use next()"))

    # Statuses

    def _heard(self, status: PullStatus, now: float) -> None:
        state = self._puller.state
        had_pin = state.pin_id
        outcome = state.heard(status, now)
        if outcome is PullOutcome.DELETED:
            self._fail(ConsumerDeletedError(self._consumer.stream_name, self._consumer.name))
        elif outcome is PullOutcome.TERMINAL:
            self._fail(PullStatusError(status.status, status.description))
        elif outcome is PullOutcome.UNAVAILABLE:
            self._begin_recovery()
        elif outcome is PullOutcome.UNPINNED and had_pin and self._on_unpinned is not None:
            self._notify(self._on_unpinned)

    def _missed(self) -> None:
        error = HeartbeatMissedError(self._puller.state.silence_s)
        if self._options.on_missed_heartbeat == "stop":
            self._fail(error)
        else:
            self.report(error)
            self._begin_recovery()

    async def _recover(self) -> None:
        """Check that the consumer is there; a server that is not ready yet is asked again."""
        wait_s = _RECOVER_WAIT_S
        give_up_at = self._loop.time() + self._options.expires_s
        while True:
            try:
                await self._consumer.info()
            except NotFoundError:
                self._fail(ConsumerDeletedError(self._consumer.stream_name, self._consumer.name))
                return
            except ConnectionClosedError:
                return
            except PermissionsError:
                break  # Who may not ask may pull all the same, and the pull will tell.
            except JetlakeError as error:
                if self._loop.time() >= give_up_at:
                    self._fail(error)
                    return
            else:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(_RECOVER_WAIT_MAX_S, wait_s * 2)
        self._puller.resume()

    def _read_pin(self, message: Message) -> None:
        state = self._puller.state
        pin = find_value(message.raw_header, b"Nats-Pin-Id") if message.raw_header else None
        if pin and pin.decode() != state.pin_id:
            state.pin_id = pin.decode()
            if self._on_pinned is not None:
                self._notify(self._on_pinned, state.pin_id)

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self.report(error)


def _deliveries(message: Message) -> int:
    try:
        return delivery_count(message.raw_reply)
    except NotJetStreamMessageError:
        return 1  # Somebody published to the inbox itself.
