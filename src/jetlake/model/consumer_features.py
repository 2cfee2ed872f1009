"""Features of consumers that only jetlake's own server has: asked for by metadata, advertised in INFO."""

from __future__ import annotations

from collections.abc import Mapping

from jetlake.model.consumer import ConsumerConfig

__all__ = ["CONSUMER_FEATURES", "FEATURE_PREFIX", "REDELIVER_LOST", "STRICT_ACKS", "features_of"]

STRICT_ACKS = "strict_acks"
"""An acknowledgement of an earlier delivery does not settle a later one."""
REDELIVER_LOST = "redeliver_lost"
"""Messages of a client whose connection was closed are delivered again at once, instead of after their ack wait."""
CONSUMER_FEATURES = (REDELIVER_LOST, STRICT_ACKS)

FEATURE_PREFIX = "jetlake."
"""What the keys of features begin with in a consumer's metadata; the value is `true`."""


def features_of(config: ConsumerConfig) -> frozenset[str]:
    """Return the features that a consumer's metadata asks for."""
    metadata: Mapping[str, str] = config.metadata
    return frozenset(name for name in CONSUMER_FEATURES if metadata.get(FEATURE_PREFIX + name) == "true")
