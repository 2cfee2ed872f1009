"""The configurations of consumer groups in the layout of the Go library `pcgroups`, and the partitions of members.

A partition is a number that stands in the first token of a subject. A group has as many partitions as it may have
members, and distributes them among its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from jetlake.client.api.api_caller import check_name
from jetlake.errors import ConsumerGroupError, DecodeError, InvalidOptionError
from jetlake.model.encoding.codec import decode

_ALL = ">"


class MemberMapping(Struct, frozen=True):
    """The partitions of one member, when they are not shared out evenly."""

    member: str
    """The member's name."""
    partitions: tuple[int, ...]
    """Its partitions, from 0."""


class PartitioningFilter(Struct, frozen=True):
    """Subjects of the stream that the group takes, and what of them is the key."""

    filter: str
    """The subjects, with wildcards."""
    partitioning_wildcards: tuple[int, ...] | None
    """The `*` of the filter, counted from 1, whose tokens are the key; none for the whole subject."""


class GroupConfig(Struct, frozen=True, omit_defaults=True):
    """A consumer group as its bucket keeps it."""

    max_members: int
    """Most members, which is the number of partitions."""
    members: tuple[str, ...] = ()
    """The members, among whom the partitions are shared out evenly."""
    member_mappings: tuple[MemberMapping, ...] = ()
    """The members with their partitions, instead of `members`."""


class ElasticGroupConfig(GroupConfig, frozen=True, omit_defaults=True, kw_only=True):
    """A group whose members may change; a stream of its own holds what they have not acknowledged."""

    partitioning_filters: tuple[PartitioningFilter, ...] | None
    """What the group takes; all subjects when there is none."""
    max_buffered_msg: int = 0
    """Most messages in the group's stream; 0 for no limit."""
    max_buffered_bytes: int = 0
    """Most bytes in the group's stream; 0 for no limit."""


class StaticGroupConfig(GroupConfig, frozen=True, omit_defaults=True, kw_only=True):
    """A group whose members never change, on a stream whose subjects begin with the partition."""

    filters: tuple[str, ...] | None = ()
    """What the group takes of each partition, without the partition; all subjects when there is none."""
    filter: str = ""
    """The only filter, as older programs write it."""


def decode_config(kind: type[GroupConfig], key: str, value: bytes) -> GroupConfig:
    """Read the configuration of a group.

    Raises:
        ConsumerGroupError: it is malformed.
    """
    try:
        config = decode(kind, value)
        check_config(config)
    except (DecodeError, InvalidOptionError) as error:
        raise ConsumerGroupError(f"the configuration of the consumer group {key!r} is not valid: {error}") from None
    return config


def check_config(config: GroupConfig) -> None:
    """Check that every partition has one member, and that subjects can be partitioned.

    Raises:
        InvalidOptionError: they cannot.
    """
    if isinstance(config.max_members, bool) or not isinstance(config.max_members, int) or config.max_members < 1:
        raise InvalidOptionError(f"max_members must be 1 or more, not {config.max_members!r}")
    if config.members and config.member_mappings:
        raise InvalidOptionError("pass members or mappings, not both")
    for name in (*config.members, *(mapping.member for mapping in config.member_mappings)):
        check_name("member", name)
    if config.member_mappings:
        _check_mappings(config)
    if isinstance(config, ElasticGroupConfig):
        for one in config.partitioning_filters or ():
            _check_partitioning(one)


def _check_mappings(config: GroupConfig) -> None:
    names = [mapping.member for mapping in config.member_mappings]
    if len(set(names)) < len(names):
        raise InvalidOptionError("every member has one mapping")
    partitions = [partition for mapping in config.member_mappings for partition in mapping.partitions]
    if sorted(partitions) != list(range(config.max_members)):
        raise InvalidOptionError(
            f"mappings give every partition from 0 to {config.max_members - 1} to one member, not {sorted(partitions)}"
        )


