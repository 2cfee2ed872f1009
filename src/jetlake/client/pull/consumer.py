"""The handle of a pull consumer: fetch, next, consume, and what is done with the consumer itself."""

from __future__ import annotations

from datetime import datetime

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.consumer_api import pause_consumer
from jetlake.client.messages.message import Message
from jetlake.client.pull.consume import Consume, PinnedCallback, UnpinnedCallback
from jetlake.client.pull.explanation import Explanation, explain
from jetlake.client.pull.fetch import Fetch
from jetlake.client.pull.handlers import MessageHandler
from jetlake.client.pull.options import (
    NO_GROUP,
    Backoff,
    ConsumeOptions,
    GroupOptions,
    MissedHeartbeat,
    consume_options,
    fetch_options,
    group_options,
    next_options,
    retry_options,
)
from jetlake.client.settings.options import ErrorCallback
from jetlake.completion import hides
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.consumer_features import PENDING_LIST
from jetlake.model.encoding.durations import Seconds
from jetlake.model.enums import AckPolicy, PriorityPolicy
from jetlake.model.replies import (
    ConsumerDeleteReply,
    ConsumerInfoReply,
    ConsumerPauseReply,
    ConsumerPendingReply,
    ConsumerResetReply,
    ConsumerUnpinReply,
    StreamInfoReply,
)
from jetlake.model.requests import ConsumerResetRequest, ConsumerUnpinRequest, StreamInfoRequest


