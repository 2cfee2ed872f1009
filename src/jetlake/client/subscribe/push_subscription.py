"""The subscription of a push consumer: its messages, statuses, flow control, heartbeats, and the consumer's deletion.

Messages that arrive before `attach` wait unread: they are handled once the consumer's configuration is
known. A flow control request is answered only after all messages before it were
handed out; that is the back-pressure, so answers stay in the order of the messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction

from msgspec import Struct

from jetlake.client.api.api_caller import ApiCaller, until_ready
from jetlake.client.connection.subscription import MessageCallback, PendingLimits, Subscription
from jetlake.client.messages.loan import NEVER
from jetlake.client.messages.message import Message
from jetlake.client.messages.ready import READY
from jetlake.client.subscribe.bound_consumer import BoundConsumer
from jetlake.client.subscribe.push_status import PushStatus
from jetlake.errors import ClientConnectionError, ConsumerDeletedError, JetlakeError, NotFoundError
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.durations import Seconds, seconds
from jetlake.model.enums import AckPolicy
from jetlake.model.replies import ConsumerInfoReply
from jetlake.protocol import encoder


class PushSettings(Struct, frozen=True):
    """How a push subscription treats its messages.

    Attributes:
        callback: called with each message; None to iterate.
        manual_ack: leave acknowledging to the callback.
        heartbeat_alarm_s: silence after which an alarm is due; three heartbeat intervals when None.
        limits: how many messages may wait, and what happens at the limits.
    """

    callback: MessageCallback | None
    manual_ack: bool
    heartbeat_alarm_s: float | None
    limits: PendingLimits


class PushSubscription(Subscription):
    """Messages of a push consumer; created by `JetStream.subscribe` and `JetStream.queue_subscribe`.

    Heartbeats, flow control and gaps are handled: alarms and gaps go to `on_error`. A status that is an error ends
    the iterator with it (with a callback, it goes to `on_error`). So does a consumer that is found to be gone after an
    alarm or on a new connection. With a callback, a message is acknowledged when the callback returns, unless
    `manual_ack` was asked for.

    Attributes:
        consumer_name: the consumer's name.
        stream_name: its stream's name.
    """

    __slots__ = (
        "_alarm_s",
        "_api",
        "_bound",
        "_checking",
        "_deletion",
        "_flow_due",
        "_flow_expected",
        "_is_watching",
        "_needs_no_ack",
        "_status",
        "_timer",
        "consumer_name",
        "stream_name",
    )

    def __init__(self, api: ApiCaller, subject: bytes, queue: bytes, settings: PushSettings) -> None:
        callback = api.connection.traced(settings.callback)
        if callback is not None and not settings.manual_ack:
            callback = _acking(callback)
        self._api = api
        self._alarm_s = settings.heartbeat_alarm_s
        self._bound: BoundConsumer | None = None
        self._deletion: asyncio.Task[None] | None = None
        self._needs_no_ack = False
        # Flow control subjects, each with the number of messages that come before it.
        self._flow_due: deque[tuple[int, bytes]] = deque()
        self._flow_expected = 0
        self._status: PushStatus | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._is_watching = False
        self.stream_name = ""
        self.consumer_name = ""
        super().__init__(api.connection, subject, queue, callback=callback, limits=settings.limits)

    def attach(self, info: ConsumerInfo, *, created: bool, is_named: bool = False) -> None:
        """Bind the subscription to the consumer that serves it.

        Args:
            info: the consumer.
            created: the consumer was created for this subscription, which deletes it at its end.
            is_named: the consumer has a name of the user's, by which others may use it too.
        """
        self.stream_name = info.stream_name
        self.consumer_name = info.name
        self._bound = BoundConsumer(self._api, info.stream_name, info.name, is_owned=created, is_named=is_named)
        self._needs_no_ack = info.config.ack_policy is AckPolicy.NONE
        loop = self._connection.loop
        self._status = PushStatus(
            seconds(info.config.idle_heartbeat),
            checks_gaps=not self.queue,
            now=loop.time(),
            alarm_s=self._alarm_s,
            delivered=info.delivered.consumer_seq,
        )
        if not self.is_closed:
            self._start_watch(self._status)
        # Messages received before the answer are handled now.
        early = self._mailbox.take_all()
        self.pending_bytes = 0
        if early:
            self.receive(early)

    def __repr__(self) -> str:
        ended = " ended" if self.is_closed else ""
        return (
            f"<PushSubscription of {self.consumer_name!r} of {self.stream_name!r} "
            f"{self.pending_messages} waiting{ended}>"
        )

    @property
    def owns_consumer(self) -> bool:
        """Whether this subscription created the consumer, and deletes it at its end."""
        return self._bound is not None and self._bound.is_owned

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server about the consumer."""
        return await self._api.call(ConsumerInfoReply, "CONSUMER.INFO", self.stream_name, self.consumer_name)

    # Ending

    async def unsubscribe(self, after: int = 0) -> None:
        """End it; a consumer that it created is deleted (at once, unless `after` messages are still to come).

        The consumer stays while another member of its queue group is bound to it.

        Raises:
            ApiError: the consumer could not be deleted; `ConsumerNotFoundError` if somebody else has deleted it.
        """
        self._stop_watch()
        await super().unsubscribe(after)
        if self.is_closed and self._deletion is None:
            await self._delete_consumer()

    async def drain(self, timeout: Seconds | None = None) -> None:
        """End it without loss, then delete a consumer that it created; a failure goes to `on_error`."""
        self._stop_watch()
        try:
            await super().drain(timeout)
        finally:
            self._begin_deletion()
        await self._delete_or_report()

    async def wind_down(self) -> None:
        """End without loss when the client drains; a consumer with a name of the user's is kept."""
        self._stop_watch()
        is_deleted = self._bound is not None and not self._bound.is_named
        try:
            await super().wind_down()
        finally:
            if is_deleted:
                self._begin_deletion()
        if is_deleted:
            await self._delete_or_report()

    async def _delete_or_report(self) -> None:
        try:
            await self._delete_consumer()
        except JetlakeError as error:
            self._connection.signal(error)

    async def _delete_consumer(self) -> None:
        if self._bound is not None:
            await self._bound.delete_if_owned(self._bound.is_push_bound if self.queue else None)

    def _begin_deletion(self) -> None:
        if self._bound is not None:
            self._bound.begin_deletion(self._bound.is_push_bound if self.queue else None)

    async def __aexit__(self, *_: object) -> None:
        with suppress(NotFoundError):  # Deleted in the block.
            await self.unsubscribe()

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        status = self._status
        if status is None:
            # The consumer is being created; `attach` handles the messages once its configuration is known.
            self._mailbox.messages.extend(messages)
            return
        news = status.received(messages, self._connection.loop.time())
        if self._needs_no_ack:
            for message in news.messages:
                message._settled = True
        for notice in news.notices:
            self._connection.signal(notice)
        for position, subject in news.flow_replies:
            self._flow_due.append((self._flow_expected + position, subject))
        self._flow_expected += len(news.messages)
        if news.messages:
            super().receive(news.messages)
        self._needs_look = bool(self._flow_due) or self._is_slow
        if self._flow_due:
            self._handed_out()
        if news.error is not None:
            if self._runner is None:
                self._connection.unsubscribe(self)
                self.ended(news.error)
            else:
                self._connection.signal(news.error)

    def _handed_out(self) -> None:
        loan = self.loan
        handed_out = self._flow_expected - len(self._mailbox.messages) - loan.left
        while self._flow_due and self._flow_due[0][0] <= handed_out:
            _, subject = self._flow_due.popleft()
            try:
                self._connection.send(encoder.pub(subject, b"", b""))
            except ClientConnectionError:
                pass  # The server asks again with its next heartbeat.
        loan.look_at = loan.handed_out + self._flow_due[0][0] - handed_out if self._flow_due else NEVER
        super()._handed_out()
        self._needs_look = bool(self._flow_due) or self._is_slow

    def ended(self, error: Exception | None) -> None:
        self._stop_watch()
        super().ended(error)
        if self.owns_consumer and self.delivered_max and not self._connection.is_closed:
            # The last requested message was received, and no call waits for the deletion's answer.
            self._deletion = self._connection.loop.create_task(self._delete_or_report())

    def disconnected(self) -> None:
        if self._status is not None:
            self._status.disconnected()
        self._stop_watch()

    def reconnected(self) -> None:
        if self._status is not None:
            self._status.reconnected(self._connection.loop.time())
            if not self.is_closed:
                self._start_watch(self._status)
            self._check_now()

    # Heartbeats

    def _start_watch(self, status: PushStatus) -> None:
        self._is_watching = True
        deadline = status.deadline()
        if deadline is not None:
            self._timer = self._connection.loop.call_at(deadline, self._look, status)

    def _stop_watch(self) -> None:
        self._is_watching = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._checking is not None and self._checking is not asyncio.current_task():
            self._checking.cancel()
            self._checking = None

    def _look(self, status: PushStatus) -> None:
        """Report an alarm that is due; messages only move the deadline, so the timer is set again."""
        alarm = status.alarm(self._connection.loop.time())
        if alarm is not None:
            self._connection.signal(alarm)
            self._connection.suspect()
            # No server announces that a consumer was deleted.
            self._check_now()
        if self._is_watching:
            self._start_watch(status)

    def _check_now(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = self._connection.loop.create_task(self._check_consumer())

    async def _check_consumer(self) -> None:
        """End with an error if the consumer is gone; a server that is not ready is asked until it is.

        A consumer without heartbeats is checked once for each connection, so this check has to find out.
        """
        assert self._bound is not None
        try:
            await until_ready(self._connection, self.consumer_info, self._connection.signal)
        except NotFoundError:
            self._bound.is_owned = False
            error = ConsumerDeletedError(self.stream_name, self.consumer_name)
            self._connection.unsubscribe(self)
            self.ended(error)
            if self._runner is not None:
                self._connection.signal(error)
        except JetlakeError:
            pass  # A client that may not ask receives messages all the same.


def _acking(callback: MessageCallback) -> MessageCallback:
    """Add an acknowledgement behind the callback, and behind what a plain function returns to be awaited."""

    async def call_and_ack(message: Message) -> None:
        result = callback(message)
        if result is not None:
            await result
        message.ack()

    async def finish(result: Awaitable[None], message: Message) -> None:
        await result
        message.ack()

    def call_then_ack(message: Message) -> Awaitable[None] | None:
        result = callback(message)
        if result is not None and result is not READY and isawaitable(result):
            return finish(result, message)
        message.ack()
        return None

    return call_and_ack if iscoroutinefunction(callback) else call_then_ack
