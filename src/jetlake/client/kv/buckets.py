"""The key-value buckets of a JetStream context."""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.config import BucketOptions, bucket_config
from jetlake.client.kv.names import STREAM_PREFIX
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import Stream, stream_handle
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
        stream = Stream(api, info)
        mirror = info.config.mirror
        if mirror is None:
            return KeyValue(publisher, stream, stream, api.prefix)
        external = mirror.external.api if mirror.external is not None else ""
        origin_api = ApiCaller(api.connection, prefix=external or api.prefix, timeout_s=api.timeout_s)
        return KeyValue(publisher, stream, stream_handle(origin_api, mirror.name), origin_api.prefix)

    return Buckets(api, prefix=STREAM_PREFIX, subjects="$KV.*.>", configure=bucket_config, handle=handle)
