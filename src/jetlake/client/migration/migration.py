"""The migration of one stream with its consumers from one server or cluster to another, while both are in use.

::

    source  open ------------------ consumers paused - closed (fenced)
    target        bulk, then tail, staged ------------ rest of the tail - compared - open

At no time are both streams open for publishers. Each step is one update of a stream's configuration, which also holds
how far the migration is (`marks`), so that another run resumes after an interruption at any point. A stream whose tail
cannot be repeated message by message is copied whole between the closing of the source and the opening of the target.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jetlake.client.api.consumer_api import create_consumer
from jetlake.client.jetstream import JetStream
from jetlake.client.migration.gate import Gate, resume_consumers
from jetlake.client.migration.marks import (
    fence_of,
    is_closed,
    is_complete,
    is_staged,
    opened,
    staged,
    unmarked,
    with_bulk,
)
from jetlake.client.migration.tail import Tail, WrongSequenceError
from jetlake.client.streams.stream import Stream
from jetlake.errors import ApiError, ConsumerNotFoundError, MigrationError, StreamNotFoundError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.consumer_features import features_of
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.enums import AckPolicy, ConsumerAction, DeliverPolicy, RetentionPolicy
from jetlake.model.replies import ConsumerResetReply
from jetlake.model.requests import ConsumerResetRequest
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState

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
    """The result of a migration."""

    stream: str
    before: StreamState
    """The state of the source when it was closed."""
    after: StreamState
    """The state of the target when it was opened."""
    consumers: tuple[MovedConsumer, ...]
    pause_s: float
    """Seconds between the last message that the source took and the first that the target could take."""
    whole_because: str = ""
    """Why the whole stream was copied in the pause; empty when only its tail was."""


class Migration:
    """Moves a stream; after an interruption at any point, another run with the same arguments resumes it.

    Args:
        source: where the stream is.
        target: where it goes.
        stream: its name.
        num_replicas: copies at the target. Default: as many as at the source, one where there is no cluster.
        drain_s: how long workers have to acknowledge their messages before the consumers' positions are read.
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
        """Move the stream, or resume an interrupted migration; a complete one is only compared."""
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
        consumers = await _durable_consumers(stream)
        features = frozenset(self._target.api.connection.info.jetlake_features)
        check_movable(unmarked(stream.config), consumers, features)
        await self._check_subjects(stream)
        whole_because = reason_for_whole(stream.cached_info, consumers, self._whole_max_bytes)
        if not whole_because:
            copy = await self._copy_bulk(stream, copy)
            whole_because = await self._follow(Tail(stream, copy, self._target.api))
        return await self._switch(stream, copy, whole_because)

    async def undo(self) -> bool:
        """Roll back: delete an unfinished copy, and open the source for publishers and consumers again.

        Returns:
            Whether the source is open: False when the stream was deleted there.

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
        """Copy the current messages of the stream, while it is in use."""
        if copy is not None and is_complete(copy.config) and await Tail(stream, copy, self._target.api).is_equal():
            # sometimes: a migration resumes with the existing copy
            self._tell("resuming with the existing copy")
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
        """Copy the tail until little is left, and return the reason if that does not work for this stream."""
        try:
            copied = await self._copy_round(tail)
            # Rounds that no longer shrink leave the same amount for the pause, however many follow.
            while copied >= _SHORT_ROUND:
                before, copied = copied, await self._copy_round(tail)
                if copied >= before:
                    break
            await tail.remove_removed()
        except WrongSequenceError as error:
            return str(error)
        return ""

    async def _copy_round(self, tail: Tail) -> int:
        """Copy all messages that the source has stored so far, and return the number of sequences."""
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
        consumers = await _durable_consumers(stream)
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
            consumers=tuple(MovedConsumer(info.name, _left(info), _left(info)) for info in consumers),
            pause_s=pause_s,
            whole_because=whole_because,
        )

    async def _finish_tail(self, stream: Stream, copy: Stream, last: int) -> str:
        """Copy the rest and recreate the consumers; return the reason if a position cannot be set exactly."""
        tail = Tail(stream, copy, self._target.api)
        fence = fence_of(stream.config)
        try:
            await tail.copy(last)
            await tail.remove_removed()
            consumers = await _durable_consumers(stream)
            self._tell("recreating the consumers")
            pauses = fence.pauses if fence is not None else {}
            await _recreate_consumers(self._target, copy, consumers, pauses, self._replicas(stream))
        except (WrongSequenceError, ApiError) as error:
            return str(error)
        return await _find_difference(copy, consumers, is_clustered=self._is_to_cluster)

    async def _compare(
        self, stream: Stream, copy: Stream, last: int, consumers: list[ConsumerInfo]
    ) -> tuple[StreamState, StreamState, list[ConsumerInfo]]:
        """Wait until both hold the same; in a closed stream messages still expire, and its consumers have less left.

        Returns:
            The states of both, and the consumers as compared.

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
                difference = await _find_difference(copy, consumers, is_clustered=False)
            if not difference:
                return before, after, consumers
            await asyncio.sleep(_COMPARE_AGAIN_S)
            consumers = await _durable_consumers(stream)
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
        consumers = await _durable_consumers(stream)
        after = {info.name: _left(info) for info in await _durable_consumers(copy)}
        return Moved(
            stream=self._name,
            before=stream.cached_info.state,
            after=copy.cached_info.state,
            consumers=tuple(MovedConsumer(info.name, _left(info), after.get(info.name, 0)) for info in consumers),
            pause_s=0.0,
        )

    def _gate(self, stream: Stream) -> Gate:
        return Gate(self._source, stream, lambda: format_time(time.time_ns()))


