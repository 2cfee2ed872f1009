"""The consumer groups of a stream: created, found, listed and deleted, and the handle of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.groups.config import (
    ELASTIC_BUCKET,
    PRIORITY_GROUP,
    STATIC_BUCKET,
    ElasticGroupConfig,
    GroupConfig,
    GroupNames,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
    check_config,
    decode_config,
    is_member,
    is_same_group,
    member_partitions,
    partition_transform,
    with_mappings,
    with_members,
)
from jetlake.client.groups.member import GroupHandler, GroupMember, MemberOptions
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import stream_handle
from jetlake.completion import hides
from jetlake.errors import (
    ConsumerGroupError,
    ConsumerNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from jetlake.model.encoding.codec import encode
from jetlake.model.enums import DiscardPolicy, RetentionPolicy
from jetlake.model.replies import StreamCreateReply, StreamDeleteReply
from jetlake.model.requests import StreamCreateRequest
from jetlake.model.stream import StreamConfig, StreamSource, SubjectTransform


class ConsumerGroups:
    """The consumer groups of a stream; created by `JetStream.consumer_groups`.

    Programs in other languages that use the `pcgroups` libraries see the same groups, and may work in them.
    """

    __slots__ = ("_api", "_buckets", "stream_name")

    def __init__(self, api: ApiCaller, buckets: Buckets[KeyValue, BucketOptions], stream: str) -> None:
        self._api = api
        self._buckets = buckets
        self.stream_name = check_name("stream", stream)

    def __repr__(self) -> str:
        return f"<ConsumerGroups of {self.stream_name!r}>"

    async def create_elastic(
        self,
        name: str,
        *,
        max_members: int,
        keys: Mapping[str, Sequence[int]] | None = None,
        members: Sequence[str] = (),
        max_messages: int = 0,
        max_bytes: int = 0,
    ) -> ConsumerGroup:
        """Create a group whose members may change; an existing one with the same settings is accepted.

        The group has a stream of its own with copies of the messages that members have not handled yet: a second copy
        on disk, and one more hop.

        Args:
            name: the group's name.
            max_members: most members, which is the number of partitions; it cannot be changed.
            keys: the subjects that the group takes and which `*` of them, counted from 1, make up the key:
                `{"orders.*.>": [1]}`; an empty list makes the whole subject the key. Default: all, whole subjects.
            members: the first members.
            max_messages: most messages that wait in the group's stream; the others wait in the stream itself.
            max_bytes: the same in bytes.

        Raises:
            StreamNotFoundError: there is no such stream.
            ConsumerGroupError: a group of that name exists and is different.
            InvalidOptionError: an option that cannot work.
        """
        filters = [PartitioningFilter(subject, tuple(wildcards)) for subject, wildcards in (keys or {}).items()]
        config = ElasticGroupConfig(
            max_members,
            members=tuple(sorted(set(members))),
            partitioning_filters=tuple(filters),
            max_buffered_msg=max_messages,
            max_buffered_bytes=max_bytes,
        )
        origin = await self._origin(name, config)
        group = await self._create(ELASTIC_BUCKET, name, config, origin)
        await self._create_stream(self._names(name, config), config, origin)
        return group

    async def create_static(
        self,
        name: str,
        *,
        max_members: int,
        members: Sequence[str] = (),
        mappings: Mapping[str, Sequence[int]] | None = None,
        filters: Sequence[str] = (),
    ) -> ConsumerGroup:
        """Create a group whose members never change; an existing one with the same settings is accepted.

        The first token of the stream's subjects must be the partition, a number from 0, as a subject transform of the
        stream writes it: `subject_transform={"src": "orders.*", "dest": "{{partition(8,1)}}.orders.{{wildcard(1)}}"}`.

        Args:
            name: the group's name.
            max_members: most members, which is the number of partitions.
            members: the members, among whom the partitions are shared out evenly.
            mappings: the partitions of each member, instead of `members`.
            filters: the subjects that the group takes, without the partition. Default: all.

        Raises:
            StreamNotFoundError: there is no such stream.
            ConsumerGroupError: a group of that name exists and is different.
            InvalidOptionError: an option that cannot work.
        """
        mapped = [MemberMapping(member, tuple(partitions)) for member, partitions in (mappings or {}).items()]
        config = StaticGroupConfig(
            max_members,
            members=tuple(sorted(set(members))),
            member_mappings=tuple(mapped),
            filters=tuple(filters),
        )
        return await self._create(STATIC_BUCKET, name, config, await self._origin(name, config))

    async def get(self, name: str) -> ConsumerGroup:
        """Find a group.

        Raises:
            ConsumerGroupError: the stream has no group of that name.
        """
        bucket, config, revision = await self._find(name)
        return ConsumerGroup(self._api, bucket, self._names(name, config), config, revision)

    async def _find(self, name: str) -> tuple[KeyValue, GroupConfig, int]:
        """Find a group: its bucket, and there its configuration with the revision."""
        key = self._key(name)
        for bucket_name, kind in ((ELASTIC_BUCKET, ElasticGroupConfig), (STATIC_BUCKET, StaticGroupConfig)):
            try:
                bucket = await self._buckets.get(bucket_name)
                entry = await bucket.get(key)
            except (StreamNotFoundError, KeyNotFoundError):
                continue
            return bucket, decode_config(kind, key, entry.value), entry.revision
        raise ConsumerGroupError(f"the stream {self.stream_name!r} has no consumer group {name!r}")

    async def names(self) -> list[str]:
        """Return the names of all groups of the stream, sorted."""
        found: set[str] = set()
        for bucket_name in (ELASTIC_BUCKET, STATIC_BUCKET):
            try:
                keys = await (await self._buckets.get(bucket_name)).keys(f"{self.stream_name}.*")
            except StreamNotFoundError:
                continue
            found.update(key.partition(".")[2] for key in keys)
        return sorted(found)

    async def delete(self, name: str) -> None:
        """Delete a group and stop its members; an elastic group loses the messages that its members have not handled.

        Raises:
            ConsumerGroupError: the stream has no group of that name.
        """
        bucket, config, _ = await self._find(name)
        names = self._names(name, config)
        await bucket.delete(names.key)
        if names.is_elastic:
            try:
                await self._api.call(StreamDeleteReply, "STREAM.DELETE", names.stream)
            except StreamNotFoundError:
                pass
            return
        stream = stream_handle(self._api, names.stream)
        for member in (*config.members, *(mapping.member for mapping in config.member_mappings)):
            try:
                await stream.delete_consumer(names.consumer(member))
            except ConsumerNotFoundError:
                pass  # The member never worked, or has deleted its consumer itself.

    def _names(self, name: str, config: GroupConfig) -> GroupNames:
        return GroupNames(self.stream_name, name, is_elastic=isinstance(config, ElasticGroupConfig))

    def _key(self, name: str) -> str:
        return GroupNames(self.stream_name, check_name("consumer group", name), is_elastic=True).key

    async def _origin(self, name: str, config: GroupConfig) -> StreamConfig:
        """Return the configuration of the stream of a new group, which is checked first."""
        check_config(config)
        self._key(name)
        return (await stream_handle(self._api, self.stream_name).info()).config

    async def _create(self, bucket_name: str, name: str, config: GroupConfig, origin: StreamConfig) -> ConsumerGroup:
        key = self._key(name)
        try:
            bucket = await self._buckets.get(bucket_name)
        except StreamNotFoundError:
            bucket = await self._buckets.create(bucket_name, {"num_replicas": origin.num_replicas})
        try:
            revision = await bucket.create(key, encode(config))
        except KeyExistsError:
            entry = await bucket.get(key)
            revision, existing = entry.revision, decode_config(type(config), key, entry.value)
            if not is_same_group(existing, config):
                raise ConsumerGroupError(
                    f"the stream {self.stream_name!r} has a different consumer group {name!r}: delete that one first"
                ) from None
            config = existing
        return ConsumerGroup(self._api, bucket, self._names(name, config), config, revision)

    async def _create_stream(self, names: GroupNames, config: ElasticGroupConfig, origin: StreamConfig) -> None:
        """Create the stream of an elastic group, a work queue that puts partitions before the origin's subjects."""
        filters = config.partitioning_filters or (PartitioningFilter(">", ()),)
        transforms = tuple(
            SubjectTransform(src=one.filter, dest=partition_transform(one, config.max_members)) for one in filters
        )
        stream = StreamConfig(
            name=names.stream,
            retention=RetentionPolicy.WORKQUEUE,
            discard=DiscardPolicy.NEW,
            max_msgs=config.max_buffered_msg or -1,
            max_bytes=config.max_buffered_bytes or -1,
            storage=origin.storage,
            num_replicas=origin.num_replicas,
            allow_direct=True,
            sources=(StreamSource(name=names.origin, subject_transforms=transforms),),
        )
        body = StreamCreateRequest.from_config(stream)
        await self._api.call(StreamCreateReply, "STREAM.CREATE", stream.name, body=body)


