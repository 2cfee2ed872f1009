"""What the API tells about a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.encoding.times import format_time
from jetlake.server.engine.consumer.pull.pull import PullDelivery
from jetlake.server.engine.consumer.push.push import PushDelivery

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

__all__ = ["consumer_report"]


def consumer_report(consumer: Consumer, config: ConsumerConfig) -> ConsumerInfo:
    """The consumer as it is now, with this configuration."""
    now_ns = consumer.engine.clock.now_ns()
    acks = consumer.acks
    delivery = consumer.delivery
    paused = consumer.is_paused(now_ns)
    return ConsumerInfo(
        stream_name=consumer.stream.name,
        name=consumer.name,
        created=format_time(consumer.created_ns),
        config=config,
        delivered=_sequences(acks.delivered_consumer, acks.delivered_stream, consumer.last_delivered_ns),
        ack_floor=_sequences(acks.floor_consumer, acks.floor_stream, consumer.acknowledgements.last_ns),
        num_ack_pending=len(acks.pending),
        num_redelivered=0 if acks.max_deliver == 1 else len(acks.deliveries),
        num_waiting=delivery.num_waiting(now_ns),
        num_pending=consumer.cursor.pending,
        push_bound=isinstance(delivery, PushDelivery) and delivery.is_active,
        paused=paused,
        pause_remaining=consumer.pause_ns - now_ns if paused else 0,
        ts=format_time(now_ns),
        priority_groups=delivery.policy.states() if isinstance(delivery, PullDelivery) else (),
    )


def _sequences(consumer_sequence: int, stream_sequence: int, time_ns: int) -> SequenceInfo:
    last_active = format_time(time_ns) if time_ns else None
    return SequenceInfo(consumer_seq=consumer_sequence, stream_seq=stream_sequence, last_active=last_active)
