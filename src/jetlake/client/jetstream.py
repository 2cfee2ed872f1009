"""The JetStream context: publishing, streams and consumers of one account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, cast

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import ConsumerOptions, StreamOptions, configured
from jetlake.client.kv.buckets import Buckets
from jetlake.client.legacy.subscribing import Subscribing
from jetlake.client.publish.publishing import WINDOW_BYTES, WINDOW_MESSAGES
from jetlake.client.pull.consumer import Consumer
from jetlake.client.settings.options import timeout_s
from jetlake.client.streams.stream import Stream, stream_handle
from jetlake.errors import InvalidOptionError, StreamNameInUseError, StreamNotFoundError
from jetlake.model.account import AccountInfo
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import Seconds
from jetlake.model.replies import (
    AccountInfoReply,
    StreamCreateReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamListReply,
    StreamNamesReply,
    StreamUpdateReply,
)
from jetlake.model.requests import StreamCreateRequest, StreamListRequest
from jetlake.model.stream import StreamConfig, StreamInfo

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection

__all__ = ["JetStream"]


class JetStream(Buckets, Subscribing):
    """JetStream through one connection; made by `Client.jetstream`."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str = "",
        prefix: str = "",
        timeout: Seconds | None = None,
        publish_window: int = WINDOW_MESSAGES,
        publish_window_bytes: int = WINDOW_BYTES,
    ) -> None:
        api = ApiCaller(connection, domain=domain, prefix=prefix, timeout_s=timeout_s(timeout))
        super().__init__(api, publish_window=publish_window, publish_window_bytes=publish_window_bytes)

    def __repr__(self) -> str:
        return f"<JetStream {self._api.prefix} of {self._connection.describe()}>"

    # The account

    @property
    def api(self) -> ApiCaller:
        """The API itself, for calls that have no method here: `await js.api.call(ReplyType, "STREAM.INFO", name)`."""
        return self._api

    async def account_info(self) -> AccountInfo:
        """What the account uses and may use."""
        return await self._api.call(AccountInfoReply, "INFO")

    # Streams

    async def create_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Create a stream; one that exists with the same configuration is fine.

        Args:
            name: its name, or a whole configuration.
            options: what it captures and how long it keeps it; durations are seconds.

        Raises:
            StreamNameInUseError: one of that name exists and is different.
            ApiError: the server refuses the configuration.
        """
        config = _stream_config(name, options)
        request = StreamCreateRequest.from_config(config)
        return Stream(self._api, await self._api.call(StreamCreateReply, "STREAM.CREATE", config.name, body=request))

    async def update_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Change a stream: the given options only, or the whole when a configuration is given.

        Raises:
            StreamNotFoundError: there is none of that name.
            ApiError: the server refuses the change.
        """
        if isinstance(name, StreamConfig):
            config = _stream_config(name, options)
            return await self._update(config)
        stream = await self.stream(name)
        await stream.update(**options)
        return stream

    async def create_or_update_stream(self, name: str | StreamConfig, **options: Unpack[StreamOptions]) -> Stream:
        """Create a stream, or change the one that exists to exactly this configuration."""
        config = _stream_config(name, options)
        try:
            return await self._update(config)
        except StreamNotFoundError:
            pass
        try:
            return await self.create_stream(config)
        except StreamNameInUseError:
            return await self._update(config)  # Somebody else was faster.

    async def _update(self, config: StreamConfig) -> Stream:
        request = StreamCreateRequest.from_config(config)
        return Stream(self._api, await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=request))

    async def stream(self, name: str) -> Stream:
        """The handle of an existing stream.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        check_name("stream", name)
        return Stream(self._api, await self._api.call(StreamInfoReply, "STREAM.INFO", name))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream, its messages and its consumers.

        Raises:
            StreamNotFoundError: there is none of that name.
        """
        check_name("stream", name)
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", name)

    async def streams(self, subject: str = "") -> list[StreamInfo]:
        """All streams, sorted by name, or those whose subjects have something in common with `subject`."""
        found: list[StreamInfo] = []
        while True:
            request = StreamListRequest(offset=len(found), subject=subject)
            page = await self._api.call(StreamListReply, "STREAM.LIST", body=request)
            found += page.streams
            if not page.streams or len(found) >= page.total:
                return found

    async def stream_names(self, subject: str = "") -> list[str]:
        """The names of all streams, sorted, or of those whose subjects have something in common with `subject`."""
        found: list[str] = []
        while True:
            request = StreamListRequest(offset=len(found), subject=subject)
            page = await self._api.call(StreamNamesReply, "STREAM.NAMES", body=request)
            found += page.streams or ()
            if not page.streams or len(found) >= page.total:
                return found

    # Consumers, for those who have no handle of the stream

    async def create_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """As `Stream.create_consumer`."""
        return await stream_handle(self._api, stream).create_consumer(name, durable=durable, **options)

    async def create_or_update_consumer(
        self,
        stream: str,
        name: str | ConsumerConfig | None = None,
        *,
        durable: bool | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """As `Stream.create_or_update_consumer`."""
        return await stream_handle(self._api, stream).create_or_update_consumer(name, durable=durable, **options)

    async def consumer(self, stream: str, name: str) -> Consumer:
        """The handle of an existing pull consumer.

        Raises:
            ConsumerNotFoundError: there is none of that name.
        """
        return await stream_handle(self._api, stream).consumer(name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await stream_handle(self._api, stream).delete_consumer(name)


def _stream_config(name: str | StreamConfig, options: Any) -> StreamConfig:
    if isinstance(name, StreamConfig):
        if options:
            raise InvalidOptionError("give a whole configuration or single options, not both")
        check_name("stream", name.name)
        return name
    check_name("stream", name)
    return configured(StreamConfig, {"name": name, **cast("dict[str, Any]", options)})
