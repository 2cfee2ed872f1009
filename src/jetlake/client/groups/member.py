"""A member of a consumer group at work: joins its consumer, handles messages in order, follows the group's changes.

Order per key is the server's: the member's consumer has one message out at a time unless it is told otherwise, so
whatever becomes of that message, no later one overtakes it. A partition changes hands only after the consumer that had
it is gone, and a member deletes its consumer only after its handler has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypedDict

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import ConsumerOptions
from jetlake.client.groups.config import (
    GroupConfig,
    decode_config,
    is_same_group,
    member_filters,
    member_partitions,
)
from jetlake.client.groups.handling import GroupHandler, Handling
from jetlake.client.groups.place import PRIORITY_GROUP, GroupPlace
from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.entry import Entry
from jetlake.client.pull.consume import Consume
from jetlake.client.pull.consumer import Consumer
from jetlake.client.pull.pull_options import ConsumeOptions, GroupOptions
from jetlake.client.pull.retry_options import Backoff, retry_options
from jetlake.client.settings.options import EventCallback, duration_s
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import (
    ApiError,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerGroupError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NotFoundError,
    PermissionsError,
    PullStatusError,
    StreamNotFoundError,
)
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.durations import Seconds

__all__ = ["GroupMember", "MemberOptions"]

_ACK_WAIT_S = 5.0
_PULL_MIN_S = 1.0
_JOIN_FIRST_S = 0.1
_JOIN_MAX_S = 1.0
_PARTITION_TAKEN = 10100
_SERVER_FAILED = 500
_FATAL = (PermissionsError, ConnectionClosedError, PullStatusError)


class MemberOptions(TypedDict, total=False):
    """How a member works."""

    ack_wait: Seconds
    """Seconds after which another instance takes over from one that is gone. Default 5."""
    max_ack_pending: int
    """How many messages may be out. Default 1, which keeps every key in order whatever fails; more is faster, and lets
    later messages overtake one that failed or whose member died."""
    retries: int
    """How often a message whose handler raised is tried again before it is given up. Default: until it succeeds, after
    each ack wait; 3 when `backoff` or `dead_letter` is given. The others of the member wait for it."""
    backoff: Backoff
    """Seconds before each retry; see `Consumer.consume`."""
    dead_letter: str
    """The subject that a message is stored under when it is given up; see `Consumer.consume`."""
    on_error: EventCallback
    """Called instead of the client's `on_error` with what nobody waits for, such as failing handlers."""