@hides("api", "bucket", "names")
class ConsumerGroup:
    """A group of members that share the partitions of a stream; created by `ConsumerGroups`.

    Attributes:
        name: the group's name.
        stream_name: the stream that the group reads.
        config: the group's configuration when it was last requested.
    """

    __slots__ = ("_revision", "api", "bucket", "config", "name", "names", "stream_name")

    def __init__(self, api: ApiCaller, bucket: KeyValue, names: GroupNames, config: GroupConfig, revision: int) -> None:
        self.api = api
        self.bucket = bucket
        self.names = names
        self._revision = revision
        self.stream_name = names.origin
        self.name = names.group
        self.config = config

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.name!r} of {self.stream_name!r} {self.config.max_members} partitions>"

    @property
    def is_elastic(self) -> bool:
        """Whether its members may change."""
        return self.names.is_elastic

    def partitions(self, member: str) -> tuple[int, ...]:
        """Return the partitions of a member according to `config`; none for other names."""
        return member_partitions(self.config, member)

    async def refresh(self) -> GroupConfig:
        """Request the configuration again.

        Raises:
            KeyNotFoundError: the group was deleted.
        """
        entry = await self.bucket.get(self.names.key)
        self.config, self._revision = decode_config(type(self.config), self.names.key, entry.value), entry.revision
        return self.config

    # Members

    async def add_members(self, *members: str) -> tuple[str, ...]:
        """Add members; partitions are redistributed, and move only after their old member has finished.

        Returns:
            All members.

        Raises:
            ConsumerGroupError: the group is static, or has mappings.
            KeyNotFoundError: the group was deleted.
        """
        return await self._change_members(added=members)

    async def remove_members(self, *members: str) -> tuple[str, ...]:
        """Remove members, whose partitions go to the remaining ones; arguments and errors as in `add_members`."""
        return await self._change_members(removed=members)

    async def _change_members(self, added: Sequence[str] = (), removed: Sequence[str] = ()) -> tuple[str, ...]:
        self._refuse_static()
        while True:
            before = await self.refresh()
            changed = with_members(before, (set(before.members) | set(added)) - set(removed))
            try:
                await self._write(changed, revision=self._revision)
            except WrongLastSequenceError:
                continue  # Another client has changed the group meanwhile.
            return self.config.members

    async def map_members(self, mappings: Mapping[str, Sequence[int]] | None) -> None:
        """Assign every partition to one member; None returns to even shares, with no members yet.

        Raises:
            ConsumerGroupError: the group is static.
            InvalidOptionError: a partition has no member, or two.
        """
        self._refuse_static()
        await self._write(with_mappings(await self.refresh(), mappings))

    async def _write(self, config: GroupConfig, revision: int | None = None) -> None:
        value = encode(config)
        if revision is None:
            self._revision = await self.bucket.put(self.names.key, value)
        else:
            self._revision = await self.bucket.update(self.names.key, value, revision)
        self.config = config

    def _refuse_static(self) -> None:
        if not self.is_elastic:
            raise ConsumerGroupError(f"the consumer group {self.name!r} is static: delete it and create it again")

    async def active_members(self) -> list[str]:
        """Return the members with a running instance, sorted."""
        config = await self.refresh()
        infos = await stream_handle(self.api, self.names.stream).consumers()
        waiting = {info.name for info in infos if info.num_waiting or info.num_ack_pending}
        members = sorted({*config.members, *(mapping.member for mapping in config.member_mappings)})
        return [name for name in members if self.names.consumer(name) in waiting]

    async def step_down(self, member: str) -> None:
        """Move a member's work from its active instance to another one, if there is one.

        Raises:
            ConsumerNotFoundError: the member has no running instance.
        """
        consumer = await stream_handle(self.api, self.names.stream).consumer(self.names.consumer(member))
        await consumer.unpin(PRIORITY_GROUP)

    def consume(self, member: str, handler: GroupHandler, **options: Unpack[MemberOptions]) -> GroupMember:
        """Work as a member: call the handler with each message of its partitions, one at a time and in order.

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
        return GroupMember(self, member, handler, options)
