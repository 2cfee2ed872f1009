"""Watches: the last message of each subject, then every change, as entries of a bucket or object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum, auto
from typing import Generic, Self, TypeVar

from jetlake.client.api.api_caller import is_passing
from jetlake.client.messages.message import Message
from jetlake.client.ordered.ordered import OrderedConsumer
from jetlake.client.settings.options import duration_s
from jetlake.errors import InvalidOptionError, JetlakeError, PermissionsError, RequestTimeoutError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.stream import StreamInfo

T = TypeVar("T")

WatchHandler = Callable[[T], Awaitable[None] | None]
"""A plain or a coroutine function that takes a change."""

_LOOK_FIRST_S = 0.1
_LOOK_MAX_S = 2.0
_NEVER = 1 << 63
"""A sequence that no stream reaches."""


class Watch(Generic[T]):
    """The values of some subjects, without end.

    Use it as an async context manager and iterate over it; with a handler, wait on `wait()`. The values at the
    beginning come first; `current` takes just these. A watch survives lost connections and restarted servers, and
    ends with an error when its bucket does.

    Args:
        name: the name of the bucket, for people.
        ordered: reads the messages.
        convert: makes a value of a message; None to leave the message out.
        stream_info: asks the server about the stream.
        one_per_subject: whether the read begins with the last message of each subject.
        handler: called with each value, one at a time.
    """

    __slots__ = ("_convert", "_is_current", "_name", "_one_per_subject", "_reading", "_stream_info")

    def __init__(
        self,
        name: str,
        ordered: OrderedConsumer,
        convert: Callable[[Message], T | None],
        stream_info: Callable[[], Awaitable[StreamInfo]],
        *,
        one_per_subject: bool,
        handler: WatchHandler[T] | None = None,
    ) -> None:
        if handler is not None and not callable(handler):
            raise InvalidOptionError(f"handler must be a function that takes a change, not {handler!r}")
        self._name = name
        self._convert = convert
        self._stream_info = stream_info
        self._one_per_subject = one_per_subject
        self._is_current = False
        self._reading = ordered.consume(None if handler is None else self._handled_by(handler))

    def _handled_by(self, handler: WatchHandler[T]) -> Callable[[Message], Awaitable[None] | None]:
        convert = self._convert

        def handle(message: Message) -> Awaitable[None] | None:
            value = convert(message)
            return None if value is None else handler(value)

        return handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}{' ended' if self._reading.is_stopped else ''}>"

    def start(self) -> Self:
        """Start; entering the context manager, `current` and iterating do it too."""
        self._reading.start()
        return self

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._reading.__aexit__(kind)

    async def stop(self) -> None:
        """End the watch, and the loops that iterate over it."""
        await self._reading.stop()

    def report(self, error: Exception) -> None:
        """Report an error that a handler of the blocking client raised."""
        self._reading.report(error)

    async def wait(self) -> None:
        """Wait until a watch with a handler ends; raises the error that ended it, if any."""
        await self._reading.wait()

    async def current(self) -> list[T]:
        """Return the remaining initial values; may be empty.

        Values that are written meanwhile may be among them, so a subject may come twice, oldest first.

        Raises:
            ConsumeError: the watch ended.
        """
        values: list[T] = []
        self.start()
        count = await self._reading.pending_at_start()
        self._is_current = self._is_current or not count
        snapshot = Snapshot(count, one_per_subject=self._one_per_subject)
        wait_s = _LOOK_FIRST_S
        while not self._is_current:
            try:
                message = await self._reading.next(wait_s)
            except RequestTimeoutError:
                # Messages that were counted at the start may have been purged or have expired since.
                self._is_current = await self._reading.is_caught_up()
                wait_s = min(_LOOK_MAX_S, wait_s * 2)
                continue
            wait_s = _LOOK_FIRST_S
            value = self._convert(message)
            if value is not None:
                values.append(value)
            progress = snapshot.take(message)
            if progress is SnapshotProgress.UNSURE:
                progress = await self._find_end(snapshot, message)
            self._is_current = progress is SnapshotProgress.COMPLETE
        return values

    async def _find_end(self, snapshot: Snapshot, message: Message) -> SnapshotProgress:
        try:
            return snapshot.set_end((await self._stream_info()).state.last_seq, message)
        except PermissionsError:
            # A user without permission for STREAM.INFO goes by the pending count.
            return snapshot.set_end(_NEVER, message) if message.metadata.pending else SnapshotProgress.COMPLETE
        except JetlakeError as error:
            if not is_passing(error):
                raise
            # No leader, or no answer: the next message asks again, or `is_caught_up` once none comes.
            return SnapshotProgress.READING

    async def next(self, timeout: Seconds | None = None) -> T:
        """Return the next change.

        Args:
            timeout: seconds to wait; for ever when None.

        Raises:
            RequestTimeoutError: none came in time.
            ConsumeError: the watch ended.
        """
        try:
            async with asyncio.timeout(None if timeout is None else duration_s("timeout", timeout)) as limit:
                while True:
                    value = self._value(await self._reading.next())
                    if value is not None:
                        return value
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError(f"no change of {self._name!r} within {timeout} s") from None

    async def next_batch(self) -> list[T]:
        """Return all changes that have arrived, at least one; an empty list once the watch is stopped.

        Raises:
            ConsumeError: the watch ended.
        """
        while messages := await self._reading.next_batch():
            values = [value for value in map(self._value, messages) if value is not None]
            if values:
                return values
        return []

    async def __aiter__(self) -> AsyncIterator[T]:
        async for message in self._reading:
            value = self._value(message)
            if value is not None:
                yield value

    def _value(self, message: Message) -> T | None:
        if not message.metadata.pending:
            self._is_current = True
        return self._convert(message)


_ENDS_MAX = 8


class SnapshotProgress(Enum):
    """The progress of a snapshot after a message."""

    READING = auto()
    """More is to come."""
    UNSURE = auto()
    """This may have been the last message: the stream's last sequence tells, see `Snapshot.set_end`."""
    COMPLETE = auto()
    """This was the last message."""


