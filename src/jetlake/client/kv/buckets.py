"""The part of a JetStream context that makes, finds and deletes key-value buckets."""

from __future__ import annotations

from typing import Unpack

from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions, bucket_config
from jetlake.client.kv.names import STREAM_PREFIX, stream_name
from jetlake.client.publish.publishing import Publishing
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


class Buckets(Publishing):
    """Key-value buckets, which are streams that this context publishes to."""

    async def create_key_value(self, bucket: str, **options: Unpack[BucketOptions]) -> KeyValue:
        """Create a bucket; one that exists with the same options is fine.

        Raises:
            InvalidOptionError: an option that cannot work; nothing was sent.
            StreamNameInUseError: one of that name exists and is different.
        """
        config = bucket_config(bucket, options)
        body = StreamCreateRequest.from_config(config)
        return self._handle(await self._api.call(StreamCreateReply, "STREAM.CREATE", config.name, body=body))

    async def create_or_update_key_value(self, bucket: str, **options: Unpack[BucketOptions]) -> KeyValue:
        """Create a bucket, or change the one that exists to exactly these options."""
        config = bucket_config(bucket, options)
        body = StreamCreateRequest.from_config(config)
        try:
            return self._handle(await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=body))
        except StreamNotFoundError:
            return await self.create_key_value(bucket, **options)

    async def key_value(self, bucket: str) -> KeyValue:
        """The handle of an existing bucket.

        Raises:
            StreamNotFoundError: there is none of that name.
            InvalidOptionError: the stream of that name is no bucket.
        """
        return self._handle(await self._api.call(StreamInfoReply, "STREAM.INFO", stream_name(bucket)))

    async def delete_key_value(self, bucket: str) -> None:
        """Delete a bucket and all that is in it.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", stream_name(bucket))

    async def key_value_names(self) -> list[str]:
        """The names of all buckets, sorted."""
        names: list[str] = []
        while True:
            request = StreamListRequest(offset=len(names), subject="$KV.*.>")
            page = await self._api.call(StreamNamesReply, "STREAM.NAMES", body=request)
            names += page.streams or ()
            if not page.streams or len(names) >= page.total:
                return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]

    def _handle(self, info: StreamInfo) -> KeyValue:
        if info.config.max_msgs_per_subject < 1:
            raise InvalidOptionError(f"stream {info.config.name!r} is no bucket: it keeps all messages of a subject")
        return KeyValue(self, Stream(self._api, info), self._api.prefix)
