"""The consumer groups of a stream: made, found, listed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.groups.config import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
    check_config,
    decode_config,
    is_same_group,
    partition_transform,
)
from jetlake.client.groups.group import ConsumerGroup
from jetlake.client.groups.place import ELASTIC_BUCKET, STATIC_BUCKET, GroupPlace
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import (
    ConsumerGroupError,
    ConsumerNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    StreamNotFoundError,
)
from jetlake.model.encoding.codec import encode
from jetlake.model.enums import DiscardPolicy, RetentionPolicy
from jetlake.model.replies import StreamCreateReply, StreamDeleteReply
from jetlake.model.requests import StreamCreateRequest
from jetlake.model.stream import StreamConfig, StreamSource, SubjectTransform

__all__ = ["ConsumerGroups"]


class ConsumerGroups:
    """The consumer groups of a stream; made by `JetStream.consumer_groups`.

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
        """Create a group whose members may change; one that exists and is alike is fine.

        The group has a stream of its own, which copies what members have not handled yet: a second copy on disk, and
        one more hop.

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
        await self._create_stream(GroupPlace(self.stream_name, name, is_elastic=True), config, origin)
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
        """Create a group whose members never change; one that exists and is alike is fine.

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
        return ConsumerGroup(self._api, bucket, self.stream_name, name, config, revision)

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
        """Delete a group and stop its members; an elastic one loses what its members have not handled.

        Raises:
            ConsumerGroupError: the stream has no group of that name.
        """
        bucket, config, _ = await self._find(name)
        place = GroupPlace(self.stream_name, name, is_elastic=isinstance(config, ElasticGroupConfig))
        await bucket.delete(place.key)
        if place.is_elastic:
            try:
                await self._api.call(StreamDeleteReply, "STREAM.DELETE", place.stream)
            except StreamNotFoundError:
                pass
            return
        stream = stream_handle(self._api, place.stream)
        for member in (*config.members, *(mapping.member for mapping in config.member_mappings)):
            try:
                await stream.delete_consumer(place.consumer(member))
            except ConsumerNotFoundError:
                pass  # Nobody has worked as that member, or the member itself was faster.

    def _key(self, name: str) -> str:
        return GroupPlace(self.stream_name, check_name("consumer group", name), is_elastic=True).key

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
        return ConsumerGroup(self._api, bucket, self.stream_name, name, config, revision)

    async def _create_stream(self, place: GroupPlace, config: ElasticGroupConfig, origin: StreamConfig) -> None:
        """Create the stream of an elastic group, a work queue that puts partitions before the origin's subjects."""
        filters = config.partitioning_filters or (PartitioningFilter(">", ()),)
        transforms = tuple(
            SubjectTransform(src=one.filter, dest=partition_transform(one, config.max_members)) for one in filters
        )
        stream = StreamConfig(
            name=place.stream,
            retention=RetentionPolicy.WORKQUEUE,
            discard=DiscardPolicy.NEW,
            max_msgs=config.max_buffered_msg or -1,
            max_bytes=config.max_buffered_bytes or -1,
            storage=origin.storage,
            num_replicas=origin.num_replicas,
            allow_direct=True,
            sources=(StreamSource(name=place.origin, subject_transforms=transforms),),
        )
        body = StreamCreateRequest.from_config(stream)
        await self._api.call(StreamCreateReply, "STREAM.CREATE", stream.name, body=body)
