"""Watching objects: what there is now, and every change from then on, in order and without gaps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetlake.client.messages.message import Message
from jetlake.client.objects.info import ObjectInfo, decode_info
from jetlake.client.ordered.ordered import OrderedConsumer
from jetlake.client.ordered.watch import Watch, WatchHandler
from jetlake.errors import ObjectError
from jetlake.model.stream import StreamInfo

__all__ = ["ObjectWatch"]


class ObjectWatch(Watch[ObjectInfo]):
    """The objects of an object store, without end; made by `ObjectStore.watch`.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. The objects that are there
    when it begins come first; `current` takes just those. It survives lost connections and restarted servers, and ends
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
