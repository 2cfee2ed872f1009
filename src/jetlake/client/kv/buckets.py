"""The key-value buckets of a JetStream context: made, found, listed and deleted."""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions, bucket_config
from jetlake.client.kv.names import STREAM_PREFIX, stream_name
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.stream import Stream
from jetlake.errors import InvalidOptionError, StreamNotFoundError
from jetlake.model.replies import (
    StreamCreateReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamNamesReply,
    StreamUpdateReply,
)
from jetlake.model.requests import StreamCreateRequest, StreamListRequest
from jetlake.model.stream import StreamInfo

__all__ = ["Buckets"]


class Buckets:
    """Key-value buckets, which are streams.

    Args:
        api: manages their streams.
        publisher: writes their entries.
    """

    def __init__(self, api: ApiCaller, publisher: Publisher) -> None:
        self._api = api
        self._publisher = publisher

    async def create(self, bucket: str, options: BucketOptions) -> KeyValue:
        """Create a bucket; see `JetStream.create_key_value`."""
        config = bucket_config(bucket, options)
        body = StreamCreateRequest.from_config(config)
        return self._handle(await self._api.call(StreamCreateReply, "STREAM.CREATE", config.name, body=body))

    async def create_or_update(self, bucket: str, options: BucketOptions) -> KeyValue:
        """Create a bucket, or change the one that exists to exactly these options."""
        config = bucket_config(bucket, options)
        body = StreamCreateRequest.from_config(config)
        try:
            return self._handle(await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=body))
        except StreamNotFoundError:
            return await self.create(bucket, options)

    async def get(self, bucket: str) -> KeyValue:
        """Find an existing bucket; see `JetStream.key_value`."""
        return self._handle(await self._api.call(StreamInfoReply, "STREAM.INFO", stream_name(bucket)))

    async def delete(self, bucket: str) -> None:
        """Delete a bucket and all its entries."""
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", stream_name(bucket))

    async def names(self) -> list[str]:
        """List the names of all buckets, sorted."""
        names = await self._api.list_all(
            StreamNamesReply,
            "STREAM.NAMES",
            request=lambda offset: StreamListRequest(offset=offset, subject="$KV.*.>"),
            items=lambda page: page.streams,
        )
        return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]

    def _handle(self, info: StreamInfo) -> KeyValue:
        if info.config.max_msgs_per_subject < 1:
            raise InvalidOptionError(f"stream {info.config.name!r} is no bucket: it keeps all messages of a subject")
        return KeyValue(self._publisher, Stream(self._api, info), self._api.prefix)
