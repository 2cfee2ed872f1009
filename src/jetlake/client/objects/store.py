"""Object stores: their handle, watches over them, and the store of a name.

A content is stored as chunks under an id of its own (`Upload`). An object is the one message that describes a content,
published when every chunk is acknowledged, and only if its name has nothing newer than the writer saw
(`ObjectCatalog`). So a crash before that message leaves chunks that belong to no object, which `purge_orphans` removes,
and never a partial object. A replaced content is purged after its successor is visible; a reader that loses chunks to
that reads the successor from its beginning.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.messages.message import Message
from jetlake.client.objects.catalog import ObjectCatalog
from jetlake.client.objects.config import (
    STREAM_PREFIX,
    ObjectStoreOptions,
    ObjectStoreStatus,
    check_name,
    chunk_prefix,
    object_store_config,
    read_status,
)
from jetlake.client.objects.info import (
    ObjectHeaders,
    ObjectInfo,
    ObjectLink,
    check_info,
    decode_info,
    header_lists,
    marker_of,
)
from jetlake.client.objects.reader import FoundObject, ObjectReader, ObjectTarget, download
from jetlake.client.objects.upload import ObjectContent, Progress, Upload, is_repeatable
from jetlake.client.ordered.ordered import OrderedConsumer
from jetlake.client.ordered.watch import Watch, WatchHandler
from jetlake.client.publish.publisher import Publisher
from jetlake.client.publish.stream_search import ELECTION_S
from jetlake.client.streams.buckets import Buckets, check_bucket
from jetlake.client.streams.stream import Stream
from jetlake.errors import (
    InvalidOptionError,
    MessageNotFoundError,
    NoRespondersError,
    ObjectError,
    ObjectNotFoundError,
)
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid

ResultT = TypeVar("ResultT")

_CHUNK_BYTES = 128 * 1024
# Room for the header of a chunk.
_HEADER_BYTES = 256
_LINKS_MAX = 8
_READS_MAX = 8
_CLEANUP_S = 5.0
_ELECTION_WAIT_S = 0.5
_ORPHANS_S = 60 * 60.0


class ObjectStore:
    """A bucket of named contents of any size; created by `JetStream.object_store`.

    An object is visible when the whole content is stored, and a content that replaces another does so at once. Other
    clients of the same server see the same objects.

    Attributes:
        bucket: the object store's name.
        stream: the stream that holds it.
    """

    __slots__ = ("_api", "_catalog", "_publisher", "bucket", "stream")

    def __init__(self, api: ApiCaller, publisher: Publisher, stream: Stream) -> None:
        self._api = api
        self._publisher = publisher
        self._catalog = ObjectCatalog(publisher, stream)
        self.stream = stream
        self.bucket = stream.name.removeprefix(STREAM_PREFIX)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket!r}>"

    # Reading

    async def info(self, name: str, *, include_deleted: bool = False, leader: bool = False) -> ObjectInfo:
        """Return the description of an object; of a link, the link itself.

        Any replica or mirror may answer, as it is then. Objects that were put through the same JetStream context are
        always seen: where an answer is older, or there is none, the leader is asked.

        Args:
            name: the object's name.
            include_deleted: take the marker of a deleted object too.
            leader: read from the leader, which has every object that was put by any client.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: another program stored a message under the name that describes no object.
        """
        found = await self._catalog.last(name, leader=leader)
        if found is None or (found.is_deleted and not include_deleted):
            raise ObjectNotFoundError(self.bucket, name)
        return found

    async def get(self, name: str, *, progress: Progress | None = None, leader: bool = False) -> bytes:
        """Return the content of an object, or of the object that a link leads to.

        An object that is replaced while it is read is read from its beginning again.

        Args:
            name: the object's name.
            progress: called with the bytes received so far, and how many there are.
            leader: ask the leader which object has the name; see `info`.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the content has another size or digest than its description, or a link leads nowhere.
        """
        return await self._whole(partial(self.open, name, progress=progress, leader=leader), ObjectReader.read)

    async def get_file(
        self, name: str, target: ObjectTarget, *, progress: Progress | None = None, leader: bool = False
    ) -> ObjectInfo:
        """Write the content of an object to a file.

        Args:
            name: the object's name.
            target: the path of a file, which is replaced when the whole content is there and right, or a file that is
                open for writing. An object that is replaced while it is read is read from its beginning again if the
                target is a path.
            progress: called with the bytes received so far, and how many there are.
            leader: ask the leader which object has the name; see `info`.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the content has another size or digest than its description, or a link leads nowhere.
            OSError: the file can't be written.
        """
        if not isinstance(target, (str, os.PathLike)):
            return await download(self.open(name, progress=progress, leader=leader), target)
        opened = partial(self.open, name, progress=progress, leader=leader)
        return await self._whole(opened, partial(download, target=target))

    async def _whole(
        self, opened: Callable[[], ObjectReader], read: Callable[[ObjectReader], Awaitable[ResultT]]
    ) -> ResultT:
        """Read an object to its end, again while it is replaced: then the chunks of the old content are purged."""
        for _ in range(_READS_MAX - 1):
            reader = opened()
            try:
                return await read(reader)
            except ObjectError:
                if not await self._is_replaced(reader):
                    raise
        return await read(opened())

    async def _is_replaced(self, reader: ObjectReader) -> bool:
        """Return whether a name leads to another content than when it was read, as the leader says."""
        try:
            _, now = await self._found(reader.name, leader=True)
            return (now.bucket, now.nuid) != (reader.info.bucket, reader.info.nuid)
        except (ObjectError, ObjectNotFoundError, InvalidOptionError):
            return False  # Deleted, or never found.

    def open(self, name: str, *, progress: Progress | None = None, leader: bool = False) -> ObjectReader:
        """Read an object chunk by chunk.

        ::

            async with store.open("film.mkv") as content:
                async for chunk in content:
                    ...

        Args:
            name: the object's name.
            progress: called with the bytes received so far, and how many there are.
            leader: ask the leader which object has the name; see `info`.
        """
        return ObjectReader(check_name(name), partial(self._found, leader=leader), progress)

    async def _found(self, name: str, *, leader: bool) -> FoundObject:
        """Return the object behind all links."""
        store = self
        for _ in range(_LINKS_MAX):
            found = await store.info(name, leader=leader)
            link = found.link
            if link is None:
                return store.stream, found
            if not link.name:
                raise ObjectError(f"{name!r} of {store.bucket!r} is a link to the whole object store {link.bucket!r}")
            if link.bucket != store.bucket:
                store = await object_stores(self._api, self._publisher).get(link.bucket)
            name = link.name
        raise ObjectError(f"{name!r} of {store.bucket!r} is a link behind {_LINKS_MAX} others")

    async def list(self, *, include_deleted: bool = False) -> list[ObjectInfo]:
        """Return all current objects.

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
        """Return all objects and every later change.

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
        """Return the limits and the size of the object store."""
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
        """Store content under a name; existing content is replaced when all of the new content is stored.

        A content of any size has a few megabytes in memory at a time. When storing fails, its chunks are removed;
        `purge_orphans` removes the chunks of a program that was killed.

        Args:
            name: the object's name.
            content: bytes, the path of a file (`pathlib.Path`), a file that is open for reading, or an iterator or
                async iterator of bytes.
            description: free text.
            headers: free headers.
            metadata: free keys and values.
            chunk_size: bytes of a message. Default: 128 KiB, or the server's largest payload if that is smaller.
            progress: called with the bytes sent so far, and how many there are; 0 while that is unknown.

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
        # A description that is too large is refused before the content is sent.
        self._publisher.check_size(len(check_info(info)) + _HEADER_BYTES)
        elections = ELECTION_S / _ELECTION_WAIT_S if self._publisher.is_clustered and is_repeatable(content) else 0
        while True:
            try:
                return await self._catalog.make_visible(await self._upload(info, content, progress))
            except NoRespondersError:
                # Chunks are never sent again after later ones, so an election in the middle restarts the content.
                elections -= 1
                if elections < 0:
                    raise
            await asyncio.sleep(_ELECTION_WAIT_S)
            info = msgspec.structs.replace(info, nuid=next_nuid())

    async def _upload(self, info: ObjectInfo, content: ObjectContent, progress: Progress | None) -> ObjectInfo:
        """Store all chunks of a content, or none of them, and return their description."""
        upload = Upload(self._publisher, self.bucket, info.nuid)
        try:
            await upload.send(content, info.chunk_size, progress)
        except BaseException:
            if await upload.wait_for_acks(_CLEANUP_S):
                await self._catalog.purge_chunks(info)
            raise
        return msgspec.structs.replace(info, size=upload.size, chunks=upload.chunks, digest=upload.digest)

    def _chunk_bytes(self, chunk_size: int | None) -> int:
        room = self._publisher.payload_bytes_max - _HEADER_BYTES
        if chunk_size is None:
            return min(_CHUNK_BYTES, room)
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size <= room:
            raise InvalidOptionError(f"chunk_size must be 1 to {room} bytes, the server's limit, not {chunk_size!r}")
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
        """Change the description of an object, but not its content; only the given arguments are changed.

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
            WrongLastSequenceError: another writer has changed the object meanwhile.
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
        """Create a link to an object, which `get` follows.

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
            raise InvalidOptionError(f"a link must lead to an object: {found.name!r} is a link itself, or deleted")
        return await self._link(name, ObjectLink(bucket=found.bucket, name=found.name))

    async def add_bucket_link(self, name: str, bucket: ObjectStore | str) -> ObjectInfo:
        """Create a link to a whole object store.

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
            WrongLastSequenceError: another writer has changed the object meanwhile.
        """
        old = await self._catalog.live(name)
        await self._catalog.publish(marker_of(old), old)
        await self._catalog.purge_chunks(old)

    async def seal(self) -> None:
        """Disallow changes permanently."""
        await self.stream.update(sealed=True)

    async def purge_orphans(self, older_than: Seconds = _ORPHANS_S) -> int:
        """Remove chunks without an object, which programs left when they were killed during a `put`.

        Args:
            older_than: seconds since the last chunk of a content was stored; longer than any writer pauses, since the
                chunks of one that is still at work belong to no object yet.

        Returns:
            How many unfinished contents were removed.

        Raises:
            ObjectError: a message of another program describes no object, and chunks may belong to it; none were
                removed. `store.stream.purge(subject=...)` removes such a message.
        """
        older_than_ns = nanoseconds(older_than)
        # Chunks first: a content that becomes an object while this runs is then among the objects.
        info = await self.stream.info(subjects_filter=chunk_prefix(self.bucket) + "*")
        now_ns = parse_time(info.ts)  # By the server's clock, as the times of the chunks.
        owned = {chunk_prefix(self.bucket) + found.nuid for found in await self._all(is_strict=True)}
        purged = 0
        for subject in info.state.subjects.keys() - owned:
            try:
                newest = await self.stream.get(last_by_subject=subject, direct=False)
            except MessageNotFoundError:
                continue
            if now_ns - newest.time_ns >= older_than_ns:
                await self.stream.purge(subject=subject)
                purged += 1
        return purged


