"""The catalog of an object store: the messages that describe its objects, one for each name."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from jetlake.client.objects.config import STREAM_PREFIX, chunk_subject, info_subject
from jetlake.client.objects.info import ObjectInfo, check_info, decode_info, marker_of
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.stream import Stream
from jetlake.errors import (
    DisconnectedError,
    JetlakeError,
    MessageNotFoundError,
    ObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jetlake.protocol.nuid import next_nuid

_CHANGES_MAX = 64
_LOST_ANSWERS_MAX = 3


class ObjectCatalog:
    """Finds, publishes and replaces the descriptions of objects.

    Args:
        publisher: publishes to the stream.
        stream: holds the object store.
    """

    __slots__ = ("_bucket", "_publisher", "_stream")

    def __init__(self, publisher: Publisher, stream: Stream) -> None:
        self._publisher = publisher
        self._stream = stream
        self._bucket = stream.name.removeprefix(STREAM_PREFIX)

    async def make_visible(self, info: ObjectInfo) -> ObjectInfo:
        """Publish the description of a stored content, and purge the content that it replaces."""
        lost_answers = 0
        replaced: ObjectInfo | None = None
        for _ in range(_CHANGES_MAX):
            try:
                old = await self.last(info.name)
                if old is not None and old.nuid == info.nuid:
                    stored = old  # The answer to the publish was lost, its message was not.
                else:
                    replaced = old
                    # After a lost answer, another writer may have replaced the object already, and purged its chunks:
                    # with an id, the object is not stored a second time. The id is a plain header, so that the
                    # connection reports a lost answer and does not publish again by itself.
                    stored = await self.publish(info, old, {"Nats-Msg-Id": info.nuid})
            except WrongLastSequenceError:
                continue  # Another writer was faster, and this content replaces that one.
            except (DisconnectedError, RequestTimeoutError):
                lost_answers += 1
                if lost_answers > _LOST_ANSWERS_MAX:
                    raise
                continue
            except JetlakeError:
                # After a lost answer the object may be visible, so its chunks stay.
                if not lost_answers:
                    await self.purge_chunks(info)
                raise
            # A content newer than the stored message has replaced it already, and belongs to another writer.
            if replaced is not None and not replaced.is_deleted and replaced.revision < stored.revision:
                await self.purge_chunks(replaced)
            self._publisher.own_writes.note(info_subject(self._bucket, info.name), stored.revision)
            return stored
        if not lost_answers:
            await self.purge_chunks(info)
        raise ObjectError(f"object {info.name!r} of {self._bucket!r} is being changed by others; put it again")

    async def publish(
        self, info: ObjectInfo, old: ObjectInfo | None, headers: Mapping[str, str] | None = None
    ) -> ObjectInfo:
        """Publish the message that describes an object, if its name has nothing newer than `old`."""
        ack = await self._publisher.publish(
            info_subject(self._bucket, info.name),
            check_info(info),
            {
                "headers": {"Nats-Rollup": "sub", **(headers or {})},
                "expected_last_subject_sequence": 0 if old is None else old.revision,
            },
        )
        self._publisher.own_writes.note(info_subject(self._bucket, info.name), ack.seq)
        return msgspec.structs.replace(info, revision=ack.seq, modified_ns=time.time_ns())

    async def last(self, name: str, *, leader: bool = True) -> ObjectInfo | None:
        """Return the object or marker of a name, from the stream's leader or else from any copy that is new enough.

        Raises:
            ObjectError: the message under the name describes no object.
        """
        subject = info_subject(self._bucket, name)
        own_writes = self._publisher.own_writes
        written = own_writes.newest(subject)
        try:
            if leader:
                message = await self._stream.get(last_by_subject=subject, direct=False)
            else:
                message = await self._stream.newest(subject, at_least=written)
        except MessageNotFoundError:
            own_writes.forget(subject)
            return None
        if message.sequence < written:
            own_writes.forget(subject)  # The leader has no newer one.
        return decode_info(
            self._bucket, message.payload, subject=subject, revision=message.sequence, time_ns=message.time_ns
        )

    async def purge_chunks(self, info: ObjectInfo) -> None:
        """Purge the chunks of a content without an object; after a failure `purge_orphans` removes them."""
        if not info.nuid or info.link is not None:
            return
        for _ in range(1 + _LOST_ANSWERS_MAX):
            try:
                await self._stream.purge(subject=chunk_subject(self._bucket, info.nuid))
                return
            except DisconnectedError:
                continue  # The request may be lost too, and purging twice does no harm.
            except JetlakeError:
                return

    async def live(self, name: str) -> ObjectInfo:
        """Return the existing object of a name.

        Raises:
            ObjectNotFoundError: no object has the name.
        """
        found = await self.last(name)
        if found is None or found.is_deleted:
            raise ObjectNotFoundError(self._bucket, name)
        return found

    async def rename(self, old: ObjectInfo, renamed: ObjectInfo) -> ObjectInfo:
        """Publish a content under its new name, then mark the old name deleted.

        A writer that changes the old name meanwhile may purge the content. So the old name is marked only if it is
        unchanged; otherwise the new name is marked deleted.

        Raises:
            ObjectExistsError: another object has the new name.
            WrongLastSequenceError: another writer has changed the object meanwhile.
        """
        taken = await self.last(renamed.name)
        if taken is not None and not taken.is_deleted and (not old.nuid or taken.nuid != old.nuid):
            raise ObjectExistsError(self._bucket, renamed.name)
        stored = await self.publish(renamed, taken)
        try:
            await self.publish(_marker_without_content(old), old)
        except WrongLastSequenceError:
            try:
                await self.publish(_marker_without_content(stored), stored)
            except WrongLastSequenceError:
                pass  # The new name has another content already.
            raise
        return stored

    async def vacant(self, name: str, *, is_link_replaced: bool = False) -> ObjectInfo | None:
        """Return the marker, or the replaceable link, of a free name; None if there is neither.

        Raises:
            ObjectExistsError: the name is taken.
        """
        found = await self.last(name)
        if found is None or found.is_deleted or (is_link_replaced and found.link is not None):
            return found
        raise ObjectExistsError(self._bucket, name)


def _marker_without_content(info: ObjectInfo) -> ObjectInfo:
    """Return a marker without the content's id: some clients purge the content that a marker names."""
    return msgspec.structs.replace(marker_of(info), nuid=next_nuid())
