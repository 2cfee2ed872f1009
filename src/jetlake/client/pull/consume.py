"""Continuous reading of a consumer that stays: what each status means, its pin, and consumers with `max_deliver`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.pull.continuous_pull import ContinuousPull
from jetlake.client.pull.handler_pool import MessageHandler
from jetlake.client.pull.message_reader import MessageReader
from jetlake.client.pull.pull_options import ConsumeOptions
from jetlake.client.pull.pull_source import NextStep, Verdict
from jetlake.client.pull.pull_status import PullOutcome, PullStatus
from jetlake.client.pull.pulled_consumer import PulledConsumer
from jetlake.client.pull.puller import Puller
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
from jetlake.model.enums import PriorityPolicy

__all__ = ["Consume", "PinnedCallback", "UnpinnedCallback"]

PinnedCallback = Callable[[str], None]
"""Called with the pin when this client becomes the pinned one."""

UnpinnedCallback = Callable[[], None]
"""Called when this client is no longer the pinned one."""

_RECOVER_WAIT_S = 0.1
_RECOVER_WAIT_MAX_S = 2.0


class Consume(MessageReader):
    """Messages of a consumer, without end; see `Consumer.consume`."""

    __slots__ = ()

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
        puller = Puller(connection, options)
        source = _ConsumerSource(connection, consumer, puller, options, on_pinned, on_unpinned)
        pull = ContinuousPull(connection, puller, source, options, handler, concurrency)
        super().__init__(pull, repr(consumer))

    @property
    def pin_id(self) -> str:
        """The pin of this client in its priority group; empty while another client is the pinned one."""
        return self._puller.state.pin_id


class _ConsumerSource:
    """A consumer that stays, as `PullSource`."""

    __slots__ = (
        "_connection",
        "_consumer",
        "_is_pinned",
        "_last_deliveries",
        "_on_pinned",
        "_on_unpinned",
        "_options",
        "_puller",
        "is_replaced",
        "pull_subject",
    )

    def __init__(
        self,
        connection: Connection,
        consumer: PulledConsumer,
        puller: Puller,
        options: ConsumeOptions,
        on_pinned: PinnedCallback | None,
        on_unpinned: UnpinnedCallback | None,
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._puller = puller
        self._is_pinned = consumer.config.priority_policy is PriorityPolicy.PINNED_CLIENT
        self._options = options
        self._on_pinned = on_pinned
        self._on_unpinned = on_unpinned
        deliveries_max = max(0, consumer.config.max_deliver) if not options.max_bytes else 0
        self._last_deliveries = _LastDeliveries(puller, deliveries_max) if deliveries_max else None
        self.pull_subject = consumer.pull_subject
        self.is_replaced = False

    @property
    def needs_ack(self) -> bool:
        """Whether messages wait for their acknowledgement."""
        return self._consumer.needs_ack

    def accept(self, messages: list[Message]) -> tuple[list[Message], Verdict]:
        """Take all messages; those in their last delivery are handed out first."""
        self._consumer.prepare(messages)
        if self._is_pinned:
            self._read_pin(messages[-1])
        if self._last_deliveries is not None:
            messages = self._last_deliveries.put_first(messages)
        return messages, NextStep.PULL

    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status."""
        state = self._puller.state
        had_pin = state.pin_id
        outcome = state.heard(status, now)
        if outcome is PullOutcome.DELETED:
            return self._deleted()
        if outcome is PullOutcome.TERMINAL:
            return PullStatusError(status.status, status.description)
        if outcome in (PullOutcome.UNAVAILABLE, PullOutcome.LOST):
            return NextStep.RECOVER
        if outcome is PullOutcome.UNPINNED and had_pin and self._on_unpinned is not None:
            self._notify(self._on_unpinned)
        return NextStep.PULL

    def missed(self) -> Verdict:
        """End the read or go on, as the option says."""
        error = HeartbeatMissedError(self._puller.state.silence_s)
        if self._options.on_missed_heartbeat == "stop":
            return error
        self._connection.report(self._options.on_error, error)
        return NextStep.RECOVER

    @property
    def can_move(self) -> bool:
        """Whether the consumer is in a cluster."""
        return self._consumer.can_move

    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether another server leads the consumer now, or the leader knows of no pull."""
        leader = self._consumer.leader
        verdict = await self.recover()
        if isinstance(verdict, Exception):
            return verdict
        return self._consumer.leader != leader or not self._consumer.cached_info.num_waiting

    async def recover(self) -> Verdict:
        """Check that the consumer is there; a server that is not ready yet is asked again."""
        loop = self._connection.loop
        wait_s = _RECOVER_WAIT_S
        give_up_at = loop.time() + self._options.expires_s
        while True:
            try:
                await self._consumer.info()
            except NotFoundError:
                return self._deleted()
            except (ConnectionClosedError, PermissionsError):
                break  # A client that may not ask may pull all the same, and the pull will tell.
            except JetlakeError as error:
                if loop.time() >= give_up_at:
                    return error
            else:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(_RECOVER_WAIT_MAX_S, wait_s * 2)
        return NextStep.PULL

    def gave_back(self, messages: list[Message]) -> None:
        """Report messages that went back to the server in their last delivery."""
        if self._last_deliveries is not None:
            used_up = self._last_deliveries.count(messages)
            if used_up:
                told = f"{used_up} messages of {self._consumer!r} were not handed out in their last delivery"
                self._connection.signal(ConsumeError(f"{told}: fetch fewer ahead (max_messages), or use next()"))

    def release(self) -> None:
        """Leave the consumer, which is not this read's own."""

    def _deleted(self) -> ConsumerDeletedError:
        return ConsumerDeletedError(self._consumer.stream_name, self._consumer.name)

    def _read_pin(self, message: Message) -> None:
        state = self._puller.state
        # The server's header is the last one: a message may be stored with the pin of a consumer that it came from.
        found = message.raw_header.rpartition(b"\r\nNats-Pin-Id:")
        pin = found[2].partition(b"\r\n")[0].strip().decode("utf-8", "replace") if found[1] else ""
        if pin and pin != state.pin_id:
            state.pin_id = pin
            if self._on_pinned is not None:
                self._notify(self._on_pinned, state.pin_id)

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self._connection.report(self._options.on_error, error)