class GroupMember:
    """A member at work; made by `ConsumerGroup.consume`.

    Use it as an async context manager, or `start` and `stop`. `wait` tells when the group has ended it.

    Args:
        api: manages the consumer.
        bucket: has the configurations of groups.
        place: where the group is.
        config: the group as it is now.
        name: the member's name.
        handler: called with each message.
        options: how it works.
    """

    def __init__(
        self,
        api: ApiCaller,
        bucket: KeyValue,
        place: GroupPlace,
        config: GroupConfig,
        name: str,
        handler: GroupHandler,
        options: MemberOptions,
    ) -> None:
        if not callable(handler):
            raise InvalidOptionError(f"handler is a function that takes a message, not {handler!r}")
        if unknown := options.keys() - MemberOptions.__annotations__.keys():
            raise InvalidOptionError(f"a member has no option {sorted(unknown)[0]!r}")
        self._api = api
        self._bucket = bucket
        self._place = place
        self._config = config
        self.name = check_name("member", name)
        self._options = options
        self._ack_wait_s = duration_s("ack_wait", options.get("ack_wait", _ACK_WAIT_S))
        if self._ack_wait_s <= 0:
            raise InvalidOptionError(f"ack_wait is more than 0 seconds, not {self._ack_wait_s:g}")
        self._max_ack_pending = options.get("max_ack_pending", 1)
        self._reading: Consume | None = None
        self._ended: asyncio.Task[None] | None = None
        self._is_awaited = False
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._handling = Handling(
            handler,
            self._ack_wait_s,
            self._consumer_info if self._max_ack_pending == 1 else None,
            self._stopping,
            self._report,
        )

    def __repr__(self) -> str:
        state = "not started" if self._task is None else "ended" if self._task.done() else "at work"
        return f"<GroupMember {self.name!r} of {self._place.key!r} {state} partitions {list(self.partitions)}>"

    @property
    def partitions(self) -> tuple[int, ...]:
        """Its partitions, as far as it has heard; none while the group does not have it."""
        return member_partitions(self._config, self.name)

    @property
    def is_active(self) -> bool:
        """Whether this instance gets messages: it has its consumer, and no other instance of the member is pinned."""
        return self._reading is not None and bool(self._reading.pin_id)

    # Life

    async def start(self) -> Self:
        """Begin to work; entering the context manager does it too."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"jetlake-group-{self._place.key}-{self.name}")
            self._task.add_done_callback(self._tell_end)
        return self

    async def stop(self) -> None:
        """Finish the message at work and take no others; a handler that calls this is not waited for."""
        self._stopping.set()
        if self._task is not None and not self._handling.is_caller:
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Wait until the member was stopped or its group was deleted.

        Raises:
            ConsumerGroupError: the group was changed in a way that no member survives.
            JetlakeError: something else ended it.
        """
        self._is_awaited = True
        await self.start()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _run(self) -> None:
        beat = asyncio.create_task(self._handling.keep_in_progress())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            async with self._bucket.watch(self._place.key) as changes:
                await self._follow(stopped, changes.next)
        finally:
            beat.cancel()
            stopped.cancel()
            await self._leave()

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        """Report what has ended the member, unless somebody waits for that."""
        error = None if task.cancelled() or self._is_awaited else task.exception()
        if isinstance(error, Exception):
            self._report(error)

    async def _follow(self, stopped: asyncio.Task[bool], next_change: Callable[[], Awaitable[Entry]]) -> None:
        """Join, and join again after every change of the group, until it is over."""
        join_s = _JOIN_FIRST_S
        change = asyncio.ensure_future(next_change())
        try:
            while not stopped.done():
                if self._reading is None and self.partitions:
                    await self._join()
                waits: set[asyncio.Future[object]] = {stopped, change}  # type: ignore[arg-type]
                if self._ended is not None:
                    waits.add(self._ended)  # type: ignore[arg-type]
                    join_s = _JOIN_FIRST_S
                is_due = self._reading is None and bool(self.partitions)
                await asyncio.wait(waits, timeout=join_s if is_due else None, return_when=asyncio.FIRST_COMPLETED)
                if is_due:
                    join_s = min(_JOIN_MAX_S, join_s * 2)
                if change.done():
                    if not await self._take_change(change.result()):
                        return
                    change = asyncio.ensure_future(next_change())
                elif self._ended is not None and self._ended.done():
                    await self._take_end(self._ended)
        finally:
            change.cancel()

    # The group's configuration

    async def _take_change(self, entry: Entry) -> bool:
        """Follow the group's configuration; False when the group was deleted."""
        place = self._place
        if entry.is_deleted:
            await self._leave(delete=not place.is_elastic)
            return False
        before, self._config = self._config, decode_config(type(self._config), place.key, entry.value)
        if before == self._config:
            return True
        if not place.is_elastic or not is_same_group(before, self._config):
            await self._leave(delete=not place.is_elastic)
            raise ConsumerGroupError(f"the consumer group {place.key!r} was replaced by a different one")
        # The partitions may begin before what the old consumer has delivered, so a new one is made. An instance that
        # stands by leaves the old one to the instance that is at work with it.
        await self._leave(delete=True)
        return True

    async def _take_end(self, ended: asyncio.Task[None]) -> None:
        """Join again when another instance has replaced the consumer, or it was gone or silent for long."""
        self._reading = self._ended = None
        error = ended.exception()
        if error is None or isinstance(error, ConsumerDeletedError):
            return
        if not isinstance(error, JetlakeError) or isinstance(error, _FATAL):
            raise error
        self._report(error)

    # The member's consumer

    async def _join(self) -> None:
        """Create the member's consumer, or find the one that other instances have, and read it."""
        elastic = self._place.is_elastic
        stream = stream_handle(self._api, self._place.stream)
        try:
            consumer = await stream.create_consumer(
                self._place.consumer(self.name), durable=not elastic, **self._consumer_options()
            )
        except (StreamNotFoundError, *_FATAL):
            raise
        except ConsumerExistsError:
            if not elastic:
                raise  # Another instance works with other options: both would wait for ever.
            return  # The consumer of the group's former configuration goes with the instance that has it.
        except JetlakeError as error:
            if not isinstance(error, ApiError) or error.code >= _SERVER_FAILED:
                self._report(error)
            elif error.err_code != _PARTITION_TAKEN:
                raise
            return  # The server is not ready, or another member has not left a partition yet that is this one's now.
        self._handling.begin(consumer.cached_info.created)
        self._reading = self._read(consumer).start()
        self._ended = asyncio.create_task(self._reading.wait())

    def _consumer_options(self) -> ConsumerOptions:
        options: ConsumerOptions = {
            "filter_subjects": member_filters(self._config, self.name),
            "ack_policy": "explicit",
            "ack_wait": self._ack_wait_s,
            "max_ack_pending": self._max_ack_pending,
            "priority_policy": "pinned_client",
            "priority_groups": [PRIORITY_GROUP],
            "priority_timeout": max(self._ack_wait_s, _PULL_MIN_S),
        }
        if self._place.is_elastic:
            options["inactive_threshold"] = self._ack_wait_s
        return options

    def _read(self, consumer: Consumer) -> Consume:
        options = self._options
        expires_s = max(self._ack_wait_s / 2, _PULL_MIN_S)
        retries = retry_options(
            consumer.config, options.get("retries"), options.get("backoff"), options.get("dead_letter")
        )
        return consumer.consume_with(
            ConsumeOptions(
                max_messages=self._max_ack_pending,
                threshold_messages=self._max_ack_pending // 2,
                expires_s=expires_s,
                idle_heartbeat_s=expires_s / 2,
                on_missed_heartbeat="continue",
                group=GroupOptions(group=PRIORITY_GROUP),
                on_error=options.get("on_error"),
                retries=retries,
            ),
            self._handling.handle,
        )

    async def _leave(self, *, delete: bool = False) -> None:
        """Stop reading once the handler has returned; pulls go on meanwhile, so that the server keeps the consumer.

        Args:
            delete: delete the consumer too, unless another instance is at work with it. Otherwise another instance may
                be pinned at once.
        """
        reading, ended = self._reading, self._ended
        if reading is None or ended is None:
            return
        await self._handling.end()
        await reading.stop()
        await asyncio.wait([ended])
        ended.exception()
        self._reading = self._ended = None
        try:
            if self._handling.acked:
                # A server may take an acknowledgement later than a request that comes after it.
                await self._api.connection.request_raw(self._handling.acked, b"", b"+ACK", None)
            await self._give_up_consumer(reading.pin_id, delete=delete)
        except (NotFoundError, NoRespondersError):
            pass  # The consumer is gone.
        except JetlakeError as error:
            self._report(error)

    async def _give_up_consumer(self, pin_id: str, *, delete: bool) -> None:
        stream = stream_handle(self._api, self._place.stream)
        consumer = await stream.consumer(self._place.consumer(self.name))
        # The server pins an instance with the first message that it delivers to it, and unpins it though it is at work.
        info = consumer.cached_info
        pinned = {state.pinned_client_id for state in info.priority_groups}
        is_idle = not info.num_ack_pending and pinned <= {""}
        if delete and (is_idle or (pin_id and pinned == {pin_id})):
            await consumer.delete()
        elif pin_id and pin_id in pinned:
            await consumer.unpin(PRIORITY_GROUP)

    async def _consumer_info(self) -> ConsumerInfo:
        return await stream_handle(self._api, self._place.stream).consumer_info(self._place.consumer(self.name))

    def _report(self, error: Exception) -> None:
        self._api.connection.report(self._options.get("on_error"), error)
