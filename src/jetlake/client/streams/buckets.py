"""Buckets of one kind: streams with a common prefix, made, found, listed and deleted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from jetlake.client.api.api_caller import ApiCaller
from jetlake.errors import InvalidOptionError, StreamNotFoundError
from jetlake.model.replies import (
    StreamCreateReply,
    StreamDeleteReply,
    StreamInfoReply,
    StreamNamesReply,
    StreamUpdateReply,
)
from jetlake.model.requests import StreamCreateRequest, StreamListRequest
from jetlake.model.stream import StreamConfig, StreamInfo

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")

HandleT = TypeVar("HandleT")
OptionsT = TypeVar("OptionsT")


def check_bucket(bucket: str) -> str:
    """Check the name of a bucket, and return it.

    Raises:
        InvalidOptionError: not letters, digits, dashes and underscores.
    """
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        raise InvalidOptionError(
            f"a bucket's name may contain only letters, digits, dashes and underscores, not {bucket!r}"
        )
    return bucket


class Buckets(Generic[HandleT, OptionsT]):
    """The buckets of one kind, each of which is a stream.

    Args:
        api: manages the streams.
        prefix: what the names of the streams begin with.
        subjects: what their subjects match.
        configure: makes the configuration of the stream that holds a bucket.
        handle: makes the handle of a bucket.
    """

    def __init__(
        self,
        api: ApiCaller,
        *,
        prefix: str,
        subjects: str,
        configure: Callable[[str, OptionsT], StreamConfig],
        handle: Callable[[StreamInfo], HandleT],
    ) -> None:
        self._api = api
        self._prefix = prefix
        self._subjects = subjects
        self._configure = configure
        self._handle = handle

    async def create(self, bucket: str, options: OptionsT) -> HandleT:
        """Create a bucket; an existing one with the same options is accepted."""
        config = self._configure(bucket, options)
        body = StreamCreateRequest.from_config(config)
        return self._handle(await self._api.call(StreamCreateReply, "STREAM.CREATE", config.name, body=body))

    async def create_or_update(self, bucket: str, options: OptionsT) -> HandleT:
        """Create a bucket, or change an existing one to exactly these options."""
        config = self._configure(bucket, options)
        body = StreamCreateRequest.from_config(config)
        try:
            return self._handle(await self._api.call(StreamUpdateReply, "STREAM.UPDATE", config.name, body=body))
        except StreamNotFoundError:
            return await self.create(bucket, options)

    async def get(self, bucket: str) -> HandleT:
        """Find an existing bucket."""
        return self._handle(await self._api.call(StreamInfoReply, "STREAM.INFO", self._prefix + check_bucket(bucket)))

    async def delete(self, bucket: str) -> None:
        """Delete a bucket and everything in it."""
        await self._api.call(StreamDeleteReply, "STREAM.DELETE", self._prefix + check_bucket(bucket))

    async def names(self) -> list[str]:
        """List the names of all buckets, sorted."""
        names = await self._api.list_all(
            StreamNamesReply,
            "STREAM.NAMES",
            request=lambda offset: StreamListRequest(offset=offset, subject=self._subjects),
            items=lambda page: page.streams,
        )
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