def _counts(state: StreamState) -> dict[str, int]:
    """Return what must be equal; an empty stream has no first message."""
    first = state.first_seq if state.messages else 0
    return {"messages": state.messages, "first": first, "last": state.last_seq, "subjects": state.num_subjects}


WHOLE_MAX_BYTES = 32 * 1024 * 1024
"""Streams up to this size are copied whole in the pause."""

# With these options, publishing a stored message again has another effect than the first time.
_NOT_REPEATABLE = (
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "subject_delete_marker_ttl",
)


def check_movable(config: StreamConfig, consumers: list[ConsumerInfo], target_features: frozenset[str]) -> None:
    """Refuse a stream that cannot be moved, before anything is done.

    Raises:
        MigrationError: the stream copies from others, is sealed, or a consumer needs features that the target lacks.
    """
    if config.mirror is not None or config.sources:
        raise MigrationError(f"{config.name} copies from other streams: configure that at the target instead")
    if config.sealed:
        raise MigrationError(f"{config.name} is sealed and does not change: back it up and restore it")
    for info in consumers:
        missing = features_of(info.config) - target_features
        if missing:
            raise MigrationError(f"consumer {info.name} has {', '.join(sorted(missing))}, which the target lacks")


def reason_for_whole(info: StreamInfo, consumers: list[ConsumerInfo], whole_max_bytes: int) -> str:
    """Return why a stream is copied whole in the pause; empty when its bulk is copied before."""
    config = info.config
    if info.state.bytes <= whole_max_bytes:
        return "it is small"
    if config.retention is RetentionPolicy.INTEREST:
        return "its retention is interest"
    if config.retention is RetentionPolicy.WORKQUEUE and not config.allow_direct:
        return "it is a work queue without allow_direct"
    for field in _NOT_REPEATABLE:
        if getattr(config, field):
            return f"it has {field}"
    for consumer in consumers:
        if consumer.config.deliver_policy not in RESETTABLE:
            return f"consumer {consumer.name} delivers {consumer.config.deliver_policy.value}"
    return ""


RESETTABLE = frozenset({DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE, DeliverPolicy.BY_START_TIME})
"""Deliver policies of consumers that can be set to any position."""

_POLL_S = 0.05
_CATCH_UP_S = 15.0


async def _durable_consumers(stream: Stream) -> list[ConsumerInfo]:
    """Return the consumers that move with a stream; readers recreate ephemeral ones themselves."""
    return [info for info in await stream.consumers() if info.config.durable_name and not info.config.is_copying]


def _left(info: ConsumerInfo) -> int:
    """Return the number of messages that a consumer has not seen acknowledged."""
    return info.num_pending + info.num_ack_pending


async def _recreate_consumers(
    js: JetStream, target: Stream, consumers: list[ConsumerInfo], pauses: dict[str, str], num_replicas: int
) -> None:
    """Create consumers whose positions follow the last message up to which everything is acknowledged.

    Args:
        js: the target.
        target: the stream there.
        consumers: the consumers at the source.
        pauses: consumers that are to be paused, each with the time until when.
        num_replicas: copies of the stream at the target.

    Raises:
        ApiError: the target refuses a consumer or its position.
    """
    for info in consumers:
        try:
            await target.delete_consumer(info.name)
        except ConsumerNotFoundError:
            pass
        config = _config(info, pauses.get(info.name), num_replicas)
        await create_consumer(js.api, target.name, config, ConsumerAction.CREATE)
        done = info.delivered if config.ack_policy is AckPolicy.NONE else info.ack_floor
        # A work queue holds only unacknowledged messages, so its consumers begin at the first one.
        if done.stream_seq and target.config.retention is not RetentionPolicy.WORKQUEUE:
            body = ConsumerResetRequest(seq=done.stream_seq + 1)
            await js.api.call(ConsumerResetReply, "CONSUMER.RESET", target.name, info.name, body=body)


def _config(info: ConsumerInfo, paused_until: str | None, num_replicas: int) -> ConsumerConfig:
    config = info.config
    metadata = {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}
    replicas = config.num_replicas if config.num_replicas <= num_replicas else 0
    return msgspec.structs.replace(config, metadata=metadata, pause_until=paused_until, num_replicas=replicas)


async def _find_difference(target: Stream, consumers: list[ConsumerInfo], *, is_clustered: bool) -> str:
    """Compare the unacknowledged messages at the target with those at the closed source.

    Args:
        target: the stream at the target.
        consumers: the consumers at the source.
        is_clustered: the target is a cluster, whose consumers learn of the stream's changes a moment later.

    Returns:
        The first lasting difference, in words; empty when there is none.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + (_CATCH_UP_S if is_clustered else 0)
    for info in consumers:
        while True:
            there = await target.consumer_info(info.name)
            if _left(there) == _left(info):
                break
            if loop.time() >= give_up_at:
                left = f"{_left(info)} messages left at the source, and {_left(there)} at the target"
                return f"consumer {info.name} has {left}"
            await asyncio.sleep(_POLL_S)
    return ""
