"""Features of consumers that only jetlake's own server has: asked for by metadata, advertised in INFO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlake.model.consumer import ConsumerConfig

__all__ = [
    "CONSUMER_FEATURES",
    "FEATURE_PREFIX",
    "PENDING_LIST",
    "REDELIVER_LOST",
    "SERVER_FEATURES",
    "STALE_ACK",
    "STRICT_ACKS",
    "features_of",
]

STRICT_ACKS = "strict_acks"
"""An acknowledgement of an earlier delivery does not settle a later one."""
STALE_ACK = "Message Was Delivered Again"
"""What the server answers to such an acknowledgement, with status 503."""
REDELIVER_LOST = "redeliver_lost"
"""Messages of a client whose connection was closed are delivered again at once, instead of after their ack wait."""
CONSUMER_FEATURES = (REDELIVER_LOST, STRICT_ACKS)
PENDING_LIST = "pending_list"
"""The server lists the messages that wait for acknowledgement (`CONSUMER.PENDING`)."""
SERVER_FEATURES = (PENDING_LIST, *CONSUMER_FEATURES)
"""What the server advertises."""

FEATURE_PREFIX = "jetlake."
"""What the keys of features begin with in a consumer's metadata; the value is `true`."""


def features_of(config: ConsumerConfig) -> frozenset[str]:
    """Return the features that a consumer's metadata asks for."""
    metadata: Mapping[str, str] = config.metadata
    return frozenset(name for name in CONSUMER_FEATURES if metadata.get(FEATURE_PREFIX + name) == "true")
