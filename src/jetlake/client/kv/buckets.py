"""The key-value buckets of a JetStream context."""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions, bucket_config
from jetlake.client.kv.names import STREAM_PREFIX
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import Stream
from jetlake.errors import InvalidOptionError
from jetlake.model.stream import StreamInfo

__all__ = ["key_value_buckets"]


def key_value_buckets(api: ApiCaller, publisher: Publisher) -> Buckets[KeyValue, BucketOptions]:
    """Return the key-value buckets.

    Args:
        api: manages their streams.
        publisher: writes their entries.
    """

    def handle(info: StreamInfo) -> KeyValue:
        if info.config.max_msgs_per_subject < 1:
            raise InvalidOptionError(f"stream {info.config.name!r} is no bucket: it keeps all messages of a subject")
        return KeyValue(publisher, Stream(api, info), api.prefix)

    return Buckets(api, prefix=STREAM_PREFIX, subjects="$KV.*.>", configure=bucket_config, handle=handle)
