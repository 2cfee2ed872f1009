"""The handle of a consumer group: its members, and work as one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.groups.config import (
    ElasticGroupConfig,
    GroupConfig,
    decode_config,
    is_member,
    member_partitions,
    with_mappings,
    with_members,
)
from jetlake.client.groups.handling import GroupHandler
from jetlake.client.groups.member import GroupMember, MemberOptions
from jetlake.client.groups.place import PRIORITY_GROUP, GroupPlace
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import ConsumerGroupError, WrongLastSequenceError
from jetlake.model.encoding.codec import encode

__all__ = ["ConsumerGroup"]


class ConsumerGroup:
    """A group of members that share the partitions of a stream; made by `ConsumerGroups`.

    Attributes:
        name: the group's name.
        stream_name: the stream that the group takes messages of.
        config: the group as it was when it was last asked for.
    """

    __slots__ = ("_api", "_bucket", "_place", "_revision", "config", "name", "stream_name")

    def __init__(
        self, api: ApiCaller, bucket: KeyValue, stream: str, name: str, config: GroupConfig, revision: int
    ) -> None:
        self._api = api
        self._bucket = bucket
        self._place = GroupPlace(stream, name, is_elastic=isinstance(config, ElasticGroupConfig))
        self._revision = revision
        self.stream_name = stream
        self.name = name
        self.config = config

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.name!r} of {self.stream_name!r} {self.config.max_members} partitions>"

    @property
    def is_elastic(self) -> bool:
        """Whether its members may change."""
        return self._place.is_elastic

    def partitions(self, member: str) -> tuple[int, ...]:
        """Return the partitions of a member, as of `config`; none for one that is no member."""
        return member_partitions(self.config, member)

    async def refresh(self) -> GroupConfig:
        """Ask for the configuration.

        Raises:
            KeyNotFoundError: the group was deleted.
        """
        entry = await self._bucket.get(self._place.key)
        self.config, self._revision = decode_config(type(self.config), self._place.key, entry.value), entry.revision
        return self.config

    # Members

    async def add_members(self, *members: str) -> tuple[str, ...]:
        """Add members; partitions are shared out anew, without a member of a group handling what another still does.

        Returns:
            All members.

        Raises:
            ConsumerGroupError: the group is static, or has mappings.
            KeyNotFoundError: the group was deleted.
        """
        return await self._change_members(added=members)

    async def remove_members(self, *members: str) -> tuple[str, ...]:
        """Remove members, whose partitions go to those that stay; arguments and errors as in `add_members`."""
        return await self._change_members(removed=members)

    async def _change_members(self, added: Sequence[str] = (), removed: Sequence[str] = ()) -> tuple[str, ...]:
        self._refuse_static()
        while True:
            before = await self.refresh()
            changed = with_members(before, (set(before.members) | set(added)) - set(removed))
            try:
                await self._write(changed, revision=self._revision)
            except WrongLastSequenceError:
                continue  # Somebody else has changed the group meanwhile.
            return self.config.members

    async def map_members(self, mappings: Mapping[str, Sequence[int]] | None) -> None:
        """Give each member its partitions, every partition to one; None goes back to even shares, of no members yet.

        Raises:
            ConsumerGroupError: the group is static.
            InvalidOptionError: a partition has no member, or two.
        """
        self._refuse_static()
        await self._write(with_mappings(await self.refresh(), mappings))

    async def _write(self, config: GroupConfig, revision: int | None = None) -> None:
        value = encode(config)
        if revision is None:
            self._revision = await self._bucket.put(self._place.key, value)
        else:
            self._revision = await self._bucket.update(self._place.key, value, revision)
        self.config = config

    def _refuse_static(self) -> None:
        if not self.is_elastic:
            raise ConsumerGroupError(f"the consumer group {self.name!r} is static: delete it and create it anew")

    async def active_members(self) -> list[str]:
        """Return the members that somebody works as, sorted."""
        config = await self.refresh()
        place = self._place
        infos = await stream_handle(self._api, place.stream).consumers()
        waiting = {info.name for info in infos if info.num_waiting or info.num_ack_pending}
        names = sorted({*config.members, *(mapping.member for mapping in config.member_mappings)})
        return [name for name in names if place.consumer(name) in waiting]

    async def step_down(self, member: str) -> None:
        """Let another instance of a member work, if there is one, instead of the one that does now.

        Raises:
            ConsumerNotFoundError: nobody works as that member.
        """
        consumer = await stream_handle(self._api, self._place.stream).consumer(self._place.consumer(member))
        await consumer.unpin(PRIORITY_GROUP)

    def consume(self, member: str, handler: GroupHandler, **options: Unpack[MemberOptions]) -> GroupMember:
        """Work as a member: call the handler with the messages of its partitions, one at a time and in order.

        ::

            async with group.consume("worker-1", handle) as member:
                await member.wait()

        Several instances may work as one member; one of them gets messages, the others stand by. A member that the
        group does not have waits until it has it, if the group is elastic.

        Args:
            member: the member's name.
            handler: a plain or a coroutine function that takes a message, whose subject is the one that it was
                published to. The message is acknowledged when the handler returns, unless it has done so. It may take
                as long as it needs.
            options: how it works.

        Raises:
            InvalidOptionError: an option that cannot work.
            ConsumerGroupError: the group is static and has no such member.
        """
        if not self.is_elastic and not is_member(self.config, member):
            raise ConsumerGroupError(f"the consumer group {self.name!r} has no member {member!r}, and is static")
        return GroupMember(self._api, self._bucket, self._place, self.config, member, handler, options)
