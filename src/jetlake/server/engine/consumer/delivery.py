"""What the two ways of delivery have in common: one for consumers that are pulled from, one for those that push."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import ReplayPolicy
from jetlake.server.engine.consumer.replay import Replay
from jetlake.server.engine.routing.account import Message
from jetlake.store.message import StoredMessage

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["RUN_BYTES", "RUN_MESSAGES", "Delivery"]

RUN_MESSAGES = 512
"""A consumer delivers at most so many messages before others have their turn."""
RUN_BYTES = 1024 * 1024
"""And at most so many bytes, or one message that is larger."""


class Delivery(ABC):
    """How the messages of one consumer get to its clients."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._account = consumer.account
        self._stream = consumer.stream
        self._replay: Replay | None = None
        if consumer.config.replay_policy is ReplayPolicy.ORIGINAL:
            self._replay = Replay(consumer.stream.store.last_sequence)
        self._resume_ns = 0
        """A message waits for this time: for its original distance, or for the rate; 0 when none does."""

    @property
    @abstractmethod
    def has_takers(self) -> bool:
        """Whether a message would find somebody."""

    @abstractmethod
    def deliver(self, now_ns: int) -> bool:
        """Deliver one run; whether there is more to do right away."""

    @abstractmethod
    def next_due_ns(self) -> int:
        """When `on_time` has something to do; 0 when it never will."""

    @abstractmethod
    def on_time(self, now_ns: int) -> None:
        """Do what is due by now."""

    @abstractmethod
    def is_in_use(self, now_ns: int) -> bool:
        """Whether somebody uses the consumer at this moment, so that it must not be removed."""

    @abstractmethod
    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        """Take on changed settings."""

    @abstractmethod
    def close(self, *, deleted: bool) -> None:
        """The consumer is gone, or the server stops."""

    @abstractmethod
    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        """Somebody asks for messages."""

    def num_waiting(self, now_ns: int) -> int:
        """How many pull requests wait."""
        return 0

    def _is_early(self, message: StoredMessage, now_ns: int) -> bool:
        """Whether a message has to wait for its original distance in time; `_resume_ns` says until when."""
        replay = self._replay
        if replay is None:
            return False
        if replay.is_over(message.sequence):
            self._replay = None
            return False
        due_ns = replay.due_ns(message.time_ns)
        if due_ns <= now_ns:
            return False
        self._resume_ns = due_ns
        return True

    def _next_redelivery(self, now_ns: int) -> tuple[StoredMessage, Message] | None:
        """The message at the head of the redelivery queue, as stored and as it would be sent; it stays there.

        Messages that were delivered as often as allowed, and those that are no longer in the stream, are dropped.
        """
        consumer = self._consumer
        acks = consumer.acks
        while True:
            sequence = acks.next_redelivery()
            if sequence is None:
                return None
            count = acks.delivery_count(sequence) + 1
            if 0 < acks.max_deliver < count:
                acks.take_redelivery()
                consumer.exhausted(sequence, count - 1)
                continue
            message = self._stream.store.get(sequence)
            if message is None:
                acks.take_redelivery()
                consumer.acknowledgements.vanished(sequence)
                continue
            frame = consumer.framer.one(message, count, acks.delivered_consumer + 1, consumer.cursor.pending)
            return message, frame

    def _send(self, address: bytes, messages: list[Message]) -> None:
        self._account.send_to(address, messages)
