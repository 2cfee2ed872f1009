"""The subscription of a push consumer: statuses handled, heartbeats watched, the consumer deleted if we made it."""

from __future__ import annotations

import asyncio
from collections import deque
from inspect import iscoroutinefunction

from msgspec import Struct

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.connection.subscription import MessageCallback, PendingLimits, Subscription
from jetlake.client.legacy.push_status import PushStatus
from jetlake.client.messages.message import Message
from jetlake.errors import ClientConnectionError, ConsumerDeletedError, JetlakeError, NotFoundError
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.durations import Seconds, seconds
from jetlake.model.enums import AckPolicy
from jetlake.model.replies import ConsumerDeleteReply, ConsumerInfoReply
from jetlake.protocol import encoder

__all__ = ["UNBOUND_WAITS_S", "PushSettings", "PushSubscription"]

UNBOUND_WAITS_S = (0.0, 0.005, 0.02, 0.075, 0.15)
"""When to ask whether a consumer is bound: a server notices only a moment after the UNSUB that it is no longer."""


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
    """Messages of a push consumer; made by `JetStream.subscribe` and `JetStream.queue_subscribe`.

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
        "_auto_ack",
        "_check",
        "_created",
        "_deletion",
        "_flow_due",
        "_is_named",
        "_needs_no_ack",
        "_put_total",
        "_status",
        "_timer",
        "consumer_name",
        "stream_name",
    )

    def __init__(
        self,
        api: ApiCaller,
        subject: bytes,
        queue: bytes,
        settings: PushSettings,
    ) -> None:
        callback = settings.callback
        self._api = api
        self._auto_ack = callback is not None and not settings.manual_ack
        self._alarm_s = settings.heartbeat_alarm_s
        self._created = False
        self._is_named = False
        self._deletion: asyncio.Task[None] | None = None
        self._needs_no_ack = False
        self._put_total = 0
        self._flow_due: deque[tuple[int, bytes]] = deque()
        self._status: PushStatus | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None
        self.stream_name = ""
        self.consumer_name = ""
        super().__init__(
            api.connection,
            subject,
            queue,
            callback=None if callback is None else self._acking(callback),
            limits=settings.limits,
        )

    def attach(self, info: ConsumerInfo, *, created: bool, is_named: bool = False) -> None:
        """Bind the subscription to the consumer that serves it.

        Args:
            info: the consumer.
            created: the consumer was created for this subscription, which deletes it at its end.
            is_named: the consumer has a name of the user's, by which others may use it too.
        """
        self.stream_name = info.stream_name
        self.consumer_name = info.name
        self._created = created
        self._is_named = is_named
        self._needs_no_ack = info.config.ack_policy is AckPolicy.NONE
        loop = self._connection.loop
        self._status = PushStatus(
            seconds(info.config.idle_heartbeat), checks_gaps=not self.queue, now=loop.time(), alarm_s=self._alarm_s
        )
        self._arm()
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
        return self._created

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server about the consumer."""
        return await self._api.call(ConsumerInfoReply, "CONSUMER.INFO", self.stream_name, self.consumer_name)

    # Ending

    async def unsubscribe(self, after: int = 0) -> None:
        """End it; a consumer that it created is deleted (at once, unless `after` messages are still to come).

        The consumer stays while another member of its queue group is bound to it.

        Raises:
            ApiError: the consumer could not be deleted.
        """
        self._stop_timer()
        await super().unsubscribe(after)
        if self.is_closed and self._deletion is None:
            await self._delete_consumer()

    async def drain(self, timeout: Seconds | None = None) -> None:
        """End it without loss, then delete a consumer that it created; a failure goes to `on_error`."""
        self._stop_timer()
        await super().drain(timeout)
        await self._delete_or_report()

    async def wind_down(self) -> None:
        """The client drains: what has a name outlives the connection, and so does the place in the stream."""
        self._stop_timer()
        await super().wind_down()
        if not self._is_named:
            await self._delete_or_report()

    async def _delete_or_report(self) -> None:
        try:
            await self._delete_consumer()
        except JetlakeError as error:
            self._connection.signal(error)

    async def _delete_consumer(self) -> None:
        if not self._created:
            return
        self._created = False
        try:
            if self.queue and await self._is_shared():
                return
            await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.stream_name, self.consumer_name)
        except NotFoundError:
            pass  # It is gone already.

    async def _is_shared(self) -> bool:
        """Whether another member of the queue group is bound to the consumer; this one no longer is."""
        for wait_s in UNBOUND_WAITS_S:
            await asyncio.sleep(wait_s)
            if not (await self.consumer_info()).push_bound:
                return False
        return True

    # What the connection calls

    def receive(self, messages: list[Message]) -> None:
        status = self._status
        if status is None:
            # The consumer is being created; look at them when it is known.
            self._mailbox.messages.extend(messages)
            return
        news = status.received(messages, self._connection.loop.time())
        if self._needs_no_ack:
            for message in news.messages:
                message._settled = True
        for notice in news.notices:
            self._connection.signal(notice)
        self._hand_over(news.messages, news.flow_replies)
        if news.error is not None:
            if self._callback is None:
                self._connection.unsubscribe(self)
                self.ended(news.error)
            else:
                self._connection.signal(news.error)

    def _hand_over(self, messages: list[Message], flow_replies: list[tuple[int, bytes]]) -> None:
        """Queue the messages; flow control is answered when those before it have been handed out."""
        for position, subject in flow_replies:
            self._flow_due.append((self._put_total + position, subject))
        self._put_total += len(messages)
        if messages:
            super().receive(messages)
        self._needs_look = bool(self._flow_due) or self._is_slow
        if self._flow_due:
            self._handed_out()

    def _handed_out(self) -> None:
        taken = self._put_total - len(self._mailbox.messages)
        while self._flow_due and self._flow_due[0][0] <= taken:
            _, subject = self._flow_due.popleft()
            try:
                self._connection.send(encoder.pub(subject, b"", b""))
            except ClientConnectionError:
                pass  # The server asks again with its next heartbeat.
        super()._handed_out()
        self._needs_look = bool(self._flow_due) or self._is_slow

    def ended(self, error: Exception | None) -> None:
        self._stop_timer()
        super().ended(error)
        if self._created and self.delivered_max and not self._connection.is_closed:
            # The last message that was asked for has come, and nobody waits here for the answer.
            self._deletion = self._connection.loop.create_task(self._delete_or_report())

    def disconnected(self) -> None:
        if self._status is not None:
            self._status.disconnected()
        self._stop_timer()

    def reconnected(self) -> None:
        if self._status is not None:
            self._status.reconnected(self._connection.loop.time())
            self._arm()
            self._begin_check()

    # Heartbeats

    def _arm(self) -> None:
        deadline = self._status.deadline() if self._status is not None else None
        if deadline is not None and not self.is_closed:
            self._timer = self._connection.loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """The timer: messages only move the deadline, so it is checked here and set again."""
        assert self._status is not None
        alarm = self._status.alarm(self._connection.loop.time())
        if alarm is not None:
            self._connection.signal(alarm)
            self._begin_check()
        self._arm()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._check is not None and self._check is not asyncio.current_task():
            self._check.cancel()
            self._check = None

    # The consumer, which nobody announces to be gone

    def _begin_check(self) -> None:
        if self._check is None or self._check.done():
            self._check = self._connection.loop.create_task(self._check_consumer())

    async def _check_consumer(self) -> None:
        """End with an error if the consumer is gone; every other answer, or none, leaves things as they are."""
        try:
            await self.consumer_info()
        except NotFoundError:
            self._created = False
            self._end_with(ConsumerDeletedError(self.stream_name, self.consumer_name))
        except JetlakeError:
            pass

    def _end_with(self, error: JetlakeError) -> None:
        self._connection.unsubscribe(self)
        self.ended(error)
        if self._callback is not None:
            self._connection.signal(error)

    # Acknowledging

    def _acking(self, callback: MessageCallback) -> MessageCallback:
        """The callback, with the acknowledgement behind it."""
        if not self._auto_ack:
            return callback
        if iscoroutinefunction(callback):

            async def call_and_ack(message: Message) -> None:
                await callback(message)
                message.ack()

            return call_and_ack

        def call_then_ack(message: Message) -> None:
            callback(message)
            message.ack()

        return call_then_ack