class ObjectWatch(Watch[ObjectInfo]):
    """The objects of an object store, without end; created by `ObjectStore.watch`.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. The objects that are there
    when it begins come first; `current` takes just these. It survives lost connections and restarted servers, and ends
    with an error when the object store does.

    Args:
        bucket: the object store's name.
        ordered: reads the messages that describe objects.
        stream_info: asks the server about the stream.
        one_per_subject: whether the read begins with the last message of each subject.
        ignore_deletes: leave markers of deleted objects out.
        is_strict: raise `ObjectError` for a message that describes no object, instead of reporting it to `on_error`.
        handler: called with each object, one at a time.
    """

    __slots__ = ("_bucket", "_ignore_deletes", "_is_strict")

    def __init__(
        self,
        bucket: str,
        ordered: OrderedConsumer,
        stream_info: Callable[[], Awaitable[StreamInfo]],
        *,
        one_per_subject: bool,
        ignore_deletes: bool = False,
        is_strict: bool = False,
        handler: WatchHandler[ObjectInfo] | None = None,
    ) -> None:
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes
        self._is_strict = is_strict
        super().__init__(
            bucket, ordered, self._described, stream_info, one_per_subject=one_per_subject, handler=handler
        )

    def _described(self, message: Message) -> ObjectInfo | None:
        """Return the object that a message describes, if it is wanted."""
        metadata = message.metadata
        try:
            info = decode_info(
                self._bucket,
                message.payload,
                subject=message.subject,
                revision=metadata.stream_seq,
                time_ns=metadata.timestamp_ns,
            )
        except ObjectError as error:
            if self._is_strict:
                raise
            self.report(error)
            return None
        return None if self._ignore_deletes and info.is_deleted else info


def object_stores(api: ApiCaller, publisher: Publisher) -> Buckets[ObjectStore, ObjectStoreOptions]:
    """Return the object stores of a JetStream context.

    Args:
        api: manages their streams.
        publisher: writes their chunks.
    """

    def handle(info: StreamInfo) -> ObjectStore:
        config = info.config
        bucket = config.name.removeprefix(STREAM_PREFIX)
        if f"$O.{bucket}.M.>" not in config.subjects:
            raise InvalidOptionError(
                f"stream {config.name!r} is not an object store: it does not capture $O.{bucket}.M.>"
            )
        return ObjectStore(api, publisher, Stream(api, info))

    return Buckets(api, prefix=STREAM_PREFIX, subjects="$O.*.C.>", configure=object_store_config, handle=handle)