class Snapshot:
    """The end of a snapshot: when a read has all messages that existed at its beginning, while others write.

    The pending count of a delivery says when the read has caught up. nats-server counts too little while messages are
    replaced, down to 0 for the first of many; so a count of 0 is trusted once `count` messages came. Otherwise, and
    where a fast writer keeps the count above 0, the read continues up to a sequence that was the stream's last one. A
    message that is replaced before it is read comes after that sequence, so while some are missing the end is moved a
    few times.

    Args:
        count: number of messages at the beginning.
        one_per_subject: whether they are the last ones of their subjects, so that a newer message of a subject counts
            for the missing one.
    """

    __slots__ = ("_count", "_end", "_ends", "_one_per_subject", "_seen")

    def __init__(self, count: int, *, one_per_subject: bool) -> None:
        self._count = count
        self._one_per_subject = one_per_subject
        self._seen: set[bytes | int] = set()
        self._end: int | None = None
        self._ends = 0

    def take(self, message: Message) -> SnapshotProgress:
        """Count the next message."""
        metadata = message.metadata
        self._seen.add(message.raw_subject if self._one_per_subject else metadata.stream_seq)
        has_all = len(self._seen) >= self._count
        if has_all and not metadata.pending:
            return SnapshotProgress.COMPLETE
        if self._end is None:
            is_near = has_all or not metadata.pending
            return SnapshotProgress.UNSURE if is_near else SnapshotProgress.READING
        if metadata.stream_seq < self._end:
            return SnapshotProgress.READING
        return SnapshotProgress.COMPLETE if has_all or self._ends >= _ENDS_MAX else SnapshotProgress.UNSURE

    def set_end(self, last_sequence: int, message: Message) -> SnapshotProgress:
        """Set the end to the stream's last sequence, asked for after this message."""
        self._end = last_sequence
        self._ends += 1
        is_end = message.metadata.stream_seq >= last_sequence
        return SnapshotProgress.COMPLETE if is_end else SnapshotProgress.READING
