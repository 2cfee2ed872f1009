"""A member of a consumer group at work: joins its consumer, handles messages in order, follows the group's changes.

The server keeps the order per key: the member's consumer has one message out at a time unless `max_ack_pending` says
otherwise, so no later message overtakes one that fails or is redelivered. A partition changes hands only after the
consumer that had it is deleted, and a member deletes its consumer only after its handler has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self, TypedDict

from jetlake.client.api.api_caller import check_name
from jetlake.client.api.config_options import ConsumerOptions
from jetlake.client.groups.config import (
    PRIORITY_GROUP,
    decode_config,
    is_same_group,
    member_filters,
    member_partitions,
)
from jetlake.client.kv.entry import Entry
from jetlake.client.messages.message import Message
from jetlake.client.pull.consume import Consume
from jetlake.client.pull.consumer import Consumer
from jetlake.client.pull.options import Backoff, ConsumeOptions, GroupOptions, retry_options
from jetlake.client.settings.options import ErrorCallback, duration_s
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

if TYPE_CHECKING:
    from jetlake.client.groups.groups import ConsumerGroup

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
    on_error: ErrorCallback
    """Called instead of the client's `on_error` with errors that no call can raise, such as a handler's."""


class GroupMember:
    """A member at work; created by `ConsumerGroup.consume`.

    Use it as an async context manager, or `start` and `stop`. `wait` tells when the group has ended it.

    Args:
        group: the group.
        name: the member's name.
        handler: called with each message.
        options: how it works.
    """

    def __init__(self, group: ConsumerGroup, name: str, handler: GroupHandler, options: MemberOptions) -> None:
        if not callable(handler):
            raise InvalidOptionError(f"handler must be a function that takes a message, not {handler!r}")
        if unknown := options.keys() - MemberOptions.__annotations__.keys():
            raise InvalidOptionError(f"a member has no option {sorted(unknown)[0]!r}")
        self._group = group
        self._config = group.config
        self.name = check_name("member", name)
        self._options = options
        self._ack_wait_s = duration_s("ack_wait", options.get("ack_wait", _ACK_WAIT_S))
        if self._ack_wait_s <= 0:
            raise InvalidOptionError(f"ack_wait must be more than 0 seconds, not {self._ack_wait_s:g}")
        self._max_ack_pending = options.get("max_ack_pending", 1)
        self._reading: Consume | None = None
        self._ended: asyncio.Task[None] | None = None
        self._is_awaited = False
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._handling = _Handling(self, handler)

    def __repr__(self) -> str:
        state = "not started" if self._task is None else "ended" if self._task.done() else "at work"
        return f"<GroupMember {self.name!r} of {self._group.names.key!r} {state} partitions {list(self.partitions)}>"

    @property
    def partitions(self) -> tuple[int, ...]:
        """Its partitions in the last known configuration; none while it is not a member."""
        return member_partitions(self._config, self.name)

    @property
    def is_active(self) -> bool:
        """Whether this instance gets messages: it has its consumer, and no other instance of the member is pinned."""
        return self._reading is not None and bool(self._reading.pin_id)

    # Life

    async def start(self) -> Self:
        """Start working; entering the context manager does it too."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"jetlake-group-{self._group.names.key}-{self.name}")
            self._task.add_done_callback(self._tell_end)
        return self

    async def stop(self) -> None:
        """Finish the current message and accept no others; does not wait for a handler that calls it."""
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
            async with self._group.bucket.watch(self._group.names.key) as changes:
                await self._follow(stopped, changes.next)
        finally:
            beat.cancel()
            stopped.cancel()
            await self._leave()

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        """Report the error that ended the member, unless a caller of `wait` gets it."""
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
        names = self._group.names
        if entry.is_deleted:
            await self._leave(delete=not names.is_elastic)
            return False
        before, self._config = self._config, decode_config(type(self._config), names.key, entry.value)
        if before == self._config:
            return True
        if not names.is_elastic or not is_same_group(before, self._config):
            await self._leave(delete=not names.is_elastic)
            raise ConsumerGroupError(f"the consumer group {names.key!r} was replaced by a different one")
        # The new partitions may have messages before the old consumer's position, so a new one is created. An instance
        # that stands by leaves the old one to the active instance.
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
        elastic = self._group.names.is_elastic
        stream = stream_handle(self._group.api, self._group.names.stream)
        try:
            consumer = await stream.create_consumer(
                self._group.names.consumer(self.name), durable=not elastic, **self._consumer_options()
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
            return  # The server is not ready, or another member has not left one of these partitions yet.
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
        if self._group.names.is_elastic:
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
        """Stop reading once the handler has returned; pulls continue meanwhile, so that the server keeps the consumer.

        Args:
            delete: delete the consumer too, unless another instance is at work with it. Otherwise another instance may
                be pinned at once.
        """
        reading, ended = self._reading, self._ended
        if reading is None or ended is None:
            return
        try:
            await self._handling.end()
        finally:
            await reading.stop()
        await asyncio.wait([ended])
        ended.exception()
        self._reading = self._ended = None
        try:
            if self._handling.acked:
                # A server may process an acknowledgement later than a request that comes after it.
                await self._group.api.connection.request_raw(self._handling.acked, b"", b"+ACK", None)
            await self._release_consumer(reading.pin_id, delete=delete)
        except (NotFoundError, NoRespondersError):
            pass  # The consumer is gone.
        except JetlakeError as error:
            self._report(error)

    async def _release_consumer(self, pin_id: str, *, delete: bool) -> None:
        stream = stream_handle(self._group.api, self._group.names.stream)
        consumer = await stream.consumer(self._group.names.consumer(self.name))
        # The server pins an instance with the first message that it delivers to it, and unpins it though it is at work.
        info = consumer.cached_info
        pinned = {state.pinned_client_id for state in info.priority_groups}
        is_idle = not info.num_ack_pending and pinned <= {""}
        if delete and (is_idle or (pin_id and pinned == {pin_id})):
            await consumer.delete()
        elif pin_id and pin_id in pinned:
            await consumer.unpin(PRIORITY_GROUP)

    async def _consumer_info(self) -> ConsumerInfo:
        return await stream_handle(self._group.api, self._group.names.stream).consumer_info(
            self._group.names.consumer(self.name)
        )

    def _report(self, error: Exception) -> None:
        self._group.api.connection.report(self._options.get("on_error"), error)


GroupHandler = Callable[[Message], Awaitable[None] | None]
"""A plain or a coroutine function that takes a message."""

_caller: ContextVar[_Handling | None] = ContextVar("jetlake_group_handling", default=None)


class _Handling:
    """Calls a member's handler with the messages of its consumer, one at a time and in order.

    An instance that was frozen or disconnected for longer than the ack wait may find a message that another instance
    has handled since: with one message out at a time, it asks the server first.

    Attributes:
        acked: the reply subject of the consumer's last message that was acknowledged here; empty for none.
    """

    __slots__ = (
        "_at_work",
        "_created",
        "_handler",
        "_is_ended",
        "_member",
        "_sure_at",
        "_turn",
        "acked",
    )

    def __init__(self, member: GroupMember, handler: GroupHandler) -> None:
        self._member = member
        self._handler = handler
        self._turn = asyncio.Lock()
        self._at_work: Message | None = None
        self._created = ""
        self._sure_at = 0.0
        self._is_ended = False
        self.acked = b""

    @property
    def is_caller(self) -> bool:
        """Whether the handler itself is asking."""
        return _caller.get() is self

    def begin(self, created: str) -> None:
        """Handle the messages of a consumer that was created then."""
        self._is_ended = False
        self._created = created
        self._sure_at = asyncio.get_running_loop().time()
        self.acked = b""

    async def end(self) -> None:
        """Wait until the handler has returned, and handle no more messages of the consumer."""
        async with self._turn:
            self._is_ended = True

    async def handle(self, message: Message) -> None:
        """Handle and acknowledge a message; an error of the handler is raised."""
        _caller.set(self)
        async with self._turn:
            if self._is_ended or self._member._stopping.is_set():
                message.nak()
                return
            if not await self._has(message):
                return
            message.raw_subject = message.raw_subject.partition(b".")[2]
            self._at_work = message
            try:
                result = self._handler(message)
                if result is not None:
                    await result
            finally:
                self._at_work = None
            if not message.is_settled:
                message.ack()
                self.acked = message.raw_reply

    async def _has(self, message: Message) -> bool:
        """Return whether the message is this instance's to handle; otherwise the server delivers it again if needed.

        With one message out at a time, every message was delivered after the previous one was begun. A message that
        may have waited longer, as in the socket of a frozen instance, is checked with the server.
        """
        now = asyncio.get_running_loop().time()
        if self._member._max_ack_pending == 1 and now - self._sure_at > self._member._ack_wait_s / 2:
            # sometimes: a member asks whether a message is its own
            try:
                await message.in_progress_sync(timeout=self._member._ack_wait_s)
                info = await self._member._consumer_info()
            except (NotFoundError, NoRespondersError):
                return False
            except JetlakeError as error:
                self._member._report(error)
                return False
            last = info.delivered.consumer_seq
            if not info.num_ack_pending or (info.created, last) != (self._created, message.metadata.consumer_seq):
                return False
        self._sure_at = now
        return True

    async def keep_in_progress(self) -> None:
        """Extend the ack wait while the handler is at work, so that its message is not delivered again."""
        while True:
            await asyncio.sleep(self._member._ack_wait_s / 3)
            message = self._at_work
            if message is not None and not message.is_settled:
                try:
                    message.in_progress()
                except JetlakeError as error:
                    self._member._report(error)
