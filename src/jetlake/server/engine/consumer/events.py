"""The events that a consumer publishes: advisories, and samples of its acknowledgements."""

from __future__ import annotations

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
from jetlake.server.engine.routing.advisories import Advisories

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

__all__ = ["ConsumerEvents"]

_ACTIONS = {ActionKind.CREATE: "ADVISORY.CONSUMER.CREATED", ActionKind.DELETE: "ADVISORY.CONSUMER.DELETED"}


class ConsumerEvents:
    """The events of one consumer.

    Attributes:
        samples: whether acknowledgements are sampled.

    Args:
        consumer: the consumer that the events name.
        advisories: publishes an event of a kind; builds nothing without a subscriber.
    """

    def __init__(self, consumer: Consumer, advisories: Advisories) -> None:
        self._publish = advisories.publish
        self._account = consumer.stream.account.name
        self._chance = consumer.services.random.random
        self._names: dict[str, Any] = {"stream": consumer.stream.name, "consumer": consumer.name}
        self._sample_subject = self._subject("METRIC.CONSUMER.ACK")
        self.configure(consumer.config.sample_freq)

    def configure(self, sample_freq: str) -> None:
        """Sample this percentage of acknowledgements from now on."""
        self._percent = int(sample_freq.strip().removesuffix("%") or 0)
        self.samples = self._percent > 0

    def action(self, action: ActionKind) -> None:
        """Publish that the consumer was created or deleted."""
        self._publish(self._subject(_ACTIONS[action]), ConsumerActionAdvisory, {**self._names, "action": action})

    def acked(self, sequence: int, consumer_sequence: int, deliveries: int, ack_time_ns: int) -> None:
        """Publish a sample of an acknowledgement, if chance selects it."""
        if self._percent < 100 and self._chance() * 100 >= self._percent:
            return
        fields = {"ack_time": ack_time_ns, **self._delivery(sequence, consumer_sequence, deliveries)}
        self._publish(self._sample_subject, DeliveryAcked, fields)

    def exceeded(self, sequence: int, deliveries: int) -> None:
        """Publish that a message reached max_deliver."""
        fields = {**self._names, "stream_seq": sequence, "deliveries": deliveries}
        self._publish(self._subject("ADVISORY.CONSUMER.MAX_DELIVERIES"), DeliveryExceeded, fields)

    def naked(self, sequence: int, consumer_sequence: int, deliveries: int) -> None:
        """Publish that a message was negatively acknowledged."""
        fields = self._delivery(sequence, consumer_sequence, deliveries)
        self._publish(self._subject("ADVISORY.CONSUMER.MSG_NAKED"), DeliveryNaked, fields)

    def terminated(self, sequence: int, consumer_sequence: int, deliveries: int, reason: str) -> None:
        """Publish that a message was terminated: it is never redelivered."""
        fields = {**self._delivery(sequence, consumer_sequence, deliveries), "reason": reason}
        self._publish(self._subject("ADVISORY.CONSUMER.MSG_TERMINATED"), DeliveryTerminated, fields)

    def paused(self, paused: bool, pause_until: str | None) -> None:
        """Publish that the consumer was paused or resumed."""
        fields = {**self._names, "paused": paused, "pause_until": pause_until or ZERO_TIME}
        self._publish(self._subject("ADVISORY.CONSUMER.PAUSE"), ConsumerPauseAdvisory, fields)

    def pinned(self, group: str, pin: str, client: dict[str, Any] | None) -> None:
        """Publish that a client was pinned."""
        info = ClientInfo(**client) if client else None
        fields = {**self._names, "account": self._account, "group": group, "pinned_id": pin, "client": info}
        self._publish(self._subject("ADVISORY.CONSUMER.PINNED"), GroupPinned, fields)

    def unpinned(self, group: str, reason: UnpinReason) -> None:
        """Publish that a client lost its pin."""
        fields = {**self._names, "account": self._account, "group": group, "reason": reason}
        self._publish(self._subject("ADVISORY.CONSUMER.UNPINNED"), GroupUnpinned, fields)

    def _subject(self, kind: str) -> bytes:
        return event_subject(kind, *self._names.values())

    def _delivery(self, sequence: int, consumer_sequence: int, deliveries: int) -> dict[str, Any]:
        numbers = {"consumer_seq": consumer_sequence, "stream_seq": sequence, "deliveries": deliveries}
        return {**self._names, **numbers}
