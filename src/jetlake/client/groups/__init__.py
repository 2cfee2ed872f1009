"""Consumer groups by partition: every key of a stream is handled by one member at a time, in order."""

from __future__ import annotations

from jetlake.client.groups.config import ElasticGroupConfig, GroupConfig, MemberMapping, StaticGroupConfig
from jetlake.client.groups.groups import ConsumerGroup, ConsumerGroups
from jetlake.client.groups.member import GroupMember

__all__ = [
    "ConsumerGroup",
    "ConsumerGroups",
    "ElasticGroupConfig",
    "GroupConfig",
    "GroupMember",
    "MemberMapping",
    "StaticGroupConfig",
]