class _LastDeliveries:
    """Fetches ahead from a consumer with `max_deliver` only while its messages have deliveries left.

    A message that is given back unseen has used up a delivery.

    Args:
        puller: pulls ahead, or only as many messages as tasks wait for.
        deliveries_max: most deliveries of one message.
    """

    __slots__ = ("_ahead_max", "_deliveries_max", "_puller")

    def __init__(self, puller: Puller, deliveries_max: int) -> None:
        self._puller = puller
        self._deliveries_max = deliveries_max
        # The last deliveries are left for being seen.
        self._ahead_max = max(1, deliveries_max - 2) if deliveries_max > 1 else 0
        puller.state.wanted = 0
        puller.mailbox.on_wait = self._want

    def _want(self, waiting: int) -> None:
        """Pull as many messages as tasks wait for, when nothing is fetched ahead."""
        if self._puller.state.wanted is not None:
            self._puller.state.wanted = waiting
            self._puller.refill()

    def put_first(self, messages: list[Message]) -> list[Message]:
        """Put messages in their last delivery before all that wait; the others are returned."""
        counts = [_deliveries(message) for message in messages]
        self._puller.state.wanted = None if max(counts) <= self._ahead_max else 0
        if max(counts) < self._deliveries_max:
            return messages
        pairs = list(zip(counts, messages, strict=True))
        last = [message for count, message in pairs if count >= self._deliveries_max]
        self._puller.mailbox.messages.extendleft(reversed(last))
        return [message for count, message in pairs if count < self._deliveries_max]

    def count(self, messages: list[Message]) -> int:
        """Count the messages in their last delivery."""
        return sum(_deliveries(message) >= self._deliveries_max for message in messages)


def _deliveries(message: Message) -> int:
    try:
        return delivery_count(message.raw_reply)
    except NotJetStreamMessageError:
        return 1  # Another client published to the inbox itself.
