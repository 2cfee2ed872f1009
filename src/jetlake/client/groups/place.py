"""The names of a consumer group on the server: the key of its configuration, and the consumers of its members."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ELASTIC_BUCKET", "PRIORITY_GROUP", "STATIC_BUCKET", "GroupPlace"]

STATIC_BUCKET = "static-consumer-groups"
"""The bucket that has the configurations of static groups."""

ELASTIC_BUCKET = "elastic-consumer-groups"
"""The bucket that has the configurations of elastic groups."""

PRIORITY_GROUP = "PCG"
"""The priority group of the members' consumers, in which one instance of a member is pinned."""


class GroupPlace(Struct, frozen=True):
    """The names that a group has on the server.

    Attributes:
        origin: the stream that the group takes messages of.
        group: the group's name.
        is_elastic: whether the group has a stream of its own.
    """

    origin: str
    group: str
    is_elastic: bool

    @property
    def key(self) -> str:
        """The key of the group's configuration."""
        return f"{self.origin}.{self.group}"

    @property
    def stream(self) -> str:
        """The stream that has the members' consumers."""
        return f"{self.origin}-{self.group}" if self.is_elastic else self.origin

    def consumer(self, member: str) -> str:
        """Return the name of a member's consumer."""
        return member if self.is_elastic else f"{self.group}-{member}"
