"""The handle of an object store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from jetlake.client.objects.catalog import ObjectCatalog
from jetlake.client.objects.content import ObjectContent, is_repeatable
from jetlake.client.objects.download import ObjectTarget, download
from jetlake.client.objects.info import (
    ObjectHeaders,
    ObjectInfo,
    ObjectLink,
    check_info,
    header_lists,
    marker_of,
)
from jetlake.client.objects.names import STREAM_PREFIX, check_name
from jetlake.client.objects.orphans import purge_orphans
from jetlake.client.objects.reader import FoundObject, ObjectReader
from jetlake.client.objects.status import ObjectStoreStatus, read_status
from jetlake.client.objects.upload import Progress, Upload
from jetlake.client.objects.watch import ObjectWatch
from jetlake.client.ordered.watch import WatchHandler
from jetlake.client.publish.publisher import Publisher
from jetlake.client.publish.stream_search import ELECTION_S
from jetlake.client.streams.buckets import check_bucket
from jetlake.client.streams.stream import Stream
from jetlake.errors import (
    InvalidOptionError,
    NoRespondersError,
    ObjectError,
    ObjectNotFoundError,
)
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.protocol.nuid import next_nuid

__all__ = ["ObjectStore"]

ResultT = TypeVar("ResultT")

_CHUNK_BYTES = 128 * 1024
# What the header of a chunk may add to its message.
_HEADER_BYTES = 256
_LINKS_MAX = 8
_READS_MAX = 8
_CLEANUP_S = 5.0
_ELECTION_WAIT_S = 0.5
_ORPHANS_S = 60 * 60.0


class ObjectStore:
    """A bucket of named contents of any size; made by `JetStream.object_store`.

    An object is visible when the whole content is stored, and a content that replaces another does so at once. Other
    clients of the same server see the same objects.

    Attributes:
        bucket: the object store's name.
        stream: the stream that holds it.
    """

    __slots__ = ("_catalog", "_open_bucket", "_publisher", "bucket", "stream")

    def __init__(
        self, publisher: Publisher, stream: Stream, open_bucket: Callable[[str], Awaitable[ObjectStore]]
    ) -> None:
        self._publisher = publisher
        self._open_bucket = open_bucket
        self._catalog = ObjectCatalog(publisher, stream)
        self.stream = stream
        self.bucket = stream.name.removeprefix(STREAM_PREFIX)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket!r}>"

    # Reading

    async def info(self, name: str, *, include_deleted: bool = False) -> ObjectInfo:
        """Return what is known of an object; of a link, the link itself.

        Args:
            name: the object's name.
            include_deleted: take the marker of a deleted object too.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: what another program stored under the name describes no object.
        """
        found = await self._catalog.last(name)
        if found is None or (found.is_deleted and not include_deleted):
            raise ObjectNotFoundError(self.bucket, name)
        return found

    async def get(self, name: str, *, progress: Progress | None = None) -> bytes:
        """Return the content of an object, or of the object that a link leads to.

        An object that is replaced while it is read is read from its beginning again.

        Args:
            name: the object's name.
            progress: called with the bytes received so far, and how many there are.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the content is not what the object store says it is, or a link leads nowhere.
        """
        return await self._whole(name, progress, ObjectReader.read)

    async def get_file(self, name: str, target: ObjectTarget, *, progress: Progress | None = None) -> ObjectInfo:
        """Write the content of an object to a file.

        Args:
            name: the object's name.
            target: the path of a file, which is replaced when the whole content is there and right, or a file that is
                open for writing. An object that is replaced while it is read is read from its beginning again if the
                target is a path.
            progress: called with the bytes received so far, and how many there are.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the content is not what the object store says it is, or a link leads nowhere.
            OSError: the file can't be written.
        """
        if not isinstance(target, (str, os.PathLike)):
            return await download(self.open(name, progress=progress), target)
        return await self._whole(name, progress, partial(download, target=target))

    async def _whole(
        self, name: str, progress: Progress | None, read: Callable[[ObjectReader], Awaitable[ResultT]]
    ) -> ResultT:
        """Read an object to its end, again while it is replaced: then the chunks of the old content are purged."""
        for _ in range(_READS_MAX - 1):
            reader = self.open(name, progress=progress)
            try:
                return await read(reader)
            except ObjectError:
                if not await self._is_replaced(name, reader):
                    raise
        return await read(self.open(name, progress=progress))

    async def _is_replaced(self, name: str, reader: ObjectReader) -> bool:
        """Return whether a name leads to another content than when it was read."""
        try:
            _, now = await self._found(name)
            return (now.bucket, now.nuid) != (reader.info.bucket, reader.info.nuid)
        except (ObjectError, ObjectNotFoundError, InvalidOptionError):
            return False  # Deleted, or never found.

    def open(self, name: str, *, progress: Progress | None = None) -> ObjectReader:
        """Read an object chunk by chunk.

        ::

            async with store.open("film.mkv") as content:
                async for chunk in content:
                    ...

        Args:
            name: the object's name.
            progress: called with the bytes received so far, and how many there are.
        """
        return ObjectReader(check_name(name), self._found, progress)

    async def _found(self, name: str) -> FoundObject:
        """Return the object behind all links."""
        store = self
        for _ in range(_LINKS_MAX):
            found = await store.info(name)
            link = found.link
            if link is None:
                return store.stream, found
            if not link.name:
                raise ObjectError(f"{name!r} of {store.bucket!r} is a link to the whole object store {link.bucket!r}")
            if link.bucket != store.bucket:
                store = await self._open_bucket(link.bucket)
            name = link.name
        raise ObjectError(f"{name!r} of {store.bucket!r} is a link behind {_LINKS_MAX} others")

    async def list(self, *, include_deleted: bool = False) -> list[ObjectInfo]:
        """Return all objects, as the object store is now.

        A message of another program that describes no object is left out, and reported to `on_error`.

        Args:
            include_deleted: list the markers of deleted objects too.
        """
        return [info for info in await self._all() if include_deleted or not info.is_deleted]

    async def _all(self, *, is_strict: bool = False) -> tuple[ObjectInfo, ...]:
        """Return all objects and markers; a message that describes none is an error if strict."""
        async with self._watch(is_strict=is_strict) as watch:
            return tuple({info.name: info for info in await watch.current()}.values())

    def watch(
        self,
        *,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        handler: WatchHandler[ObjectInfo] | None = None,
    ) -> ObjectWatch:
        """Return what objects there are now and every change from then on.

        ::

            async with store.watch() as changes:
                async for info in changes:
                    print(info.name, info.size)

        A message of another program that describes no object is left out, and reported to `on_error`.

        Args:
            updates_only: begin with the next change.
            ignore_deletes: leave markers of deleted objects out.
            handler: called with each change, one at a time, instead of iterating; `wait` of the watch waits for its
                end.
        """
        return self._watch(updates_only=updates_only, ignore_deletes=ignore_deletes, handler=handler)

    def _watch(
        self,
        *,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        is_strict: bool = False,
        handler: WatchHandler[ObjectInfo] | None = None,
    ) -> ObjectWatch:
        ordered = self.stream.ordered(
            deliver_policy="new" if updates_only else "last_per_subject",
            filter_subject=f"$O.{self.bucket}.M.>",
            name_prefix="watch",
        )
        return ObjectWatch(
            self.bucket,
            ordered,
            self.stream.info,
            one_per_subject=not updates_only,
            ignore_deletes=ignore_deletes,
            is_strict=is_strict,
            handler=handler,
        )

    async def status(self) -> ObjectStoreStatus:
        """Return what the object store is like and how much is in it."""
        return read_status(await self.stream.info())

    # Writing

    async def put(
        self,
        name: str,
        content: ObjectContent,
        *,
        description: str = "",
        headers: ObjectHeaders | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Store a content under a name; what the name had before is replaced at once when all of it is stored.

        Whatever its size, a few megabytes of it are in memory at a time. When storing fails, its chunks are removed;
        `purge_orphans` removes those of a program that was killed.

        Args:
            name: the object's name.
            content: bytes, the path of a file (`pathlib.Path`), a file that is open for reading, or an iterator or
                async iterator of bytes.
            description: free text.
            headers: free headers.
            metadata: free keys and values.
            chunk_size: bytes of a message. Default: 128 KiB, or what the server takes at most.
            progress: called with the bytes sent so far, and how many there are; 0 where nobody knows before the end.

        Raises:
            InvalidOptionError: an argument that cannot work.
            ApiError: the stream refuses it, because it is full or sealed.
            ObjectError: the content could not be stored whole.
            OSError: the file can't be read.
        """
        info = ObjectInfo(
            name=check_name(name),
            bucket=self.bucket,
            nuid=next_nuid(),
            description=description,
            headers=header_lists(headers or {}),
            metadata=dict(metadata or {}),
            chunk_size=self._chunk_bytes(chunk_size),
        )
        # What cannot be described is refused before its content is sent.
        self._publisher.check_size(len(check_info(info)) + _HEADER_BYTES)
        elections = ELECTION_S / _ELECTION_WAIT_S if self._publisher.is_clustered and is_repeatable(content) else 0
        while True:
            try:
                return await self._catalog.make_visible(await self._upload(info, content, progress))
            except NoRespondersError:
                # Chunks are never sent again behind others, so a content that meets an election begins anew.
                elections -= 1
                if elections < 0:
                    raise
            await asyncio.sleep(_ELECTION_WAIT_S)
            info = msgspec.structs.replace(info, nuid=next_nuid())

    async def _upload(self, info: ObjectInfo, content: ObjectContent, progress: Progress | None) -> ObjectInfo:
        """Store the chunks of a content, or none of them; what describes them all."""
        upload = Upload(self._publisher, self.bucket, info.nuid)
        try:
            await upload.send(content, info.chunk_size, progress)
        except BaseException:
            if await upload.settle(_CLEANUP_S):
                await self._catalog.purge_chunks(info)
            raise
        return msgspec.structs.replace(info, size=upload.size, chunks=upload.chunks, digest=upload.digest)

    def _chunk_bytes(self, chunk_size: int | None) -> int:
        room = self._publisher.payload_bytes_max - _HEADER_BYTES
        if chunk_size is None:
            return min(_CHUNK_BYTES, room)
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size <= room:
            raise InvalidOptionError(f"chunk_size is 1 to {room} bytes, what the server takes, not {chunk_size!r}")
        return chunk_size

    async def update_meta(
        self,
        name: str,
        *,
        rename: str | None = None,
        description: str | None = None,
        headers: ObjectHeaders | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change what is said about an object, and leave its content; what is not given stays.

        Args:
            name: the object's name.
            rename: its new name; a marker stays under the old one. A rename that was cut off is finished by another
                one.
            description: free text.
            headers: free headers.
            metadata: free keys and values.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectExistsError: another one has the new name.
            WrongLastSequenceError: somebody else has changed the object meanwhile.
        """
        old = await self._catalog.live(name)
        changed = msgspec.structs.replace(
            old,
            name=old.name if rename is None else check_name(rename),
            description=old.description if description is None else description,
            headers=old.headers if headers is None else header_lists(headers),
            metadata=old.metadata if metadata is None else dict(metadata),
        )
        if changed.name == name:
            return await self._catalog.publish(changed, old)
        return await self._catalog.rename(old, changed)

    async def add_link(self, name: str, target: ObjectInfo | str) -> ObjectInfo:
        """Make a link to an object, which `get` follows.

        Args:
            name: the link's name; a link that has it is replaced.
            target: an object of any object store, or the name of one here.

        Raises:
            ObjectNotFoundError: no object has the target's name.
            ObjectExistsError: an object has the link's name.
            InvalidOptionError: the target is a link itself, or deleted.
        """
        found = await self.info(target) if isinstance(target, str) else target
        if found.link is not None or found.is_deleted:
            raise InvalidOptionError(f"a link leads to an object: {found.name!r} is a link itself, or deleted")
        return await self._link(name, ObjectLink(bucket=found.bucket, name=found.name))

    async def add_bucket_link(self, name: str, bucket: ObjectStore | str) -> ObjectInfo:
        """Make a link to a whole object store.

        Args:
            name: the link's name; a link that has it is replaced.
            bucket: the object store, or its name.

        Raises:
            ObjectExistsError: an object has the link's name.
        """
        target = bucket if isinstance(bucket, str) else bucket.bucket
        return await self._link(name, ObjectLink(bucket=check_bucket(target)))

    async def _link(self, name: str, link: ObjectLink) -> ObjectInfo:
        old = await self._catalog.vacant(name, is_link_replaced=True)
        return await self._catalog.publish(ObjectInfo(name=name, bucket=self.bucket, nuid=next_nuid(), link=link), old)

    async def delete(self, name: str) -> None:
        """Delete an object or link; a marker stays, so that watchers see it.

        Raises:
            ObjectNotFoundError: no object has the name.
            WrongLastSequenceError: somebody else has changed the object meanwhile.
        """
        old = await self._catalog.live(name)
        await self._catalog.publish(marker_of(old), old)
        await self._catalog.purge_chunks(old)

    async def seal(self) -> None:
        """Allow no more changes, for good."""
        await self.stream.update(sealed=True)

    async def purge_orphans(self, older_than: Seconds = _ORPHANS_S) -> int:
        """Remove chunks that belong to no object: those of programs that were killed while they stored one.

        Args:
            older_than: seconds since the last chunk of a content was stored; longer than any writer pauses, since the
                chunks of one that is still at work belong to no object yet.

        Returns:
            How many unfinished contents were removed.

        Raises:
            ObjectError: a message of another program describes no object, and chunks may belong to it; none were
                removed. `store.stream.purge(subject=...)` removes a message that nobody needs.
        """
        objects = partial(self._all, is_strict=True)
        return await purge_orphans(self.stream, self.bucket, objects, nanoseconds(older_than))
