"""What a consumer publishes about itself: advisories, and samples of its acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import ActionKind, UnpinReason
from jetlake.model.events import (
    ClientInfo,
    ConsumerActionAdvisory,
    ConsumerPauseAdvisory,
    DeliveryAcked,
    DeliveryExceeded,
    DeliveryNaked,
    DeliveryTerminated,
    GroupPinned,
    GroupUnpinned,
    event_subject,
)

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.consumer.pull.pull_request import WaitingPull

__all__ = ["ConsumerEvents"]

_ACTIONS = {ActionKind.CREATE: "ADVISORY.CONSUMER.CREATED", ActionKind.DELETE: "ADVISORY.CONSUMER.DELETED"}


class ConsumerEvents:
    """The events of one consumer; nothing is built when nobody listens.

    Args:
        consumer: whose events these are.
        chance: a number from 0 to 1 for every acknowledgement that may be sampled.
    """

    def __init__(self, consumer: Consumer, chance: Callable[[], float]) -> None:
        self._advisories = consumer.stream.jetstream.advisories
        self._account = consumer.account
        self._chance = chance
        self._names = (consumer.stream.name, consumer.name)
        self._who: dict[str, Any] = {"stream": consumer.stream.name, "consumer": consumer.name}
        self._sample_subject = self._subject("METRIC.CONSUMER.ACK")
        self._percent = 0
        self.configure(consumer.config.sample_freq)

    def configure(self, sample_freq: str) -> None:
        """Sample this percentage of acknowledgements from now on."""
        self._percent = int(sample_freq.strip().removesuffix("%") or 0)

    @property
    def samples(self) -> bool:
        """Whether acknowledgements are sampled at all."""
        return self._percent > 0

    def action(self, action: ActionKind) -> None:
        """The consumer was made or deleted."""
        self._advisories.publish(
            self._subject(_ACTIONS[action]), ConsumerActionAdvisory, {**self._who, "action": action}
        )

    def acked(self, sequence: int, consumer_sequence: int, deliveries: int, ack_time_ns: int) -> None:
        """A pending message was acknowledged; publishes a sample if it is its turn."""
        if self._percent < 100 and self._chance() * 100 >= self._percent:
            return
        fields = {"ack_time": ack_time_ns, **self._delivery(sequence, consumer_sequence, deliveries)}
        self._advisories.publish(self._sample_subject, DeliveryAcked, fields)

    def exceeded(self, sequence: int, deliveries: int) -> None:
        """A message was delivered as often as allowed."""
        fields = {**self._who, "stream_seq": sequence, "deliveries": deliveries}
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.MAX_DELIVERIES"), DeliveryExceeded, fields)

    def naked(self, sequence: int, consumer_sequence: int, deliveries: int) -> None:
        """A message was refused."""
        fields = self._delivery(sequence, consumer_sequence, deliveries)
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.MSG_NAKED"), DeliveryNaked, fields)

    def terminated(self, sequence: int, consumer_sequence: int, deliveries: int, reason: str) -> None:
        """A message will never be delivered again."""
        fields = {**self._delivery(sequence, consumer_sequence, deliveries), "reason": reason}
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.MSG_TERMINATED"), DeliveryTerminated, fields)

    def paused(self, paused: bool, pause_until: str | None) -> None:
        """The consumer was paused, or goes on."""
        fields = {**self._who, "paused": paused, "pause_until": pause_until or ZERO_TIME}
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.PAUSE"), ConsumerPauseAdvisory, fields)

    def pinned(self, group: str, pin: str, request: WaitingPull) -> None:
        """A client was pinned."""
        client = ClientInfo(**request.client) if request.client else None
        fields = {**self._who, "account": self._account.name, "group": group, "pinned_id": pin, "client": client}
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.PINNED"), GroupPinned, fields)

    def unpinned(self, group: str, reason: UnpinReason) -> None:
        """A client lost its pin."""
        fields = {**self._who, "account": self._account.name, "group": group, "reason": reason}
        self._advisories.publish(self._subject("ADVISORY.CONSUMER.UNPINNED"), GroupUnpinned, fields)

    def _subject(self, kind: str) -> bytes:
        return event_subject(kind, *self._names)

    def _delivery(self, sequence: int, consumer_sequence: int, deliveries: int) -> dict[str, Any]:
        numbers = {"consumer_seq": consumer_sequence, "stream_seq": sequence, "deliveries": deliveries}
        return {**self._who, **numbers}