def _check_partitioning(one: PartitioningFilter) -> None:
    tokens = one.filter.split(".")
    stars = tokens.count("*")
    if not stars and tokens[-1] != _ALL:
        raise InvalidOptionError(f"{one.filter!r} has no wildcard: all its messages would be in one partition")
    wildcards = one.partitioning_wildcards or ()
    if len(set(wildcards)) < len(wildcards) or not all(1 <= number <= stars for number in wildcards):
        raise InvalidOptionError(
            f"the key of {one.filter!r} consists of some of its {stars} '*', counted from 1, not of {list(wildcards)}"
        )


def with_members(config: GroupConfig, members: Iterable[str]) -> GroupConfig:
    """Return the same group with these members.

    Raises:
        ConsumerGroupError: the group has mappings.
        InvalidOptionError: a name is invalid.
    """
    if config.member_mappings:
        raise ConsumerGroupError("the partitions of the group are mapped to its members: change the mappings")
    changed = replace(config, members=tuple(sorted(set(members))))
    check_config(changed)
    return changed


def with_mappings(config: GroupConfig, mappings: Mapping[str, Sequence[int]] | None) -> GroupConfig:
    """Return the same group with these partitions for each member; None shares them out among no members yet.

    Raises:
        InvalidOptionError: some partition has no member, or two.
    """
    mapped = tuple(MemberMapping(member, tuple(partitions)) for member, partitions in (mappings or {}).items())
    changed = replace(config, members=(), member_mappings=mapped)
    check_config(changed)
    return changed


def is_same_group(one: GroupConfig, other: GroupConfig) -> bool:
    """Return whether two configurations are of one group; the members of an elastic one may differ."""
    if isinstance(one, ElasticGroupConfig) and isinstance(other, ElasticGroupConfig):
        return _fixed(one) == _fixed(other)
    return one == other


def _fixed(config: ElasticGroupConfig) -> tuple[object, ...]:
    filters = [(one.filter, one.partitioning_wildcards or ()) for one in config.partitioning_filters or ()]
    return config.max_members, filters, config.max_buffered_msg, config.max_buffered_bytes


def is_member(config: GroupConfig, name: str) -> bool:
    """Return whether the group has a member of that name."""
    return name in config.members or any(mapping.member == name for mapping in config.member_mappings)


def member_partitions(config: GroupConfig, name: str) -> tuple[int, ...]:
    """Return the partitions of a member; all clients share them out alike.

    Members beyond `max_members` have none. Each has the same number of partitions in a row, and the first members have
    one of the remaining ones each.
    """
    for mapping in config.member_mappings:
        if mapping.member == name:
            return mapping.partitions
    names = sorted(set(config.members))[: config.max_members]
    if name not in names:
        return ()
    own, (each, left) = names.index(name), divmod(config.max_members, len(names))
    first = own * each
    more = (config.max_members - left + own,) if own < left else ()
    return (*range(first, first + each), *more)


def member_filters(config: GroupConfig, name: str) -> list[str]:
    """Return the subjects of a member's partitions."""
    if config.member_mappings:
        subjects: Sequence[str] = (_ALL,)
    elif isinstance(config, ElasticGroupConfig):
        subjects = [one.filter for one in config.partitioning_filters or ()] or (_ALL,)
    elif isinstance(config, StaticGroupConfig):
        subjects = config.filters or ((config.filter,) if config.filter else (_ALL,))
    return [f"{partition}.{subject}" for subject in subjects for partition in member_partitions(config, name)]


def partition_transform(one: PartitioningFilter, partitions: int) -> str:
    """Return the subject transform that puts the partition before the subject."""
    key = "".join(f",{number}" for number in one.partitioning_wildcards or ())
    tokens = one.filter.split(".")
    stars = 0
    for index, token in enumerate(tokens):
        if token == "*":
            stars += 1
            tokens[index] = f"{{{{Wildcard({stars})}}}}"
    return f"{{{{Partition({partitions}{key})}}}}.{'.'.join(tokens)}"


STATIC_BUCKET = "static-consumer-groups"
"""The bucket that has the configurations of static groups."""

ELASTIC_BUCKET = "elastic-consumer-groups"
"""The bucket that has the configurations of elastic groups."""

PRIORITY_GROUP = "PCG"
"""The priority group of the members' consumers, in which one instance of a member is pinned."""


class GroupNames(Struct, frozen=True):
    """The names of a group on the server.

    Attributes:
        origin: the stream that the group reads.
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
