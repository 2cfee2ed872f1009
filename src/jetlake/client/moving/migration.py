"""A move of one stream with its consumers from one server or cluster to another, while both are in use."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jetlake.client.jetstream import JetStream
from jetlake.client.moving.gate import Gate, resume_consumers
from jetlake.client.moving.marks import (
    fence_of,
    is_closed,
    is_complete,
    is_staged,
    opened,
    staged,
    unmarked,
    with_bulk,
)
from jetlake.client.moving.plan import WHOLE_MAX_BYTES, check_movable, reason_for_whole
from jetlake.client.moving.positions import durable_consumers, find_difference, recreate, undone
from jetlake.client.moving.staged_publisher import WrongSequenceError
from jetlake.client.moving.tail import Tail
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, MigrationError, StreamNotFoundError
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.stream import StreamState

__all__ = ["Migration", "Moved", "MovedConsumer"]

_DRAIN_S = 5.0
# A round of the tail that copies less than this leaves so little that the pause is short.
_SHORT_ROUND = 1000
_NAME_IS_RESERVED = 10130
_RESERVED_S = 15.0
_COMPARISONS_MAX = 150
_COMPARE_AGAIN_S = 0.1


class MovedConsumer(msgspec.Struct, frozen=True):
    """A consumer that was moved."""

    name: str
    before: int
    """Messages that were not acknowledged at the source."""
    after: int
    """Messages that are not acknowledged at the target."""


class Moved(msgspec.Struct, frozen=True):
    """What was moved."""

    stream: str
    before: StreamState
    """What the source held when it was closed."""
    after: StreamState
    """What the target held when it was opened."""
    consumers: tuple[MovedConsumer, ...]
    pause_s: float
    """Seconds between the last message that the source took and the first that the target could take."""
    whole_because: str = ""
    """Why the whole stream was copied in the pause; empty when only its tail was."""


class Migration:
    """Moves a stream; interrupted at any point, another one with the same arguments goes on where it stopped.

    At no time are both streams open for publishers: the source is closed before the target is opened, and each is one
    update of a stream's configuration, which also holds how far the move is.

    Args:
        source: where the stream is.
        target: where it goes.
        stream: its name.
        num_replicas: copies at the target. Default: as many as at the source, one where there is no cluster.
        drain_s: how long workers have to acknowledge what they hold before the consumers' positions are taken.
        whole_max_bytes: copy streams up to this size whole in the pause: then message times, delivery counts and
            messages that are acknowledged out of order are carried too. Default: 32 MiB, and 0 to a cluster, where a
            restored stream has no leader for some seconds.
        tell: called with each step, in words.

    Raises:
        MigrationError: the stream cannot be moved, or something else changed one of the two streams meanwhile.
    """

    def __init__(
        self,
        source: JetStream,
        target: JetStream,
        stream: str,
        *,
        num_replicas: int | None = None,
        drain_s: float = _DRAIN_S,
        whole_max_bytes: int | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._name = stream
        self._num_replicas = num_replicas
        self._drain_s = drain_s
        self._is_to_cluster = bool(target.api.connection.info.cluster)
        default_bytes = 0 if self._is_to_cluster else WHOLE_MAX_BYTES
        self._whole_max_bytes = default_bytes if whole_max_bytes is None else whole_max_bytes
        self._tell = tell

    async def run(self) -> Moved:
        """Move the stream, or go on with a move that was interrupted; a move that is complete is only compared."""
        try:
            return await self._move()
        except StreamNotFoundError:
            copy = await self._orphan()
            if copy is None:
                raise
            raise MigrationError(
                f"{self._name} was deleted at the source: undo the move to delete the unfinished copy at the target, "
                f"which holds {copy.cached_info.state.messages} messages"
            ) from None

    async def _move(self) -> Moved:
        stream = await self._source.stream(self._name)
        copy = await self._find_copy(stream)
        if copy is not None and not is_staged(copy.config):
            return await self._finished(stream, copy)
        consumers = await durable_consumers(stream)
        features = frozenset(self._target.api.connection.info.jetlake_features)
        check_movable(unmarked(stream.config), consumers, features)
        await self._check_subjects(stream)
        whole_because = reason_for_whole(stream.cached_info, consumers, self._whole_max_bytes)
        if not whole_because:
            copy = await self._copy_bulk(stream, copy)
            whole_because = await self._follow(Tail(stream, copy, self._target.api))
        return await self._switch(stream, copy, whole_because)

    async def undo(self) -> bool:
        """Drop an unfinished copy, and let publishers and consumers go on at the source.

        Returns:
            Whether they can: False when the stream was deleted at the source.

        Raises:
            MigrationError: the move is complete.
        """
        orphan = await self._orphan()
        if orphan is not None:
            self._tell("deleting the copy")
            await orphan.delete()
            return False
        stream = await self._source.stream(self._name)
        copy = await self._find_copy(stream)
        if copy is not None and not is_staged(copy.config):
            raise MigrationError(f"{self._name} is open at the target: move it back instead, to take along what is new")
        if copy is not None:
            self._tell("deleting the copy")
            await copy.delete()
        self._tell("opening the source")
        await self._gate(stream).open()
        return True

    async def _orphan(self) -> Stream | None:
        """Return the unfinished copy at the target whose stream was deleted at the source."""
        with suppress(StreamNotFoundError):
            await self._source.stream(self._name)
            return None
        with suppress(StreamNotFoundError):
            copy = await self._target.stream(self._name)
            return copy if is_staged(copy.config) else None
        return None

    async def _find_copy(self, stream: Stream) -> Stream | None:
        """Return the stream of that name at the target if it is the copy: staged, or open with a closed source."""
        try:
            copy = await self._target.stream(self._name)
        except StreamNotFoundError:
            return None
        if is_staged(copy.config):
            return copy
        fence = fence_of(stream.config)
        state = copy.cached_info.state
        if fence is None or not is_closed(stream.config) or state.last_seq < stream.cached_info.state.last_seq:
            raise MigrationError(f"the target has a stream {self._name} already, which is not a copy of this one")
        return copy

    async def _check_subjects(self, stream: Stream) -> None:
        """Check that the target can be opened in the end, while the source is.

        Raises:
            MigrationError: another stream of the target captures one of the subjects.
        """
        for subject in unmarked(stream.config).subjects:
            for name in await self._target.stream_names(subject):
                if name != self._name:
                    raise MigrationError(f"stream {name} of the target captures {subject} too: change one of the two")

    # The bulk

    async def _copy_bulk(self, stream: Stream, copy: Stream | None) -> Stream:
        """Copy what the stream holds now, while it is in use."""
        if copy is not None and is_complete(copy.config) and await Tail(stream, copy, self._target.api).is_equal():
            self._tell("going on with the copy that is there")
            return copy
        copy = await self._restore(stream, copy, takes_tail=True)
        await copy.update(with_bulk(copy.config))
        return copy

    async def _restore(self, stream: Stream, old: Stream | None, *, takes_tail: bool) -> Stream:
        if old is not None:
            self._tell("deleting an unfinished copy")
            await old.delete()
        config = staged(unmarked(stream.config), self._replicas(stream), takes_tail=takes_tail)
        self._tell("copying the stream")
        with tempfile.TemporaryFile() as archive:
            await stream.backup(archive, consumers=not takes_tail)
            give_up_at = time.monotonic() + _RESERVED_S
            while True:
                archive.seek(0)
                try:
                    return await self._target.restore(archive, config)
                except ApiError as error:
                    # A restore that was cut off reserves the name until the server has waited for the rest in vain.
                    if error.err_code != _NAME_IS_RESERVED or time.monotonic() > give_up_at:
                        raise
                    await asyncio.sleep(0.5)

    def _replicas(self, stream: Stream) -> int:
        if self._num_replicas is not None:
            return self._num_replicas
        return stream.config.num_replicas if self._is_to_cluster else 1

    async def _follow(self, tail: Tail) -> str:
        """Copy the tail until little is left; the reason, if that does not work for this stream."""
        try:
            copied = await self._copy_round(tail)
            # Rounds that do not shrink any more leave as much for the pause, however many there are.
            while copied >= _SHORT_ROUND:
                before, copied = copied, await self._copy_round(tail)
                if copied >= before:
                    break
            await tail.remove_removed()
        except WrongSequenceError as error:
            return str(error)
        return ""

    async def _copy_round(self, tail: Tail) -> int:
        """Copy what the source has stored so far; how many sequences that were."""
        last = (await self._source.stream(self._name)).cached_info.state.last_seq
        copied = await tail.copy(last)
        self._tell(f"copied up to sequence {last}")
        return copied

    # The switch

    async def _switch(self, stream: Stream, copy: Stream | None, whole_because: str) -> Moved:
        gate = self._gate(stream)
        await self._check_subjects(stream)
        self._tell("pausing the consumers")
        await gate.pause_consumers(self._drain_s)
        self._tell("closing the source")
        last = await gate.close()
        config = (await stream.info()).config
        if copy is not None and not whole_because:
            whole_because = await self._finish_tail(stream, copy, last)
        if copy is None or whole_because:
            copy = await self._restore(stream, copy, takes_tail=False)
        consumers = await durable_consumers(stream)
        fence = fence_of(config)
        names = [info.name for info in consumers]
        await resume_consumers(self._target, copy, names, fence.pauses if fence is not None else {})
        self._tell("comparing")
        before, after, consumers = await self._compare(stream, copy, last, consumers)
        self._tell("opening the target")
        await copy.update(opened(unmarked(config), self._replicas(stream)))
        closed_at = fence.closed_at if fence is not None else ""
        pause_s = (time.time_ns() - parse_time(closed_at)) / 1e9 if closed_at else 0.0
        await self._check_closed(stream, last)
        return Moved(
            stream=self._name,
            before=before,
            after=after,
            consumers=tuple(MovedConsumer(info.name, undone(info), undone(info)) for info in consumers),
            pause_s=pause_s,
            whole_because=whole_because,
        )

    async def _finish_tail(self, stream: Stream, copy: Stream, last: int) -> str:
        """Copy the rest and re-create the consumers; the reason, if they cannot be placed exactly."""
        tail = Tail(stream, copy, self._target.api)
        fence = fence_of(stream.config)
        try:
            await tail.copy(last)
            await tail.remove_removed()
            consumers = await durable_consumers(stream)
            self._tell("placing the consumers")
            pauses = fence.pauses if fence is not None else {}
            await recreate(self._target, copy, consumers, pauses, self._replicas(stream))
        except (WrongSequenceError, ApiError) as error:
            return str(error)
        return await find_difference(copy, consumers, is_clustered=self._is_to_cluster)

    async def _compare(
        self, stream: Stream, copy: Stream, last: int, consumers: list[ConsumerInfo]
    ) -> tuple[StreamState, StreamState, list[ConsumerInfo]]:
        """Wait until both hold the same; a closed stream still loses what expires, and its consumers have less left.

        Returns:
            What both hold, and what is left for the consumers.

        Raises:
            MigrationError: they differ.
        """
        tail = Tail(stream, copy, self._target.api)
        for _ in range(_COMPARISONS_MAX):
            await tail.remove_removed()
            before, after = (await stream.info()).state, (await copy.info()).state
            if before.last_seq != last:
                raise MigrationError(f"{self._name} stored messages after {last}, though it is closed: run this again")
            if _counts(before) != _counts(after):
                difference = f"the copy differs: {_counts(before)} at the source, {_counts(after)} at the target"
            else:
                difference = await find_difference(copy, consumers, is_clustered=False)
            if not difference:
                return before, after, consumers
            await asyncio.sleep(_COMPARE_AGAIN_S)
            consumers = await durable_consumers(stream)
        raise MigrationError(difference)

    async def _check_closed(self, stream: Stream, last: int) -> None:
        try:
            stored = (await stream.info()).state.last_seq
        except StreamNotFoundError:
            return  # Deleted since the target is open.
        if stored != last:
            raise MigrationError(
                f"{self._name} moved up to sequence {last}, but the source stored {last + 1} to {stored} even later: "
                "publish those to the target"
            )

    async def _finished(self, stream: Stream, copy: Stream) -> Moved:
        self._tell("the stream has moved already")
        consumers = await durable_consumers(stream)
        after = {info.name: undone(info) for info in await durable_consumers(copy)}
        return Moved(
            stream=self._name,
            before=stream.cached_info.state,
            after=copy.cached_info.state,
            consumers=tuple(MovedConsumer(info.name, undone(info), after.get(info.name, 0)) for info in consumers),
            pause_s=0.0,
        )

    def _gate(self, stream: Stream) -> Gate:
        return Gate(self._source, stream, lambda: format_time(time.time_ns()))


def _counts(state: StreamState) -> dict[str, int]:
    """Return what must be equal; an empty stream has no first message."""
    first = state.first_seq if state.messages else 0
    return {"messages": state.messages, "first": first, "last": state.last_seq, "subjects": state.num_subjects}
