"""The older workflow, in which a consumer comes into being with its subscription (ADR-13, ADR-15)."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.api.config_options import ConsumerOptions
from jetlake.client.connection.subscription import MessageCallback, SlowPolicy
from jetlake.client.legacy.pull_subscription import PullSubscription
from jetlake.client.legacy.push_subscription import PushSubscription
from jetlake.client.legacy.subscribe_checks import SubscribeRequest, check_request
from jetlake.client.legacy.subscribe_workflow import find_stream, subscribe_pull, subscribe_push
from jetlake.client.ordered.ordered_consume import OrderedConsume
from jetlake.client.settings.options import duration_s
from jetlake.client.streams.stream import stream_handle
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds

__all__ = ["Subscribing"]


class Subscribing:
    """The part of a JetStream context that subscribes in the older way."""

    _api: ApiCaller

    @overload
    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        ordered: Literal[False] = False,
        manual_ack: bool = False,
        heartbeat_alarm: Seconds | None = None,
        keep_consumer: bool = False,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> PushSubscription: ...

    @overload
    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        ordered: Literal[True],
        manual_ack: bool = False,
        heartbeat_alarm: Seconds | None = None,
        keep_consumer: bool = False,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> OrderedConsume: ...

    async def subscribe(
        self,
        subject: str = "",
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        ordered: bool = False,
        manual_ack: bool = False,
        heartbeat_alarm: Seconds | None = None,
        keep_consumer: bool = False,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> PushSubscription | OrderedConsume:
        """Subscribe through a push consumer that exists or is created now and deleted by `unsubscribe` and `drain`.

        That is ADR-15's rule: they delete a consumer that this call created, a durable one with its place in the stream
        too, unless `keep_consumer` is set or another member of its queue group is bound to it. Closing, draining or
        losing the client's connection deletes nothing that has a name. Without `consumer` and `durable` an ephemeral
        consumer is created.

        Args:
            subject: what to receive; also finds the stream.
            callback: called with each message, which is acknowledged when it returns; without it, iterate.
            stream: the stream's name; needed when several streams have the subject.
            consumer: bind to this existing consumer, and create none.
            durable: use this durable consumer, and create it if it is missing.
            ordered: every message once and in order, without acknowledgements; see `Stream.ordered`.
            manual_ack: leave acknowledging to the callback.
            keep_consumer: leave a consumer that this call creates where it is when the subscription ends.
            heartbeat_alarm: seconds of silence after which `on_error` gets a `HeartbeatMissedError`. Default: three
                times the consumer's `idle_heartbeat`.
            pending_messages_max: most messages that may wait to be taken.
            pending_bytes_max: most bytes of payload that may wait to be taken.
            on_slow: what happens at these limits; see `Client.subscribe`.
            options: what a new consumer is like; one that exists must be the same.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            is_ordered=ordered,
            keeps_consumer=keep_consumer,
            options=dict(options),
        )
        if ordered:
            return await self._subscribe_ordered(request, callback)
        return await self._subscribe_push(
            request, callback, manual_ack, heartbeat_alarm, pending_messages_max, pending_bytes_max, on_slow
        )

    async def queue_subscribe(
        self,
        subject: str,
        queue: str,
        callback: MessageCallback | None = None,
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        manual_ack: bool = False,
        keep_consumer: bool = False,
        pending_messages_max: int = 512 * 1024,
        pending_bytes_max: int = 128 * 1024 * 1024,
        on_slow: SlowPolicy = "drop_new",
        **options: Unpack[ConsumerOptions],
    ) -> PushSubscription:
        """Share a push consumer, which its creator's `unsubscribe` or `drain` deletes if no other member is bound.

        Without `consumer` and `durable` the queue's name is the durable's name, so that all members meet (ADR-15). With
        `keep_consumer` the consumer stays when its creator is the last to go; see `subscribe`.
        """
        if not queue:
            raise InvalidOptionError("queue_subscribe needs the name of a queue")
        if not consumer and not durable:
            durable = queue
        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            queue=queue,
            keeps_consumer=keep_consumer,
            options=dict(options),
        )
        return await self._subscribe_push(
            request, callback, manual_ack, None, pending_messages_max, pending_bytes_max, on_slow
        )

    async def pull_subscribe(
        self,
        subject: str = "",
        durable: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        keep_consumer: bool = False,
        **options: Unpack[ConsumerOptions],
    ) -> PullSubscription:
        """Fetch by hand from a pull consumer that exists or is created now and deleted by `unsubscribe` and `drain`.

        They delete a consumer that this call created, a durable one too, unless `keep_consumer` is set or somebody else
        pulls from it; closing the client does not (ADR-13, ADR-15).

        Args:
            subject: what to receive; also finds the stream.
            durable: use this durable consumer, and create it if it is missing. Default: an ephemeral one.
            stream: the stream's name; needed when several streams have the subject.
            consumer: bind to this existing consumer, and create none.
            keep_consumer: leave a consumer that this call creates where it is when the subscription ends.
            options: what a new consumer is like; one that exists must be the same.

        Raises:
            InvalidOptionError: the options contradict each other; nothing was sent.
            SubscribeMismatchError: the consumer that exists does not fit; the message says why.
            StreamNotFoundError: no stream has the subject.
        """
        request = SubscribeRequest(
            subject=subject,
            stream=stream,
            consumer=consumer,
            durable=durable,
            is_pull=True,
            keeps_consumer=keep_consumer,
            options=dict(options),
        )
        return await subscribe_pull(self._api, request)

    async def _subscribe_push(
        self,
        request: SubscribeRequest,
        callback: MessageCallback | None,
        manual_ack: bool,
        heartbeat_alarm: Seconds | None,
        pending_messages_max: int,
        pending_bytes_max: int,
        on_slow: SlowPolicy,
    ) -> PushSubscription:
        return await subscribe_push(
            self._api,
            request,
            callback=callback,
            manual_ack=manual_ack,
            heartbeat_alarm_s=None if heartbeat_alarm is None else duration_s("heartbeat_alarm", heartbeat_alarm),
            pending_messages_max=pending_messages_max,
            pending_bytes_max=pending_bytes_max,
            on_slow=on_slow,
        )

    async def _subscribe_ordered(self, request: SubscribeRequest, callback: MessageCallback | None) -> OrderedConsume:
        check_request(request)
        stream = await find_stream(self._api, request)
        options = {name: value for name, value in request.options.items() if name not in ("ack_policy", "flow_control")}
        heartbeat: Any = options.pop("idle_heartbeat", None)
        if request.subject and "filter_subjects" not in options:
            options.setdefault("filter_subject", request.subject)
        ordered = stream_handle(self._api, stream).ordered(**options)
        return ordered.consume(callback, idle_heartbeat=heartbeat).start()