@hides("consume_with", "info_within", "leader", "needs_ack", "prepare", "pull_subject", "unseen")
class Consumer:
    """A pull consumer of a stream.

    Attributes:
        stream_name: the stream's name.
        name: the consumer's name.
        cached_info: the server's last answer about the consumer; with names alone while `is_known` is False.
        is_known: the server has answered; without an answer, nothing is checked against the consumer's configuration.
        pull_subject: the subject that pull requests are published to.
        needs_ack: whether messages wait for their acknowledgement.

    Raises:
        InvalidOptionError: the consumer is push based.
    """

    __slots__ = ("_api", "cached_info", "is_known", "name", "needs_ack", "pull_subject", "stream_name")

    def __init__(self, api: ApiCaller, info: ConsumerInfo, *, is_known: bool = True) -> None:
        if info.config.is_push:
            raise InvalidOptionError(
                f"consumer {info.name!r} is push based: it delivers to {info.config.deliver_subject!r}; "
                f"read it by js.subscribe with bind or `jetlake consumer sub {info.stream_name} {info.name}`, "
                "or create a pull consumer"
            )
        self._api = api
        self.stream_name = info.stream_name
        self.name = info.name
        self.pull_subject = api.subject("CONSUMER.MSG.NEXT", info.stream_name, info.name)
        self._set_info(info)
        self.is_known = is_known

    @classmethod
    def unseen(cls, api: ApiCaller, stream: str, name: str) -> Consumer:
        """Return the handle of a consumer that the server was not asked about, or may not tell this user about."""
        config = ConsumerConfig(name=name, ack_policy=AckPolicy.EXPLICIT)
        return cls(api, ConsumerInfo(stream_name=stream, name=name, config=config), is_known=False)

    def _set_info(self, info: ConsumerInfo) -> None:
        self.is_known = True
        self.cached_info = info
        self.needs_ack = info.config.ack_policy is not AckPolicy.NONE

    @property
    def config(self) -> ConsumerConfig:
        """The configuration in the server's last answer."""
        return self.cached_info.config

    @property
    def leader(self) -> str:
        """The leader of the consumer's cluster group in the server's last answer; empty outside of clusters."""
        return self.cached_info.cluster.leader if self.cached_info.cluster is not None else ""

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.stream_name!r}>"

    # Reading

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Fetch:
        """Request some messages once.

        `await` it for a list, which is empty when none came in time; `async for` over it takes each as it comes. The
        list's `ack()` acknowledges all messages by one call. A pull that is refused, or that no server can take right
        now, is an error, not an empty list.

        Args:
            max_messages: most messages; this or `max_bytes` is needed.
            expires: seconds to wait for them. Default 5; with `no_wait` none.
            max_bytes: most bytes, counting subject, reply, headers and payload; takes precedence over `max_messages`,
                so a first message that is larger gives an empty list.
            idle_heartbeat: seconds after which a silent server has to give a sign of life; twice that without one is
                an error. At most half of `expires`. Default: 5 when `expires` is at least 10, else none; 0 for none.
            no_wait: take what is there; with `expires`, wait for the first message only.
            group: the priority group, needed if the consumer has groups.
            min_pending: overflow policy: only when at least this number of messages is yet to be delivered.
            min_ack_pending: overflow policy: only when at least this number of messages waits for acknowledgement.
            priority: prioritized policy: 0 (first) to 9.

        Raises:
            InvalidOptionError: an option that cannot work; nothing was sent.
        """
        self._refuse_pinned("fetch")
        groups = self._groups(group, min_pending, min_ack_pending, priority)
        return Fetch(
            self._api.connection,
            self,
            fetch_options(
                max_messages,
                max_bytes=max_bytes,
                expires=expires,
                idle_heartbeat=idle_heartbeat,
                no_wait=no_wait,
                group=groups,
            ),
        )

    def ack_next(
        self,
        message: Message,
        max_messages: int = 1,
        *,
        expires: Seconds | None = None,
        max_bytes: int | None = None,
        idle_heartbeat: Seconds | None = None,
        no_wait: bool = False,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Fetch:
        """Acknowledge a message of this consumer and request the next ones, in one message to the server.

        Result and other arguments are as in `fetch`. A message that was acknowledged before is not
        acknowledged again. The acknowledgement has no confirmation of its own: the messages that come are one.

        Raises:
            InvalidOptionError: the message is not of this consumer, or an option cannot work; nothing was sent.
        """
        self._refuse_pinned("ack_next")
        metadata = message.metadata
        if (metadata.stream, metadata.consumer) != (self.stream_name, self.name):
            raise InvalidOptionError(
                f"the message belongs to consumer {metadata.consumer!r} of stream {metadata.stream!r}, not of {self!r}"
            )
        options = fetch_options(
            max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            no_wait=no_wait,
            group=self._groups(group, min_pending, min_ack_pending, priority),
        )
        return Fetch(self._api.connection, self, options, after=message)

    async def next(
        self,
        timeout: Seconds = 5.0,
        *,
        idle_heartbeat: Seconds | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Message | None:
        """Return the next message, or None if none arrived within `timeout` seconds; 0 does not wait.

        Raises:
            ConsumeError: the consumer is gone or the server stalls.
            DisconnectedError: there is no server, or the connection was lost meanwhile.
            PermissionsError: the user may not pull.
        """
        self._refuse_pinned("next")
        groups = self._groups(group, min_pending, min_ack_pending, priority)
        messages = await Fetch(
            self._api.connection,
            self,
            next_options(timeout, idle_heartbeat=idle_heartbeat, group=groups),
        )
        return messages[0] if messages else None

    def consume(
        self,
        handler: MessageHandler | None = None,
        *,
        concurrency: int = 1,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: Seconds | None = None,
        idle_heartbeat: Seconds | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        on_missed_heartbeat: MissedHeartbeat = "stop",
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
        on_pinned: PinnedCallback | None = None,
        on_unpinned: UnpinnedCallback | None = None,
        stop_after: int | None = None,
        max_rate: float | None = None,
        on_error: ErrorCallback | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        dead_letter: str | None = None,
    ) -> Consume:
        """Read without end, with messages fetched ahead.

        Messages that were fetched ahead and not handed out go back when the read ends, and that delivery counts. From a
        consumer with `max_deliver` nothing is therefore fetched ahead while messages come that have few deliveries left
        (with `max_deliver=1` never), which costs a round trip for each; with `max_bytes` this is left to you.

        ::

            async with consumer.consume() as messages:
                async for message in messages:
                    await message.ack()

        Args:
            handler: called with each message, instead of iterating; a plain or a coroutine function. What it raises
                goes to `on_error`, and the message comes again after its ack wait, or as `retries` say.
            concurrency: how many messages handlers work on at once.
            max_messages: most messages fetched ahead. Default 1000. Not together with `max_bytes`.
            max_bytes: most bytes fetched ahead, counting subject, reply, headers and payload.
            expires: seconds after which a pull is renewed, 4 to 600. Default 60.
            idle_heartbeat: seconds after which a silent server has to give a sign of life, 2 to 60 and at most half of
                `expires`. Default 30. Twice that without one is a missed heartbeat.
            threshold_messages: how few messages may be pending before more are asked for. Default: a quarter of the
                limit.
            threshold_bytes: the same in bytes, when `max_bytes` limits.
            on_missed_heartbeat: what to do with a consumer that answers, has pulls and sends no heartbeats: `stop`
                raises `HeartbeatMissedError` out of the loop; `continue` reports it to `on_error` and pulls again. A
                dead connection, a server that does not answer and lost pulls end no read, whatever is chosen here.
            stop_after: end after this number of messages, and request no more than these. Default: never.
            max_rate: most messages per second; the others stay on the server, where other readers may take them. Those
                of a tenth of a second may come together. Default: as fast as they are handled.
            on_error: called instead of the client's `on_error` with what this read cannot raise: failing handlers,
                missed heartbeats, a server that does not answer for its consumer.
            retries: how often a message whose handler raised is tried again before it is given up, which terminates it.
                Default 3 when `backoff` or `dead_letter` is given; otherwise such messages wait for their ack wait.
            backoff: seconds before each retry, one for all or a list whose last one repeats. Default: the consumer's,
                or 1, 2, 4 … up to 60.
            dead_letter: the subject, with `{stream}` and `{consumer}`, that a message is stored under when it is given
                up, with the reason, the traceback and its origin in headers. A stream has to capture it.
            group: the priority group, needed if the consumer has groups.
            min_pending: overflow policy: only when at least this number of messages is yet to be delivered.
            min_ack_pending: overflow policy: only when at least this number of messages waits for acknowledgement.
            priority: prioritized policy: 0 (first) to 9.
            on_pinned: pinned policy: called with the pin when this client becomes the pinned one.
            on_unpinned: pinned policy: called when it is no longer.

        Raises:
            InvalidOptionError: an option that cannot work; nothing was sent.
        """
        groups = self._groups(group, min_pending, min_ack_pending, priority)
        policy = retry_options(self.config, retries, backoff, dead_letter)
        options = consume_options(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            on_missed_heartbeat=on_missed_heartbeat,
            group=groups,
            stop_after=stop_after,
            on_error=on_error,
            retries=policy,
            max_rate=max_rate,
        )
        return Consume(
            self._api.connection,
            self,
            options,
            handler=handler,
            concurrency=concurrency,
            on_pinned=on_pinned,
            on_unpinned=on_unpinned,
        )

    def consume_with(self, options: ConsumeOptions, handler: MessageHandler) -> Consume:
        """Read without end with unchecked options, for parts of the library."""
        return Consume(self._api.connection, self, options, handler=handler)

    messages = consume
    """Another name for `consume`, for iterating: `async for message in consumer.messages()`."""

    # The consumer itself

    async def info(self) -> ConsumerInfo:
        """Ask the server about the consumer.

        Raises:
            ConsumerNotFoundError: the consumer was deleted.
        """
        return await self.info_within(None)

    async def info_within(self, timeout_s: float | None) -> ConsumerInfo:
        """Ask the server about the consumer, with a timeout of its own."""
        info = await self._api.call(
            ConsumerInfoReply, "CONSUMER.INFO", self.stream_name, self.name, timeout_s=timeout_s
        )
        self._set_info(info)
        return info

    def prepare(self, messages: list[Message]) -> None:
        """Mark messages that need no acknowledgement, so that none is sent."""
        if not self.needs_ack and not messages[0]._settled:
            for message in messages:
                message._settled = True

    async def explain(self) -> Explanation:
        """Say why the consumer delivers nothing: paused, no pulls, unacknowledged messages, a filter without matches.

        On jetlake's own server it names the messages that wait for acknowledgement; nats-server does not tell them.

        Raises:
            ConsumerNotFoundError: the consumer was deleted.
        """
        api = self._api
        info = await self.info()
        pending = stream = None
        if PENDING_LIST in api.connection.info.jetlake_features:
            reply = await api.call(ConsumerPendingReply, "CONSUMER.PENDING", self.stream_name, self.name)
            pending = reply.messages
        if info.config.filters and not info.num_pending and not info.num_ack_pending:
            for subject in info.config.filters:
                body = StreamInfoRequest(subjects_filter=subject)
                stream = await api.call(StreamInfoReply, "STREAM.INFO", self.stream_name, body=body)
                if stream.state.subjects:
                    break
        return explain(info, stream, pending)

    async def delete(self) -> None:
        """Delete the consumer on the server."""
        await self._api.call(ConsumerDeleteReply, "CONSUMER.DELETE", self.stream_name, self.name)

    async def pause(self, until: datetime | str | Seconds) -> ConsumerPauseReply:
        """Pause delivery until a time.

        Args:
            until: the time, or seconds from now.
        """
        return await pause_consumer(self._api, self.stream_name, self.name, until)

    async def resume(self) -> ConsumerPauseReply:
        """Resume delivery."""
        return await pause_consumer(self._api, self.stream_name, self.name, None)

    async def reset(self, sequence: int = 0) -> ConsumerResetReply:
        """Deliver again from a stream sequence, or from the first message that is not acknowledged."""
        if sequence < 0:
            raise InvalidOptionError(f"sequence must be 0 or more, not {sequence}")
        body = ConsumerResetRequest(seq=sequence) if sequence else None
        return await self._api.call(ConsumerResetReply, "CONSUMER.RESET", self.stream_name, self.name, body=body)

    async def unpin(self, group: str) -> None:
        """Unpin the pinned client, so that another one is pinned.

        Raises:
            ApiError: the consumer has no such group.
        """
        if not group:
            raise InvalidOptionError("unpin needs the name of a group")
        request = ConsumerUnpinRequest(group=group)
        await self._api.call(ConsumerUnpinReply, "CONSUMER.UNPIN", self.stream_name, self.name, body=request)

    def _groups(
        self, group: str | None, min_pending: int | None, min_ack_pending: int | None, priority: int | None
    ) -> GroupOptions:
        if self.config.priority_policy is PriorityPolicy.NONE and (
            (group, min_pending, min_ack_pending, priority) == (None, None, None, None)
        ):
            return NO_GROUP
        config = self.config if self.is_known else None
        return group_options(
            config, group=group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
        )

    def _refuse_pinned(self, call: str) -> None:
        if self.config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            raise InvalidOptionError(
                f"{call} does not work on a pinned_client consumer: use consume, which keeps the pin"
            )
