"""Positions of consumers: re-created at the target, and compared with the source."""

from __future__ import annotations

import asyncio

import msgspec

from jetlake.client.api.consumer_api import create_consumer
from jetlake.client.jetstream import JetStream
from jetlake.client.streams.stream import Stream
from jetlake.errors import ConsumerNotFoundError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import AckPolicy, ConsumerAction, DeliverPolicy, RetentionPolicy
from jetlake.model.replies import ConsumerResetReply
from jetlake.model.requests import ConsumerResetRequest

__all__ = ["RESETTABLE", "durable_consumers", "find_difference", "recreate", "undone"]

RESETTABLE = frozenset({DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME})
"""Deliver policies of consumers that can be set to any position."""

_POLL_S = 0.05
_SETTLE_S = 15.0


async def durable_consumers(stream: Stream) -> list[ConsumerInfo]:
    """Return the consumers that move with a stream; readers of ephemeral ones make new ones by themselves."""
    return [info for info in await stream.consumers() if info.config.durable_name and not info.config.is_copying]


def undone(info: ConsumerInfo) -> int:
    """Return how many messages a consumer has yet to see acknowledged."""
    return info.num_pending + info.num_ack_pending


async def recreate(
    js: JetStream, target: Stream, consumers: list[ConsumerInfo], pauses: dict[str, str], num_replicas: int
) -> None:
    """Create consumers behind the last message up to which everything is acknowledged.

    Args:
        js: the target.
        target: the stream there.
        consumers: what the source says about them.
        pauses: consumers that are to be paused, each with the time until when.
        num_replicas: copies of the stream at the target.

    Raises:
        ApiError: the target refuses a consumer or its position.
    """
    for info in consumers:
        try:
            await target.delete_consumer(info.name)
        except ConsumerNotFoundError:
            pass
        config = _config(info, pauses.get(info.name), num_replicas)
        await create_consumer(js.api, target.name, config, ConsumerAction.CREATE)
        done = info.delivered if config.ack_policy is AckPolicy.NONE else info.ack_floor
        # All that a work queue holds is undone, so that its consumers begin at the first message.
        if done.stream_seq and target.config.retention is not RetentionPolicy.WORKQUEUE:
            body = ConsumerResetRequest(seq=done.stream_seq + 1)
            await js.api.call(ConsumerResetReply, "CONSUMER.RESET", target.name, info.name, body=body)


def _config(info: ConsumerInfo, paused_until: str | None, num_replicas: int) -> ConsumerConfig:
    config = info.config
    metadata = {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}
    replicas = config.num_replicas if config.num_replicas <= num_replicas else 0
    return msgspec.structs.replace(config, metadata=metadata, pause_until=paused_until, num_replicas=replicas)


async def find_difference(target: Stream, consumers: list[ConsumerInfo], *, is_clustered: bool) -> str:
    """Compare what is undone at the target with the source, which cannot change any more.

    Args:
        target: the stream at the target.
        consumers: what the source says about its consumers.
        is_clustered: the target is a cluster, whose consumers learn of the stream's changes a moment later.

    Returns:
        The first difference that does not settle, in words; empty when there is none.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + (_SETTLE_S if is_clustered else 0)
    for info in consumers:
        while True:
            there = await target.consumer_info(info.name)
            if undone(there) == undone(info):
                break
            if loop.time() >= give_up_at:
                left = f"{undone(info)} messages left at the source, and {undone(there)} at the target"
                return f"consumer {info.name} has {left}"
            await asyncio.sleep(_POLL_S)
    return ""
